"""The configuration of a run as a readable file."""

import json
from pathlib import Path
from typing import Any, TypeVar

from metastep.errors import MetastepError
from metastep.train.config import JOBS, Config
from metastep.train.errors import ConfigError, problem
from metastep.train.io import read_file, replace_file
from metastep.train.validated import from_plain, to_plain

FORMAT = "metastep run"
VERSION = 2

AnyConfig = TypeVar("AnyConfig", bound=Config)


def write_config(path: Path, config: Config) -> None:
    """Write a configuration; one that could not be read back as the same is refused now."""
    plain = to_plain(config)
    if from_plain(type(config), plain) != config:
        raise problem(ConfigError, path, "this configuration is not the same when read back", "Use plain fields")
    content = {"format": FORMAT, "version": VERSION, "job": config.job, "config": plain}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    replace_file(path, text.encode(errors="surrogatepass"), ConfigError)  # paths may have bytes that are no text


def read_job(path: Path) -> type[Config]:
    """Return the class of the configuration that was written."""
    return JOBS[_content(path)["job"]]


def read_config(path: Path, kind: type[AnyConfig]) -> AnyConfig:
    """Return the configuration of a run of this kind."""
    content = _content(path)
    found: type[Config] = JOBS[content["job"]]
    if not issubclass(found, kind):
        reason = f"is {found.words}, not {kind.words}"
        raise problem(ConfigError, path.parent, reason, "Give a run of the other kind")
    try:
        return from_plain(found, content["config"])
    except MetastepError as cause:
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
        raise problem(ConfigError, path, reason, "Use the version of metastep that wrote it, or train it again")
    if missing := {"job", "config"} - content.keys():
        raise problem(ConfigError, path, f"lacks {', '.join(sorted(missing))}", "Restore a copy")
    if content["job"] not in JOBS:
        raise problem(ConfigError, path, f"job = {content['job']!r} is none of {', '.join(JOBS)}", "Restore a copy")
    return content
