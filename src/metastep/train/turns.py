"""Work that pauses where it would wait for the device, so that several runs can share one process.

The training loops of both jobs are such work. `run_alone` runs it to its end. Whoever runs several of them lets the
others go on in each pause.
"""

from collections.abc import Callable, Generator
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

Turns = Generator[None, int, Result]
"""Work that pauses now and then. At each pause it is sent how many others are running."""


def run_alone(work: Callable[Given, Turns[Result]]) -> Callable[Given, Result]:
    """Return a function that runs the work to its end, alone. That of `train_in_turns` is called `train`."""

    @wraps(work)
    def whole(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        turns = work(*args, **kwargs)
        try:
            next(turns)
            while True:
                turns.send(0)
        except StopIteration as end:
            result: Result = end.value
            return result

    whole.__name__ = whole.__qualname__ = work.__name__.removesuffix("_in_turns")
    return whole


class Shared(Protocol):
    """The part of a run's position that tells of other runs."""

    beside: int  # the most other runs that ran in this process at the same time


def others_go_on(at: Shared, settings: Callable[[], object]) -> Turns[None]:
    """Pause once, then call `settings`: other runs may have changed the settings of the process."""
    at.beside = max(at.beside, (yield))
    settings()
