"""Fields of a configuration: types that both jobs share, help texts, and checks that name the field as it is written.

The command line makes flags of these fields, so this module loads no torch.
"""

from collections.abc import Iterable
from dataclasses import field, fields
from typing import Any, Literal, TypeVar

from metastep.errors import MetastepError

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["float32", "tf32", "bf16", "float64"]

T = TypeVar("T")


def told(default: T, help: str) -> T:
    """A field with its default, and what it means"""
    return field(default=default, metadata={"help": help})


def require(good: bool, name: str, value: object, reason: str) -> None:
    if not good:
        raise MetastepError(f"{name} = {value}: it {reason}.")


def all_options(table: dict[Any, set[str]]) -> set[str]:
    return set().union(*table.values())


def refuse_unused(config: Any, part: str, chosen: str, used: Iterable[str], known: set[str]) -> None:
    """Options of the others that were set: they would do nothing, and whoever set them thinks otherwise"""
    for option in (f.name for f in fields(config) if f.name in known - set(used)):
        if getattr(config, option) is not None:
            options = ", ".join(sorted(used)) or "none"
            value = getattr(config, option)
            raise MetastepError(f"{part}.{option} = {value} is no option of {chosen} (it has {options}). Leave it out.")
