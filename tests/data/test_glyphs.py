"""The glyphs themselves: how many, how different, and how hard."""

from pathlib import Path

import pytest
import torch

from metastep.data.errors import DataError
from metastep.data.pictures import PARTS, SPLITS, Part, Pictures, Split, parts_of
from metastep.data.registry import load
from metastep.data.sets.glyphs import ORDER, SCRIPTS

LOOK_ALIKES = ["AΑА", "BΒВ", "0oOοΟоО", "cCсСϲ", "HΗН", "PΡР", "pр", "TΤТ", "XΧХ", "sSѕЅ", "∑ΣƩ", "MΜМ"]


@pytest.fixture(scope="module")
def glyphs() -> dict[Part, Pictures]:
    return {part: load("glyphs").classes(part) for part in PARTS}


def code_points(*sets: Pictures) -> list[int]:
    return [int(name.split()[0][2:], 16) for images in sets for name in images.names]


def nearest_neighbour_accuracy(images: torch.Tensor, episodes: int, ways: int = 5, queries: int = 5) -> float:
    """1-nearest-neighbour on pixels, one support image per class."""
    dice = torch.Generator().manual_seed(0)
    classes = torch.rand(episodes, len(images), generator=dice).argsort(1)[:, :ways, None]
    drawings = torch.rand(episodes, ways, images.shape[1], generator=dice).argsort(2)[..., : queries + 1]
    pixels = images[classes, drawings].float().flatten(3)
    nearest = torch.cdist(pixels[:, :, 1:].flatten(1, 2), pixels[:, :, 0]).argmin(2)
    return float((nearest == torch.arange(ways).repeat_interleave(queries)).float().mean())


def test_there_are_at_least_a_thousand_classes_of_twenty_drawings(glyphs: dict[Part, Pictures]) -> None:
    points = code_points(*glyphs.values())
    assert len(points) == len(set(points)) >= 1000
    for pictures in glyphs.values():
        rows, counts = pictures.rows()
        assert rows.dtype == torch.uint8
        assert rows.shape == (len(pictures.names), 20, 1, 28, 28)
        assert len(pictures.groups) == len(pictures.names)
        assert counts == ()


def test_splits_are_made_of_whole_scripts(glyphs: dict[Part, Pictures]) -> None:
    for part, images in glyphs.items():
        assert set(images.groups) == set(SCRIPTS[part])
    assert len(set(ORDER)) == len(ORDER) == 22


@pytest.mark.parametrize("script", SCRIPTS["test"])
def test_no_letter_of_a_test_script_hides_among_symbols(glyphs: dict[Part, Pictures], script: str) -> None:
    letters = script.replace("'", "").upper() + " "
    assert not [name for split in ("train", "val") for name in glyphs[split].names if letters in name]


def test_splits_have_their_share_of_the_classes(glyphs: dict[Part, Pictures]) -> None:
    total = sum(len(images.names) for images in glyphs.values())
    shares = {split: len(images.names) / total for split, images in glyphs.items()}
    assert shares == pytest.approx({"train": 0.65, "val": 0.10, "test": 0.25}, abs=0.03)


def test_a_class_knows_its_script_code_point_and_name(glyphs: dict[Part, Pictures]) -> None:
    test = glyphs["test"]
    assert test.groups[test.names.index("U+05D0 HEBREW LETTER ALEF")] == "Hebrew"


@pytest.mark.parametrize("characters", LOOK_ALIKES)
def test_known_look_alikes_count_once(glyphs: dict[Part, Pictures], characters: str) -> None:
    points = code_points(*glyphs.values())
    assert sum(ord(character) in points for character in set(characters)) == 1


def test_every_drawing_has_ink_and_differs_from_its_siblings(glyphs: dict[Part, Pictures]) -> None:
    for images in glyphs.values():
        assert bool((images.images.float().sum((1, 2, 3)) > 8 * 255).all())  # eight black pixels
        assert all(len(drawings.unique(dim=0)) == 20 for drawings in images.rows()[0])


def test_ink_is_255_on_paper_0(glyphs: dict[Part, Pictures]) -> None:
    images = glyphs["train"].images
    assert (int(images.min()), int(images.max())) == (0, 255)
    assert float((images == 0).float().mean()) > 0.8


def test_pixels_alone_do_not_solve_it(glyphs: dict[Part, Pictures]) -> None:
    accuracy = nearest_neighbour_accuracy(glyphs["test"].rows()[0], episodes=300)
    assert 0.35 < accuracy < 0.55  # chance is 0.2


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_its_parts_one_after_the_other(glyphs: dict[Part, Pictures], split: Split) -> None:
    whole, parts = load("glyphs").classes(split), [glyphs[part] for part in parts_of(split)]
    assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
    assert whole.names == sum((part.names for part in parts), ())
    assert whole.groups == sum((part.groups for part in parts), ())


def test_an_unknown_split_names_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"'training'.*train, val, trainval, test, all"):
        load("glyphs").classes("training")


def test_they_come_with_metastep_and_need_no_cache(own_cache: Path) -> None:
    load("glyphs").classes("val")
    assert list(own_cache.iterdir()) == []
