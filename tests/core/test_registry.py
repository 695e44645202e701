"""The registry refuses what it must, and says what to do; options say all about themselves."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import torch

from metastep.core import registry
from metastep.core.options import REQUIRED, Bound, options_of, require_number, require_options
from metastep.errors import MetastepError

Share = Annotated[Any, Bound(ge=0, lt=1)]


@dataclass(frozen=True)
class Everything:
    """Have an option of each kind.

    Args:
        rate: A number
            on two lines.
        shares: Two: of a whole.
        steps: How many.
        depth: How far; all if left out.
        weights: As many as you like.
        mode: Which way.
        flag: Whether.
    """

    rate: Annotated[Any, Bound(gt=0)]
    shares: tuple[Share, Share] = (0.9, 0.99)
    steps: Annotated[int, Bound(ge=1)] = 1
    depth: Annotated[int | None, Bound(ge=1)] = None
    weights: tuple[float, ...] = ()
    mode: Literal["up", "down"] = "up"
    flag: bool = False

    def __post_init__(self) -> None:
        require_options(self)


@pytest.fixture
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it"""
    tables = {kind: dict(registry._complete(kind)) for kind in registry._MODULES}
    monkeypatch.setattr(registry, "_registered", tables)


@pytest.mark.usefixtures("_restored")
def test_what_is_registered_is_found_by_name() -> None:
    assert registry.register("optimizer", "everything")(Everything) is Everything
    assert registry.named("optimizer", "everything") is Everything
    assert "everything" in registry.names("optimizer")
    assert registry.name_of(Everything) == registry.name_of(Everything(1)) == "everything"
    registry.register("optimizer", "everything")(Everything)  # the same again, as when a notebook cell runs again


@pytest.mark.usefixtures("_restored")
def test_refusals() -> None:
    registry.register("optimizer", "everything")(Everything)
    with pytest.raises(MetastepError, match=r"already an inner optimizer 'everything', tests.*Everything. Register bu"):
        registry.register("optimizer", "everything")(int)
    with pytest.raises(MetastepError, match=r"no inner optimizer 'everythin'. Did you mean 'everything'\? Choose one"):
        registry.named("optimizer", "everythin")
    with pytest.raises(MetastepError, match=r"there is no kind 'optimiser'. Did you mean 'optimizer'"):
        registry.register("optimiser", "mine")
    assert registry.name_of(3) is None


def test_options_say_all_about_themselves() -> None:
    options = options_of(Everything)
    assert list(options) == ["rate", "shares", "steps", "depth", "weights", "mode", "flag"]
    assert options["rate"] == ("rate", float, REQUIRED, Bound(gt=0), "A number on two lines.")
    assert options["shares"] == ("shares", tuple[float, float], (0.9, 0.99), Bound(ge=0, lt=1), "Two: of a whole.")
    assert options["flag"] == ("flag", bool, False, None, "Whether.")
    assert options["mode"].type == Literal["up", "down"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": 0}, "Everything: rate = 0 must be a number that is above 0"),
        ({"rate": True}, "rate = True"),
        ({"rate": float("nan")}, "rate = nan"),
        ({"rate": "0.1"}, "rate = '0.1'"),
        ({"rate": {}}, "no number in it"),
        ({"rate": torch.tensor([1.0, -1.0])}, "rate = tensor"),
        ({"rate": torch.tensor(1.0, requires_grad=True)}, r'lambda meta, step: meta\["rate"\]'),
        ({"shares": (0.9, 1)}, r"shares\[1\] = 1 must be a number that is at least 0 and below 1"),
        ({"shares": 0.9}, "shares = 0.9 must be a tuple of 2"),
        ({"steps": 0}, "steps = 0 must be at least 1"),
        ({"steps": 1.5}, "steps = 1.5 must be a whole number"),
        ({"depth": 1.5}, "depth = 1.5 must be a whole number"),
        ({"weights": (1.0, "a")}, r"weights\[1\] = 'a' must be a finite number"),
        ({"mode": "sideways"}, "mode = 'sideways' must be one of 'up', 'down'"),
        ({"flag": 1}, "flag = 1 must be True or False"),
    ],
)
def test_an_option_out_of_bounds_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(MetastepError, match=said):
        Everything(**{"rate": 1, **given})


def test_tensors_trees_and_functions_are_numbers_too() -> None:
    Everything(lambda meta, step: 1, ({"a": torch.ones(2) / 2}, torch.tensor(0.5)), depth=3, weights=(1, 2.0))
    require_number([0.1, torch.ones(2)], Bound(), "a tree")


def test_it_loads_no_torch() -> None:
    code = "import sys; from metastep.core import registry; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
