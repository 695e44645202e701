"""What is worked out on the spot: right, and wrong as soon as the library is."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metastep.core.optimizers import SGD
from metastep.core.stability import coefficients
from metastep.data.errors import DataError
from metastep.data.registry import data_directory
from study.claims import numeric
from study.claims.claims import Finding
from study.claims.evidence import Evidence
from study.claims.register import REGISTER

HERE = Evidence(Path("nowhere"), Path("nowhere"))


def judged(id: str, evidence: Evidence = HERE) -> Finding:
    return REGISTER[id].judge(evidence, ())


def test_x16() -> None:
    found = judged("X16")
    assert found.verdict == "reproduced"
    assert found.value == {"b̃₄": pytest.approx(-1.8837397130, abs=1e-6), "b₇": pytest.approx(-1.7829093922, abs=1e-6)}


def test_x17_and_x18() -> None:
    assert judged("X17").verdict == "reproduced"
    assert judged("X17").value < 1e-14
    assert judged("X18").verdict == "reproduced"
    assert judged("X18").value == {"n = 1": 8, "n = 2": 4, "n = 4": 2, "n = 8": 1}


def broken(follow: Callable[..., Any]) -> Callable[..., Any]:
    """Steps that forget how many they are"""
    return lambda self, p, memory, g, rates: follow(self, p, memory, g, rates[: max(1, len(rates) - 1)])


@pytest.mark.parametrize("id", ["X16", "X17"])
def test_a_wrong_step_is_noticed(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SGD, "_follow", broken(SGD._follow))
    coefficients.cache_clear()
    try:
        assert judged(id).verdict == "not reproduced"
    finally:
        coefficients.cache_clear()


def test_a_product_too_many_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numeric, "MultiStep", lambda window: numeric.MAML())
    assert judged("X18").verdict == "not reproduced"


def test_x21_counts_what_the_loaders_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASTEP_DATA", raising=False)
    assert judged("X21").verdict == "not run"

    def splits(name: str, *_: object) -> Any:
        sizes = {"stl10": (4_500, 500, 8_000), "cifar100": (45_000, 5_000, 10_000 - wrong)}[name]
        return SimpleNamespace(labelled=lambda: SimpleNamespace(counts=sizes))

    there = ("stl10", "cifar100")
    monkeypatch.setattr(numeric, "is_there", lambda name, data: name in there)
    monkeypatch.setattr(numeric, "load", splits)
    wrong = 0
    found = judged("X21")
    assert found.verdict == "reproduced"
    assert "Not at hand: bird, indoor, action, dog" in found.note
    wrong = 1
    assert judged("X21").verdict == "not reproduced"

    def refusing(name: str, *_: object) -> Any:
        raise DataError(f"{name}: has 3 pictures")

    monkeypatch.setattr(numeric, "load", refusing)
    assert judged("X21").verdict == "not reproduced"


@pytest.mark.skipif(data_directory() is None, reason="METASTEP_DATA names no data directory")
def test_x21_on_real_data() -> None:
    assert judged("X21", Evidence(Path("nowhere"), Path("nowhere"), data_directory())).verdict in (
        "reproduced",
        "not run",
    )
