"""Several runs share one display."""

import io
import re

from rich.console import Console

from metastep.train.progress import Progress
from study.together import one_display
from tests.train.test_runs_progress import Clock


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
