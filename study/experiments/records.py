"""Measure the seconds that a run spends in its checkpoints and records, and those of the run.

The run is `glyphs-5w1s-multistep4` as it is, for so many iterations. What is timed: rows, progress, the numbers that
both need, and checkpoints, with the copies that they are made of.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from metastep.train import loop
from metastep.train.fewshot.job import FewShotJob
from metastep.train.presets import few_shot
from metastep.train.record import Record
from study import results
from study.experiments import arguments

PRESET = "glyphs-5w1s-multistep4"
RECORDS = ((Record, "row"), (Record, "show"), (FewShotJob, "measured"))
CHECKPOINTS = ((Record, "save"), (loop, "_kept"), (loop, "_copied"))


class Clock:
    """Seconds and calls in functions that are patched"""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            found = function(*args, **named)
            found = list(found) if isinstance(found, Iterator) else found
            self.seconds, self.calls = self.seconds + time.perf_counter() - began, self.calls + 1
            return found

        return run


def measured(iterations: int) -> dict[str, Any]:
    """Train, and say where the seconds went"""
    clocks = {"records": Clock(), "checkpoints": Clock()}
    config = replace(few_shot()[PRESET], iterations=iterations)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as patches:
        for name, places in (("records", RECORDS), ("checkpoints", CHECKPOINTS)):
            for owner, function in places:
                timed = clocks[name].timed(getattr(owner, function))
                patches.enter_context(patch.object(owner, function, timed))
        began = time.perf_counter()
        trained = loop.train(config, Path(folder) / "run")
        whole = time.perf_counter() - began
    spent = {name: round(clock.seconds, 4) for name, clock in clocks.items()}
    share = sum(spent.values()) / trained.seconds
    return {
        "preset": PRESET, "iterations": iterations, "seconds": round(trained.seconds, 2), "whole": round(whole, 2),
        **spent, "share": round(share, 5),
    }  # fmt: skip


def main() -> None:
    """Measure, and write the results."""
    parser = arguments.parser("records", __doc__)
    parser.add_argument("--iterations", type=int, default=1_000)
    options = parser.parse_args()
    row = measured(options.iterations)
    print(f"{100 * row['share']:.2f} % of {row['seconds']} s")
    print(results.write("records", arguments.command("records", options), [row]))
