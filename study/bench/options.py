"""Options that the commands of `python -m study bench` share: from the command line to cases, a device and a file."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer

from metastep.data.registry import find
from metastep.errors import MetastepError, how_many
from metastep.train.device import device_name
from metastep.train.schema import Device
from study import CODE
from study.bench.cases import METHODS, SETTINGS, TRANSFER_METHODS, TRANSFERS, FewShot, Grid, Precision, chosen
from study.bench.results import provenance

ALL_SETTINGS, ALL_METHODS = (*SETTINGS, *TRANSFERS), tuple(METHODS | TRANSFER_METHODS)
NUMBERS = ("steps", "alternative_steps", "transfer_steps", "tasks")

Tasks = Annotated[str | None, typer.Option(help="Tasks in a meta-iteration.", show_default="the setting's")]
Chosen = Annotated[
    str | None,
    typer.Option(help="fp32, tf32 or fp64; bf16 where metastep has kernels for it.", show_default="tf32 on a GPU"),
]
DeviceChoice = Annotated[Device | None, typer.Option(help="Where to measure.", show_default="a GPU if there is one")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
Data = Annotated[Path | None, typer.Option(help="A data directory with the setting's pictures.", show_default="noise")]


def settings_option(default: str) -> Any:
    return typer.Option(help=f"Some of {', '.join(ALL_SETTINGS)}.", show_default=default)


def methods_option(default: str) -> Any:
    return typer.Option(help=f"Some of {', '.join(ALL_METHODS)}.", show_default=default)


def out_option(what: str, ending: str = "json") -> Any:
    return typer.Option(help="The file of results.", show_default=f"results/bench/DEVICE-{what}.{ending}")


def typed(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a command that were given, or have a default of their own"""
    return {name: value for name, value in values.items() if value not in (None, "", False)}


def grid_of(usual: Grid, given: dict[str, Any], place: torch.device) -> Grid:
    """Return what was typed, and the usual where nothing was."""
    grid = replace(usual, **_fields(given, place))
    if grid.data:
        require_pictures(grid.data, (SETTINGS[name] for name in grid.settings if name in SETTINGS))
    return grid


def require_pictures(data: str, settings: Iterable[FewShot]) -> None:
    there = find(Path(data))
    for name, _ in (setting.pictures for setting in settings):
        if name not in there:
            raise MetastepError(f"--data {data}: no {name} is there. Leave it out to measure with noise.")


def _fields(given: dict[str, Any], place: torch.device) -> dict[str, Any]:
    fields: dict[str, Any] = {"precision": "tf32" if place.type == "cuda" else "fp32"}
    fields |= {name: given[name] for name in ("chunk", "precision") if name in given}
    if fields["precision"] not in get_args(Precision):
        raise MetastepError(f"--precision {given['precision']}: choose one of {', '.join(get_args(Precision))}.")
    if fields["precision"] == "bf16" and place.type != "cuda":
        raise MetastepError("--precision bf16: only our kernels for GPUs multiply in it. Choose fp32 here.")
    for name, known in (("settings", ALL_SETTINGS), ("methods", ALL_METHODS)):
        if name in given:
            fields[name] = words(given[name])
            for word in fields[name]:
                chosen(word, dict.fromkeys(known), name[:-1])
    for name in NUMBERS:
        if name in given:
            fields[name] = numbers(given[name], f"--{name.replace('_', '-')}")
    return fields | ({"data": str(given["data"])} if "data" in given else {})


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(text: str, flag: str) -> tuple[int, ...]:
    found = words(text)
    if not found or not all(word.isdecimal() and int(word) for word in found):
        raise MetastepError(f"{flag} {text}: give whole numbers from 1, separated by commas, such as 1,8,64.")
    return tuple(map(int, found))


def about(name: str, given: dict[str, Any], place: torch.device, packages: Iterable[str] = ()) -> dict[str, Any]:
    """What stands above the rows: the command as it was typed, but for where data and results are"""
    shown = {key: value for key, value in given.items() if key != "out"} | ({"data": "DATA"} if "data" in given else {})
    flags = ([f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])] for key, value in shown.items())
    command = shlex.join(["python", "-m", "study", *name.split(), *(word for flag in flags for word in flag)])
    threads = str(given["threads"])  # of one, or of several
    told = how_many(int(threads), "thread") if threads.isdigit() else f"{threads.replace(',', ' and ')} threads"
    suffix = "" if place.type == "cuda" else f", {told}"
    kernels = ("triton",) if place.type == "cuda" and find_spec("triton") else ()
    return provenance(command, device_name(place) + suffix, (*packages, *kernels), folders=[CODE])


def file_for(what: str, given: dict[str, Any], place: torch.device, ending: str = "json") -> Path:
    """NVIDIA H200 -> results/bench/h200-WHAT.json"""
    device = device_name(place).split()[-1].lower() if place.type == "cuda" else "cpu"
    return given.get("out") or Path("results", "bench", f"{device}-{what}.{ending}")
