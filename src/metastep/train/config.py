"""Configurations: frozen dataclasses to a readable JSON file and back, with errors that name the field.

Fields may be bool, int, float, str, None, Literal, a union of these, a tuple, or a dataclass of such fields.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from metastep.errors import MetastepError
from metastep.train.errors import ConfigError, problem
from metastep.train.files import read_file, replace_file

FORMAT = "metastep run"
VERSION = 1

_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}

Config = TypeVar("Config")


class _Kind(NamedTuple):
    """A run in the words of its users"""

    run: str
    commands: str


_KINDS = {
    "TrainConfig": _Kind("a few-shot run", "metastep evaluate, classify, report or train --resume"),
    "TransferConfig": _Kind("a transfer run", "metastep transfer evaluate, transfer run --resume or report"),
}


def _kind(name: str) -> _Kind:
    """name: of the dataclass; one that is not ours is the user's own word"""
    return _KINDS.get(name) or _Kind(f"a run of {name!r}", "what wrote it")


def write_config(path: Path, config: Any) -> None:
    """`config` is any dataclass instance; one that could not be read back as the same is refused now."""
    kind = type(config)
    plain = to_plain(config)
    if from_plain(kind, plain) != config:
        raise problem(ConfigError, path, f"this {kind.__name__} is not the same when read back", "Use plain fields")
    content = {"format": FORMAT, "version": VERSION, "kind": kind.__name__, "config": plain}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    replace_file(path, text.encode(errors="surrogatepass"), ConfigError)  # paths may have bytes that are no text


def read_kind(path: Path) -> str:
    """The name of the dataclass that was written."""
    return str(_content(path)["kind"])


def read_config(path: Path, kind: type[Config]) -> Config:
    content = _content(path)
    if (found := str(content["kind"])) != kind.__name__:
        reason = f"is {_kind(found).run}, not {_kind(kind.__name__).run}"
        raise problem(ConfigError, path.parent, reason, f"Use {_kind(found).commands}")
    try:
        return from_plain(kind, content["config"])
    except MetastepError as cause:  # also what the dataclass itself says about its values
        raise ConfigError(f"{str(path)!r}: {cause}") from cause


def _content(path: Path) -> dict[str, Any]:
    data = read_file(path, ConfigError)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as cause:
        raise problem(ConfigError, path, f"is no JSON ({cause})", "Repair it, or restore a copy") from cause
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise problem(ConfigError, path, "was not written by metastep", "Give the folder of a metastep run")
    if content.get("version") != VERSION:
        reason = f"has format version {content.get('version')}, and this metastep reads version {VERSION}"
        raise problem(ConfigError, path, reason, "Use the version of metastep that wrote it, or a newer one")
    if missing := {"kind", "config"} - content.keys():
        raise problem(ConfigError, path, f"lacks {_names(missing)}", "Restore a copy")
    return content


def to_plain(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, the rest as it is."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [to_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_plain(kind: type[Config], plain: Any) -> Config:
    """The dataclass `kind` from what `to_plain` gave."""
    config: Config = _read(kind, plain, "")
    return config


def _read(kind: Any, value: Any, field: str) -> Any:
    """`value` as a `kind`; `field` is where it stands, as in 'optimizer.betas[1]'."""
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, field)
    if origin in (Union, UnionType):
        return _read_union(kind, value, field)
    if origin is tuple:
        return _read_tuple(kind, value, field)
    if origin is Literal:
        # The type too, since True == 1.
        if not any(type(value) is type(choice) and value == choice for choice in get_args(kind)):
            raise _wrong(field, value, _described(kind))
        return value
    return _read_scalar(kind, value, field)


def _read_scalar(kind: Any, value: Any, field: str) -> Any:
    if kind not in _SCALARS:
        raise ConfigError(f"{field}: a field of type {kind} cannot be kept in a file. Use plain fields.")
    if kind is float and type(value) is int:
        value = _whole_as_float(field, value)  # people write 1 for 1.0
    if type(value) is not kind:
        raise _wrong(field, value, _described(kind))
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(field, value, "a finite number")  # JSON has no others
    return value


def _whole_as_float(field: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError as cause:
        raise _wrong(field, "a number of more than 308 digits", "a finite number") from cause


def _read_dataclass(kind: Any, value: Any, field: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(field, value, f"an object with the fields of {kind.__name__}")
    prefix = f"{field}." if field else ""
    expected = {f.name: f.default for f in dataclasses.fields(kind)}
    if unknown := value.keys() - expected.keys():
        raise ConfigError(f"{_names(unknown, prefix)}: unknown to {kind.__name__}. Remove it, or correct its name.")
    # What is None unless somebody says otherwise may have come after the file was written.
    if missing := {name for name, default in expected.items() if default is not None} - value.keys():
        raise ConfigError(f"{_names(missing, prefix)}: missing from {kind.__name__}. Add it.")
    hints = get_type_hints(kind)
    return kind(**{name: _read(hints[name], value[name], prefix + name) for name in value})


def _read_union(kind: Any, value: Any, field: str) -> Any:
    members = get_args(kind)
    if value is None and NoneType in members:
        return None
    others = [member for member in members if member is not NoneType]
    if len(others) == 1:  # an Optional: say what is wrong inside it
        return _read(others[0], value, field)
    exact = [member for member in others if type(value) is member]  # 1 stays 1 in float | int
    for member in exact or others:
        try:
            return _read(member, value, field)
        except ConfigError:
            continue
    raise _wrong(field, value, " or ".join(_described(member) for member in members))


def _read_tuple(kind: Any, value: Any, field: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong(field, value, _described(kind))
    items = get_args(kind)
    if len(items) == 2 and items[1] is Ellipsis:
        items = (items[0],) * len(value)
    if len(items) != len(value):
        raise _wrong(field, value, f"a list of {len(items)}")
    return tuple(_read(item, x, f"{field}[{i}]") for i, (item, x) in enumerate(zip(items, value, strict=True)))


def _wrong(field: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"{field or 'config'} = {json.dumps(value, default=repr)} must be {expected}.")


def _described(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return "a list"
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    return _SCALARS.get(kind) or str(kind.__name__)


def _names(fields: set[str], prefix: str = "") -> str:
    return ", ".join(prefix + name for name in sorted(fields))
