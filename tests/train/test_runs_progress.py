"""The progress display: the right words, on a terminal and off, for next to nothing."""

import io
import re
import time
from typing import Any

import pytest
import torch
from rich.console import Console

from metastep.train.progress import Progress, one_display


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
            progress.update(step, **metrics)
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
        progress.update(1)
    assert file.getvalue().startswith("step 1/2  ")


def shared(terminal: bool) -> str:
    """Three runs, the third begun when the first is over, in one display"""
    clock, file = Clock(), io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, color_system=None, _environ={"TERM": "xterm"})
    with one_display(console), Progress(30, name="second", clock=clock) as second:
        with Progress(10, name="first", clock=clock) as first:
            first.say("[as it is]")
            for step in range(1, 11):
                clock.now += 1
                first.update(step, loss=0.5)
                second.update(step, loss=0.25)
        with Progress(10, start=8, name="third", clock=clock) as third:
            clock.now += 10
            third.update(9)
            second.update(20)
    with Progress(2, name="not needed", console=console, clock=clock) as alone:
        clock.now += 10
        alone.update(1)
    return file.getvalue()


def test_several_runs_have_plain_lines_with_their_names() -> None:
    assert shared(terminal=False).splitlines() == [
        "first: [as it is]",
        "first  step 10/10  1 steps/s  loss 0.5",
        "second  step 10/30  1 steps/s  loss 0.25  0:20 left",
        "third  step 9/10  10 s/step  0:10 left",
        "second  step 20/30  1 steps/s  0:10 left",
        "step 1/2  10 s/step  0:10 left",
    ]


def test_several_runs_share_one_live_display() -> None:
    output = shared(terminal=True)
    lines = [line.rstrip() for line in re.split(r"\n|\x1b\[2K", output)]
    assert "first: [as it is]" in lines
    assert any("second 10/30" in line and line.endswith("1 steps/s  loss 0.25  0:20 left") for line in lines)
    assert output.count("\x1b[?25l") == 2  # the cursor is hidden by a display: by theirs, and by that of the last
    third = next(number for number, line in enumerate(lines) if line.startswith("third  9/10"))
    assert not any(line.startswith("first") for line in lines[third:])  # its line is gone
    assert "needed" not in output


@pytest.mark.parametrize("terminal", [False, True])
def test_an_error_inside_ends_the_display_and_is_not_hidden(terminal: bool) -> None:
    class Broken:
        def __float__(self) -> float:
            raise RuntimeError("must not be read after an error")

    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, _environ={"TERM": "xterm"})

    def work() -> None:
        with Progress(10, console=console) as progress:
            progress.update(1, loss=Broken())
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
            progress.update(step, loss=loss, accuracy=0.5)
        assert (time.perf_counter() - began) / count < 50e-6
