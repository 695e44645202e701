"""What a page shows of one run, whatever its job is, with the commands that make it again."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.registry import names
from metastep.data.errors import printable
from metastep.data.registry import data_set
from metastep.train import presets
from metastep.train.config import FewShot, Transfer
from metastep.train.evaluate import Evaluation, Mean, paired_difference
from metastep.train.presets import FORGETS, as_toml, laid_over, put
from metastep.train.validated import to_plain

FOUND = ("net.channels", "net.size", "data.fingerprint", "data.test_fingerprint", "source.fingerprint")  # in the data


def again(config: FewShot | Transfer, name: str) -> list[str]:
    """Return the commands that train with this configuration and judge the result."""
    begin, changes = shortest(config.shared)
    place = ["--data", "DATA"] if _needs_place(config) else []
    out = f"runs/{name.rpartition('/')[2]}-again"
    train = ["metastep", "train", begin, *map(printable, changes), *place, "--out", out]
    return [shlex.join(train), shlex.join(["metastep", "evaluate", out, *place])]


def _needs_place(config: FewShot | Transfer) -> bool:
    """Whether a data set is looked for in a data directory"""
    source = config.source.dataset if isinstance(config, Transfer) else None
    known = [name for name in (config.data.name, config.data.test, source) if name in names("dataset")]
    return not all(data_set(name).embedded for name in known)


def shortest(config: FewShot | Transfer) -> tuple[str, list[str]]:
    """Return the preset that needs the fewest changes to become a configuration, and the changes."""
    found = {name: changes(each, config) for name, each in presets.known().items() if type(each) is type(config)}
    name = min(found, key=lambda each: len(found[each]))
    return name, found[name]


def changes(base: FewShot | Transfer, config: FewShot | Transfer) -> list[str]:
    """Return `key=value` for each field to change in `base`; `overridden` with them returns `config`.

    What is chosen by a name brings options of its own, and some fields make others forget what they were. So these
    come first, and the rest is what is different then.
    """
    wanted, above = dict(flat(to_plain(config))), dict[str, Any]()
    usual = dict(flat({part: _usual(getattr(config, part)) for part in ("inner", "method")}))
    for first in (True, False):
        current = _changed(base, above)
        for key in [key for key in dict.fromkeys([*current, *wanted]) if key not in FOUND]:
            before = current[key] if key in current else usual.get(key)
            if before != wanted.get(key) and (not first or key in FORGETS or key.endswith(".name")):
                above[key] = wanted.get(key)
    for key in [key for key, value in above.items() if value is None]:  # what others make it forget anyway
        less = {other: value for other, value in above.items() if other != key}
        if _changed(base, less).get(key) is None:
            above = less
    return [f"{key.removesuffix('.name')}={_written(value)}" for key, value in above.items()]


def _usual(value: Any) -> dict[str, Any]:
    """The options that a chosen thing has by default"""
    return {each.name: to_plain(each.default) for each in fields(value) if each.default is not MISSING}


def _changed(base: FewShot | Transfer, above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration with changes laid over it."""
    tables: dict[str, Any] = {}
    for key, value in above.items():
        put(tables, key, value)
    return dict(flat(laid_over(to_plain(base), tables)))


