"""The progress display: the right words, on a terminal and off, for next to nothing."""

import io
import time
from typing import Any

import pytest
import torch
from rich.console import Console

from metastep.train.record import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(terminal: bool, steps: range, seconds: float, total: int = 100, **metrics: Any) -> str:
    clock, file = Clock(), io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, color_system=None, _environ={"TERM": "xterm"})
    with Progress(total, start=steps.start - 1, console=console, clock=clock) as progress:
        for step in steps:
            clock.now += seconds
            progress.update(step, lambda: metrics)
    return file.getvalue()


def test_plain_lines_come_every_ten_seconds_and_at_the_end() -> None:
    assert shown(False, range(1, 26), 1.0, loss=0.123456, accuracy=1).splitlines() == [
        "step 10/100  1 steps/s  loss 0.1235  accuracy 1  1:30 left",
        "step 20/100  1 steps/s  loss 0.1235  accuracy 1  1:20 left",
        "step 25/100  1 steps/s  loss 0.1235  accuracy 1  1:15 left",
    ]


def test_slow_steps_long_runs_and_long_lines() -> None:
    lines = shown(False, range(1, 3), 20.0, total=1000, **{f"[metric_{i}]": 0.5 for i in range(20)}).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("step 1/1000  20 s/step  [metric_0] 0.5  ")
    assert lines[0].endswith("5:33:00 left")


def test_a_resumed_run_counts_only_its_own_steps() -> None:
    assert shown(False, range(91, 101), 1.0) == "step 100/100  1 steps/s\n"


def test_a_terminal_has_a_bar() -> None:
    output = shown(True, range(1, 51), 0.1, loss=torch.tensor(0.25))
    assert "50/100" in output
    assert "10 steps/s  loss 0.25  0:05 left" in output
    assert output.count("\n") < 30  # one line, drawn again and again


def test_a_dumb_terminal_has_lines() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, _environ={"TERM": "dumb"})
    with Progress(2, console=console) as progress:
        progress.update(1, dict)
    assert file.getvalue().startswith("step 1/2  ")


@pytest.mark.parametrize("terminal", [False, True])
def test_an_error_inside_ends_the_display_and_is_not_hidden(terminal: bool) -> None:
    class Broken:
        def __float__(self) -> float:
            raise RuntimeError("must not be read after an error")

    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, _environ={"TERM": "xterm"})

    def work() -> None:
        with Progress(10, console=console) as progress:
            progress.update(1, lambda: {"loss": Broken()})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert ("\x1b[?25h" in file.getvalue()) == terminal  # the cursor is back


@pytest.mark.parametrize("terminal", [False, True])
def test_an_update_that_is_not_shown_costs_under_50_microseconds(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, _environ={"TERM": "xterm"})
    loss, count = torch.tensor(0.5), 2000
    with Progress(count, console=console, clock=lambda: 1.0) as progress:
        began = time.perf_counter()
        for step in range(count):
            progress.update(step, lambda: {"loss": loss, "accuracy": 0.5})
        assert (time.perf_counter() - began) / count < 50e-6
