"""Cell arrays of texts, as written by another program, compressed or not; and nothing but a clear error else."""

import pytest

from metastep.data.errors import DataError
from metastep.data.official import read_cell_texts
from tests.data.layouts import mat_list

NAMES = ["n02085620-Chihuahua/n02085620_5927.jpg", "a/b.jpg", "é/ü.jpg", "x"]


@pytest.mark.parametrize("compress", [True, False])
def test_texts_are_read_in_their_order(compress: bool) -> None:
    data = mat_list(NAMES, compress)
    assert read_cell_texts(data, "file_list", "x.mat") == NAMES
    assert read_cell_texts(data, "annotation_list", "x.mat") == NAMES[::-1]


@pytest.mark.parametrize("compress", [True, False])
def test_a_cut_file_is_refused_wherever_it_ends(compress: bool) -> None:
    data = mat_list(NAMES, compress)
    for length in range(0, len(data) - 8, 7):
        with pytest.raises(DataError, match=r"x\.mat: (is damaged|is no MATLAB|has no variable)"):
            read_cell_texts(data[:length], "file_list", "x.mat")


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match=r"x\.mat: has no variable other\. Get it again\."):
        read_cell_texts(mat_list(NAMES), "other", "x.mat")
    with pytest.raises(DataError, match=r"x\.mat: is damaged or cut short \('a cell that is no text'\)"):
        read_cell_texts(mat_list([1.0]), "file_list", "x.mat")  # type: ignore[list-item]
