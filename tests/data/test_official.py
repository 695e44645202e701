"""Every official layout gives the same tiny data set: the right pictures with the right labels in the right parts."""

from functools import wraps
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metastep.data.errors import DataError
from metastep.data.pictures import INDICES, Labelled, Pictures
from metastep.data.registry import data_set, load as load_data
from tests.data.layouts import (
    ARCHIVES,
    CLASSES,
    LAYOUTS,
    SIZES,
    TESTING,
    TRAINING,
    Colour,
    Layout,
    mat_list,
    pack_up,
    planes,
    tiny,
)

PAPER = {
    "cifar100": (45_000, 5_000, 10_000),
    "stl10": (4_500, 500, 8_000),
    "cub200": (4_994, 1_000, 5_794),
    "indoor67": (4_360, 1_000, 1_340),
    "stanford40": (3_600, 400, 5_532),
    "stanford_dogs": (10_800, 1_200, 8_580),
    "tiny_imagenet": (90_000, 10_000, 10_000),
}
every = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def load(layout: Layout, root: Path, seed: int = 0, size: int | None = None) -> Labelled:
    return layout.kind(layout.name, root, size).labelled(seed)


def colours(part: Pictures) -> list[Colour]:
    """Each picture must be of one colour; what it is."""
    corner = part.images[:, :, :1, :1]
    assert torch.equal(part.images, corner.expand_as(part.images))
    return [(a, b, c) for a, b, c in corner[:, :, 0, 0].tolist()]


@every
def test_pictures_labels_and_parts(layout: Layout, tmp_path: Path) -> None:
    layout.write(tmp_path)
    splits = load(layout, tmp_path)
    for part in splits[:3]:
        side = layout.kind.side
        assert part.images.shape[1:] == (3, side, side)
        assert part.images.dtype == torch.uint8
        assert part.labels.tolist() == [label for label, _, _ in colours(part)]
        assert len(part.names) == CLASSES
    train, val, test = (colours(part) for part in splits[:3])
    assert sorted(train + val) == TRAINING
    assert sorted(test) == TESTING
    assert (len(train), len(val), len(test)) == SIZES
    assert [colour for colour in layout.order if colour in train] == train


@every
def test_validation_is_drawn_evenly_and_seeded(layout: Layout, tmp_path: Path) -> None:
    layout.write(tmp_path)
    first, again, other = load(layout, tmp_path), load(layout, tmp_path), load(layout, tmp_path, seed=1)
    assert colours(first.val) == colours(again.val) != colours(other.val)
    assert "seed 0" in first.validation
    assert "seed 1" in other.validation
    if layout.kind.balanced:
        assert sorted(first.val.labels.tolist()) == sorted(other.val.labels.tolist()) == [0, 1, 2]


@every
def test_published_indices_count_in_the_official_order(layout: Layout, tmp_path: Path) -> None:
    layout.write(tmp_path)
    np.savez(tmp_path / INDICES, **{layout.kind.indices or "other": np.array([7, 0, 5])})
    splits = load(layout, tmp_path)
    if layout.kind.indices:
        assert colours(splits.val) == [layout.order[i] for i in (0, 5, 7)]
        assert splits.validation == "L2T-ww's 3 indices"
    else:
        assert "seed" in splits.validation


@every
def test_an_archive_is_as_good_as_a_folder(layout: Layout, tmp_path: Path) -> None:
    layout.write(tmp_path)
    unpacked = load(layout, tmp_path)
    pack_up(tmp_path, layout.name)
    source = layout.kind.find(tmp_path)
    assert any(path.name == Path(archive).name for path in source for archive in ARCHIVES[layout.name])
    packed = load(layout, tmp_path)
    for part, same in zip(unpacked[:3], packed[:3], strict=True):
        assert torch.equal(part.images, same.images)
        assert torch.equal(part.labels, same.labels)


@every
def test_decoding_happens_once(layout: Layout, tmp_path: Path) -> None:
    layout.write(tmp_path)
    once = load(layout, tmp_path)

    @wraps(layout.kind.read)
    def never(*arguments: object) -> None:
        raise AssertionError(arguments)

    again = load(layout._replace(kind=type("Again", (layout.kind,), {"read": never})), tmp_path)
    assert torch.equal(once.test.images, again.test.images)


@every
def test_other_counts_than_the_papers_are_refused(layout: Layout, tmp_path: Path) -> None:
    layout.write(tmp_path)
    for sizes in ((10, 3, 6), (9, 3, 7)):
        with pytest.raises(DataError, match=f"12 pictures for training and 6 for testing instead of {sum(sizes[:2])}"):
            load(layout._replace(kind=tiny(layout.kind, counts=sizes)), tmp_path)


@every
def test_an_absent_data_set_says_where_to_get_it(layout: Layout, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="METASTEP_DATA") as caught:
        load(layout, tmp_path)
    assert layout.kind.source in str(caught.value)
    assert layout.kind.what in str(caught.value)
    assert layout.kind.find(tmp_path) == ()


