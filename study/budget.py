"""An end to work that is to take so long and no longer."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 5.0  # seconds between two reminders, for what begins to listen only after the first
RESERVE, SHARE = 20.0, 0.1  # seconds kept for saving, and the largest part of a budget that they may be


@contextmanager
def within(budget: float | None) -> Iterator[None]:
    """Shortly before the time is over, and from then on, ask ourselves to stop as a scheduler would"""
    if budget is None:
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, ask)
    signal.setitimer(signal.ITIMER_REAL, max(budget - min(RESERVE, SHARE * budget), 1e-3), AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
