"""Find configurations and learners by name, and change them: TOML, tables laid over tables, key=value.

Presets are TOML files next to this one; listing them needs no torch. A table whose name begins with "_" is a template.
`like` names what a table is laid over: a template, a preset, or several of them, the last on top.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import metastep
from metastep.errors import MetastepError, did_you_mean
from metastep.train.config import JOBS, Config, FewShot, Transfer
from metastep.train.io import ConfigError, problem, read_file
from metastep.train.schema import NESTED, options
from metastep.train.validated import RefusedError, fields_of, from_plain, members, to_plain

# ---- changes: key=value as people type it, and tables laid over tables


AnyConfig = TypeVar("AnyConfig", bound=Config)
Plain = dict[str, Any]

_TRAINED = ("epochs", "lr", "weight_decay", "augment")
# What a change of one field makes of others that were chosen for what was there before.
FORGETS = {
    "data.name": ("fingerprint", "per_class", "test", "test_fingerprint"),
    "data.test": ("test_fingerprint",),
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
        >>> from metastep.train.presets import overridden
        >>> overridden(FewShot(), ["inner.lr=0.2", "steps=4,2,1"]).steps
        (4, 2, 1)
    """
    plain, kind = to_plain(config), type(config)
    given = [(_whole_key(plain, key), text) for key, text in map(split, changes)]
    above: Plain = {}
    for key, text in sorted(given, key=lambda each: not each[0].endswith(".name")):  # options depend on names
        put(above, key, _value(kind, laid_over(plain, above), key, text))
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


def put(above: Plain, key: str, value: Any) -> None:
    """Set a field by its whole name. Text and a table in one place are a name and its options."""
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
            found |= {other: None for other in FORGETS.get(place, ()) if other in below}
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
    """Return a table without what belongs to its old name, if the name changes."""
    changes = value.get("name", before.get("name")) != before.get("name")
    if not changes or place in ("data", "source"):
        return before
    return {name: before[name] for name in ("channels", "size") if place == "net" and name in before}


def _value(kind: type[Config], plain: Plain, key: str, text: str) -> Any:
    annotation = _annotation(kind, plain, key)
    optional = type(None) in get_args(annotation) or annotation is Any
    kinds = members(annotation)
    choices = [choice for each in kinds if get_origin(each) is Literal for choice in get_args(each)]
    if text in ("none", "null") and optional and "none" not in choices:
        return None
    if all(each is str or get_origin(each) is Literal for each in kinds):
        return text
    value = parsed(text)
    takes_list = [get_origin(each) for each in kinds] == [tuple]
    return [value] if takes_list and not isinstance(value, list) else value


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


def parsed(text: str) -> Any:
    """Return a value as TOML has it; 4,2,1 is a list, and what is none of TOML's is text."""
    try:
        value = tomllib.loads(f"x = {text}")
        return value["x"] if value.keys() == {"x"} else text
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        if "," in text:
            return [parsed(part.strip()) for part in text.split(",")]
        return parsed(f"0{text}") if text[:1] == "." and text[1:].isdigit() else text


# ---- presets


FOLDER = Path(__file__).parent / "presets"


@cache
def tables() -> dict[str, Plain]:
    """Return every preset as its table says it, without the defaults."""
    found: dict[str, Plain] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        raw = read_toml(path)
        found |= {name: laid_out(table, raw | found) for name, table in raw.items() if not name.startswith("_")}
    return found


