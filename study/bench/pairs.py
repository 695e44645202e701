"""Two implementations of one case, interleaved in one process: a disturbance of the machine meets both.

`python -m study.bench.pairs JSON` measures one pair of cases and prints the seconds of every turn.
"""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import comb
from typing import NamedTuple

import torch

from metastep.errors import MetastepError
from study.bench.cases import Case, Grid
from study.bench.measure import group_of, seconds_of, started, wall
from study.bench.plan import planned
from study.bench.results import Row, about_case
from study.bench.running import Conditions, answer, asked_for

LEAST_PAIRS = 15
COVERAGE = 0.95


class Estimated(NamedTuple):
    """A median, and an interval that has the true one inside"""

    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{self.value:,.3g} [{self.low:,.3g}, {self.high:,.3g}]"


def median(values: Sequence[float]) -> Estimated:
    """Return the median between two order statistics: the interval holds whatever the distribution of the values is."""
    n, left, tail = len(values), 0, 0.5 ** len(values)
    while tail <= (1 - COVERAGE) / 2:  # the chance that at most `left` values lie below the true median
        left += 1
        tail += comb(n, left) / 2**n
    if not left:
        raise MetastepError(f"{n} pairs: a median has an interval of {COVERAGE:.0%} from 6 on. Measure more.")
    ordered = sorted(values)
    return Estimated(statistics.median(ordered), ordered[left - 1], ordered[n - left])


def paired(grid: Grid, names: Sequence[str], chunk: int | None) -> list[tuple[Case, Case]]:
    """Return every case of the grid that both implementations serve, once for each."""
    everything = replace(grid, alternative_steps=grid.steps)
    ours, others = ({_shared(case): case for case in planned(everything, [name], chunk)} for name in names)
    both = [(case, others[key]) for key, case in ours.items() if key in others]
    if not both:
        raise MetastepError(f"{' and '.join(names)} have no case in common. Ask for other methods or settings.")
    return both


def _shared(case: Case) -> Case:
    return replace(case, implementation="", chunk=None)


def row_of_pair(case: Case, other: Case, conditions: Conditions) -> Row:
    """Measure a pair in a process of its own."""
    turns, note = answer("study.bench.pairs", [asdict(case), asdict(other), asdict(conditions)])
    return about_case(case) | {"other": other.implementation} | numbers(turns) | {"note": note}


def numbers(turns: Sequence[tuple[float, float]]) -> Row:
    """Milliseconds of each, and ours / other's in each pair; each with its interval."""
    estimated = {
        "ms": median([1e3 * ours for ours, _ in turns]),
        "other_ms": median([1e3 * others for _, others in turns]),
        "ratio": median([ours / others for ours, others in turns]),
    }
    return {"pairs": len(turns)} | {name: [round(x, 4) for x in found] for name, found in estimated.items()}


def interleaved(cases: Sequence[Case], conditions: Conditions) -> tuple[list[list[float]], str]:
    """Return the seconds of a step, ours, other's, ours, …, and the way that ours took.

    On a CPU these are seconds of the processor, all threads together: what others compute there does not count.
    """
    begun = [started(case, torch.device(conditions.device)) for case in cases]
    groups = [group_of(way.step, way.machine) for way in begun]
    clock = wall if conditions.on_gpu else time.process_time
    turns = [
        [seconds_of(way.step, way.machine, n, clock) / n for way, n in zip(begun, groups, strict=True)]
        for _ in range(conditions.repeats)
    ]
    return turns, begun[0].path


def main() -> None:
    print(json.dumps(interleaved(*asked_for())))


if __name__ == "__main__":
    main()
