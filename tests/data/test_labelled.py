"""Labelled data sets by name: what comes with the package, a user's own, and what is refused."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.Image import Resampling

from metastep.data.check import check_folder
from metastep.data.errors import DataError
from metastep.data.files import ASSETS, read_pack
from metastep.data.pictures import Labelled, Pictures
from metastep.data.registry import load
from tests.data.helpers import write_classes


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASTEP_DATA", raising=False)


def counts(data: Pictures) -> list[int]:
    """Pictures of each class."""
    return data.labels.bincount(minlength=len(data.names)).tolist()


def contents(data: Pictures) -> set[bytes]:
    return {image.numpy().tobytes() for image in data.images}


def check_parts(splits: Labelled) -> None:
    """What must hold for every data set."""
    for part in splits[:3]:
        assert part.images.dtype == torch.uint8
        assert part.images.is_contiguous()
        assert part.labels.dtype == torch.int64
        assert part.labels.shape == part.images.shape[:1]
        assert part.names == splits.train.names
        assert min(counts(part)) > 0


Digits = set[tuple[int, ...]]  # the label, and 64 levels


def in_the_asset() -> Digits:
    pack = read_pack(ASSETS / "digits.npz", ("images", "labels"))
    return {(int(label), *image.ravel().tolist()) for label, image in zip(pack["labels"], pack["images"], strict=True)}


def test_every_digit_of_the_asset_is_in_one_part() -> None:
    small = load("digits", size=8).labelled()
    check_parts(small)
    ours = {
        (int(label), *np.rint(image.numpy().ravel() * (16 / 255)))
        for part in small[:3]
        for label, image in zip(part.labels, part.images, strict=True)
    }
    assert ours == in_the_asset()
    assert small.test.images.max() == 255
    assert [len(part.labels) for part in small[:3]] == [400, 200, 1197]
    assert counts(small.val) == [20] * 10


def test_the_asset_is_the_one_that_equals_scikit_learn() -> None:
    assert digest(in_the_asset()) == EQUALS_SCIKIT_LEARN


def test_digits_are_those_of_scikit_learn() -> None:
    bundled = pytest.importorskip("sklearn.datasets").load_digits()  # metastep does not require it
    theirs = {
        (int(label), *map(int, image.ravel())) for label, image in zip(bundled.target, bundled.images, strict=True)
    }
    assert in_the_asset() == theirs
    assert digest(theirs) == EQUALS_SCIKIT_LEARN


def digest(digits: Digits) -> str:
    return sha256(repr(sorted(digits)).encode()).hexdigest()


EQUALS_SCIKIT_LEARN = "7ae3b1a4d9937203127a9cefc605e205c55f5e2d96732af5b8cd30ceb0cd4e4d"


@pytest.mark.parametrize("size", [None, 32])
def test_digits_are_enlarged_by_pillow(size: int | None) -> None:
    small, large = load("digits", size=8).labelled().val, load("digits", size=size).labelled().val
    side = size or 28
    picture = Image.fromarray(small.images[3, 0].numpy()).resize((side, side), Resampling.BILINEAR)
    assert large.images.shape == (200, 1, side, side)
    assert np.array_equal(large.images[3, 0].numpy(), np.asarray(picture))


def test_few_labels_are_part_of_more_and_leave_the_rest_alone() -> None:
    few, more = (load("digits").labelled(per_class=number) for number in (5, 10))
    assert counts(few.train) == [5] * 10
    assert counts(more.train) == [10] * 10
    assert contents(few.train) < contents(more.train)
    assert torch.equal(few.val.images, more.val.images)
    assert torch.equal(few.test.images, more.test.images)


def test_another_seed_another_split() -> None:
    first, again, other = (load("digits").labelled(seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.val.images, again.val.images)
    assert not torch.equal(first.val.images, other.val.images)
    assert (first.validation, other.validation) == tuple(f"20 of each class, drawn with seed {s}" for s in (0, 1))


def test_digits_do_not_change_from_version_to_version() -> None:
    splits = load("digits").labelled(per_class=10)
    weights = torch.arange(28 * 28).view(28, 28) % 101
    assert [int((part.images.long() * weights).sum()) for part in splits[:3]] == GOLDEN_DIGITS


GOLDEN_DIGITS = [297028062, 593414312, 3553540977]


@pytest.mark.parametrize("per_class", [0, 41, -1])
def test_impossible_numbers_of_labels_are_refused(per_class: int) -> None:
    with pytest.raises(DataError, match="Ask for 1 to 40 of each class"):
        load("digits").labelled(per_class=per_class)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(DataError, match="size = 0"):
        load("digits", size=0)


def test_glyphs_are_split_by_drawing() -> None:
    splits = load("glyphs").labelled()
    check_parts(splits)
    assert len(splits.train.names) == 105
    assert all("CYRILLIC" in name or "GREEK" in name for name in splits.train.names)
    assert [set(counts(part)) for part in splits[:3]] == [{15}, {2}, {3}]
    assert not contents(splits.train) & contents(splits.test)


def test_glyphs_have_other_sizes() -> None:
    assert load("glyphs", size=32).labelled().train.images.shape == (105 * 15, 1, 32, 32)
    assert load("glyphs", size=14).classes("val").images.shape == (129 * 20, 1, 14, 14)


def test_a_folder_is_split_class_by_class(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 10, "b": 5, "c": 3})
    splits = load(f"folder:{folder}", size=12).labelled()
    check_parts(splits)
    assert splits.train.names == ("a", "b", "c")
    assert [counts(part) for part in splits[:3]] == [[6, 3, 1], [2, 1, 1], [2, 1, 1]]
    assert len(set.union(*(contents(part) for part in splits[:3]))) == 18
    for name in ("folder:photos", "photos"):
        assert torch.equal(load(name, tmp_path, size=12).labelled().val.images, splits.val.images)
    assert load(str(folder)).labelled().train.images.shape[1:] == (3, 256, 256)
    with Image.open(folder / "c" / "001.png") as picture:
        pixels = np.asarray(picture.resize((12, 12), Resampling.BILINEAR)).transpose(2, 0, 1)
    assert pixels.tobytes() in set.union(*(contents(part) for part in splits[:3]))


def test_classes_too_small_to_split_are_named(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 10, "b": 2, "c\x1b": 1})
    with pytest.raises(DataError, match=r"photos: .* need 3 .* of 3 classes 2 have fewer: b \(2\), c\\x1b \(1\)\. Add"):
        load(str(folder), size=8).labelled()


def write_split(folder: Path, *parts: str) -> Path:
    for part, number in zip(parts, (5, 3, 2), strict=False):
        write_classes(folder / part, {"a": number, "b": number})
    return folder


def test_the_parts_of_a_folder_are_kept(tmp_path: Path) -> None:
    splits = load(str(write_split(tmp_path, "train", "test", "val")), size=8).labelled()
    check_parts(splits)
    assert [counts(part) for part in splits[:3]] == [[5, 5], [2, 2], [3, 3]]
    assert splits.validation == "the folder val"


def test_without_val_some_of_train_is_taken(tmp_path: Path) -> None:
    splits = load(str(write_split(tmp_path, "train", "test")), size=8).labelled()
    assert [counts(part) for part in splits[:3]] == [[4, 4], [1, 1], [3, 3]]
    assert splits.validation == "25% of each class of train, drawn with seed 0"


def test_classes_may_be_called_train_and_test(tmp_path: Path) -> None:
    splits = load(str(write_classes(tmp_path / "x", {"test": 5, "train": 5})), size=8).labelled()
    assert splits.train.names == ("test", "train")


def test_parts_must_have_the_same_classes(tmp_path: Path) -> None:
    write_split(tmp_path, "train", "test")
    write_classes(tmp_path / "train", {"c": 1})
    with pytest.raises(DataError, match="the class c is not in every part"):
        load(str(tmp_path), size=8).labelled()


@pytest.mark.parametrize("parts", [("train", "val"), ("test",)])
def test_train_and_test_come_together(parts: tuple[str, ...], tmp_path: Path) -> None:
    (other,) = {"train", "test"} - set(parts)
    with pytest.raises(DataError, match=rf"holds folders, .* there is no {other} next to it that does\. Add it, or"):
        load(str(write_split(tmp_path, *parts)), size=8).labelled()


def test_a_damaged_file_may_not_be_the_only_one(tmp_path: Path) -> None:
    folder = write_classes(tmp_path, {"a": 3, "b": 3})
    (folder / "a" / "000.png").write_text("no picture")
    with pytest.raises(DataError, match=r"a/000\.png: is not an image .* PNG or JPEG; `metastep data check` lists"):
        load(str(folder), size=8).labelled()


def test_a_folder_of_one_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has a single class: there is nothing to tell apart"):
        load(str(write_classes(tmp_path, {"a": 9})), size=8).labelled()


def test_too_few_pictures_for_validation_are_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_classes(tmp_path / part, {"a": 2, "b": 2})
    with pytest.raises(DataError, match=r"train: has too few .* validation\. Add pictures, or a folder val"):
        load(str(tmp_path), size=8).labelled()


def test_a_folder_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no class folders"):
        load(str(tmp_path)).labelled()
    with pytest.raises(DataError, match="absent: is not a folder"):
        load(f"{tmp_path}/absent").labelled()


def test_check_knows_parts_and_finds_test_pictures_seen_in_training(tmp_path: Path) -> None:
    folder = write_split(tmp_path, "train", "test")
    reasons = [finding.reason for finding in check_folder(folder).findings if finding.kind == "duplicate"]
    assert len(reasons) == 3  # a 0 to 2; the helper gives those of b other sizes
    assert all("in another part: what is tested was seen in training" in reason for reason in reasons)
    for i, file in enumerate(sorted((folder / "test").rglob("*.png"))):
        Image.new("L", (9, 9), i).save(file)
    assert check_folder(folder).findings == []
