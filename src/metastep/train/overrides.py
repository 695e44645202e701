"""Changes of a configuration: key=value as people type it, and tables laid over tables."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

from metastep.errors import MetastepError
from metastep.train.chosen import NESTED, options
from metastep.train.config import Config
from metastep.train.validated import RefusedError, fields_of, from_plain, members, to_plain

AnyConfig = TypeVar("AnyConfig", bound=Config)
Plain = dict[str, Any]

_TRAINED = ("epochs", "lr", "weight_decay", "augment")
# What a change of one field makes of others that were chosen for what was there before.
_FORGETS = {
    "data.name": ("fingerprint", "per_class"),
    "net.name": ("layers",),
    "source.net": ("layers",),
    "source.weights": ("dataset", "fingerprint", *_TRAINED),
    "source.dataset": ("weights", "fingerprint", "classes", *_TRAINED),
}
_KEY = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
_CHOSEN = {"inner": "optimizer", "method": "method"}  # tables whose options are those of what they name


def overridden(config: AnyConfig, changes: Iterable[str]) -> AnyConfig:
    """Return the configuration with changes such as "inner.lr=0.2" or "inner=adam".

    Args:
        config: What is changed.
        changes: Each has the name of a field, "=", and its value as in a TOML file; text needs no quotes.

    Returns:
        A new configuration, checked as a whole.

    Raises:
        MetastepError: A change names no field, or its value does not fit.

    Example:
        >>> from metastep.train.config import FewShot
        >>> from metastep.train.overrides import overridden
        >>> overridden(FewShot(), ["inner.lr=0.2", "steps=4,2,1"]).steps
        (4, 2, 1)
    """
    plain, kind = to_plain(config), type(config)
    given = [(_whole_key(plain, key), text) for key, text in map(split, changes)]
    above: Plain = {}
    for key, text in sorted(given, key=lambda each: not each[0].endswith(".name")):  # options depend on names
        _put(above, key, _value(kind, laid_over(plain, above), key, text))
    return from_plain(kind, laid_over(plain, above))


def split(change: str) -> tuple[str, str]:
    """Return the key and the text of `key=value` or `--key=value`."""
    key, equals, text = change.partition("=")
    key = key.strip().removeprefix("--")
    if not equals or not _KEY.fullmatch(key):
        raise MetastepError(f"{change!r} changes nothing. Write field=value, such as inner.lr=0.1 or data.ways=20.")
    return key, text.strip()


def _whole_key(plain: Plain, key: str) -> str:
    """inner=adam is inner.name=adam"""
    table = plain.get(key)
    return f"{key}.name" if isinstance(table, Mapping) and "name" in table else key


def _put(above: Plain, key: str, value: Any) -> None:
    """Text and a table in one place are a name and its options"""
    *parts, last = key.split(".")
    for part in parts:
        if isinstance(above.setdefault(part, {}), str):
            above[part] = {"name": above[part]}
        above = above[part]
        if not isinstance(above, dict):
            raise MetastepError(f"{key}: {part} was given a value of its own. Leave one of the two out.")
    if isinstance(above.get(last), dict) and isinstance(value, str):
        above[last]["name"] = value
    else:
        above[last] = value


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any], path: str = "") -> Plain:
    """Return the fields of both; where both have one, that of `above`.

    Text in place of a table is a name. What a new name or file replaces loses the options of the one before.
    """
    found = dict(below)
    for name, value in above.items():
        place = f"{path}.{name}" if path else name
        if value != below.get(name):
            found |= {other: None for other in _FORGETS.get(place, ()) if other in below}
    for name, value in above.items():
        place, before = f"{path}.{name}" if path else name, below.get(name)
        if isinstance(before, Mapping) and isinstance(value, str) and "name" in before:
            value = {"name": value}
        if isinstance(value, Mapping) and (isinstance(before, Mapping) or name in NESTED):
            before = before if isinstance(before, Mapping) else {"name": before} if before else {}
            value = laid_over(_kept(place, before, value), value, place)
        found[name] = value
    return found


def _kept(place: str, before: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a table whose name changes, what does not belong to the old name"""
    changes = value.get("name", before.get("name")) != before.get("name")
    if not changes or place in ("data", "source"):
        return before
    return {name: before[name] for name in ("channels", "size") if place == "net" and name in before}


def _value(kind: type[Config], plain: Plain, key: str, text: str) -> Any:
    annotation = _annotation(kind, plain, key)
    optional = type(None) in get_args(annotation) or annotation is Any
    if text in ("none", "null") and optional and "none" not in _choices(annotation):
        return None
    if all(each is str or get_origin(each) is Literal for each in members(annotation)):
        return text
    value = parsed(text)
    return [value] if _takes_list(annotation) and not isinstance(value, list) else value


def _annotation(kind: type[Config], plain: Plain, key: str) -> Any:
    """The type of a field, or of an option of what is chosen"""
    first, *rest = key.split(".")
    annotation = fields_of(kind).get(first, Any)
    if annotation is Any and first in _CHOSEN and len(rest) == 1 and isinstance(plain.get(first), Mapping):
        return _option(_CHOSEN[first], plain[first].get("name"), rest[0])
    for part in rest:
        annotation = next((fields_of(each)[part] for each in members(annotation) if part in fields_of(each)), Any)
    return str if annotation is Any and rest[-1:] == ["name"] else annotation


def _option(kind: str, chosen: Any, name: str) -> Any:
    if name == "name" or name in NESTED:
        return str
    try:
        known = options(kind, chosen)
    except (RefusedError, MetastepError):  # it is refused with all the rest
        return Any
    return known[name].type if name in known else Any


def _choices(annotation: Any) -> tuple[Any, ...]:
    return tuple(choice for each in members(annotation) if get_origin(each) is Literal for choice in get_args(each))


def _takes_list(annotation: Any) -> bool:
    return [get_origin(each) for each in members(annotation)] == [tuple]


def parsed(text: str) -> Any:
    """Return a value as TOML has it; 4,2,1 is a list, and what is none of TOML's is text."""
    try:
        value = tomllib.loads(f"x = {text}")
        return value["x"] if value.keys() == {"x"} else text
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        if "," in text:
            return [parsed(part.strip()) for part in text.split(",")]
        return parsed(f"0{text}") if text[:1] == "." and text[1:].isdigit() else text
