"""`check_folder` finds everything in one pass, and agrees with the loader."""

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from PIL import Image

from metastep.data import check, folder
from metastep.data.check import Checked, Served, check_folder, outlook, possible
from metastep.data.episodes import Episodes
from metastep.data.errors import DataError
from metastep.data.pictures import PARTS
from metastep.data.registry import load
from tests.data.helpers import write_classes


def summary(checked: Checked, root: Path) -> set[tuple[str, str]]:
    return {(finding.kind, finding.path.relative_to(root).as_posix()) for finding in checked.findings}


def test_a_good_folder_has_no_findings(tmp_path: Path) -> None:
    assert check_folder(write_classes(tmp_path, {"a": 3, "b": 4})).findings == []


def test_everything_is_found_at_once(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 3, "b": 3})
    shutil.copy(tmp_path / "a" / "000.png", tmp_path / "a" / "copy.png")
    shutil.copy(tmp_path / "a" / "000.png", tmp_path / "b" / "copy.png")
    (tmp_path / "b" / "cut.png").write_bytes((tmp_path / "b" / "000.png").read_bytes()[:60])
    (tmp_path / "b" / "notes.txt").write_text("hello")
    (tmp_path / "b" / "more").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "around").symlink_to(tmp_path)
    (tmp_path / "a" / "self.png").symlink_to(tmp_path / "a" / "self.png")
    (tmp_path / "bare").mkdir()
    (tmp_path / "stray.png").touch()
    os.mkfifo(tmp_path / "b" / "pipe")
    assert summary(check_folder(tmp_path), tmp_path) == {
        ("duplicate", "a/copy.png"),
        ("duplicate", "b/copy.png"),
        ("unreadable", "b/cut.png"),
        ("unreadable", "b/notes.txt"),
        ("unreadable", "b/pipe"),
        ("unreadable", "a/self.png"),
        ("misplaced", "b/more"),
        ("misplaced", "stray.png"),
        ("link loop", "a/up"),
        ("link loop", "around"),
        ("empty", "bare"),
    }


def test_messages_name_the_file_and_the_remedy(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 1, "b": 1})
    shutil.copy(tmp_path / "a" / "000.png", tmp_path / "b" / "000.png")
    (duplicate,) = check_folder(tmp_path).findings
    assert duplicate.message.startswith(f"{tmp_path}/b/000.png: has the same content as {tmp_path}/a/000.png")
    assert "another class" in duplicate.message
    assert duplicate.message.endswith("remove one.")


def test_pictures_are_usable_where_nothing_was_found(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 3, "b": 2})
    shutil.copy(tmp_path / "a" / "000.png", tmp_path / "b" / "copy.png")
    (tmp_path / "a" / "notes.txt").write_text("hello")
    (tmp_path / "around").symlink_to(tmp_path)
    (tmp_path / "bare").mkdir()
    assert check_folder(tmp_path).usable_pictures(tmp_path) == {"a": 3, "b": 2}


def test_reasons_do_not_repeat_the_path(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 2})
    (tmp_path / "a" / "x\x1b.png").write_text("x")
    (finding,) = check_folder(tmp_path).findings
    assert finding.reason.startswith("is not an image in a known format.")
    assert finding.message == f"{tmp_path}/a/x\\x1b.png: {finding.reason}"


def test_no_classes_at_all(tmp_path: Path) -> None:
    assert summary(check_folder(tmp_path), tmp_path) == {("empty", ".")}
    with pytest.raises(DataError, match="absent: is not a folder"):
        check_folder(tmp_path / "absent")


def test_folders_beside_the_parts_are_found(tmp_path: Path) -> None:
    for i, part in enumerate(("train", "test", "valid")):
        for name in "ab":
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("L", (9 + i, 9), ord(name)).save(tmp_path / part / name / "0.png")
    (tmp_path / "README").touch()  # does no harm there
    (strange,) = check_folder(tmp_path).findings
    assert strange.message == f"{tmp_path}/valid: is none of train, val, test, and is not read: rename or move it."
    (tmp_path / "valid").rename(tmp_path / "val")
    assert check_folder(tmp_path).findings == []


def test_of_a_part_that_is_alone_the_classes_are_looked_at(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 2, "b": 2})
    (tmp_path / "train" / "b" / "cut.png").touch()
    write_classes(tmp_path / "val", {"a": 2, "b": 2})
    assert summary(check_folder(tmp_path), tmp_path) == {("misplaced", "train"), ("unreadable", "train/b/cut.png")}


@pytest.mark.parametrize("damage", ["none", "text", "stray", "bare", "nested", "loop"])
def test_what_the_loader_refuses_is_found(tmp_path: Path, damage: str) -> None:
    write_classes(tmp_path, {"a": 2, "b": 2})
    match damage:
        case "text":
            (tmp_path / "a" / "x.png").write_text("x")
        case "stray":
            (tmp_path / "x.png").write_text("x")
        case "bare":
            (tmp_path / "c").mkdir()
        case "nested":
            (tmp_path / "a" / "c").mkdir()
        case "loop":
            (tmp_path / "a" / "c").symlink_to(tmp_path)
    if check_folder(tmp_path).findings:
        with pytest.raises(DataError):
            load(f"folder:{tmp_path}", size=4).classes("all")
    else:
        assert damage == "none"
        load(f"folder:{tmp_path}", size=4).classes("all")


def test_progress_counts_classes(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    check_folder(write_classes(tmp_path, {"a": 2, "b": 3}), progress=lambda *call: calls.append(call))
    assert calls == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (([9, 9, 9], [9, 9], [9, 9, 5]), "With 6 pictures of each class, every split can serve episodes of up to 2"),
        (([9, 9], [9, 9], [4, 5, 3]), "With two classes in an episode there are 4 pictures of each"),
        (([9, 9], [9], [9, 9]), "Every split needs at least two classes"),
    ],
)
def test_what_is_possible_is_said(sizes: tuple[list[int], ...], said: str) -> None:
    served = [Served(part, numbers, "too few") for part, numbers in zip(PARTS, sizes, strict=True)]
    assert possible(served, Episodes(ways=3, shots=1, queries=5)).startswith(said)


def test_each_folder_is_listed_once_and_each_file_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path, {"a": 4, "b": 4})
    listed, read = Mock(wraps=check.entries), Mock(wraps=check.read_bytes)
    monkeypatch.setattr(check, "entries", listed)
    monkeypatch.setattr(folder, "entries", listed)
    monkeypatch.setattr(check, "read_bytes", read)
    assert not isinstance(outlook(tmp_path, check_folder(tmp_path)), str)
    assert sorted(call.args[0] for call in listed.call_args_list) == [tmp_path, tmp_path / "a", tmp_path / "b"]
    assert read.call_count == 8
