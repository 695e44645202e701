"""A user's own folder as a run remembers it: found again from everywhere, and only with the pictures that it had."""

from pathlib import Path

from metastep.data.errors import printable, problem
from metastep.data.files import contents
from metastep.data.folder import require_folder
from metastep.data.names import PREFIX
from metastep.data.registry import own_folder


def placed(name: str, root: Path | None) -> str:
    """The name by which the folder is found from everywhere."""
    return f"{PREFIX}{own_folder(name, root).resolve()}"


def fingerprint_of(name: str, root: Path | None) -> str:
    """Of the pictures in the folder, wherever it is."""
    folder = own_folder(name, root)
    require_folder(folder)
    return contents(folder)


def require_remembered(name: str, fingerprint: str | None, root: Path | None, again: str) -> None:
    """That the folder is there as it was; `again` says how to name it anew. Data sets have no fingerprint."""
    if fingerprint is None:
        return
    folder = own_folder(name, root)
    if not folder.is_dir():
        raise problem(folder, "is not there, or no folder", f"Put it back; if it was moved, say where it is: {again}")
    if contents(folder) != fingerprint:
        reason = "has other pictures than in training: files came, went, or changed"
        raise problem(folder, reason, f"Put them back, or start a new run; if they are elsewhere, say where: {again}")


def moved(name: str | None, fingerprint: str | None, to: str, root: Path | None, again: str) -> str:
    """The new name of a folder that is in another place now, with the same pictures."""
    if name is None or not name.startswith(PREFIX):
        reason = f"a run goes on with its own data ({printable(name or 'none')}), and only a folder can be named anew"
        raise problem(to, reason, "Leave it out, or start a new run")
    new = placed(to, root)
    require_remembered(new, fingerprint, root, again)
    return new
