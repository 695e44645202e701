"""What the pages of few-shot and of transfer runs share: a run's name, colour, configuration and metrics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import cycle
from pathlib import Path
from typing import Any

from metastep.data.errors import printable
from metastep.train.validated import to_plain

COLOURS = ("#2f81f7", "#e08600", "#1a9e77", "#c44fa3", "#d1495b", "#3fa7c4", "#8f7a10", "#7c8290")  # on white and black

UNSET = "—"

Point = tuple[float, ...]  # x, y, and where there is one, half the width of the interval


@dataclass(frozen=True)
class Reported:
    name: str
    colour: str
    config: Any
    """Its `method` has a name, and options with it"""
    rows: list[dict[str, Any]]

    def curve(self, kind: str, *keys: str) -> list[Point]:
        """Finite points of the rows of one kind, as the keys say"""
        of_kind = (row for row in self.rows if row.get("kind") == kind)
        fitting = [row for row in of_kind if all(_is_number(row.get(key)) for key in keys)]
        points = [tuple(float(row[key]) for key in keys) for row in fitting]
        return [point for point in points if all(map(math.isfinite, point))]

    @property
    def method(self) -> str:
        """With the options that are set, as they are called in the configuration"""
        given = [f"{name} {value}" for name, value in sorted(self.options.items())]
        return " ".join([self.config.method_name, f"({', '.join(given)})" if given else ""]).strip()

    @property
    def options(self) -> dict[str, Any]:
        """Of its method, those that are not as they are by default"""
        method = self.config.method
        usual = {field.name for field in fields(method) if getattr(method, field.name) == field.default}
        return {name: _short(value) for name, value in to_plain(method).items() if name not in {"name", *usual}}

    @property
    def settings(self) -> dict[str, str]:
        return dict(flat(to_plain(self.config)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)  # text in its place is a damaged row


def _short(value: Any) -> Any:
    return value["name"] if isinstance(value, dict) else value


def named(folders: Sequence[Path]) -> list[tuple[Path, str, str]]:
    """(folder, name, colour): the last part of the path where that tells all apart, else all of it"""
    short = [printable(folder.resolve().name) for folder in folders]
    names = short if len(set(short)) == len(short) else [printable(folder) for folder in folders]
    return list(zip(folders, names, cycle(COLOURS)))


def flat(plain: Any, at: str = "") -> list[tuple[str, str]]:
    """A configuration as lines: 'inner.lr', '0.4'"""
    if isinstance(plain, dict):
        return [line for key, value in plain.items() for line in flat(value, f"{at}.{key}".lstrip("."))]
    text = UNSET if plain is None else ", ".join(map(str, plain)) if isinstance(plain, list) else str(plain)
    return [(at, printable(text))]
