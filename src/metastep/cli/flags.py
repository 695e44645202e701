"""Flags of the command line, made of the fields of a configuration, and back."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter, Signature
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from metastep.errors import MetastepError
from metastep.train.config import from_plain, to_plain
from metastep.train.fields import all_options

Config = TypeVar("Config")


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


@dataclass(frozen=True)
class Flags(Generic[Config]):
    """What the fields of a configuration are called on the command line: --part-field, unless a table says otherwise"""

    kind: type[Config]
    short: Mapping[str, str] = field(default_factory=dict)
    """What people type most: the path of a field, and its name"""
    unprefixed: tuple[str, ...] = ()
    """Parts whose fields go by their own names"""
    hidden: tuple[str, ...] = ()
    choices: Mapping[str, Mapping[Any, set[str]]] = field(default_factory=dict)
    """Fields that choose something with options of its own, and what these are"""

    def all(self) -> list[Flag]:
        return [flag for flag in self._of(self.kind, "") if flag.path not in self.hidden]

    def _of(self, kind: type, part: str) -> list[Flag]:
        found, hints = [], get_type_hints(kind)
        for each in fields(kind):
            path, own = f"{part}.{each.name}" if part else each.name, hints[each.name]
            if is_dataclass(own) and isinstance(own, type):
                found += self._of(own, each.name)
            else:
                prefix = "" if not part or part in self.unprefixed else f"{part}_"
                found.append(Flag(path, self.short.get(path, prefix + each.name), own, each.metadata["help"]))
        return found

    def applied(self, config: Config, given: Mapping[str, Any]) -> Config:
        """`config` with the flags that were given, by name; an error speaks of flags too"""
        known = {flag.name: flag for flag in self.all()}
        plain = to_plain(config)
        for name in given:
            self._forget_options(plain, known[name])
        for name, value in given.items():
            part, _, own = known[name].path.rpartition(".")
            (plain[part] if part else plain)[own] = _parsed(value, known[name])
        with self.spoken():
            return from_plain(self.kind, plain)

    @contextmanager
    def spoken(self) -> Iterator[None]:
        """An error inside speaks of flags, where it spoke of fields"""
        try:
            yield
        except MetastepError as error:
            raise MetastepError(_as_flags(str(error), self.all())) from error

    def _forget_options(self, plain: dict[str, Any], flag: Flag) -> None:
        """A method or optimizer that was chosen anew does not inherit the options of the preset's"""
        if flag.path in self.choices:
            part = plain[flag.path.partition(".")[0]]
            part.update(dict.fromkeys(part.keys() & all_options(dict(self.choices[flag.path]))))

    def attach(self, command: Callable[..., None]) -> None:
        """typer reads a command's signature: its **options become one flag for each field of the configuration"""
        own = [p for p in Signature.from_callable(command).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        parameters = own + [flag.parameter() for flag in self.all()]
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}


def _typed(kind: Any) -> Any:
    """What typer reads a value as: lists are text with commas"""
    members = [member for member in _members(kind) if member is not NoneType]
    scalar = members[0] if len(members) == 1 and get_origin(members[0]) is not tuple else str
    return scalar | None if get_origin(scalar) is not Literal else Union[scalar, None]  # noqa: UP007


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _parsed(value: Any, flag: Flag) -> Any:
    if not isinstance(value, str) or _typed(flag.kind) != str | None or str in _members(flag.kind):
        return value
    if any(get_args(member)[:1] == (str,) for member in _members(flag.kind) if get_origin(member) is tuple):
        return value.split(",")
    try:
        numbers = [float(word) if set(word) & set(".e") else int(word) for word in value.split(",")]
    except ValueError:
        raise MetastepError(f"{flag.typed} = {value!r}: give numbers, with commas between them.") from None
    return numbers[0] if len(numbers) == 1 and int in _members(flag.kind) else numbers


def _as_flags(message: str, flags: Iterable[Flag]) -> str:
    for flag in sorted(flags, key=lambda flag: -len(flag.path)):
        if "." in flag.path:  # as a word of its own, and no part of the name of a file or module
            message = re.sub(rf"(?<![\w./'-]){re.escape(flag.path)}(?![\w/]|[.:]\w)", flag.typed, message)
    return message


def require_none(given: Mapping[str, Any]) -> None:
    """A run that is resumed has its configuration already"""
    if given:
        flag = f"--{next(iter(given)).replace('_', '-')}"
        raise MetastepError(
            f"{flag} with --resume: a run goes on as it was configured. Leave it out, or start a new run."
        )
