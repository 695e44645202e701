"""What metastep raises: one message with the input, the reason and the remedy."""

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
