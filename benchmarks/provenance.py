"""The line above every table that is made from a file."""

from typing import Any


def provenance(content: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return f"`{content['command']}` at commit {content['commit'][:10]}, {content['device']}, {versions}\n"