def laid_out(table: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> Plain:
    """Return a table laid over those that its `like` names."""
    own = dict(table)
    like = own.pop("like", [])
    below: Plain = {}
    for name in [like] if isinstance(like, str) else like:
        if name not in others:
            raise MetastepError(f"like = {name!r}: there is no such preset.{did_you_mean(str(name), others)}")
        below = laid_over(below, laid_out(others[name], others))
    return laid_over(below, own)


def configured(table: Mapping[str, Any]) -> FewShot | Transfer:
    """Return the configuration that a table describes, over the defaults of its job."""
    own = dict(table)
    if (job := own.pop("job", None)) not in JOBS:
        given = "is missing" if job is None else f"= {job!r} is none"
        raise ConfigError(f'job {given}: write job = "few_shot" or job = "transfer", or like = "PRESET".')
    return from_plain(JOBS[job], laid_over(_defaults(job), own))


def _defaults(job: str) -> Plain:
    # a transfer run has no default: something must teach it, or its method must be scratch
    plain: Plain = to_plain(FewShot() if job == "few_shot" else from_plain(Transfer, {"method": "scratch"}))
    return plain if job == "few_shot" else plain | {"method": {"name": "transfer"}}


@cache
def few_shot() -> dict[str, FewShot]:
    """Return the presets of few-shot learning."""
    return {name: config for name, config in _all().items() if isinstance(config, FewShot)}


@cache
def transfer() -> dict[str, Transfer]:
    """Return the presets of transfer."""
    return {name: config for name, config in _all().items() if isinstance(config, Transfer)}


@cache
def _all() -> dict[str, FewShot | Transfer]:
    return {name: configured(table) for name, table in tables().items()}


def known() -> dict[str, FewShot | Transfer]:
    """Return all presets."""
    return {**few_shot(), **transfer()}


def preset(name: str) -> FewShot | Transfer:
    """Return the configuration that has this name.

    Args:
        name: One of those that `metastep presets` lists.

    Returns:
        The configuration.

    Raises:
        MetastepError: There is no preset of this name.

    Example:
        >>> from metastep.train.presets import preset
        >>> preset("omniglot-5w1s-multistep4").method
        MultiStep(window=4)
    """
    return known().get(name) or configured(table_of(name))


def table_of(name: str) -> Plain:
    """Return a preset as its table says it, without the defaults."""
    if name not in tables():
        guess = did_you_mean(name, tables())
        raise MetastepError(f"there is no preset {name!r}.{guess} `metastep presets` lists all of them.")
    return tables()[name]


def read(path: Path) -> FewShot | Transfer:
    """Return the configuration that a TOML file describes; its `like` may name a preset."""
    table = read_toml(path)
    try:
        return configured(laid_out(table, tables()))
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from None


# ---- learners that come with metastep


LEARNERS = Path(metastep.__file__).parent / "learners"


def shipped() -> dict[str, Path]:
    """Name -> file of every learner in the package"""
    return {path.stem: path for path in sorted(LEARNERS.glob("*.safetensors"))}


def find_learner(name: str) -> Path:
    """The folder of a run, a learner's file, or the name of one that comes with metastep; for `Learner.load`"""
    path, here = Path(name).expanduser(), shipped()
    if path.exists():
        return path
    if name not in here:
        raise MetastepError(
            f"{name!r}: there is no such run or learner. Give the folder of a run, a learner's file, or one that "
            f"comes with metastep: {', '.join(here)}."
        )
    return here[name]


# ---- TOML


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a file."""
    content = read_file(path, ConfigError)
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise problem(ConfigError, path, f"is no TOML ({error})", "Correct that line") from error


def to_toml(plain: Mapping[str, Any], helps: Mapping[str, str] | None = None) -> str:
    """Return plain values as TOML: fields first, then a table for each part. What is None is left out.

    helps: What is said of each field, by its whole name; it becomes a comment.
    """
    return "\n".join(_lines(plain, "", helps or {})) + "\n"


def _lines(plain: Mapping[str, Any], path: str, helps: Mapping[str, str]) -> Iterator[str]:
    tables = {name: value for name, value in plain.items() if isinstance(value, Mapping)}
    for name, value in plain.items():
        if value is not None and name not in tables:
            said = helps.get(f"{path}{name}")
            yield f"{_key(name)} = {as_toml(value)}" + (f"  # {said}" if said else "")
    for name, table in tables.items():
        yield ""
        yield f"[{path}{_key(name)}]" + (f"  # {helps[path + name]}" if path + name in helps else "")
        yield from _lines(table, f"{path}{name}.", helps)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else as_toml(name)


def as_toml(value: Any) -> str:
    """Return one value as TOML has it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(as_toml(each) for each in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool) else repr(value)
