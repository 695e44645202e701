"""Configurations as TOML, which Python reads and does not write."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from metastep.train.errors import ConfigError, problem
from metastep.train.io import read_file


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a file."""
    try:
        return tomllib.loads(read_file(path, ConfigError).decode())
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
            yield f"{_key(name)} = {_value(value)}" + (f"  # {said}" if said else "")
    for name, table in tables.items():
        yield ""
        yield f"[{path}{_key(name)}]" + (f"  # {helps[path + name]}" if path + name in helps else "")
        yield from _lines(table, f"{path}{name}.", helps)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool) else repr(value)
