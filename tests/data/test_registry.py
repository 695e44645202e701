"""The catalogue knows what each data set is, finds what is there, and says what to do about what is not."""

from pathlib import Path

import pytest
import torch

from metastep.data import registry
from metastep.data.errors import DataError
from metastep.data.progress import silent
from metastep.data.registry import ENTRIES, FOLDER, GLYPHS, MINI_IMAGENET, OMNIGLOT, Entry, entry_of, find, load
from tests.data.helpers import write_classes


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASTEP_DATA", raising=False)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_entry_is_complete(entry: Entry, tmp_path: Path) -> None:
    assert all((entry.summary, entry.licence, entry.source))
    assert {"train", "val", "test"} <= set(entry.splits)
    assert entry.locate(tmp_path) == ()
    if not entry.embedded:
        with pytest.raises(DataError):
            entry.read(tmp_path, "test", silent)


def test_names_are_unique() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


def test_a_name_or_a_path_says_which_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "omniglot"):
        (tmp_path / name).mkdir()
    expected = {"glyphs": GLYPHS, "omniglot": OMNIGLOT, "mini_imagenet": MINI_IMAGENET}
    own = ("photos", "./omniglot", "folder:omniglot", "folder:absent", "a/b", "/a", "~/a", ".")
    assert {name: entry_of(name) for name in (*expected, *own)} == expected | dict.fromkeys(own, FOLDER)


@pytest.mark.parametrize("name", ["omniglott", "folder", ""])
def test_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(DataError, match=rf"{name}: there is no such folder here.*one of glyphs, omniglot"):
        entry_of(name)


def test_glyphs_need_no_data_directory(tmp_path: Path) -> None:
    found = load("glyphs", None, "val")
    assert set(found.groups) == {"Georgian", "Currency", "Geometric shapes", "Dingbats"}
    assert torch.equal(load("glyphs", tmp_path / "absent", "val").images, found.images)


@pytest.mark.parametrize("entry", [OMNIGLOT, MINI_IMAGENET], ids=lambda entry: entry.name)
def test_missing_data_says_where_to_get_it_and_how_to_point_to_it(entry: Entry, tmp_path: Path) -> None:
    for root in (None, tmp_path):
        with pytest.raises(DataError) as caught:
            load(entry.name, root, "train")
        assert "--data or METASTEP_DATA" in str(caught.value)
        assert entry.source in str(caught.value)
        assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}: does not hold")


def test_the_environment_names_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASTEP_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"{tmp_path}: does not hold Omniglot"):
        load("omniglot", None, "train")
    with pytest.raises(DataError, match=f"{tmp_path}/other: the data directory is not there"):
        load("omniglot", tmp_path / "other", "train")


def test_folders_are_found_by_path_and_below_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_classes(tmp_path / "data" / "photos", {"below": 1})
    for name in (f"folder:{tmp_path}/data/photos", f"{tmp_path}/data/photos"):
        assert load(name, None, "all").names == ("below",)
    assert load("folder:photos", tmp_path / "data", "all").names == ("below",)
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "photos", {"here": 1})
    assert load("photos", tmp_path / "data", "all").names == ("here",)
    with pytest.raises(DataError, match="elsewhere: is not a folder"):
        load("folder:elsewhere", tmp_path / "data", "all")


def test_home_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_classes(tmp_path / "photos", {"a": 1})
    assert load("~/photos", None, "all").names == ("a",)
    with pytest.raises(DataError, match="~nobody-of-that-name/photos: is not a folder"):
        load("~nobody-of-that-name/photos", None, "all")
    with pytest.raises(DataError, match=f"{tmp_path}/photos: does not hold Omniglot"):
        load("omniglot", Path("~/photos"), "all")


def test_splits_are_those_of_the_data_set(tmp_path: Path) -> None:
    write_classes(tmp_path, dict.fromkeys("abcde", 1))
    sizes = {split: len(load(f"{tmp_path}", None, split).names) for split in FOLDER.splits}
    assert sizes == {"all": 5, "train": 3, "val": 1, "trainval": 4, "test": 1}
    with pytest.raises(DataError, match=r"split 'trainval': no such split here\. Choose one of train, val, test\."):
        load("mini_imagenet", tmp_path, "trainval")


def test_progress_reaches_the_loader(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    load(f"{write_classes(tmp_path, {'a': 2, 'b': 3})}", None, "all", lambda *call: calls.append(call))
    assert calls == [(2, 5), (5, 5)]


def test_find_names_what_is_wholly_there(tmp_path: Path) -> None:
    assert find(tmp_path) == {}
    (tmp_path / "omniglot.npz").touch()
    (tmp_path / "mini_imagenet" / "train").mkdir(parents=True)
    assert find(tmp_path) == {"omniglot": (tmp_path / "omniglot.npz",)}
    (tmp_path / "mini_imagenet" / "val").mkdir()
    (tmp_path / "mini_imagenet" / "test").mkdir()
    assert find(tmp_path)["mini_imagenet"] == (tmp_path / "mini_imagenet",)


def test_the_summary_of_glyphs_is_true() -> None:
    found = load("glyphs", None, "all")
    assert f"{round(len(found.names), -2):,} characters of {len(set(found.groups))} scripts" in GLYPHS.summary


def test_real_data_is_found(real_data: Path) -> None:
    found = registry.find(real_data)
    assert len(found["omniglot"]) == 1
    assert len(found["mini_imagenet"]) == 5
