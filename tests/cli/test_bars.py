"""What a full bar is, and where chance is, can be seen without knowing it."""

import pytest
from rich.console import Console
from rich.table import Table

from metastep.cli.evaluate import Bar, add_bars


@pytest.mark.parametrize(
    ("accuracy", "classes", "drawn"),
    [
        (0.0, 5, "······┊·······················"),
        (20.0, 5, "██████┊·······················"),
        (60.0, 5, "██████┊███████████············"),
        (100.0, 5, "██████┊███████████████████████"),
        (100.0, 2, "███████████████┊██████████████"),
        (50.0, 100, "┊██████████████···············"),
        (50.0, 1, "███████████████··············┊"),
    ],
)
def test_every_bar_is_as_wide_as_all_of_it(accuracy: float, classes: int, drawn: str) -> None:
    assert drawn in printed(accuracy, classes)


@pytest.mark.parametrize(("classes", "said"), [(5, "┊ chance 20 %"), (3, "┊ chance 33.3 %"), (1000, "┊ chance 0.1 %")])
def test_the_heading_is_the_scale(classes: int, said: str) -> None:
    assert f"0 to 100 %, {said}" in printed(50, classes)


def test_where_there_is_less_room_all_of_it_is_smaller() -> None:
    assert "│ a long name │ ██┊█████·· │" in printed(80, 5, width=28)


def printed(accuracy: float, classes: int, width: int = 80) -> str:
    """In a table with a column that is not cut"""
    table, console = Table(), Console(width=width)
    table.add_column("what", no_wrap=True)
    add_bars(table, classes)
    table.add_row("a long name", Bar(accuracy, classes))
    with console.capture() as capture:
        console.print(table)
    return capture.get()