def flat(plain: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a configuration: ('inner.lr', 0.4)."""
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _written(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list) and len(value) > 1 and all(isinstance(each, int | float) for each in value):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else as_toml(value)


COLOURS = ("#2f81f7", "#e08600", "#1a9e77", "#c44fa3", "#d1495b", "#3fa7c4", "#8f7a10", "#7c8290")  # on white and black
UNSET = "—"
SHORT = 3  # letters that fit below a picture
LARGEST = 1e38  # a number beyond it is no measurement, and cannot be drawn

Point = tuple[float, ...]  # x, y, and where there is one, half the width of the interval


class Prediction(NamedTuple):
    """A picture with what was said about it."""

    picture: Tensor  # uint8 (channels, size, size)
    said: int
    probability: float


class ShownClass(NamedTuple):
    """A class of an episode or of a data set, with some of its pictures."""

    name: str
    support: Sequence[Tensor]
    predictions: Sequence[Prediction]


class Panel(NamedTuple):
    """An episode, or the test pictures of a data set, with what was predicted."""

    title: str
    accuracy: float
    classes: Sequence[ShownClass]
    names: Sequence[str]
    """Of all classes, those that are not shown too"""

    @property
    def labels(self) -> Sequence[str]:
        """Return what classes are called below a picture: their names if these are short, else numbers."""
        short = max(map(len, self.names)) <= SHORT
        return self.names if short else [str(number) for number in range(1, 1 + len(self.names))]


@dataclass(frozen=True)
class Asked:
    """What a trained net says when it is asked: what its method costs, how its gradients change, what it predicts."""

    parameters: int
    products: int
    gradients: int | None = None
    peak_bytes: int | None = None
    differences: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    """(tasks, steps), see `metastep.gradient_difference`"""
    panels: Sequence[Panel] = ()


@dataclass(frozen=True)
class Reported:
    """One run."""

    name: str
    colour: str
    config: FewShot | Transfer
    """Without the places of users' folders"""
    rows: Sequence[dict[str, Any]]
    task: str
    unit: str
    """What it is trained for: iteration or epoch"""
    done: int
    total: int
    validation: Point | None
    """When validation was best, its accuracy in percent, and half the width of the interval"""
    evaluations: Sequence[Evaluation]
    headline: Evaluation | None
    """The evaluation that speaks for the run"""
    test: Mean | None
    """Test accuracy in percent: that of the headline, else what training measured"""
    weights: dict[str, str] = field(default_factory=dict)
    """Of each checkpoint that there is now, a digest as evaluations have it"""
    asked: Asked | None = None
    note: str = ""
    """Why nothing could be asked, or what the run waits for"""
    again: Sequence[str] = ()
    """Commands that make it again"""

    def curve(self, kind: str, *keys: str) -> list[Point]:
        """Return the finite points of the rows of one kind."""
        points = [tuple(number(row.get(key)) for key in keys) for row in self.rows if row.get("kind") == kind]
        return [point for point in points if all(map(math.isfinite, point))]

    def said(self, kind: str, key: str) -> str:
        """Return the last words of one kind of row."""
        found = [row[key] for row in self.rows if row.get("kind") == kind and isinstance(row.get(key), str)]
        return printable(found[-1]) if found else UNSET

    def is_earlier(self, evaluation: Evaluation) -> bool:
        """Whether its checkpoint has changed since."""
        trained = evaluation.checkpoint in ("best", "last")
        return trained and bool(self.weights) and self.weights.get(evaluation.checkpoint) != evaluation.weights

    def against(self, first: "Reported", evaluation: Evaluation | None = None) -> Mean | None:
        """Return the paired difference to what speaks for the first run."""
        ours, theirs = evaluation or self.headline, first.headline
        if ours is None or theirs is None or ours == theirs:
            return None
        return paired_difference(ours, theirs)

    @property
    def seconds(self) -> float | None:
        """Return the seconds of training."""
        points = self.curve("train", "seconds")
        return points[-1][0] if points else None

    @property
    def seconds_per_iteration(self) -> float | None:
        points = self.curve("train", "step", "seconds")
        return points[-1][1] / points[-1][0] if points and points[-1][0] else None

    @property
    def batch(self) -> int:
        """Tasks in an iteration, or pictures of a transfer run."""
        return self.config.tasks if isinstance(self.config, FewShot) else self.config.batch

    @property
    def method(self) -> str:
        """Return the method's name with the options that differ from their defaults."""
        method = self.config.method
        usual = {each.name for each in fields(method) if getattr(method, each.name) == each.default}
        given = {name: value for name, value in to_plain(method).items() if name not in {"name", *usual}}
        if isinstance(self.config, Transfer) and self.config.learns_weights:
            given["steps"] = self.config.steps
        said = [f"{name} {_short(value)}" for name, value in sorted(given.items())]
        return " ".join([self.config.method_name, f"({', '.join(said)})" if said else ""]).strip()

    @property
    def settings(self) -> dict[str, str]:
        return {key: _readable(value) for key, value in flat(to_plain(self.config))}


def number(value: Any) -> float:
    """Return a number of a row; NaN where a damaged row has something else."""
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else math.nan


def _short(value: Any) -> Any:
    return value["name"] if isinstance(value, dict) else value


def _readable(value: Any) -> str:
    text = UNSET if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return printable(text)
