"""Random crops and flips on the device: bytes and random numbers in, normalised floats out.

What happens to a picture depends on its own numbers only, so it is the same in every batch, on a CPU and on a GPU.
All shapes are static, and nothing waits for the device.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from metastep.core.random import WORD, number, stream
from metastep.data.augmentations import Augmentation
from metastep.errors import MetastepError

PAD = 4
ATTEMPTS = 10  # windows drawn until one fits; nine in ten fit, and otherwise the whole picture is taken
AREA, LOG_RATIO = (0.08, 1.0), (math.log(3 / 4), math.log(4 / 3))
NUMBERS = 3 + 2 * ATTEMPTS  # of a picture, in this order: mirror, top, left, then area and ratio of each attempt
MOMENTS = {  # mean and standard deviation of each channel: of grey drawings, and ImageNet's
    1: ((0.5,), (0.5,)),
    3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


class Scaling(NamedTuple):
    """(x/255 − mean)/std = scale·x + shift, each (channels, 1, 1)."""

    scale: Tensor
    shift: Tensor


def scaling(channels: int, device: torch.device | str = "cpu") -> Scaling:
    """To be made once: it copies to the device."""
    if channels not in MOMENTS:
        raise MetastepError(f"pictures with {channels} channels: there must be 1 (grey) or 3 (RGB).")
    mean, std = torch.tensor(MOMENTS[channels], dtype=torch.float64)[:, :, None, None]
    return Scaling((1 / (255 * std)).float().to(device), (-mean / std).float().to(device))


def output_side(side: int, kind: Augmentation) -> int:
    """Pixels of the side of what `augmented` and `plain` return."""
    return side * 7 // 8 if kind in ("crop224", "resized_crop") else side


def random_numbers(seed: int, epoch: int, positions: Tensor) -> Tensor:
    """For pictures at these positions of a data set, int64 (pictures, NUMBERS) of 32 bits each."""
    of = stream(seed & WORD, seed >> 32, epoch, 1, positions[:, None])
    keys: Tensor = number(of, torch.arange(NUMBERS, device=positions.device))
    return keys


def augmented(images: Tensor, numbers: Tensor, kind: Augmentation, by: Scaling) -> Tensor:
    """Bytes (n, channels, side, side), each changed at random by its own row of `numbers`, as floats."""
    if kind == "none":
        return normalised(images, by)
    if kind == "resized_crop":
        return normalised(_resized_window(images, numbers), by)
    if kind in ("crop", "crop_noflip"):
        images = functional.pad(images, (PAD,) * 4)
    side = output_side(images.shape[-1], kind) if kind == "crop224" else images.shape[-1] - 2 * PAD
    top, left = (_below(numbers[:, i], images.shape[-1] - side + 1) for i in (1, 2))
    flip = torch.zeros_like(top, dtype=torch.bool) if kind == "crop_noflip" else _mirrored(numbers)
    return normalised(_window(images, top, left, flip, side), by)


def plain(images: Tensor, kind: Augmentation, by: Scaling) -> Tensor:
    """For testing: the middle of the picture, as large as training sees it."""
    side = output_side(images.shape[-1], kind)
    start = (images.shape[-1] - side) // 2
    return normalised(images[..., start : start + side, start : start + side], by)


def normalised(images: Tensor, by: Scaling) -> Tensor:
    """Bytes, or floats from 0 to 255, with mean 0 and deviation 1 over ImageNet."""
    return images.float() * by.scale + by.shift


def _below(key: Tensor, bound: Tensor | int) -> Tensor:
    """A whole number from 0 to bound − 1 from 32 random bits."""
    return (key * bound) >> 32


def _mirrored(numbers: Tensor) -> Tensor:
    return numbers[:, 0] < 2**31


def _window(images: Tensor, top: Tensor, left: Tensor, flip: Tensor, side: int) -> Tensor:
    """One gather: the pixel that each new pixel is a copy of."""
    n, channels, _, width = images.shape
    along = torch.arange(side, device=images.device)
    rows = top[:, None] + along
    columns = left[:, None] + torch.where(flip[:, None], side - 1 - along, along)
    source = (rows[:, :, None] * width + columns[:, None, :]).view(n, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, source).view(n, channels, side, side)


def _resized_window(images: Tensor, numbers: Tensor) -> Tensor:
    """Resizing is linear in rows and in columns: one matrix for each, R·X·Cᵀ."""
    side = images.shape[-1]
    height, width = _window_size(numbers, side)
    top, left = _below(numbers[:, 1], side - height + 1), _below(numbers[:, 2], side - width + 1)
    out = output_side(side, "resized_crop")
    rows, columns = _triangles(top, height, side, out), _triangles(left, width, side, out)
    columns = torch.where(_mirrored(numbers)[:, None, None], columns.flip(1), columns)
    return rows[:, None] @ images.float() @ columns[:, None].mT


def _window_size(numbers: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Height and width: those of the first attempt that fits, or the whole picture."""
    unit = numbers[:, 3:].double() / 2**32
    area = side**2 * (AREA[0] + (AREA[1] - AREA[0]) * unit[:, :ATTEMPTS])
    ratio = torch.exp(LOG_RATIO[0] + (LOG_RATIO[1] - LOG_RATIO[0]) * unit[:, ATTEMPTS:])
    sizes = torch.stack([(area / ratio).sqrt(), (area * ratio).sqrt()]).round().long()
    fits = (sizes <= side).all(0)
    first = fits.int().argmax(1, keepdim=True)
    height, width = torch.where(fits.any(1), sizes.gather(2, first.expand(2, -1, -1))[..., 0], side)
    return height, width


def _triangles(start: Tensor, length: Tensor, side: int, out: int) -> Tensor:
    """Pillow's bilinear filter as matrices (n, out, side): pixels start, …, start + length − 1 become `out` pixels."""
    scale = length.double()[:, None, None] / out
    centre = start[:, None, None] + (torch.arange(out, device=start.device)[:, None] + 0.5) * scale
    pixel = torch.arange(side, device=start.device)
    weight = (1 - (pixel + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    inside = (pixel >= start[:, None, None]) & (pixel < (start + length)[:, None, None])
    weight = weight * inside
    return (weight / weight.sum(2, keepdim=True)).float()
