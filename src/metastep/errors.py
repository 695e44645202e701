"""What metastep raises: one message with the input, the reason and the remedy."""

import errno
from collections.abc import Iterable
from difflib import get_close_matches


class MetastepError(ValueError):
    """Something given to metastep cannot work; the message says what, why, and what to do."""


class NonFiniteError(MetastepError):
    """An inner loop left the finite numbers; the message names the task and the window."""


def require_positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not value > 0:
            raise MetastepError(f"{name} = {value} must be above 0.")


def did_you_mean(name: str, among: Iterable[str]) -> str:
    """To put behind a message's first sentence; nothing if no other name is like `name`"""
    near = get_close_matches(name, list(among), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def how_many(number: int, thing: str, things: str = "") -> str:
    """1 shot, 5 shots; `things` where the plural is more than an s"""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def first_line(error: Exception) -> str:
    """What others raised, cut to fit into a line of ours"""
    return str(error).strip().split("\n")[0]


_ROOM = "Make room on that disk, then call it again"
_RIGHTS = "Choose a folder that you can write to, or change its permissions"
_REMEDIES = {
    errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM, errno.EFBIG: _ROOM,
    errno.EROFS: _RIGHTS, errno.EACCES: _RIGHTS, errno.EPERM: _RIGHTS,
}  # fmt: skip


def remedy_of(error: Exception, otherwise: str) -> str:
    """What helps where the system refuses to write"""
    return _REMEDIES.get(getattr(error, "errno", None) or 0, otherwise)
