"""`make budget` adds up what each group of tests takes."""

import pytest

from tests.budget import MINUTES, group_of, lines_of_groups, lines_of_slowest, now

SPENT = [("a", "tests", 300.0, 900.0), ("b", "tests", 120.0, 1.0), ("c", "kills", 240.0, 2.0)]


def test_a_group_is_the_processor_time_of_two_cores() -> None:
    assert list(lines_of_groups(SPENT)) == [
        "tests          2 tests   3.50 of 5.0",
        "kills          1 tests   2.00 of 1.5 over its budget",
    ]


def test_the_slowest_come_first() -> None:
    assert [line.rsplit(": ")[1] for line in lines_of_slowest(SPENT)] == ["a (tests)", "c (kills)", "b (tests)"]


def test_every_group_but_the_rest_is_a_marker(pytestconfig: pytest.Config) -> None:
    markers = [line.partition(":")[0] for line in pytestconfig.getini("markers")]
    assert {name for name in MINUTES if name != "tests"} <= set(markers)


def test_a_marker_chooses_the_group(request: pytest.FixtureRequest) -> None:
    assert group_of(request.node) == "tests"
    request.node.add_marker("kills")
    assert group_of(request.node) == "kills"


def test_work_takes_time_of_the_processor() -> None:
    before = now()
    sum(range(2_000_000))
    after = now()
    assert after.processor - before.processor > 0.005
    assert after.wall >= before.wall
