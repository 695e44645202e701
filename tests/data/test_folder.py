"""A user's own folder: nothing is left out in silence."""

from pathlib import Path

import pytest
import torch

from metastep.data.errors import DataError, Progress, silent
from metastep.data.images import read_picture
from metastep.data.pictures import Pictures
from metastep.data.registry import load
from tests.data.helpers import write_classes


def load_folder(path: Path, split: str = "all", size: int | None = None, progress: Progress = silent) -> Pictures:
    return load(f"folder:{path}", None, size, progress=progress).classes(split)


def test_every_picture_is_there_in_order(tmp_path: Path) -> None:
    found = load_folder(write_classes(tmp_path / "mine", {"cat": 3, "dog": 3}), size=16)
    rows, counts = found.rows()
    assert rows.shape == (2, 3, 3, 16, 16)
    assert found.names == ("cat", "dog")
    assert counts == ()
    assert found.sizes == [3, 3]
    second_dog = read_picture(tmp_path / "mine" / "dog" / "001.png", 16, 3)
    assert torch.equal(rows[1, 1], torch.from_numpy(second_dog.copy()))


def test_smaller_classes_repeat_and_say_so(tmp_path: Path) -> None:
    found = load_folder(write_classes(tmp_path, {"a": 5, "b": 2}), size=8)
    rows, counts = found.rows()
    assert counts == (5, 2)
    b = rows[1]
    assert torch.equal(b, torch.stack([b[0], b[1], b[0], b[1], b[0]]))
    assert len(torch.unique(b, dim=0)) == 2


def test_split_is_by_class_and_complete(tmp_path: Path) -> None:
    write_classes(tmp_path, {f"class{i}": 1 for i in range(10)})
    train, val, test = (load_folder(tmp_path, split, size=4).names for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (6, 2, 2)
    assert sorted(train + val + test) == [f"class{i}" for i in range(10)]


def test_too_few_classes_for_a_split(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 1, "b": 1})
    with pytest.raises(DataError, match="has 2 classes, which leaves none for 'train'"):
        load_folder(tmp_path, "train", size=4)


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    folder = write_classes(tmp_path, {"a": 2, "b": 3})
    load_folder(folder, size=4, progress=lambda *call: calls.append(call))
    assert calls == [(5, 5)]


def test_clutter_is_ignored(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 2})
    (tmp_path / ".DS_Store").touch()
    (tmp_path / "a" / "Thumbs.db").touch()
    assert load_folder(tmp_path, size=4).sizes == [2]


def test_linked_class_folders_are_followed(tmp_path: Path) -> None:
    write_classes(tmp_path / "real", {"a": 2})
    (tmp_path / "view").mkdir()
    (tmp_path / "view" / "linked").symlink_to(tmp_path / "real" / "a")
    assert load_folder(tmp_path / "view", size=4).names == ("linked",)


def test_what_is_out_of_place_is_named(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "mine", {"a": 1})

    def refused(message: str) -> None:
        with pytest.raises(DataError, match=rf"{message}.*metastep data check"):
            load_folder(folder, size=4)

    (folder / "a" / "loop").symlink_to(folder)
    refused("a/loop: is no file")
    (folder / "a" / "loop").unlink()
    (folder / "b").mkdir()
    refused("b: is a class without pictures")
    (folder / "README").touch()
    refused("README: lies outside")


def test_unreadable_pictures_and_folders_are_named(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "mine", {"a": 1})
    (folder / "a" / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"a/notes\.txt: is not an image .*; `metastep data check` lists everything"):
        load_folder(folder, size=4)
    for path in (tmp_path / "absent", folder / "a" / "notes.txt"):
        with pytest.raises(DataError, match="is not a folder"):
            load_folder(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has 0 classes"):
        load_folder(tmp_path / "empty")
