"""`metastep bench`: what a meta-iteration costs here, beside the alternatives that are installed."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer

from metastep.bench.cases import METHODS, QUICK, SETTINGS, Grid, Precision, chosen
from metastep.bench.implementations import IMPLEMENTATIONS
from metastep.bench.plan import planned
from metastep.bench.results import device_name, provenance
from metastep.bench.running import Conditions
from metastep.bench.session import finish, run
from metastep.data.catalog import find
from metastep.data.commands import refusals
from metastep.errors import MetastepError
from metastep.paths import VMAP_CHUNK

QUICK_IMPLEMENTATIONS = ("metastep", "hand-loop", "torch.func")
ALL_IMPLEMENTATIONS = tuple(name for name in IMPLEMENTATIONS if not name.startswith("metastep-"))  # ours once


def bench(
    settings: Annotated[
        str | None, typer.Option(help=f"Of {', '.join(SETTINGS)}.", show_default="the first four")
    ] = None,
    methods: Annotated[str | None, typer.Option(help=f"Of {', '.join(METHODS)}.", show_default="all")] = None,
    steps: Annotated[str | None, typer.Option(help="Inner steps.", show_default="1 to 8, 16, 32, 64")] = None,
    alternative_steps: Annotated[str | None, typer.Option(help="Of all but metastep.", show_default="8")] = None,
    implementations: Annotated[
        str | None, typer.Option(help=f"Of {', '.join(IMPLEMENTATIONS)}.", show_default="all that are installed")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="In an iteration.", show_default="the setting's")] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tasks computed together.", show_default=f"{VMAP_CHUNK} on a CPU, else all; metastep chooses"
        ),
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or tf32.", show_default="tf32 on a GPU")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.", show_default="cuda where there is one")] = "",
    threads: Annotated[int, typer.Option(min=1, help="On a CPU.")] = 1,
    repeats: Annotated[int | None, typer.Option(min=1, help="Of each measurement.", show_default="5")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file of results.", show_default="results/bench/DEVICE-bench.json")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A data directory with Omniglot.", show_default="noise")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few tasks, three methods: two minutes on two cores.")] = False,
) -> None:
    """Measure time and memory of whole meta-iterations, and write them as JSON, a table and a plot.

    Lists are separated by commas. Rows that the file has already, of the same commit, are not measured again.
    """
    given = {name: value for name, value in locals().items() if value not in (None, "", False)}
    with refusals():
        place = _place(device)
        grid = replace(QUICK if quick else Grid(), **(_default(place) | _of_grid(given)))
        names = _names(implementations, quick)
        conditions = Conditions(str(place), threads, repeats or (3 if quick else 5))
        path = out or Path("results", "bench", f"{_slug(place)}-{'quick' if quick else 'bench'}.json")
        packages = [package for name in names if (package := IMPLEMENTATIONS[name].package)]
        suffix = "" if place.type == "cuda" else f", {threads} thread{'s' if threads > 1 else ''}"
        about = provenance(_command(given), device_name(place) + suffix, dict.fromkeys(packages))
        rows = run(planned(grid, names, None if conditions.on_gpu else VMAP_CHUNK), conditions, path, about)
        finish(path, about, rows)


def _place(device: str) -> torch.device:
    there = torch.cuda.is_available()
    if device not in ("", "cpu", "cuda") or (device == "cuda" and not there):
        reason = "PyTorch sees no GPU here" if device == "cuda" else "there is no such device"
        raise MetastepError(f"--device {device}: {reason}. Choose {'cpu or cuda' if there else 'cpu'}.")
    return torch.device(device or ("cuda" if there else "cpu"))


def _default(place: torch.device) -> dict[str, Any]:
    on_gpu = place.type == "cuda"
    return {"precision": "tf32" if on_gpu else "fp32"}


def _of_grid(given: dict[str, Any]) -> dict[str, Any]:
    """What was typed, as fields of a grid"""
    fields: dict[str, Any] = {name: given[name] for name in ("chunk", "precision") if name in given}
    if given.get("precision", "fp32") not in get_args(Precision):
        raise MetastepError(f"--precision {given['precision']}: choose one of {', '.join(get_args(Precision))}.")
    for name, known in (("settings", SETTINGS), ("methods", METHODS)):
        if name in given:
            fields[name] = _words(given[name])
            for word in fields[name]:
                chosen(word, known, name[:-1])
    for name in ("steps", "alternative_steps", "tasks"):
        if name in given:
            fields[name] = _numbers(given[name], f"--{name.replace('_', '-')}")
    if "data" in given:
        if "omniglot" not in find(given["data"]):
            raise MetastepError(f"--data {given['data']}: no Omniglot is there. Leave it out to measure with noise.")
        fields["data"] = str(given["data"])
    return fields


def _names(implementations: str | None, quick: bool) -> list[str]:
    """Those that were asked for must be there; of all, those that are not are named and left out"""
    if implementations is None:
        names = QUICK_IMPLEMENTATIONS if quick else ALL_IMPLEMENTATIONS
        for name in names:
            if reason := IMPLEMENTATIONS[name].missing:
                typer.echo(f"{name} is left out: {reason}.", err=True)
        return [name for name in names if not IMPLEMENTATIONS[name].missing]
    names = _words(implementations)
    for name in names:
        if reason := chosen(name, IMPLEMENTATIONS, "implementation").missing:
            raise MetastepError(f"--implementations {name}: {reason}. Install it, or leave it out.")
    return list(names)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(text: str, flag: str) -> tuple[int, ...]:
    words = _words(text)
    if not words or not all(word.isdecimal() and int(word) for word in words):
        raise MetastepError(f"{flag} {text}: give whole numbers from 1, separated by commas, such as 1,8,64.")
    return tuple(map(int, words))


def _command(given: dict[str, Any]) -> str:
    """As it was typed, but for where data and results are"""
    shown = {name: value for name, value in given.items() if name != "out"} | (
        {"data": "DATA"} if "data" in given else {}
    )
    flags = ([f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])] for name, value in shown.items())
    return shlex.join(["metastep", "bench", *(word for flag in flags for word in flag)])


def _slug(place: torch.device) -> str:
    """NVIDIA H200 -> h200"""
    return device_name(place).split()[-1].lower() if place.type == "cuda" else "cpu"
