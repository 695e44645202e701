"""Which cases a call measures, and in which order."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from metastep.errors import MetastepError
from study.bench.cases import SETTINGS, TRANSFERS, Case, Grid, methods_of
from study.bench.implementations import IMPLEMENTATIONS


def planned(grid: Grid, names: Sequence[str], chunk: int | None = None) -> list[Case]:
    """Every case of the grid, for every implementation that serves it; `chunk` tasks together where none are asked"""
    cases = [case for name in names for case in grid.cases(name) if IMPLEMENTATIONS[name].serves(case)]
    if not cases:
        raise MetastepError(
            f"{', '.join(names)} in {', '.join(grid.settings)}: none of them has {', '.join(grid.methods or ())} "
            f"with so few inner steps, in {grid.precision}. Ask for other methods, settings, steps or precisions."
        )
    return sorted((as_computed(case, chunk) for case in cases), key=in_order)


def left_out(grid: Grid, cases: Sequence[Case]) -> list[str]:
    """Methods that were asked for, and whose window is longer than every inner loop that was"""
    known = {label: way for setting in grid.settings for label, way in methods_of(setting).items()}
    measured = {(case.method, case.window) for case in cases}
    return [label for label in grid.methods or () if known.get(label) not in measured]


def as_computed(case: Case, chunk: int | None) -> Case:
    """A row says how many tasks are really computed together; its note does, where that is the implementation's own"""
    at_once = IMPLEMENTATIONS[case.implementation].at_once
    together = None if chunk is None else min(chunk, case.tasks)
    return replace(case, chunk={"one": 1, "chunk": case.chunk or together, "all": None, "own": case.chunk}[at_once])


def in_order(case: Case) -> tuple[Any, ...]:
    """Rows to be compared stand together, and are measured soon after each other"""
    methods = [method for method, _ in methods_of(case.setting).values()]
    setting, name = [*SETTINGS, *TRANSFERS].index(case.setting), list(IMPLEMENTATIONS).index(case.implementation)
    return setting, case.tasks, case.steps, methods.index(case.method), case.window, name
