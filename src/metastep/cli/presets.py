"""`metastep presets` and `metastep learners`: what there is to start from."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metastep.cli.common import Plugin, import_torch, plain_table, refusals
from metastep.cli.fields import all_fields, complete_presets
from metastep.train import presets as known
from metastep.train.presets import Plain, to_toml
from metastep.train.validated import to_plain


def presets(
    name: Annotated[
        str | None,
        typer.Argument(
            help="One of them, to see what it sets.", show_default="all, in short", autocompletion=complete_presets
        ),
    ] = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print all fields of this preset: a TOML file to start from.")
    ] = False,
    fields: Annotated[
        bool, typer.Option("--fields", help="List every field, with the options of all that can be chosen by name.")
    ] = False,
    plugin: Plugin = None,
) -> None:
    """List the presets, or show one; `metastep train PRESET` trains it."""
    if toml or fields:
        import_torch()
    with refusals():
        if fields:
            Console().print(field_table())
        elif name is None:
            Console().print(preset_table(known.tables()))
        else:
            typer.echo(whole(name) if toml else to_toml(known.table_of(name)), nl=False)


def whole(name: str) -> str:
    """Return a preset with all its fields, and what each of them means."""
    config = known.preset(name)
    said = {field.path: field.said[config.job] for field in all_fields() if config.job in field.said}
    return to_toml({"job": config.job, **to_plain(config)}, said)


def preset_table(tables: dict[str, Plain]) -> Table:
    """Describe each preset in lines that fit next to the longest name in 80 columns: a cut name cannot be typed."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, preset in tables.items():
        table.add_row(Text(name, "bold", no_wrap=True), Text("\n".join(summary(preset)), overflow="fold"))
    return table


def summary(preset: Plain) -> tuple[str, str]:
    """Return two lines about a preset, from what its table says."""
    return _few_shot(preset) if preset["job"] == "few_shot" else _transfer(preset)


def _few_shot(preset: Plain) -> tuple[str, str]:
    inner, outer, method = preset["inner"], preset["outer"], _named(preset["method"])
    momentum = f", momentum {inner['momentum']:g}" if inner.get("momentum") else ""
    window = f"({method['window']})" if "window" in method else ""
    return (
        f"{_named(preset['net'])['name']}: {preset.get('steps', 8)} × {inner['name']} at {inner['lr']:g}{momentum}",
        f"{method['name']}{window}: {preset['iterations']:,} × {preset['tasks']} tasks, "
        f"{outer['optimizer']} at {outer['lr']:g}",
    )


def _transfer(preset: Plain) -> tuple[str, str]:
    data, method, inner = preset["data"], _named(preset["method"]), preset["inner"]
    few = f", {data['per_class']} of each" if data.get("per_class") else ""
    target = _named(preset["net"])["name"]
    nets = target if method["name"] == "scratch" else f"{preset['source']['net']} → {target}"
    learns = method["name"] == "transfer" and method.get("learned", True) and preset.get("steps", 2)
    steps = f", T = {preset.get('steps', 2)}, n = {method.get('window', 1)}" if learns else ""
    return (
        f"{data['name']} {data['size']}×{data['size']}{few}: {nets}",
        f"{method['name']}{steps}: {preset['epochs']} epochs, {inner['name']} at {inner['lr']:g}",
    )


def _named(value: Any) -> Plain:
    return {"name": value} if isinstance(value, str) else dict(value)


def field_table() -> Table:
    """Return every field of both jobs, and the options of what can be chosen by name."""
    from metastep.core.registry import names
    from metastep.train.schema import options

    table = plain_table("field", "what it is")
    for field in all_fields():
        table.add_row(Text(field.path, "bold"), Text(field.help))
    for part, kind in (("inner", "optimizer"), ("method", "method"), ("method.solver", "solver")):
        for name in names(kind):
            table.add_row(Text(f"{part}={name}", "bold"), "")
            for option in options(kind, name).values():
                bound = f" ({option.bound})" if option.bound else ""
                table.add_row(Text(f"  {part}.{option.name}"), Text(f"{option.help}{bound}".strip()))
    return table


def learners() -> None:
    """List the learners that come with metastep; evaluate, classify and train take them by name."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, path in known.shipped().items():
        _, what, *_ = path.with_suffix(".md").read_text().split("\n\n")  # the title, and what it is
        table.add_row(Text(name, "bold", no_wrap=True), Text(f"{' '.join(what.split()).partition('. `')[0]}."))
    Console().print(table)