@pytest.mark.parametrize("layout", LAYOUTS[2:], ids=lambda layout: layout.name)
def test_a_lost_picture_is_named(layout: Layout, tmp_path: Path) -> None:
    layout.write(tmp_path)
    lost = sorted(tmp_path.rglob("*.jpg") if layout.kind.side == 256 else tmp_path.rglob("val_*.JPEG"))
    lost = [path for path in lost if "in_no_list" not in path.name]
    lost[0].unlink()
    with pytest.raises(DataError, match=f"lacks 1 of the 18 listed pictures, .*{lost[0].name}"):
        load(layout, tmp_path)
    lost[1].write_bytes(lost[1].read_bytes()[:50])
    with pytest.raises(DataError, match=f"{lost[1].name}: is damaged or cut short"):
        load(layout, tmp_path)


@pytest.mark.parametrize(
    ("number", "file"),
    [(0, "stl10_binary/train_X.bin"), (0, "stl10_binary/test_y.bin"), (1, "cifar-100-binary/test.bin")],
)
def test_a_cut_binary_file_is_refused(number: int, file: str, tmp_path: Path) -> None:
    LAYOUTS[number].write(tmp_path)
    data = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"cut short\. Get it again: https"):
        load(LAYOUTS[number], tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(DataError, match=f"{Path(file).name}: is not an ordinary file"):
        load(LAYOUTS[number], tmp_path)


def test_stl10_is_stored_column_by_column(tmp_path: Path) -> None:
    layout = LAYOUTS[0]
    layout.write(tmp_path)
    pictures = planes(layout.order, 96).copy()
    pictures[:, :, :, 48:] = 200  # the right half, which comes last where columns come first
    stored = pictures.transpose(0, 1, 3, 2)
    (tmp_path / "stl10_binary/train_X.bin").write_bytes(np.ascontiguousarray(stored).tobytes())
    train = load(layout, tmp_path, size=96).train.images
    assert (train[:, :, :, 48:] == 200).all()
    assert (train[:, :, :, :48] < 200).all()


def test_cifar_pickles_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(DataError, match=r"binary release.*pickles.*cifar-100-binary\.tar\.gz"):
        load_data("cifar100", tmp_path).labelled()


def test_grey_photos_become_rgb_and_sizes_can_be_chosen(tmp_path: Path) -> None:
    layout = LAYOUTS[3]
    layout.write(tmp_path)
    for file in tmp_path.rglob("*.jpg"):
        Image.new("L", (50, 40), 90).save(file, "JPEG")
    splits = load(layout, tmp_path, size=64)
    assert splits.train.images.shape[1:] == (3, 64, 64)
    assert (splits.train.images == 90).all()


def test_lists_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    layout = LAYOUTS[3]
    layout.write(tmp_path)
    (tmp_path / "CUB_200_2011/train_test_split.txt").write_text("1 1\n")
    with pytest.raises(DataError, match="do not fit together"):
        load(layout, tmp_path)
    dogs = LAYOUTS[6]
    dogs.write(tmp_path)
    (tmp_path / "stanford_dogs/test_list.mat").write_bytes(mat_list(["d_dog/1.jpg"]))
    with pytest.raises(DataError, match="is not in both lists"):
        load(dogs, tmp_path)


@pytest.mark.parametrize(
    ("number", "file"),
    [
        (3, "CUB_200_2011/train_test_split.txt"),
        (4, "indoor67/TestImages.txt"),
        (5, "stanford40/ImageSplits/test.txt"),
        (6, "stanford_dogs/test_list.mat"),
    ],
)
def test_lists_count_as_much_as_pictures(number: int, file: str, tmp_path: Path) -> None:
    """Without one the data set is not there; with a damaged one it is read again, and refused."""
    layout = LAYOUTS[number]
    layout.write(tmp_path)
    load(layout, tmp_path)
    (tmp_path / file).write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"is no list of files|is no MATLAB 5 file"):
        load(layout, tmp_path)
    (tmp_path / file).unlink()
    assert layout.kind.find(tmp_path) == ()
    with pytest.raises(DataError, match="or only a part of it"):
        load(layout, tmp_path)


@pytest.mark.parametrize("indices", [[0, 1], [0, 1, 1], [0, 1, 12], [-1, 0, 1]])
def test_indices_that_cannot_be_are_refused(indices: list[int], tmp_path: Path) -> None:
    LAYOUTS[0].write(tmp_path)
    np.savez(tmp_path / INDICES, stl10=np.array(indices))
    with pytest.raises(DataError, match="stl10 are not 3 different indices below 12"):
        load(LAYOUTS[0], tmp_path)


def test_the_papers_table_is_what_is_asserted() -> None:
    for name, sizes in PAPER.items():
        assert data_set(name).labelled_in_words == "{:,} train, {:,} val, {:,} test".format(*sizes)
    assert {layout.name for layout in LAYOUTS} == set(PAPER)
