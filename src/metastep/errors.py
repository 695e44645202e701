"""What metastep raises: one message with the input, the reason and the remedy."""

import errno
import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches


class MetastepError(ValueError):
    """Report that something given to metastep cannot work: what was given, why it cannot work, and what to do.

    It is a `ValueError`.

    Example:
        >>> import metastep as ms
        >>> ms.MultiStep(window=0)
        Traceback (most recent call last):
        metastep.errors.MetastepError: window = 0 must be at least 1. A list needs at least one window.
    """


class NonFiniteError(MetastepError):
    """Report that a meta-gradient is not finite, and name the task and the window if they are known.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> problem = ms.few_shot(net, torch.nn.functional.mse_loss)
        >>> gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=1e30), steps=4)
        >>> batch = torch.ones(1, 6, 2), torch.ones(1, 6, 1)  # 1 task of 6 examples
        >>> gradient(net, ms.Task(support=batch, query=batch))
        Traceback (most recent call last):
        metastep.errors.NonFiniteError: task 0: the inner gradient of window 2 (of 4, counted from 0) is not finite. ...
    """


def require_positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not value > 0:
            raise MetastepError(f"{name} = {value} must be above 0.")


def did_you_mean(name: str, among: Iterable[str]) -> str:
    """Return " Did you mean …?" for the nearest name, or nothing if none is near."""
    near = get_close_matches(name, list(among), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def how_many(number: int, thing: str, things: str = "") -> str:
    """Return a number and its noun: 1 shot, 5 shots. `things` is the plural if it is more than an s."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def first_line(error: Exception) -> str:
    """Return the first line of an error, to be quoted in a message."""
    return str(error).strip().split("\n")[0]


_ROOM = "Make room on that disk, then call it again"
_RIGHTS = "Choose a folder that you can write to, or change its permissions"
_REMEDIES = {
    errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM, errno.EFBIG: _ROOM,
    errno.EROFS: _RIGHTS, errno.EACCES: _RIGHTS, errno.EPERM: _RIGHTS,
}  # fmt: skip


def remedy_of(error: Exception, otherwise: str) -> str:
    """Return what helps if the system refuses to write, else `otherwise`."""
    return _REMEDIES.get(getattr(error, "errno", None) or 0, otherwise)


def warn(message: str) -> None:
    """Warn at the line that called metastep, however deep inside it this is."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "metastep",
        "torch",
        "contextlib",
    ):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, stacklevel=depth + 1)
