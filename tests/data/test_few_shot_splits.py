"""CIFAR-FS, FC100 and CUB split their classes as published; their files are read in every form."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metastep.data.errors import DataError
from metastep.data.pictures import PARTS, Part, listed_classes
from metastep.data.registry import load
from metastep.data.sets.cifar_fs import LISTS
from metastep.data.sets.cub import PACK, cropped
from tests.data.helpers import encoded
from tests.data.layouts import put

FINE = sorted(name for members in LISTS["superclasses"].values() for name in members)
SIZES = {"cifar_fs": (64, 16, 20), "fc100": (60, 20, 20), "cub": (100, 50, 50)}


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASTEP_DATA", raising=False)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One picture of each class to train on, one to test, in the binary release; its colour says which class."""
    root = tmp_path_factory.mktemp("cifar")
    files = {"fine_label_names.txt": "\n".join(FINE).encode()}
    for part in ("train", "test"):
        files[f"{part}.bin"] = b"".join(bytes((0, label)) + bytes([label]) * 3 * 32**2 for label in range(100))
    put(root / "cifar-100-binary", files)
    return root


@pytest.mark.parametrize("name", ["cifar_fs", "fc100"])
def test_the_classes_of_each_split_are_those_of_its_list(name: str, cifar: Path) -> None:
    data = load(name, cifar)
    names = {part: data.classes(part).names for part in PARTS}
    assert tuple(map(len, names.values())) == SIZES[name]
    assert sorted(sum(names.values(), ())) == FINE
    for part in PARTS:
        pictures = data.classes(part)
        assert [FINE[int(image.max())] for image in pictures.images] == [n for n in names[part] for _ in "tv"]
    assert data.classes("all").names == tuple(FINE)
    assert data.classes("trainval").names == names["train"] + names["val"]


def test_no_superclass_of_fc100_is_in_two_splits(cifar: Path) -> None:
    above = {name: superclass for superclass, members in LISTS["superclasses"].items() for name in members}
    data = load("fc100", cifar)
    seen = [{above[name] for name in data.classes(part).names} for part in PARTS]
    assert [len(each) for each in seen] == [12, 4, 4]
    assert len(set.union(*seen)) == 20


def test_they_share_one_decoded_copy(cifar: Path, own_cache: Path) -> None:
    for name in ("cifar100", "cifar_fs", "fc100"):
        load(name, cifar).classes("test")
    assert len(list(own_cache.iterdir())) == 1


def test_other_classes_than_those_listed_are_refused() -> None:
    lists: dict[Part, list[str]] = {"train": ["a"], "val": ["b"], "test": ["c"]}
    assert listed_classes(lists, ["c", "a", "b"], "trainval") == [1, 2]
    for names in (["a", "b", "d"], ["a", "b"], ["a", "b", "c", "c"]):
        with pytest.raises(DataError, match="is not in both the published lists and the data"):
            listed_classes(lists, names, "train")


def write_cub_pack(root: Path) -> None:
    """Four species of three pictures in sheets, the second of each to train on."""
    sheets = [encoded(Image.fromarray(np.full((84, 3 * 84, 3), 50 * i, np.uint8))) for i in range(4)]
    np.savez(
        root / PACK,
        blob=np.frombuffer(b"".join(sheets), np.uint8),
        offset=np.cumsum([0, *map(len, sheets)]),
        count=[3] * 4,
        hw=[84, 84],
        label=np.repeat(np.arange(4), 3),
        official_split=[1, 0, 1] * 4,
        classes=["001.a", "002.b", "003.c", "004.d"],
    )


def write_cub_official(root: Path) -> None:
    paths = [f"{name}/{i}.jpg" for name in ("001.a", "002.b", "003.c", "004.d") for i in range(3)]
    shades = {path: Image.new("RGB", (120, 100), (50 * (n // 3),) * 3) for n, path in enumerate(paths)}
    files = {f"images/{path}": encoded(picture) for path, picture in shades.items()}
    files["images.txt"] = "".join(f"{n} {path}\n" for n, path in enumerate(paths, 1)).encode()
    files["train_test_split.txt"] = "".join(f"{n} {int(n % 3 == 2)}\n" for n in range(1, 13)).encode()
    put(root / "CUB_200_2011", files)


@pytest.mark.parametrize("write", [write_cub_pack, write_cub_official])
def test_birds_are_the_same_from_the_pack_and_from_the_official_files(write: object, tmp_path: Path) -> None:
    write(tmp_path)  # type: ignore[operator]
    data = load("cub", tmp_path)
    assert {part: data.classes(part).names for part in PARTS} == {
        "train": ("001.a", "003.c"), "val": ("002.b",), "test": ("004.d",),
    }  # fmt: skip
    every = data.classes("all")
    assert every.images.shape == (12, 3, 84, 84)
    assert [int(image.max()) for image in every.images] == [0] * 3 + [50] * 3 + [100] * 3 + [150] * 3
    assert load("cub", tmp_path, size=20).classes("test").images.shape == (3, 3, 20, 20)
    with pytest.raises(DataError, match="has 4 pictures for training and 8 for testing instead of 5,994 and 5,794"):
        data.labelled()


@pytest.mark.parametrize(("width", "height"), [(200, 100), (100, 200), (84, 84), (90, 91), (500, 85)])
def test_birds_keep_their_proportions(width: int, height: int) -> None:
    """A frame is cut off on all sides, and a circle stays a circle."""
    row, column = np.mgrid[:height, :width] + 0.5
    disc = (row - height / 2) ** 2 + (column - width / 2) ** 2 < (0.3 * min(width, height)) ** 2
    found = cropped(Image.fromarray(np.uint8(255 * disc)).convert("RGB"), 84)[0] > 127
    across, down = found[42].sum(), found[:, 42].sum()
    assert found.shape == (84, 84)
    assert abs(int(across) - int(down)) <= 2
    assert abs(int(across) - 0.6 * 92) <= 3


def published(real_data: Path, place: str) -> dict[Part, list[str]]:
    files = {part: real_data / "splits" / place / f"{part}.json" for part in PARTS}
    return {part: [each if isinstance(each, str) else each[-1] for each in json.loads(file.read_text())]
            for part, file in files.items()}  # fmt: skip


@pytest.mark.parametrize(("name", "place"), [("cifar_fs", "cifar100/cifar-fs"), ("cub", "cub")])
def test_real_splits_are_the_published_ones(name: str, place: str, real_data: Path) -> None:
    data = load(name, real_data)
    for part, names in published(real_data, place).items():
        pictures = data.classes(part)
        assert sorted(pictures.names) == sorted(names)
        assert min(pictures.sizes) >= 40


def test_real_fc100_is_split_by_superclass(real_data: Path) -> None:
    lists = published(real_data, "cifar100/fc100")
    for part in PARTS:
        rows, counts = load("fc100", real_data).classes(part).rows()
        assert counts == ()
        assert rows.shape == (5 * len(lists[part]), 600, 3, 32, 32)


def test_real_birds_serve_transfer_and_the_test_of_other_classes(real_data: Path) -> None:
    assert load("cub", real_data).labelled().counts == (4_994, 1_000, 5_794)
    across = load("mini_imagenet", real_data, test="cub")
    assert len(across.classes("test").names) == 50
    assert across.shape == (3, 84)
    assert not torch.equal(across.classes("val").images[0], across.classes("test").images[0])
