"""Name a user's own folder as a data set: folder:PATH.

Configurations keep such names, and the command line needs configurations for its flags, so this module loads no torch.
"""

from pathlib import Path

FOLDER = "folder"
PREFIX = f"{FOLDER}:"


def without_place(name: str) -> str:
    """folder:/home/me/photos as folder:photos, for others to see; the names of data sets have no place in them."""
    return PREFIX + Path(name.removeprefix(PREFIX)).name if name.startswith(PREFIX) else name
