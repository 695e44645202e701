"""Splits are disjoint, complete and the same everywhere."""

from itertools import product

import pytest

from metastep.data.errors import DataError
from metastep.data.pictures import SPLITS, Split, known_split, parts_of, sizes_from_fractions, split_classes


def test_splits_partition_the_classes() -> None:
    train, val, trainval, test = (split_classes((6, 2, 3), name) for name in ("train", "val", "trainval", "test"))
    assert (len(train), len(val), len(test)) == (6, 2, 3)
    assert train + val == trainval
    assert sorted(trainval + test) == list(range(11))


def test_all_keeps_the_order_of_the_classes() -> None:
    assert split_classes((6, 2, 3), "all") == list(range(11))


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_made_of_its_parts(split: Split) -> None:
    names = {"trainval": ("train", "val"), "all": ("train", "val", "test")}
    assert parts_of(split) == names.get(split, (split,))


def test_splits_are_the_same_on_every_machine() -> None:
    assert split_classes((5, 2, 3), "trainval") == [6, 9, 0, 2, 4, 3, 5]


def test_unknown_split_is_refused() -> None:
    with pytest.raises(DataError, match=r"'trian'.*train, val, trainval, test"):
        known_split("trian")


def test_fractions_use_every_class_once() -> None:
    for count, fractions in product(range(60), [(0.64, 0.16, 0.2), (0, 0.3, 0.7), (1, 0, 0), (0.5, 0.5, 0)]):
        sizes = sizes_from_fractions(count, fractions)
        assert sum(sizes) == count
        assert min(sizes) >= 0
        asked = [fraction > 0 for fraction in fractions]
        if count >= sum(asked):
            assert [size > 0 for size in sizes] == asked
    assert sizes_from_fractions(100, (0.64, 0.16, 0.2)) == (64, 16, 20)


@pytest.mark.parametrize("fractions", [(0.5, 0.5, 0.5), (-0.5, 0.5, 1.0), (0.5, 0.5)])
def test_fractions_that_make_no_sense_are_refused(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(DataError, match="fractions"):
        sizes_from_fractions(10, fractions)
