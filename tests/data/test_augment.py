"""Crops and flips against a plain loop over pictures; the same for a picture in whatever company."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.Image import Resampling
from torch import Tensor

from metastep.core.random import number, stream
from metastep.data.draw import (
    ATTEMPTS,
    MOMENTS,
    NUMBERS,
    augmented,
    normalised,
    output_side,
    plain,
    random_numbers,
    scaling,
)
from metastep.data.episodes import AUGMENTATIONS, Augmentation, known_augmentation
from metastep.errors import MetastepError

every = pytest.mark.parametrize("kind", AUGMENTATIONS)
COUNT, SIDE = 64, 32


def pictures(channels: int = 3, side: int = SIDE) -> Tensor:
    numbers = np.random.default_rng(0).integers(0, 256, (COUNT, channels, side, side), dtype=np.uint8)
    return torch.from_numpy(numbers)


def keys(epoch: int = 0, seed: int = 0, count: int = COUNT) -> Tensor:
    return random_numbers(seed, epoch, torch.arange(count))


def by_hand(image: Tensor, key: list[int], kind: Augmentation) -> Tensor:
    """One picture, cut and mirrored as one would do it with slices."""
    if kind in ("crop", "crop_noflip"):
        canvas = torch.zeros(image.shape[0], SIDE + 8, SIDE + 8, dtype=torch.uint8)
        canvas[:, 4:-4, 4:-4] = image
        side, image = SIDE, canvas
    else:
        side = SIDE * 7 // 8
    top, left = (math.floor(key[i] / 2**32 * (image.shape[-1] - side + 1)) for i in (1, 2))
    window = image[:, top : top + side, left : left + side]
    return window.flip(-1) if kind != "crop_noflip" and key[0] < 2**31 else window


@pytest.mark.parametrize("kind", ["crop", "crop_noflip", "crop224"])
@pytest.mark.parametrize("channels", [1, 3])
def test_crops_equal_a_loop_over_pictures(kind: Augmentation, channels: int) -> None:
    images, numbers, by = pictures(channels), keys(), scaling(channels)
    loop = torch.stack([by_hand(image, key, kind) for image, key in zip(images, numbers.tolist(), strict=True)])
    assert torch.equal(augmented(images, numbers, kind, by), normalised(loop, by))


def window(key: list[int], side: int) -> tuple[int, int, int, int]:
    """Top, left, height and width by the usual algorithm: try until one fits."""
    for attempt in range(ATTEMPTS):
        area = side**2 * (0.08 + 0.92 * key[3 + attempt] / 2**32)
        ratio = math.exp(math.log(3 / 4) + math.log(16 / 9) * key[3 + ATTEMPTS + attempt] / 2**32)
        height, width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if height <= side and width <= side:
            break
    else:
        height = width = side
    top, left = (key[i] * (side - length + 1) >> 32 for i, length in ((1, height), (2, width)))
    return top, left, height, width


@pytest.mark.parametrize("side", [32, 256])
def test_resized_crops_equal_those_of_pillow(side: int) -> None:
    images, numbers = pictures(side=side)[:12], keys(count=12)
    unit = scaling(3)._replace(scale=torch.ones(3, 1, 1), shift=torch.zeros(3, 1, 1))
    found = augmented(images, numbers, "resized_crop", unit)
    out = side * 7 // 8
    for image, key, ours in zip(images, numbers.tolist(), found, strict=True):
        top, left, height, width = window(key, side)
        cut = Image.fromarray(image[:, top : top + height, left : left + width].permute(1, 2, 0).contiguous().numpy())
        theirs = np.asarray(cut.resize((out, out), Resampling.BILINEAR)).astype(np.float32)
        theirs = theirs[:, ::-1] if key[0] < 2**31 else theirs
        # Pillow rounds to bytes twice, once for columns and once for rows.
        assert np.abs(ours.permute(1, 2, 0).numpy() - theirs).max() <= 1.01


def test_windows_cover_the_range_they_should() -> None:
    shapes = np.array([window(key, 256)[2:] for key in keys(count=4000).tolist()], float)
    area, ratio = shapes.prod(1) / 256**2, shapes[:, 1] / shapes[:, 0]
    assert 0.078 < area.min() < 0.09
    assert 0.95 < area.max() <= 1
    assert 0.73 < ratio.min() < 0.77
    assert 1.3 < ratio.max() < 1.37
    assert abs(np.log(ratio).mean()) < 0.01


def test_the_whole_picture_where_no_window_fits() -> None:
    numbers = torch.full((1, NUMBERS), 2**32 - 1)  # all of the area at 4:3 fits never
    images = pictures()[:1]
    shape = augmented(images, numbers, "resized_crop", scaling(3))
    small = np.asarray(
        Image.fromarray(images[0].permute(1, 2, 0).contiguous().numpy()).resize((28, 28), Resampling.BILINEAR)
    )
    expected = normalised(torch.from_numpy(small.copy()).permute(2, 0, 1)[None], scaling(3))
    assert torch.allclose(shape, expected, atol=1.01 / 255 / 0.224)


@every
@pytest.mark.parametrize("size", [1, 7, 64])
def test_company_does_not_matter(kind: Augmentation, size: int) -> None:
    images, numbers, by = pictures(), keys(), scaling(3)
    whole = augmented(images, numbers, kind, by)
    pieces = zip(images.split(size), numbers.split(size), strict=True)
    parts = torch.cat([augmented(image, number, kind, by) for image, number in pieces])
    assert torch.allclose(whole, parts, rtol=0, atol=1e-5 if kind == "resized_crop" else 0)


@every
def test_shapes_and_sizes_in_training_are_those_in_testing(kind: Augmentation) -> None:
    images, by = pictures(), scaling(3)
    side = output_side(SIDE, kind)
    for x in (augmented(images, keys(), kind, by), plain(images, kind, by)):
        assert x.shape == (COUNT, 3, side, side)
        assert x.dtype == torch.float32
    assert (output_side(256, "crop224"), output_side(256, "resized_crop")) == (224, 224)


def test_testing_takes_the_middle() -> None:
    images, by = pictures(), scaling(3)
    assert torch.equal(plain(images, "crop224", by), normalised(images[..., 2:30, 2:30], by))
    for kind in ("none", "crop", "crop_noflip"):
        assert torch.equal(plain(images, known_augmentation(kind), by), normalised(images, by))
    assert torch.equal(augmented(images, keys(), "none", by), normalised(images, by))


@pytest.mark.parametrize("channels", [1, 3])
def test_normalisation(channels: int) -> None:
    images = pictures(channels)
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in MOMENTS[channels])
    expected = (images.double() / 255 - mean) / std
    assert torch.allclose(normalised(images, scaling(channels)).double(), expected, atol=1e-6)


def test_numbers_are_uniform_and_their_own() -> None:
    many = keys(count=4000)
    assert many.min() >= 0
    assert many.max() < 2**32
    assert len(many.unique()) > 0.999 * many.numel()
    share = (many.double() / 2**32).mean(0)
    assert (share - 0.5).abs().max() < 5 / math.sqrt(12 * 4000)
    offsets = (many[:, 1] * 9) >> 32
    assert set(offsets.tolist()) == set(range(9))
    flips = (many[:, 0] < 2**31).double().mean()
    assert abs(flips - 0.5) < 0.04


@pytest.mark.parametrize("change", [{"epoch": 1}, {"seed": 1}, {"seed": 2**32}, {"seed": 2**63}])
def test_other_epochs_and_seeds_other_numbers(change: dict[str, int]) -> None:
    assert (keys() == keys(**change)).double().mean() < 0.001
    assert torch.equal(keys(), random_numbers(0, 0, torch.arange(COUNT)))


def test_numbers_are_those_of_plain_integers_and_never_change() -> None:
    found = random_numbers(3 + 2**32, 5, torch.tensor([0, 70_000])).tolist()
    for position, row in zip((0, 70_000), found, strict=True):
        of = stream(3, 1, 5, 1, position)
        assert row == [number(of, index) for index in range(NUMBERS)]
    assert [row[:2] for row in found] == [[1312271166, 2492538852], [1971135640, 3978418615]]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(MetastepError, match="augmentation = 'flip': choose one of none, crop"):
        known_augmentation("flip")
    with pytest.raises(MetastepError, match="2 channels"):
        scaling(2)
