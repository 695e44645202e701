"""Configurations that have a name, and how the commands that start from one take it."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metastep.cli.common import refusals
from metastep.errors import MetastepError, did_you_mean
from metastep.train.config import to_plain

Config = TypeVar("Config")

PresetName = Annotated[str, typer.Option(help="What to start from; every other flag changes it.")]
Out = Annotated[
    Path | None, typer.Option(help="The folder of the run.", show_default="runs/PRESET, of other data runs/DATA-METHOD")
]
Resume = Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")]


def begun_with(preset: str | None, usual: str | None, out: Path | None) -> dict[str, Any]:
    """What only a new run can be given, where it was"""
    return ({} if preset == usual else {"preset": preset}) | ({} if out is None else {"out": out})


def default_folder(preset: str, own_data: str, data: str, method: str) -> Path:
    """The preset's name is for runs of the preset's own data"""
    if data == own_data:
        return Path("runs", preset)
    name = re.sub(r"[^\w.]+", "-", Path(data.removeprefix("folder:")).resolve().name)
    return Path("runs", f"{name}-{method}")


def presets_command(
    presets: Callable[[], Mapping[str, Config]], lines: Callable[[Config], tuple[str, ...]], lister: str
) -> Callable[..., None]:
    """presets: imports and returns them; lines: about each; lister: what the command is called"""

    def command(
        name: Annotated[
            str | None, typer.Argument(help="One of them, to see all of it.", show_default="all, in short")
        ] = None,
    ) -> None:
        """List the presets, or show one as it is saved with a run."""
        known = presets()
        with refusals():
            if name is None:
                Console().print(preset_table(known, lines))
            else:
                typer.echo(json.dumps(to_plain(preset_named(name, known, lister)), indent=2))

    return command


def preset_table(presets: Mapping[str, Config], lines: Callable[[Config], tuple[str, ...]]) -> Table:
    """Each with lines about it, which fit beside the longest name in 80 columns: a name that is cut cannot be typed"""
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, config in presets.items():
        table.add_row(Text(name, "bold", no_wrap=True), Text("\n".join(lines(config)), overflow="fold"))
    return table


def preset_named(name: str, presets: Mapping[str, Config], lister: str) -> Config:
    """lister: the command that lists them"""
    if name not in presets:
        guess = did_you_mean(name, presets)
        raise MetastepError(f"there is no preset {name!r}.{guess} `{lister}` lists all of them.")
    return presets[name]
