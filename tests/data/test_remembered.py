"""What a run remembers of a user's folder: where it is, and what is in it."""

import shutil
from pathlib import Path

import pytest

from metastep.data.episodes import without_place
from metastep.data.errors import DataError
from metastep.data.files import contents
from metastep.data.folder import fingerprint_of, placed
from tests.data.helpers import write_classes


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_classes(tmp_path / "photos", {"a": 2, "b": 1})


def test_contents_are_the_same_wherever_they_are(photos: Path, tmp_path: Path) -> None:
    before = contents(photos)
    shutil.copytree(photos, tmp_path / "copy", copy_function=shutil.copyfile)  # with times of their own
    (tmp_path / "copy" / ".DS_Store").touch()
    (tmp_path / "link").symlink_to(photos)
    assert contents(tmp_path / "copy") == contents(tmp_path / "link") == before


@pytest.mark.parametrize("damage", ["more", "fewer", "name", "class", "larger", "other"])
def test_contents_change(damage: str, photos: Path) -> None:
    before, first = contents(photos), photos / "a" / "000.png"
    match damage:
        case "more":
            shutil.copy(first, photos / "b" / "more.png")
        case "fewer":
            first.unlink()
        case "name":
            first.rename(photos / "a" / "zero.png")
        case "class":
            (photos / "a").rename(photos / "c")
        case "larger":
            first.write_bytes(b"0" * 10_000 + first.read_bytes())
        case "other":  # of the same size
            first.write_bytes(first.read_bytes()[:-20] + bytes(20))
    assert contents(photos) != before


def test_a_place_is_found_from_everywhere(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.setenv("METASTEP_DATA", str(tmp_path))
    assert placed("photos", None) == placed("folder:photos", tmp_path) == f"folder:{photos}"
    monkeypatch.chdir(tmp_path / "below")
    assert placed("../photos", None) == f"folder:{photos}"


def test_a_folder_that_is_not_there_is_refused_as_by_its_loader(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent: is not a folder\. Give a folder with one sub-folder of pictures"):
        fingerprint_of(f"folder:{tmp_path}/absent", None)


def test_names_without_a_place() -> None:
    names = {"folder:/home/me/photos": "folder:photos", "folder:a/b/": "folder:b", "glyphs": "glyphs"}
    assert {name: without_place(name) for name in names} == names
