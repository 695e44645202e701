"""Frozen dataclasses whose fields are checked, to plain values and back, with errors that name the field.

pydantic does the checks. A field is documented by the text below it, and bounded by its annotation.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from metastep.core.registry import name_of
from metastep.errors import MetastepError, did_you_mean
from metastep.train.io import ConfigError

__all__ = ["checked"]

T = TypeVar("T")

MOST = 10**9  # of anything that is counted
LARGEST = 1e38  # of any number: float32 ends a little above


Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True)]
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Count = Annotated[Whole, Field(ge=1, le=MOST)]
CountOrNone = Annotated[Whole, Field(ge=0, le=MOST)]
Rate = Annotated[Number, Field(ge=0, le=LARGEST)]
Positive = Annotated[Number, Field(gt=0, le=LARGEST)]
Seed = Annotated[Whole, Field(ge=0, lt=2**63)]

if TYPE_CHECKING:
    from dataclasses import dataclass as checked
else:

    def checked(*, frozen: bool, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
        """Make a dataclass whose fields are checked by their annotations. It works like `dataclasses.dataclass`."""

        def make(cls: type[T]) -> type[T]:
            made = pydantic_dataclass(frozen=frozen, kw_only=kw_only, config=_RULES)(cls)
            init = made.__init__

            @wraps(init)
            def in_our_words(self: T, *values: Any, **named: Any) -> None:
                try:
                    init(self, *values, **named)
                except ValidationError as error:
                    raise ConfigError(_said(error, made)) from None

            made.__init__ = in_our_words
            return made

        return make


_RULES = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class RefusedError(ValueError):
    """Say what is wrong inside of a field: `place` is below it, such as '.lr', and `said` follows the place."""

    def __init__(self, place: str, said: str) -> None:
        super().__init__(place + said)
        self.place, self.said = place, said


def from_plain(kind: type[T], plain: Any) -> T:
    """Return the checked dataclass `kind` that `to_plain` made plain, or that a file describes."""
    try:
        return TypeAdapter(kind).validate_python(plain)
    except ValidationError as error:
        raise ConfigError(_said(error, kind)) from None


def to_plain(value: Any) -> Any:
    """Return dataclasses as dicts, tuples as lists, what is registered with its name, the rest as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _table(value)
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if name := name_of(value):
        return name
    raise ConfigError(f"{value!r} cannot be kept in a file. Use numbers, text, and what is registered.")


def _table(value: Any) -> dict[str, Any]:
    name = name_of(value)
    table = {} if name is None else {"name": name}
    for field in dataclasses.fields(value):
        own = getattr(value, field.name)
        if not field.init:
            continue
        if name and callable(own) and own is field.default and name_of(own) is None:
            continue  # a function that has no name, and is there anyway
        inner = to_plain(own)
        table |= inner if field.metadata.get("spread") else {field.name: inner}
    return table


@cache
def helps(kind: type) -> dict[str, str]:
    """Return what is said of every field of a checked dataclass."""
    found: dict[str, str] = {}
    for cls in reversed(inspect.getmro(kind)):
        own = getattr(cls, "__pydantic_fields__", {})
        found |= {name: field.description for name, field in own.items() if field.description}
    return found


def fields_of(kind: Any) -> dict[str, Any]:
    """Return the annotation of every field of a checked dataclass; nothing for other types."""
    return {name: field.annotation for name, field in getattr(kind, "__pydantic_fields__", {}).items()}


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, without None, or the one type itself."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in _UNIONS:
        return tuple(each for part in get_args(annotation) if part is not type(None) for each in members(part))
    return (annotation,)


_UNIONS = (get_origin(int | str), get_origin(Annotated[int, 0] | None))

# ---- what is said of an error

_TYPES = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number",
    "string_type": "text", "bool_type": "true or false", "finite_number": "a finite number", "tuple_type": "a list",
}  # fmt: skip
_BOUNDS = {
    "greater_than_equal": "at least {ge}", "greater_than": "above {gt}", "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
}  # fmt: skip


def _said(error: ValidationError, kind: Any) -> str:
    """Return the first of several errors: people mend one at a time."""
    first = error.errors()[0]
    where, cause = _path(first["loc"], kind), first.get("ctx", {}).get("error")
    if isinstance(cause, RefusedError):
        return (where + cause.place).lstrip(".") + cause.said
    if isinstance(cause, MetastepError):
        return str(cause)
    if first["type"] == "unexpected_keyword_argument":
        return _unknown(where, list(_kinds_on_the_way(first["loc"], kind))[-1], kind)
    return f"{where or 'the configuration'} = {_shown(first['input'])} must be {_must(first)}.{_near(first)}"


def _must(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _BOUNDS:
        limits = {name: f"{limit:,g}" if isinstance(limit, float) else f"{limit:,}" for name, limit in context.items()}
        return _BOUNDS[kind].format(**limits)
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in ("literal_error", "union_tag_invalid"):
        expected = context.get("expected") or context.get("expected_tags")
        return f"one of {expected.replace(' or ', ', ')}"
    if kind in ("dataclass_type", "dict_type", "model_attributes_type", "union_tag_not_found"):
        return "a table of fields"
    return f"something else: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _near(error: Any) -> str:
    """The choice that was meant"""
    context, given = error.get("ctx", {}), error["input"]
    expected = context.get("expected") or context.get("expected_tags")
    given = given.get("name") if isinstance(given, Mapping) else given
    return did_you_mean(str(given), re.findall(r"'([^']*)'", expected)) if expected else ""


def _unknown(where: str, owner: Any, kind: Any) -> str:
    own = list(fields_of(owner))
    parent, _, name = where.rpartition(".")
    prefix = f"{parent}." if parent else ""
    near = _elsewhere(name, kind) or did_you_mean(name, own).replace("'", f"'{prefix}", 1)
    return f"{where}: there is no such field.{near} Fields{f' of {parent}' if parent else ''}: {', '.join(own)}."


def _elsewhere(name: str, kind: Any) -> str:
    """Suggest data.ways to a user who typed ways."""
    parts = ((part, each) for part, owner in fields_of(kind).items() for each in members(owner))
    found = [f"{part}.{name}" for part, owner in parts if name in fields_of(owner)]
    return f" Did you mean {found[0]!r}?" if found else ""


def _path(place: tuple[Any, ...], kind: Any) -> str:
    """data.ways, pairs[0]: without the tags of unions, which nobody typed"""
    path, owners = "", list(_kinds_on_the_way(place, kind))
    for part, owner in zip(place, owners, strict=True):
        if isinstance(part, int):
            path += f"[{part}]"
        elif owner is not None:
            path += f".{part}" if path else str(part)
    return path


def _kinds_on_the_way(place: tuple[Any, ...], kind: Any) -> Iterator[Any]:
    """Return for each part of the place the class that it is a field of; None for the tag of a union."""
    candidates: tuple[Any, ...] = (kind,)
    for part in place:
        tagged = [each for each in candidates if _tag(each) == part] if len(candidates) > 1 else []
        if tagged:
            yield None
            candidates = tuple(tagged)
            continue
        owner = next((each for each in candidates if part in fields_of(each)), candidates[0] if candidates else kind)
        yield owner
        candidates = members(fields_of(owner).get(part, Any))


def _tag(kind: Any) -> Any:
    annotation = fields_of(kind).get("name")
    return get_args(annotation)[0] if get_origin(annotation) is Literal else None


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = f"{text[:60]}…" if len(text) > 60 else text
    return repr(text) if isinstance(value, str) else {"None": "null", "True": "true", "False": "false"}.get(text, text)
