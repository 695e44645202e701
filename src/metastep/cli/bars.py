"""Accuracies as bars on a terminal, all as wide as 100 %, with a mark at what guessing would reach."""

from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

CELLS = 30
FILLED, EMPTY, CHANCE = "█", "·", "┊"


def add_bars(table: Table, classes: int) -> None:
    """A column for them, with their scale as its heading"""
    table.add_column(f"0 to 100 %, {CHANCE} chance {100 / classes:.3g} %")


class Bar(NamedTuple):
    accuracy: float  # in percent
    classes: int  # to guess among

    def drawn(self, cells: int) -> Text:
        filled, chance = round(cells * self.accuracy / 100), round(cells / self.classes)
        drawn = [(FILLED, "green") if i < filled else (EMPTY, "dim") for i in range(cells)]
        drawn[min(chance, cells - 1)] = CHANCE, "bold"
        return Text.assemble(*drawn)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.drawn(min(CELLS, options.max_width))  # where there is less room, that is 100 %

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, CELLS)
