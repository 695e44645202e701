"""Configurations that have a name. They are TOML files beside this one; to list them needs no torch.

A table whose name begins with "_" is a template. `like` names what a table is laid over: a template, a preset, or
several of them, the last on top.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from metastep.errors import MetastepError, did_you_mean
from metastep.train.config import JOBS, FewShot, Transfer
from metastep.train.errors import ConfigError
from metastep.train.overrides import Plain, laid_over
from metastep.train.toml import read_toml
from metastep.train.validated import from_plain, to_plain

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
    found = known()
    if name not in found:
        guess = did_you_mean(name, found)
        raise MetastepError(f"there is no preset {name!r}.{guess} `metastep presets` lists all of them.")
    return found[name]


def read(path: Path) -> FewShot | Transfer:
    """Return the configuration that a TOML file describes; its `like` may name a preset."""
    try:
        return configured(laid_out(read_toml(path), tables()))
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from None
