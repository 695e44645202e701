"""Ctrl-C while the command `metastep` imports torch, which takes a second: it ends with status 130, and no traceback.

Python imports a package before any part of it, so that neither the command nor `__main__` comes before torch. To catch
KeyboardInterrupt would not do: what runs in C while numpy and torch are imported makes other errors of it, or aborts.
A program that imports metastep is left alone.
"""

import os
import signal
import sys
from types import FrameType


def is_command() -> bool:
    """Whether this process is `metastep …` or `python -m metastep …`"""
    program = sys.argv[0] if sys.argv else ""
    name, _ = os.path.splitext(os.path.basename(program))  # not by pathlib, which itself takes a while
    return name == "metastep" or program.endswith(os.path.join("metastep", "__main__.py"))


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(130)


def end() -> None:
    """All is imported: Ctrl-C is an exception again, and commands say that they were stopped"""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job may be told to ignore it
    signal.signal(signal.SIGINT, _leave)
