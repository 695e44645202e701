"""Flags of the command line, made of the fields of the configuration, and back."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import typer

from metastep.errors import MetastepError
from metastep.fewshot.config import INNER_OPTIONS, METHOD_OPTIONS, TrainConfig, all_options
from metastep.runs import from_plain, to_plain

# What people type most is short; the rest of inner, outer, test and validation has its part before it: --inner-lr
SHORT = {
    "data.name": "dataset", "net.name": "net", "method.name": "method",
    "inner.steps": "steps", "outer.tasks": "tasks", "outer.iterations": "iterations",
}  # fmt: skip
UNPREFIXED = ("data", "net", "method")
FROM_DATA = ("net.channels", "net.size")
CHOICES = {"method.name": METHOD_OPTIONS, "inner.optimizer": INNER_OPTIONS, "outer.optimizer": {"adam": {"eps"}}}


class Flag(NamedTuple):
    path: str  # as in inner.lr
    name: str  # as in inner_lr, the parameter of the command
    kind: Any
    help: str

    @property
    def typed(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def parameter(self) -> Parameter:
        part = self.path.partition(".")[0] if "." in self.path else "run"
        option = typer.Option(help=self.help, rich_help_panel=part.capitalize(), show_default=False)
        return Parameter(
            self.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[_typed(self.kind), option]
        )


def all_flags() -> list[Flag]:
    return [flag for flag in _flags(TrainConfig, "") if flag.path not in FROM_DATA]


def _flags(config: type, part: str) -> list[Flag]:
    found, hints = [], get_type_hints(config)
    for field in fields(config):
        path, kind = f"{part}.{field.name}" if part else field.name, hints[field.name]
        if is_dataclass(kind) and isinstance(kind, type):
            found += _flags(kind, field.name)
        else:
            prefix = "" if not part or part in UNPREFIXED else f"{part}_"
            found.append(Flag(path, SHORT.get(path, prefix + field.name), kind, field.metadata["help"]))
    return found


def _typed(kind: Any) -> Any:
    """What typer reads a value as: lists are text with commas"""
    members = [member for member in _members(kind) if member is not NoneType]
    scalar = members[0] if len(members) == 1 and get_origin(members[0]) is not tuple else str
    return scalar | None if get_origin(scalar) is not Literal else Union[scalar, None]  # noqa: UP007


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def with_flags(config: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    """`config` with the flags that were given, by name; an error speaks of flags too"""
    known = {flag.name: flag for flag in all_flags()}
    plain = to_plain(config)
    for name in given:
        _forget_options(plain, known[name])
    for name, value in given.items():
        part, _, field = known[name].path.rpartition(".")
        (plain[part] if part else plain)[field] = _parsed(value, known[name])
    if plain["data"]["split"] == "trainval" and "split" in given and "validation_every" not in given:
        plain["validation"]["every"] = 0
    try:
        return from_plain(TrainConfig, plain)
    except MetastepError as error:
        raise MetastepError(_as_flags(str(error), known.values())) from error


def _forget_options(plain: dict[str, Any], flag: Flag) -> None:
    """A method or optimizer that was chosen anew does not inherit the options of the preset's"""
    if flag.path in CHOICES:
        part = plain[flag.path.partition(".")[0]]
        part.update(dict.fromkeys(part.keys() & all_options(CHOICES[flag.path])))  # type: ignore[arg-type]


def _parsed(value: Any, flag: Flag) -> Any:
    if not isinstance(value, str) or _typed(flag.kind) != str | None or str in _members(flag.kind):
        return value
    try:
        numbers = [float(word) if set(word) & set(".e") else int(word) for word in value.split(",")]
    except ValueError:
        raise MetastepError(f"{flag.typed} = {value!r}: give numbers, with commas between them.") from None
    return numbers[0] if len(numbers) == 1 and int in _members(flag.kind) else numbers


def _as_flags(message: str, flags: Any) -> str:
    for flag in sorted(flags, key=lambda flag: -len(flag.path)):
        message = message.replace(flag.path, flag.typed) if "." in flag.path else message
    return message
