"""MNIST and Fashion-MNIST from their idx files, packed or not; what is damaged is named."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from metastep.data.errors import DataError
from metastep.data.registry import data_set, load
from metastep.data.sets.mnist import FILES, MNIST
from tests.data.layouts import put

PLACES = {"mnist": "mnist", "fashion_mnist": "FashionMNIST/raw"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASTEP_DATA", raising=False)
    monkeypatch.setattr(MNIST, "counts", (20, 10, 20))


def idx(array: np.ndarray) -> bytes:
    """As it is written in the world"""
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def files(suffix: str = ".gz") -> dict[str, bytes]:
    """Three pictures of each digit to train on and two to test, whose shade is the digit."""
    found = {}
    for half, each in (("train", 3), ("t10k", 2)):
        labels = np.tile(np.arange(10), each)
        pictures = np.broadcast_to(labels[:, None, None], (len(labels), 28, 28))
        found[f"{half}-images-idx3-ubyte{suffix}"], found[f"{half}-labels-idx1-ubyte{suffix}"] = (
            idx(pictures),
            idx(labels),
        )
    return {name: gzip.compress(data) if suffix else data for name, data in found.items()}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_pictures_labels_and_parts(name: str, suffix: str, tmp_path: Path) -> None:
    put(tmp_path / PLACES[name], files(suffix))
    parts = load(name, tmp_path).labelled()
    assert parts.counts == (20, 10, 20)
    assert parts.train.images.shape == (20, 1, 28, 28)
    for part in parts[:3]:
        assert part.images[:, 0, 0, 0].tolist() == part.labels.tolist()
    assert sorted(parts.val.labels.tolist()) == list(range(10))
    classes = [load(name, tmp_path).classes(split) for split in ("train", "val", "test")]
    assert [len(each.names) for each in classes] == [6, 2, 2]
    assert [each.sizes for each in classes] == [[5] * 6, [5] * 2, [5] * 2]
    assert load(name, tmp_path, size=32).classes("val").images.shape == (10, 1, 32, 32)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[: len(data) // 2], "is no idx file, or it is cut short"),
        (lambda data: b"", "is no idx file, or it is cut short"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-1]), "is no idx file, or it is cut short"),
        (lambda data: gzip.compress(b"\x80\x04" + gzip.decompress(data)), "it begins with"),  # as a pickle does
        (lambda data: files()[FILES[3] + ".gz"], "it begins with|has other labels"),
    ],
)
@pytest.mark.parametrize("file", [0, 1])
def test_damaged_files_are_named(damage: object, words: str, file: int, tmp_path: Path) -> None:
    put(tmp_path / "mnist", files())
    path = tmp_path / "mnist" / f"{FILES[file]}.gz"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, match=rf"{FILES[file]}\.gz: .*({words})"):
        load("mnist", tmp_path).labelled()


def test_three_of_four_files_are_not_enough(tmp_path: Path) -> None:
    put(tmp_path / "mnist", files())
    (tmp_path / "mnist" / f"{FILES[2]}.gz").unlink()
    assert data_set("mnist").find(tmp_path) == ()
    with pytest.raises(DataError, match="or only a part of it"):
        load("mnist", tmp_path).classes("train")


@pytest.mark.parametrize("name", PLACES)
def test_real_pictures(name: str, real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MNIST, "counts", (55_000, 5_000, 10_000))
    parts = load(name, real_data).labelled()
    assert parts.counts == (55_000, 5_000, 10_000)
    assert parts.val.sizes == [500] * 10
    assert parts.test.sizes == ([1_000] * 10 if name == "fashion_mnist" else MNIST_TEST)
    assert sum(load(name, real_data).classes("all").sizes) == 70_000


MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
