"""How long each group of tests takes, beside what CONTRIBUTING allows it: `make budget`.

What counts is processor time, of child processes too: it is nearly the same on a busy machine. A group is what one
marker selects, so that `pytest -m kills` runs it alone; tests without one are the group `tests`.
"""

import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import pytest

CORES = 2
MINUTES = {"tests": 5.0, "compiled": 1.5, "kills": 1.5, "docs": 1.0, "notebooks": 2.0, "wheel": 1.0}  # on so many cores
SHOWN = 20
_begun = pytest.StashKey["Spent"]()


class Spent(NamedTuple):
    processor: float
    wall: float


def now() -> Spent:
    times = os.times()
    children = times.children_user + times.children_system
    return Spent(times.user + times.system + children, time.perf_counter())


def group_of(item: pytest.Item) -> str:
    return next((name for name in MINUTES if item.get_closest_marker(name)), "tests")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    item.stash[_begun] = now()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "teardown":  # the last of a test; what it says reaches us from another process too
        spent = [b - a for a, b in zip(item.stash[_begun], now(), strict=True)]
        report.user_properties.append(("budget", (group_of(item), *spent)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    spent = list(_spent(terminalreporter))
    terminalreporter.section(f"minutes of processor / {CORES} cores")
    for line in (*lines_of_groups(spent), "", *lines_of_slowest(spent)):
        terminalreporter.write_line(line)


def _spent(reporter: pytest.TerminalReporter) -> Iterator[tuple[str, str, float, float]]:
    """(test, group, seconds of processor, seconds) of each"""
    for report in (report for reports in reporter.stats.values() for report in reports):
        for name, value in getattr(report, "user_properties", ()):
            if name == "budget" and report.when == "teardown":
                yield (report.nodeid, *value)


def lines_of_groups(spent: list[tuple[str, str, float, float]]) -> Iterator[str]:
    groups: dict[str, list[float]] = defaultdict(list)
    for _, group, processor, _ in spent:
        groups[group].append(processor)
    for group, allowed in MINUTES.items():
        if found := groups[group]:
            minutes = sum(found) / 60 / CORES
            said = "over its budget" if minutes > allowed else ""
            yield f"{group:10s} {len(found):5d} tests {minutes:6.2f} of {allowed:.1f} {said}".rstrip()


def lines_of_slowest(spent: list[tuple[str, str, float, float]]) -> Iterator[str]:
    for test, group, processor, wall in sorted(spent, key=lambda row: -row[2])[:SHOWN]:
        yield f"{processor:6.1f} s of processor, {wall:6.1f} s in all: {test} ({group})"
