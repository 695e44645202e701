"""The glyphs themselves: how many, how different, how hard, and the same every time."""

from pathlib import Path

import numpy as np
import pytest
import torch

from metastep.data import glyphs as module
from metastep.data.errors import DataError
from metastep.data.glyphs import HAND, MIN_DISTANCE, draw_glyphs, load_glyphs
from metastep.data.handwriting import draw
from metastep.data.images import ImageSet
from metastep.data.scripts import SCRIPTS
from metastep.data.splits import PARTS, SPLITS, Part, Split, parts_of
from metastep.data.strokes import thicken, thin
from metastep.data.typeset import distinct, fingerprints, legible

LOOK_ALIKES = ["AΑА", "BΒВ", "0oOοΟоО", "cCсСϲ", "HΗН", "PΡР", "pр", "TΤТ", "XΧХ", "sSѕЅ", "∑ΣƩ", "MΜМ"]


FEW = [(0, ord("A")), (0, ord("B")), (1, ord("Ж")), (len(SCRIPTS) - 1, 0x10300)]


@pytest.fixture(scope="module")
def glyphs(drawn_glyphs: Path) -> dict[Part, ImageSet]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("METASTEP_CACHE", str(drawn_glyphs))
        return {part: load_glyphs(part) for part in PARTS}


@pytest.fixture
def few_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose four classes, so that drawing takes milliseconds."""
    monkeypatch.setattr(module, "choose_classes", lambda: FEW)


def code_points(*sets: ImageSet) -> list[int]:
    return [int(name.split()[0][2:], 16) for images in sets for name in images.names]


def nearest_neighbour_accuracy(images: torch.Tensor, episodes: int, ways: int = 5, queries: int = 5) -> float:
    """1-nearest-neighbour on pixels, one support image per class."""
    dice = torch.Generator().manual_seed(0)
    classes = torch.rand(episodes, len(images), generator=dice).argsort(1)[:, :ways, None]
    drawings = torch.rand(episodes, ways, images.shape[1], generator=dice).argsort(2)[..., : queries + 1]
    pixels = images[classes, drawings].float().flatten(3)
    nearest = torch.cdist(pixels[:, :, 1:].flatten(1, 2), pixels[:, :, 0]).argmin(2)
    return float((nearest == torch.arange(ways).repeat_interleave(queries)).float().mean())


def test_there_are_at_least_a_thousand_classes_of_twenty_drawings(glyphs: dict[Part, ImageSet]) -> None:
    points = code_points(*glyphs.values())
    assert len(points) == len(set(points)) >= 1000
    for images, names, groups, counts in glyphs.values():
        assert images.dtype == torch.uint8
        assert images.shape == (len(names), 20, 1, 28, 28)
        assert len(groups) == len(names)
        assert counts == ()


def test_splits_are_made_of_whole_scripts(glyphs: dict[Part, ImageSet]) -> None:
    for part, images in glyphs.items():
        assert set(images.groups) == {script.name for script in SCRIPTS if script.part == part}
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)


@pytest.mark.parametrize("script", [script.name for script in SCRIPTS if script.part == "test"])
def test_no_letter_of_a_test_script_hides_among_symbols(glyphs: dict[Part, ImageSet], script: str) -> None:
    letters = script.replace("'", "").upper() + " "
    assert not [name for split in ("train", "val") for name in glyphs[split].names if letters in name]


def test_splits_have_their_share_of_the_classes(glyphs: dict[Part, ImageSet]) -> None:
    total = sum(len(images.names) for images in glyphs.values())
    shares = {split: len(images.names) / total for split, images in glyphs.items()}
    assert shares == pytest.approx({"train": 0.65, "val": 0.10, "test": 0.25}, abs=0.03)


def test_a_class_knows_its_script_code_point_and_name(glyphs: dict[Part, ImageSet]) -> None:
    test = glyphs["test"]
    assert test.groups[test.names.index("U+05D0 HEBREW LETTER ALEF")] == "Hebrew"


def test_no_two_classes_look_alike(glyphs: dict[Part, ImageSet]) -> None:
    prints = fingerprints(legible(code_points(*glyphs.values()))[1])
    similarity = (prints @ prints.T).fill_diagonal_(-1)
    assert float((2 - 2 * similarity.max()).sqrt()) >= MIN_DISTANCE


@pytest.mark.parametrize("characters", LOOK_ALIKES)
def test_known_look_alikes_count_once(glyphs: dict[Part, ImageSet], characters: str) -> None:
    points = code_points(*glyphs.values())
    assert sum(ord(character) in points for character in set(characters)) == 1


def test_of_look_alikes_the_first_is_kept() -> None:
    prints = torch.eye(3, dtype=torch.double)[[0, 1, 0, 2, 1]]
    assert distinct(prints, 0.5) == [0, 1, 3]


def test_every_drawing_has_ink_and_differs_from_its_siblings(glyphs: dict[Part, ImageSet]) -> None:
    for images in glyphs.values():
        assert bool((images.images.float().sum((2, 3, 4)) > 8 * 255).all())  # eight black pixels
        assert all(len(drawings.unique(dim=0)) == 20 for drawings in images.images)


def test_ink_is_255_on_paper_0(glyphs: dict[Part, ImageSet]) -> None:
    images = glyphs["train"].images
    assert (int(images.min()), int(images.max())) == (0, 255)
    assert float((images == 0).float().mean()) > 0.8


def test_drawings_depend_on_nothing_but_the_code_point(glyphs: dict[Part, ImageSet]) -> None:
    """Other neighbours, another order, another batch size: the same bytes."""
    train = glyphs["train"]
    chosen = [700, 3, 420, 55]
    points = code_points(train)
    assert torch.equal(draw([points[index] for index in chosen], HAND), train.images[chosen])


def test_pixels_alone_do_not_solve_it(glyphs: dict[Part, ImageSet]) -> None:
    accuracy = nearest_neighbour_accuracy(glyphs["test"].images, episodes=300)
    assert 0.35 < accuracy < 0.55  # chance is 0.2


@pytest.mark.usefixtures("glyphs_cache")
@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_its_parts_one_after_the_other(glyphs: dict[Part, ImageSet], split: Split) -> None:
    whole, parts = load_glyphs(split), [glyphs[part] for part in parts_of(split)]
    assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
    assert whole.names == sum((part.names for part in parts), ())
    assert whole.groups == sum((part.groups for part in parts), ())


def test_an_unknown_split_names_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"'training'.*train, val, trainval, test, all"):
        load_glyphs("training")  # type: ignore[arg-type]


@pytest.mark.usefixtures("few_classes")
def test_what_is_read_is_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = load_glyphs("train")
    monkeypatch.setattr(module, "draw_glyphs", lambda progress: pytest.fail("drawn again"))
    read = load_glyphs("train")
    assert torch.equal(drawn.images, read.images)
    assert drawn[1:] == read[1:]
    assert read.groups == ("Latin", "Latin", "Cyrillic")


@pytest.mark.usefixtures("few_classes")
def test_another_recipe_is_another_entry(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_glyphs("train")
    monkeypatch.setattr(module, "RECIPE", -1)
    load_glyphs("train")
    assert len(list(own_cache.iterdir())) == 2


@pytest.mark.usefixtures("few_classes")
def test_progress_counts_up_to_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 3)
    calls: list[tuple[int, int]] = []
    draw_glyphs(lambda *call: calls.append(call))
    assert calls == [(3, 4), (4, 4)]


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
