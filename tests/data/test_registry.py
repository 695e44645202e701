"""The registry knows what each data set is, finds what is there, and says what to do about what is not."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from metastep.core.registry import register
from metastep.data.errors import DataError
from metastep.data.folder import Folder
from metastep.data.pictures import Labelled, Pictures, Split
from metastep.data.registry import ClassSplit, DataSet, data_set, data_sets, find, load, resolve
from metastep.data.sets.digits import Digits
from metastep.errors import MetastepError
from tests.data.helpers import write_classes

NAMES = tuple(data_sets())
FOUND_BY_FILES = tuple(name for name in NAMES if not data_set(name).embedded and name != "folder")


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASTEP_DATA", raising=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_data_set_is_complete(name: str, tmp_path: Path) -> None:
    kind = data_set(name)
    assert all((kind.summary, kind.licence, kind.source, kind.labelled_in_words, kind.side, kind.channels))
    assert kind.find(tmp_path) == ()
    assert kind.embedded == kind.source.startswith("comes with")


@pytest.mark.parametrize("name", FOUND_BY_FILES)
@pytest.mark.parametrize("view", ["classes", "labelled"])
def test_missing_data_says_where_to_get_it_and_how_to_point_to_it(name: str, view: str, tmp_path: Path) -> None:
    for root in (None, tmp_path):
        with pytest.raises(DataError, match="--data or METASTEP_DATA") as caught:
            read(load(name, root), view)
        assert data_set(name).source in str(caught.value)
        assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}: does not hold")


def read(data: DataSet, view: str) -> Pictures | Labelled:
    return data.classes("train") if view == "classes" else data.labelled()


@pytest.mark.parametrize("name", ["glyphs", "digits"])
def test_what_comes_with_metastep_serves_both_views(name: str, tmp_path: Path) -> None:
    data = load(name, tmp_path / "absent")
    classes = {split: set(data.classes(split).names) for split in ("train", "val", "test", "trainval", "all")}
    assert classes["train"] | classes["val"] == classes["trainval"]
    assert classes["trainval"] | classes["test"] == classes["all"]
    assert sum(len(classes[part]) for part in ("train", "val", "test")) == len(classes["all"])
    assert len(data.labelled().train.names) > 1
    assert data.classes("val").images.shape[1:] == (*data.shape, data.shape[1])


def test_a_name_or_a_path_says_which_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "omniglot", "here"):
        (tmp_path / name).mkdir()
    for name in ("glyphs", "omniglot"):
        assert resolve(name, tmp_path)[0] is data_set(name)
    for name in ("photos", "./omniglot", "folder:omniglot", "folder:absent", "a/b", "/a", "~/a", "."):
        assert resolve(name, None)[0] is Folder


@pytest.mark.parametrize("name", ["omniglott", "stl10:x", ""])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(DataError, match=rf"{name}: there is no such folder here, and .*Choose one of .*omniglot"):
        load(name)


def test_a_folder_needs_its_path() -> None:
    with pytest.raises(DataError, match="folder: which one"):
        load("folder")


def test_near_misses_are_guessed() -> None:
    with pytest.raises(DataError, match="Did you mean 'omniglot'"):
        load("omniglott")


def test_a_file_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.zip").touch()
    with pytest.raises(DataError, match=r"mine\.zip: is a file, and no folder of classes"):
        load("mine.zip")


def test_the_environment_names_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASTEP_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"{tmp_path}: does not hold Omniglot"):
        load("omniglot").classes("train")
    with pytest.raises(DataError, match=f"{tmp_path}/other: the data directory is not there"):
        load("omniglot", tmp_path / "other")


def test_folders_are_found_by_path_and_below_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_classes(tmp_path / "data" / "photos", {"below": 1})
    for name in (f"folder:{tmp_path}/data/photos", f"{tmp_path}/data/photos"):
        assert load(name).classes("all").names == ("below",)
    assert load("folder:photos", tmp_path / "data").classes("all").names == ("below",)
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "photos", {"here": 1})
    assert load("photos", tmp_path / "data").classes("all").names == ("here",)
    with pytest.raises(DataError, match="elsewhere: is not a folder"):
        load("folder:elsewhere", tmp_path / "data").classes("all")


def test_home_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_classes(tmp_path / "photos", {"a": 1})
    assert load("~/photos").classes("all").names == ("a",)
    with pytest.raises(DataError, match="~nobody-of-that-name/photos: is not a folder"):
        load("~nobody-of-that-name/photos").classes("all")
    with pytest.raises(DataError, match=f"{tmp_path}/photos: does not hold Omniglot"):
        load("omniglot", Path("~/photos")).classes("all")


def test_splits_are_those_of_the_data_set(tmp_path: Path) -> None:
    write_classes(tmp_path, dict.fromkeys("abcde", 1))
    data = load(f"{tmp_path}")
    sizes = {split: len(data.classes(split).names) for split in ("all", "train", "val", "trainval", "test")}
    assert sizes == {"all": 5, "train": 3, "val": 1, "trainval": 4, "test": 1}
    with pytest.raises(DataError, match=r"split 'training': no such split here\. Choose one of train, val"):
        data.classes("training")


def test_a_folder_with_parts_serves_no_episodes(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_classes(tmp_path / part, {"a": 2, "b": 2})
    with pytest.raises(DataError, match=r"serves no episodes\. Put the folders of all classes side by side"):
        load(f"{tmp_path}").classes("train")


def test_find_names_what_is_wholly_there(tmp_path: Path) -> None:
    assert find(tmp_path) == {}
    (tmp_path / "omniglot.npz").touch()
    (tmp_path / "mini_imagenet" / "train").mkdir(parents=True)
    assert find(tmp_path) == {"omniglot": (tmp_path / "omniglot.npz",)}
    (tmp_path / "mini_imagenet" / "val").mkdir()
    (tmp_path / "mini_imagenet" / "test").mkdir()
    assert find(tmp_path)["mini_imagenet"] == (tmp_path / "mini_imagenet",)


def test_the_summary_of_glyphs_is_true() -> None:
    found = load("glyphs").classes("all")
    assert (
        f"{round(len(found.names), -2):,} characters of {len(set(found.groups))} scripts" in data_set("glyphs").summary
    )


class Flowers(ClassSplit):
    """As a plug-in would have it"""

    summary, licence, source = "three flowers", "free", "grown here"
    embedded, side = True, 4

    def read_classes(self, split: Split) -> Pictures:
        chosen = {"train": [0], "val": [1], "test": [2], "trainval": [0, 1], "all": [0, 1, 2]}[split]
        rows = torch.arange(3, dtype=torch.uint8)[:, None, None, None, None].expand(3, 5, 3, 4, 4)
        return Pictures.of_rows(rows.contiguous(), ("rose", "tulip", "lily")).only(chosen)


def test_a_plug_ins_data_set_needs_no_other_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastep.core.registry._registered", {"dataset": dict(data_sets())})
    register("dataset", "flowers")(Flowers)
    assert load("flowers").classes("trainval").names == ("rose", "tulip")
    assert load("flowers").labelled().counts == (9, 3, 3)
    with pytest.raises(MetastepError, match="already a data set 'flowers'"):
        register("dataset", "flowers")(Folder)


@pytest.mark.parametrize("name", ["glyphs", "digits"])
def test_a_huge_size_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"pictures of .* GiB of memory\. Choose a smaller size"):
        load(name, size=10**9).labelled()


def test_two_data_sets_make_one(tmp_path: Path) -> None:
    write_classes(tmp_path, dict.fromkeys("abcdefghijkl", 2))
    data = load(f"{tmp_path}", size=28, test=f"{tmp_path}")
    assert data.classes("train").names == load(f"{tmp_path}").classes("train").names
    assert data.classes("test").names == load(f"{tmp_path}").classes("test").names
    with pytest.raises(DataError, match="no split has all classes"):
        data.classes("all")


def test_labels_are_learned_on_one_data_set_and_tested_on_another_of_the_same_classes(tmp_path: Path) -> None:
    for name, classes in {"here": "abc", "there": "abc", "else": "abd"}.items():
        write_classes(tmp_path / name, dict.fromkeys(classes, 5))
    ours, theirs = (load(f"{tmp_path}/{name}", size=8).labelled() for name in ("here", "there"))
    both = load(f"{tmp_path}/here", size=8, test=f"{tmp_path}/there").labelled(per_class=1)
    assert both.counts == (3, len(theirs.val.labels), len(theirs.test.labels))
    assert both.train.names == both.test.names == ours.train.names
    assert torch.equal(both.test.images, theirs.test.images)
    assert "of " in both.validation
    with pytest.raises(DataError, match=r"the same classes, and c is not in both\. Choose two with the same classes"):
        load(f"{tmp_path}/here", size=8, test=f"{tmp_path}/else").labelled()


def test_a_data_set_that_keeps_its_own_size_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Digits("digits", Path())._whole()
    monkeypatch.setattr(Digits, "_whole", lambda self: whole)
    with pytest.raises(DataError, match=r"digits: size = 16, but this data set reads its pictures as 28x28\. Leave"):
        load("digits", size=16).labelled()


def test_two_data_sets_are_alike_or_refused(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 1})
    across = load("glyphs", test="digits")
    assert across.classes("trainval").names == load("glyphs").classes("trainval").names
    assert across.classes("val").names == load("digits").classes("val").names
    assert across.shape == (1, 28)
    with pytest.raises(DataError, match=r"glyphs has pictures of 28x28 in grey, and .* of 84x84 in colour: one net"):
        load("glyphs", test=f"{tmp_path}")
    with pytest.raises(DataError, match="glyphs has pictures of 84x84 in grey"):
        load("glyphs", size=84, test=f"{tmp_path}")


def test_names_and_summaries_load_no_torch() -> None:
    code = "import sys; from metastep.data.registry import data_sets; data_sets(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_real_data_is_found(real_data: Path) -> None:
    found = find(real_data)
    assert len(found["omniglot"]) == 1
    assert len(found["mini_imagenet"]) == 5
    assert len(found["mnist"]) == len(found["fashion_mnist"]) == 4
