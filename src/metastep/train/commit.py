"""By which code something was made."""

import os
import subprocess
from pathlib import Path

import metastep

PACKAGE = Path(metastep.__file__).resolve().parent
CHANGED = ", changed"  # of code that was not committed as it is


def commit(*more: Path) -> str:
    """The commit that runs, if metastep does so from a repository; METASTEP_COMMIT goes first.

    more: folders that have their part in it beside the package.
    """
    if given := os.environ.get("METASTEP_COMMIT"):
        return given
    if not _git("ls-files", "__init__.py"):  # an installed metastep may lie inside somebody else's repository
        return f"metastep {metastep.__version__}"
    return _git("rev-parse", "HEAD") + (CHANGED if _git("status", "--porcelain", "--", ".", *map(str, more)) else "")


def _git(*arguments: str) -> str:
    try:
        run = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, check=False)
    except OSError:  # there is none, or it cannot be run
        return ""
    return run.stdout.strip()
