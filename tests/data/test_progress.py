"""Counting items changes nothing about them, and reports the last one once."""

import pytest

from metastep.data.errors import counted


@pytest.mark.parametrize(
    ("items", "reports"),
    [(0, []), (3, [(3, 250)]), (100, [(100, 250)]), (250, [(100, 250), (200, 250), (250, 250)])],
)
def test_every_hundredth_and_the_last_are_reported(items: int, reports: list[tuple[int, int]]) -> None:
    calls: list[tuple[int, int]] = []
    assert list(counted(range(items), 250, lambda *call: calls.append(call))) == list(range(items))
    assert calls == reports


def test_an_item_is_reported_after_it_was_dealt_with() -> None:
    calls: list[tuple[int, int]] = []
    for _ in counted(range(3), 3, lambda *call: calls.append(call)):
        assert calls == []
    assert calls == [(3, 3)]
