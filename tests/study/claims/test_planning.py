"""When a claim is done: not before its file rests on all that is at hand."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from study.claims.claims import Finding
from study.claims.evidence import Evidence
from study.claims.files import Content, content_of, write
from study.claims.planning import is_done
from study.claims.register import REGISTER
from tests.study.claims.helpers import transfer

NOWHERE = Evidence(Path("nowhere"), Path("nowhere"))


def judged(id: str, targets: Collection[str], seeds: int, stands_in: bool = False) -> Content:
    claim = REGISTER[id]
    presets = [name for name in claim.stand_in if stands_in] or [
        name for name in claim.presets if name.partition("-")[0] in targets
    ]
    outcomes = tuple(transfer(name, 70.0, seed) for name in presets for seed in range(seeds))
    return content_of(claim, Finding("reproduced", 1.0, outcomes=outcomes), stands_in)


def at_hand(targets: Collection[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(self: Evidence, preset: str) -> str | None:
        return None if preset.partition("-")[0] in targets else "pictures"

    monkeypatch.setattr(Evidence, "lacking", lacking)


@pytest.mark.parametrize(
    ("there", "content", "done"),
    [
        (("stl10",), judged("X5", (), 3, stands_in=True), True),
        (("stl10",), judged("X5", (), 2, stands_in=True), False),
        (("stl10", "bird"), judged("X5", (), 3, stands_in=True), False),  # the paper's data are there now
        (("stl10", "bird"), judged("X5", ("bird",), 3), True),
        (("stl10",), judged("X19", ("stl10",), 3), True),
        (("stl10", "cifar100"), judged("X19", ("stl10",), 3), False),
        (("stl10", "cifar100"), judged("X19", ("stl10", "cifar100"), 3), True),
    ],
)
def test_done_with_all_that_is_at_hand(
    there: tuple[str, ...], content: Any, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_hand(there, monkeypatch)
    assert is_done(REGISTER[content["id"]], content, NOWHERE, None) is done


SHORT = replace(transfer("stl10-sgd-scratch", 60.0), iterations=100)


@pytest.mark.parametrize(
    ("first", "then", "replaced"),
    [
        (judged("X19", ("cifar100",), 3), judged("X19", ("cifar100", "stl10"), 3), True),  # of fewer iterations
        (judged("X19", ("stl10", "cifar100"), 3), judged("X19", ("stl10",), 3), False),
        (judged("T2.2", ("stl10",), 1), judged("T2.2", ("stl10",), 3), True),
        (judged("X5", (), 3, stands_in=True), judged("X5", ("bird",), 2), True),  # on the paper's own data
        (judged("T2.2", ("stl10",), 1), content_of(REGISTER["T2.2"], Finding("short", outcomes=(SHORT,) * 3)), False),
        (judged("T2.2", ("stl10",), 1), content_of(REGISTER["T2.2"], Finding("not run")), False),
    ],
)
def test_a_file_gives_way_to_what_rests_on_as_much(first: Any, then: Any, replaced: bool, tmp_path: Path) -> None:
    assert write(tmp_path, first)
    assert write(tmp_path, then) is replaced
    assert write(tmp_path, then, anyway=True)


def test_what_was_counted_in_part_is_counted_again() -> None:
    claim = REGISTER["X21"]
    whole, part = (content_of(claim, Finding("reproduced", note=note)) for note in ("All.", "One. Not at hand: dog."))
    assert is_done(claim, whole, NOWHERE, None)
    assert not is_done(claim, part, NOWHERE, None)
