"""Drawing the glyphs that come with metastep: the same bytes every time, and no two classes alike."""

import numpy as np
import pytest
import torch

from metastep.data.cache import Arrays
from metastep.data.files import read_pack
from metastep.data.sets.glyphs import FILE, ORDER
from study.experiments.make_glyphs import differing
from study.glyphs.drawing import HAND, MIN_DISTANCE, choose_classes, draw_glyphs
from study.glyphs.handwriting import draw
from study.glyphs.ranges import RANGES
from study.glyphs.strokes import thicken, thin
from study.glyphs.typeset import distinct, fingerprints, legible


@pytest.fixture(scope="module")
def kept() -> Arrays:
    return read_pack(FILE, ("images", "points", "scripts"))


@pytest.fixture(scope="module")
def classes() -> list[tuple[int, int]]:
    return choose_classes()


def test_the_same_characters_are_chosen_again(kept: Arrays, classes: list[tuple[int, int]]) -> None:
    assert classes == list(zip(kept["scripts"].tolist(), kept["points"].tolist(), strict=True))


def test_drawings_depend_on_nothing_but_the_code_point(kept: Arrays) -> None:
    """Other neighbours, another order, another batch size: the same bytes."""
    chosen = [700, 3, 420, 55, 1330, *range(0, 1331, 10)]
    drawn = draw(kept["points"][chosen].tolist(), HAND)
    assert np.array_equal(drawn.numpy(), kept["images"][chosen])


def test_drawing_all_gives_the_arrays_that_are_kept(
    kept: Arrays, classes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("study.glyphs.drawing.choose_classes", lambda: classes[-40:])  # more than one batch
    for name, array in draw_glyphs().items():
        assert array.dtype == kept[name].dtype
        assert np.array_equal(array, kept[name][-40:])


def test_no_two_classes_look_alike(kept: Arrays) -> None:
    prints = fingerprints(legible(kept["points"].tolist())[1])
    similarity = (prints @ prints.T).fill_diagonal_(-1)
    assert float((2 - 2 * similarity.max()).sqrt()) >= MIN_DISTANCE


def test_of_look_alikes_the_first_is_kept() -> None:
    prints = torch.eye(3, dtype=torch.double)[[0, 1, 0, 2, 1]]
    assert distinct(prints, 0.5) == [0, 1, 3]


def test_thinning_peels_strokes_to_lines_and_never_to_nothing() -> None:
    bar = np.zeros((3, 20, 20), dtype=bool)
    bar[:, 8:13, 4:16] = True  # five pixels thick
    ink = torch.from_numpy(bar)
    thinned = thin(ink, torch.tensor([0, 1, 9]))
    assert torch.equal(thinned[0], ink[0])
    assert thinned[:, :, 10].sum(1).tolist() == [5, 3, 1]


def test_thickening_adds_a_pixel_on_each_side() -> None:
    dot = torch.zeros(5, 5, dtype=torch.bool)
    dot[2, 2] = True
    assert thicken(dot).sum().item() == 5


def test_every_script_has_its_code_points() -> None:
    assert list(RANGES) == list(ORDER)


def test_a_byte_that_differs_is_found(kept: Arrays) -> None:
    assert differing(kept) == []
    images, points = kept["images"].copy(), kept["points"].astype(np.int64)
    images[-1, -1, 0, -1, -1] ^= 1
    assert differing(kept | {"images": images, "points": points}) == ["images", "points"]
