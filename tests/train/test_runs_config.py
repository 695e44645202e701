"""Configurations: through the file and back as the same, and errors that name the field."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from metastep.errors import MetastepError
from metastep.train.config import from_plain, read_config, to_plain, write_config
from metastep.train.errors import ConfigError


@dataclass(frozen=True)
class Outer:
    rate: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    decay: float | None = None

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise MetastepError(f"rate = {self.rate} must be above 0.")


@dataclass(frozen=True)
class Settings:
    name: str = 'é \u2028 "quoted"'
    steps: int = 5
    augment: bool = False
    method: Literal["maml", "reptile", 1] = "maml"
    seed: Optional[int] = None  # noqa: UP045 - the older spelling must work too
    lengths: tuple[int, ...] = ()
    windows: int | tuple[int, ...] = 2
    number: float | int = 1
    outer: Outer = Outer()
    second: Outer | None = None
    pairs: tuple[tuple[str, Outer], ...] = ()


VARIANTS = [
    Settings(),
    Settings(steps=-3, augment=True, method=1, seed=7, lengths=(1, 2), windows=(1, 2), number=1.0),
    Settings(outer=Outer(0.1, (0.5, 0.25), 1e-300), second=Outer(decay=1 / 3)),
    Settings(pairs=(("a", Outer()), ("b", Outer(2.0)))),
    Settings(name="a path with a byte that is no text: \udcff"),
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_read_gives_what_was_written(tmp_path: Path, settings: Settings) -> None:
    write_config(tmp_path / "config.json", settings)
    kept = read_config(tmp_path / "config.json", Settings)
    assert kept == settings
    assert repr(kept) == repr(settings)  # 1 and 1.0 and True are equal, and not the same


def test_what_is_none_by_default_may_be_left_out() -> None:
    plain = to_plain(Settings(outer=Outer(0.5)))
    del plain["seed"], plain["second"], plain["outer"]["decay"]
    assert from_plain(Settings, plain) == Settings(outer=Outer(0.5))


def test_the_file_is_readable(tmp_path: Path) -> None:
    write_config(tmp_path / "config.json", Outer())
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "format": "metastep run",
        "version": 1,
        "kind": "Outer",
        "config": {"rate": 0.001, "betas": [0.9, 0.999], "decay": None},
    }
    assert (tmp_path / "config.json").read_text().count("\n") > 5


def changed(**fields: Any) -> dict[str, Any]:
    return to_plain(Settings()) | fields  # type: ignore[no-any-return]


OUTER = to_plain(Outer())
WRONG = [
    (changed(steps=2.0), "steps = 2.0 must be a whole number."),
    (changed(steps=True), "steps = true must be a whole number."),
    (changed(steps="5"), 'steps = "5" must be a whole number.'),
    (changed(steps=None), "steps = null must be a whole number."),
    (changed(augment=1), "augment = 1 must be true or false."),
    (changed(name=3), "name = 3 must be text."),
    (changed(method="mamal"), "method = \"mamal\" must be 'maml' or 'reptile' or 1."),
    (changed(method=True), "method = true must be 'maml' or 'reptile' or 1."),
    (changed(seed="x"), 'seed = "x" must be a whole number.'),
    (changed(lengths=3), "lengths = 3 must be a list."),
    (changed(lengths=[1, "2"]), 'lengths[1] = "2" must be a whole number.'),
    (changed(windows="x"), 'windows = "x" must be a whole number or a list.'),
    (changed(outer=3), "outer = 3 must be an object with the fields of Outer."),
    (changed(outer=OUTER | {"rate": "fast"}), 'outer.rate = "fast" must be a number.'),
    (changed(outer=OUTER | {"rate": math.inf}), "outer.rate = Infinity must be a finite number."),
    (changed(outer=OUTER | {"rate": 10**400}), "must be a finite number."),
    (changed(outer=OUTER | {"betas": [0.9]}), "outer.betas = [0.9] must be a list of 2."),
    (changed(second=OUTER | {"decay": "x"}), 'second.decay = "x" must be a number.'),
    (changed(pairs=[["a", OUTER | {"rte": 1}]]), "pairs[0][1].rte: unknown to Outer."),
    (changed(extra=1, more=2), "extra, more: unknown to Settings."),
    (changed(outer={"rate": 1.0}), "outer.betas: missing from Outer."),
    (changed(outer=OUTER | {"rate": -1.0}), "rate = -1.0 must be above 0."),
    ({}, "missing from Settings"),
    ([], "config = [] must be an object with the fields of Settings."),
]


@pytest.mark.parametrize(("plain", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_does_not_fit_is_named(tmp_path: Path, plain: Any, message: str) -> None:
    path = tmp_path / "config.json"
    write_config(path, Settings())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config": plain}))
    with pytest.raises(ConfigError) as caught:
        read_config(path, Settings)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"'{path}': ")


def test_whole_numbers_are_numbers() -> None:
    assert repr(from_plain(Outer, OUTER | {"rate": 1}).rate) == "1.0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "not written by metastep"),
        ('{"format": "other"}', "not written by metastep"),
        ('{"format": "metastep run", "version": 2}', "format version 2, and this metastep reads version 1"),
        ('{"format": "metastep run", "version": 1}', "lacks config, kind"),
        (
            '{"format": "metastep run", "version": 1, "kind": "Transfer", "config": {}}',
            "is a run of 'Transfer', not a run of 'Settings'",
        ),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path / "config.json", Settings)


@dataclass(frozen=True)
class Odd:
    value: Any


@dataclass(frozen=True)
class Listed:
    value: tuple[int, ...]


@pytest.mark.parametrize("config", [Odd(3), Listed([1, 2]), Listed((1.5,)), replace(Outer(), rate=math.nan)])  # type: ignore[arg-type]
def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, config: Any) -> None:
    with pytest.raises(ConfigError):
        write_config(tmp_path / "config.json", config)
    assert not list(tmp_path.iterdir())
