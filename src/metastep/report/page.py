"""From runs to a page: what those of few-shot and of transfer runs have in common."""

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from torch import Tensor

from metastep import __version__
from metastep.data.errors import printable
from metastep.data.progress import Progress
from metastep.data.sheet import shown
from metastep.report.reported import UNSET, Reported, named

Run = TypeVar("Run", bound=Reported)


def collected(folders: Sequence[Path], collect: Callable[[Path, str, str], Run], progress: Progress) -> list[Run]:
    """collect: of a folder, its name and its colour"""
    runs = []
    for folder, name, colour in named(folders):
        runs.append(collect(folder, name, colour))
        progress(len(runs), len(folders))
    return runs


def rendered(name: str, runs: Sequence[Reported], figures: Sequence[tuple[str, str, Any]], **more: Any) -> str:
    """name: of the template; figures: (title, note, drawing), without those that show nothing"""
    there = [figure for figure in figures if figure[2] is not None]
    return template(name).render(runs=runs, version=__version__, figures=there, settings=settings(runs), **more)


def template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("metastep.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"picture": picture, "number": number, "printable": printable}
    return environment.get_template(name)


def settings(runs: Sequence[Reported]) -> list[tuple[str, list[str], bool]]:
    """(name, its value in every run, whether they differ), of all that is set anywhere"""
    columns = [run.settings for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)  # options of a method are its own
    table = [(name, [column.get(name, UNSET) for column in columns]) for name in names]
    return [(name, values, len(set(values)) > 1) for name, values in table if set(values) != {UNSET}]


def picture(image: Tensor) -> str:
    """Bytes (channels, height, width) as the address of a picture that is in the address itself"""
    drawn, file = shown(image), io.BytesIO()
    kind = "png" if len(image) == 1 else "jpeg"
    drawn.save(file, kind, quality=88)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def number(value: float | None, digits: int = 2) -> str:
    return "—" if value is None else f"{value:,.{digits}f}".replace("-", "−")
