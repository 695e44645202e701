"""Checked dataclasses: to plain values and back as the same, and errors that name the field."""

import math
from dataclasses import field
from typing import Any, Literal

import pytest

from metastep.errors import MetastepError
from metastep.train.io import ConfigError
from metastep.train.validated import Flag, Number, Positive, Text, Whole, checked, from_plain, helps, to_plain


@checked(frozen=True)
class Outer:
    rate: Positive = 0.001
    """How fast."""
    betas: tuple[Number, Number] = (0.9, 0.999)
    decay: Number | None = None

    def __post_init__(self) -> None:
        if self.rate == 7:
            raise MetastepError("rate = 7 brings bad luck.")


@checked(frozen=True)
class Settings:
    name: Text = 'é \u2028 "quoted"'
    steps: Whole = 5
    augment: Flag = False
    method: Literal["maml", "reptile"] = "maml"
    seed: Whole | None = None
    lengths: tuple[Whole, ...] = ()
    outer: Outer = Outer()
    second: Outer | None = None
    pairs: tuple[tuple[Text, Outer], ...] = ()


@checked(frozen=True)
class Longer(Settings):
    """More of it"""

    rest: dict[str, Any] = field(default_factory=dict)
    """What is left."""


VARIANTS = [
    Settings(),
    Settings(steps=-3, augment=True, seed=7, lengths=(1, 2)),
    Settings(outer=Outer(0.1, (0.5, 0.25), 1e-300), second=Outer(decay=1 / 3)),
    Settings(pairs=(("a", Outer()), ("b", Outer(2.0)))),
    Settings(name="a path with a byte that is no text: \udcff"),
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_what_was_plain_is_the_same_again(settings: Settings) -> None:
    kept = from_plain(Settings, to_plain(settings))
    assert kept == settings
    assert repr(kept) == repr(settings)  # 1 and 1.0 and True are equal, and not the same


def test_what_has_a_default_may_be_left_out() -> None:
    assert from_plain(Settings, {"outer": {"rate": 0.5}}) == Settings(outer=Outer(0.5))


def test_help_is_that_of_the_class_and_its_bases() -> None:
    assert helps(Outer) == {"rate": "How fast."}
    assert helps(Longer) == {"rest": "What is left."}


WRONG = [
    ({"steps": 2.5}, "steps = 2.5 must be a whole number."),
    ({"steps": True}, "steps = true must be a whole number."),
    ({"steps": "5"}, "steps = '5' must be a whole number."),
    ({"steps": None}, "steps = null must be a whole number."),
    ({"augment": 1}, "augment = 1 must be true or false."),
    ({"name": 3}, "name = 3 must be text."),
    ({"method": "mamal"}, "method = 'mamal' must be one of 'maml', 'reptile'. Did you mean 'maml'?"),
    ({"seed": "x"}, "seed = 'x' must be a whole number."),
    ({"lengths": 3}, "lengths = 3 must be a list."),
    ({"lengths": [1, "2"]}, "lengths[1] = '2' must be a whole number."),
    ({"outer": 3}, "outer = 3 must be a table of fields."),
    ({"outer": {"rate": "fast"}}, "outer.rate = 'fast' must be a number."),
    ({"outer": {"rate": math.inf}}, "outer.rate = inf must be a finite number."),
    ({"outer": {"rate": 10**400}}, "outer.rate = "),
    ({"outer": {"rate": 0}}, "outer.rate = 0 must be above 0."),
    ({"outer": {"rate": 7.0}}, "rate = 7 brings bad luck."),
    ({"outer": {"betas": [0.9]}}, "outer.betas"),
    ({"second": {"decay": "x"}}, "second.decay = 'x' must be a number."),
    ({"pairs": [["a", {"rte": 1}]]}, "pairs[0][1].rte: there is no such field."),
    ({"extra": 1}, "extra: there is no such field. Fields: name, steps,"),
    ({"rate": 1}, "rate: there is no such field. Did you mean 'outer.rate'?"),
    ([], "the configuration = [] must be a table of fields."),
]


@pytest.mark.parametrize(("plain", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_does_not_fit_is_named(plain: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_plain(Settings, plain)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_are_numbers() -> None:
    assert repr(from_plain(Outer, {"rate": 1}).rate) == "1.0"


def test_what_has_no_name_cannot_be_kept() -> None:
    with pytest.raises(ConfigError, match="cannot be kept in a file"):
        to_plain(Longer(rest={"a": object()}))
