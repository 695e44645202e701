"""Parts of a configuration that are chosen by name from the registry, with options of their own.

`"adam"` and `{"name": "adam", "lr": 0.01}` are read into the registered dataclass itself, whose annotations are the
bounds. A plug-in's options need no line here.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import PlainValidator

from metastep.core.registry import name_of, named, names
from metastep.errors import MetastepError, did_you_mean, first_line
from metastep.train.validated import LARGEST, RefusedError, to_plain

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
NESTED = ("curvature", "solver")  # options whose values are chosen by name, too


def chosen(kind: str) -> PlainValidator:
    """Return what makes a field one that is chosen from the registry: `inner: Annotated[Any, chosen("optimizer")]`."""
    return PlainValidator(lambda value: read(kind, value))


def read(kind: str, value: Any) -> Any:
    """Return the registered value that is described by its name, or by a mapping of its name and options.

    A value that is one already is returned as it is, if a file can keep it.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return _kept(kind, value)
    options = dict(value)
    if (name := options.pop("name", None)) is None:
        raise RefusedError(".name", f" is missing: choose one of {', '.join(names(kind))}.")
    thing = _named(kind, name)
    if kind == "curvature" and not isinstance(thing, type):  # the function itself is the value
        _require_known(options, {}, name)
        return thing
    return _built(thing, name, options)


def options(kind: str, name: str) -> dict[str, Any]:
    """Return the options of what has this name, as `metastep.core.options` describes them."""
    from metastep.core.options import options_of  # here, since it loads torch and --help must not

    thing = _named(kind, name)
    return options_of(thing) if kind != "curvature" or isinstance(thing, type) else {}


def _named(kind: str, name: Any) -> Any:
    known = names(kind)
    if not isinstance(name, str) or name not in known:
        try:
            named(kind, str(name))  # says which plug-ins are broken
        except MetastepError as error:
            raise RefusedError(f" = {name!r}", f": {error}") from None
    return named(kind, name)


def _built(thing: Any, name: str, given: dict[str, Any]) -> Any:
    from metastep.core.options import REQUIRED, options_of, require_options

    known = options_of(thing)
    _require_known(given, known, name)
    for option in known.values():
        if option.default is REQUIRED and option.name not in given:
            raise RefusedError(f".{option.name}", f" is missing: {name} needs it. {option.help}".rstrip())
    values = {option: _fitting(known[option].type, option, _value(option, value)) for option, value in given.items()}
    try:
        built = thing(**values)
        if is_dataclass(built):
            require_options(built)
    except Exception as error:  # a plug-in may fail in any way
        raise _refused(error, type(thing).__name__ if not isinstance(thing, type) else thing.__name__, values) from None
    return built


def _require_known(given: Mapping[str, Any], known: Mapping[str, Any], name: str) -> None:
    for option in given:
        if option not in known:
            near = did_you_mean(option, known)
            told = f"It has {', '.join(known)}." if known else "It has none."
            raise RefusedError(f".{option}", f" = {given[option]!r} is no option of {name}.{near} {told}")


def _fitting(kind: Any, option: str, value: Any) -> Any:
    """A plain value of its plain type, before a plug-in meets it; the class itself looks at the others"""
    if kind not in _WORDS:
        return value
    fits = isinstance(value, int | float if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    if not fits:
        raise RefusedError(f".{option}", f" = {value!r} must be {_WORDS[kind]}.")
    return value


def _value(option: str, value: Any) -> Any:
    if option in NESTED and isinstance(value, str | Mapping):
        try:
            return read(option, value)
        except RefusedError as error:
            raise RefusedError(f".{option}{error.place}", error.said) from None
    if isinstance(value, list):
        return tuple(_value(option, item) for item in value)
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise RefusedError(f".{option}", f" = {value:.3g} is too large: at most {LARGEST:g}.")
    return value


def _refused(error: Exception, owner: str, given: Mapping[str, Any]) -> RefusedError:
    """What a class says of its options, which may begin with its own name or with that of an option"""
    said = first_line(error).removeprefix(f"{owner}: ")
    word = said.split(" ", 1)[0].partition("[")[0]
    if word in given:
        return RefusedError(f".{word}", said.removeprefix(word))
    return RefusedError("", f": {said}" if isinstance(error, MetastepError) else f": {said} ({type(error).__name__}).")


def _kept(kind: str, value: Any) -> Any:
    name = name_of(value)
    if name is None or name not in names(kind):
        raise RefusedError("", f" = {value!r} has no name: register it, or give one of {', '.join(names(kind))}.")
    if is_dataclass(value):
        for field in fields(value):
            try:
                to_plain(getattr(value, field.name))
            except MetastepError as error:
                raise RefusedError(f".{field.name}", f": {error}") from None
    return value
