"""The real packs, where METASTEP_DATA names them: numbers, balance, published indices, and pixels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from metastep.data.errors import DataError
from metastep.data.pictures import INDICES, Labelled, Pictures
from metastep.data.registry import load


def counts(data: Pictures) -> set[int]:
    return set(data.labels.bincount(minlength=len(data.names)).tolist())


def checksum(splits: Labelled) -> int:
    """Of every pixel, its place, and the place of its picture."""
    images = torch.cat([part.images for part in splits[:3]]).flatten(1).long()
    places = torch.arange(images.shape[1]) % 101 + 1
    return int(((images * places).sum(1) * (torch.arange(len(images)) % 997 + 1)).sum())


def test_stl10(real_data: Path) -> None:
    splits = load("stl10", real_data).labelled()
    assert [len(part.labels) for part in splits[:3]] == [4_500, 500, 8_000]
    assert [counts(part) for part in splits[:3]] == [{450}, {50}, {800}]
    assert splits.validation == "L2T-ww's 500 indices"
    assert splits.train.names[:3] == ("airplane", "bird", "car")
    with np.load(real_data / INDICES) as indices, np.load(real_data / "stl10_32_lossless.npz") as pack:
        assert splits.val.labels.tolist() == pack["y_train"][indices["stl10"]].tolist()
    assert checksum(splits) == STL10_CHECKSUM  # lossless, so it is the same wherever Pillow runs
    with pytest.raises(DataError, match="holds pictures of 32x32, not of 96x96"):
        load("stl10", real_data, size=96).labelled()


STL10_CHECKSUM = 110_581_270_302_126


def test_stl10_without_the_indices_is_drawn(real_data: Path, tmp_path: Path) -> None:
    (tmp_path / "stl10_32_lossless.npz").symlink_to(real_data / "stl10_32_lossless.npz")
    splits = load("stl10", tmp_path).labelled()
    assert splits.validation == "50 of each class, drawn with seed 0"
    assert [counts(part) for part in splits[:3]] == [{450}, {50}, {800}]


def test_cifar100(real_data: Path) -> None:
    splits = load("cifar100", real_data).labelled()
    assert [len(part.labels) for part in splits[:3]] == [45_000, 5_000, 10_000]
    assert [counts(part) for part in splits[:3]] == [{450}, {50}, {100}]
    assert splits.validation == "50 of each class, drawn with seed 0"  # its order is not the official one
    assert splits.train.images.shape[1:] == (3, 32, 32)
    mean = splits.train.images.double().mean((0, 2, 3)) / 255
    assert torch.allclose(mean, torch.tensor([0.507, 0.487, 0.441], dtype=torch.double), atol=0.003)
