"""What is said of a folder for transfer is what a run would do with it, or the words in which it would refuse it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from metastep.data.check import Outlook, check_folder, outlook
from metastep.data.errors import DataError
from metastep.data.images import Look
from metastep.data.pictures import Pictures
from metastep.data.registry import load
from tests.data.helpers import encoded, noise, write_classes

PARTED = {"train": 9, "test": 3, "val": 4}


def write_parts(folder: Path, *parts: str) -> Path:
    """Pictures of a part are no other part's."""
    for number, part in enumerate(parts):
        for i in range(2 * PARTED[part]):
            place = folder / part / "ab"[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise(100 * number + i, 9, 9)).save(place / f"{i}.png")
    return folder


def described(part: Pictures) -> tuple[tuple[str, ...], list[int]]:
    return part.names, part.sizes


def seen_in(folder: Path) -> Outlook:
    seen = outlook(folder, check_folder(folder))
    assert isinstance(seen, Outlook), seen
    return seen


@pytest.mark.parametrize("parts", [(), ("train", "test"), ("train", "val", "test")])
def test_the_numbers_are_those_of_a_run(parts: tuple[str, ...], tmp_path: Path) -> None:
    folder = write_parts(tmp_path, *parts) if parts else write_classes(tmp_path, {"a": 11, "b": 3, "c": 7})
    ours, theirs = seen_in(folder).parts, load(str(folder), size=8).labelled()
    assert list(map(described, ours[:3])) == list(map(described, theirs[:3]))
    assert ours.validation == theirs.validation


def test_what_was_found_is_taken_for_removed(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 5, "b": 6})
    (tmp_path / "a" / "notes.txt").write_text("hello")
    shutil.copy(tmp_path / "a" / "000.png", tmp_path / "b" / "copy.png")
    (tmp_path / "stray.png").touch()
    (tmp_path / "bare").mkdir()
    ours = seen_in(tmp_path).parts
    for path in ("a/notes.txt", "b/copy.png", "stray.png"):
        (tmp_path / path).unlink()
    (tmp_path / "bare").rmdir()
    assert list(map(described, ours[:3])) == list(map(described, load(str(tmp_path), size=8).labelled()[:3]))


def small(folder: Path) -> None:
    write_classes(folder, {"a": 2, "b": 5, "c": 1})


def single(folder: Path) -> None:
    write_classes(folder, {"a": 9})


def empty(folder: Path) -> None:
    folder.mkdir()


def unlike(folder: Path) -> None:
    write_parts(folder, "train", "test")
    for name in "cd":
        shutil.copytree(folder / "train" / "a", folder / "train" / name)


def without_test(folder: Path) -> None:
    write_parts(folder, "train", "val")


def unlabelled_test(folder: Path) -> None:
    write_parts(folder, "train")
    (folder / "test").mkdir()
    Image.new("L", (9, 9)).save(folder / "test" / "0.png")


def no_validation(folder: Path) -> None:
    write_parts(folder, "train", "test")
    for file in (folder / "train").rglob("*.png"):
        if int(file.stem) > 3:
            file.unlink()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (small, "need 3 pictures of each class, but of 3 classes 2 have fewer: a (2), c (1). Add pictures"),
        (single, "has a single class"),
        (empty, "has no class folders"),
        (unlike, "the classes c, d are not in every part"),
        (without_test, "and there is no test next to it that does. Add it, or put the folders of all classes side"),
        (unlabelled_test, "and there is no test next to it that does"),
        (no_validation, "too few pictures of each class to hold some out for validation"),
    ],
)
def test_it_is_refused_in_the_words_of_a_run(write: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    write(tmp_path / "mine")
    refusal = outlook(tmp_path / "mine", replace(check_folder(tmp_path / "mine"), findings=[]))
    with pytest.raises(DataError) as caught:
        load(str(tmp_path / "mine"), size=8).labelled()
    assert refusal == str(caught.value)
    assert words in refusal


def test_a_class_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 4, "b": 4, "c": 4})
    for file in (tmp_path / "a").iterdir():
        file.write_text("no picture")
    refusal = outlook(tmp_path, check_folder(tmp_path))
    assert isinstance(refusal, str)
    assert "a: is a class without pictures" in refusal


@pytest.mark.parametrize(
    ("modes", "kind"),
    [
        ("LLLLLL", "6 of 5x7 to 12x7, grey"),
        (("RGB",) * 6, "6 of 5x7 to 12x7, in colour"),
        (("LA", "RGBA", "1", "P", "I;16", "CMYK"), "6 of 5x7 to 12x7, 3 grey and the others in colour"),
    ],
)
def test_kinds_and_sizes_are_told(modes: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    for i, mode in enumerate(modes):
        place = tmp_path / "ab"[i % 2]
        place.mkdir(exist_ok=True)
        picture = Image.new(mode, (5 if i == 3 else 12 if i == 4 else 8, 7), i)
        (place / f"{i}.img").write_bytes(encoded(picture, "TIFF" if mode == "CMYK" else "PNG"))
    assert seen_in(tmp_path).in_words(32, 2)[0] == (
        f"pictures: {kind}; each is stretched to 32x32 pixels (--size) and read in colour: "
        "the source has to be for colour too"
    )


def test_pictures_of_one_size_have_one(tmp_path: Path) -> None:
    seen = seen_in(write_classes(tmp_path, {"a": 3, "b": 3}))._replace(looks=[Look(640, 480, False)] * 6)
    assert "pictures: 6 of 640x480, in colour; each" in seen.in_words(8, 4)[0]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (25, "1 in an epoch, of up to 25 pictures (--batch), the last of 9"),
        (9, "1 in an epoch, of up to 9 pictures (--batch), the last of 9"),
        (7, "2 in an epoch, of up to 7 pictures (--batch), the last of 2"),
        (8, "the last of 1, which is too few for the statistics of some nets: choose another --batch"),
    ],
)
def test_batches_are_counted(batch: int, words: str, tmp_path: Path) -> None:
    seen = seen_in(write_classes(tmp_path, {"a": 10, "b": 5}))  # 6 and 3 to train on
    assert seen.in_words(8, batch)[2].endswith(words)
    assert seen.in_words(8, batch)[1] == "validation: 20% of each class, drawn with seed 0"
