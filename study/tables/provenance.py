"""The line above every table that is made from a file."""

from typing import Any


def provenance(content: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    commit, _, changed = content["commit"].partition(",")
    of = commit[:10] + (f" ({changed.strip()})" if changed else "")
    return f"`{content['command']}` at commit {of}, {content['device']}, {versions}\n"
