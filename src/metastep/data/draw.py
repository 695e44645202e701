"""Draw few-shot episodes, and batches of labelled pictures, from images that are on the device as bytes.

Batch k is a pure function of (seed, k, task), and batch i of an epoch of (seed, epoch, i): the same on a CPU and a GPU,
on one rank or many, after a resume, and inside a captured CUDA graph. All shapes are static, and nothing waits for the
device.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from metastep.core.random import WORD, Stream, number, stream
from metastep.core.windows import Task
from metastep.data.episodes import (
    Augmentation,
    Episodes,
    known_augmentation,
    require_classes,
    require_largest,
    require_sizes,
)
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError


class Choice(NamedTuple):
    """Hold the classes, turns and images of episodes, before any picture is read."""

    classes: Tensor  # (tasks, ways)
    turns: Tensor  # (tasks, ways): quarter turns, counter-clockwise
    images: Tensor  # (tasks, ways, shots + queries), the shots first


def draw(
    images: Tensor,
    episodes: Episodes,
    seed: int,
    k: int | Tensor,
    tasks: int,
    first: int = 0,
    counts: Tensor | None = None,
) -> Task:
    """Draw tasks first, …, first + tasks − 1 of batch k, stacked: support and query are each (x, y).

    images: uint8 (classes, per_class, channels, height, width).
    k: in a captured graph a 0-d int64 tensor on the device, incremented in place between replays.
    counts: from `real_counts`, if rows of `images` are padded because classes have different sizes.
    x is float32 (tasks, ways · n, channels, height, width) in [0, 1], sorted by class; y counts 0, …, ways − 1.
    """
    _require_images(images, episodes)
    _require_numbers(images, seed, k, tasks, first)
    _require_counts(images, episodes, counts)
    choice = choose(streams(seed, k, tasks, first, images.device), episodes, images.shape[:2], counts)
    rows = choice.classes[..., None] * images.shape[1] + choice.images
    turns = None if episodes.rotations == "none" else choice.turns
    support, query = rows[..., : episodes.shots], rows[..., episodes.shots :]
    return Task(_labelled(images, support, turns), _labelled(images, query, turns))


def streams(seed: int, k: int | Tensor, tasks: int, first: int, device: torch.device | str) -> Stream:
    """Return where the numbers of each task start, (tasks, 1); k and the number of a task are below 2³²."""
    # torch.full fills on the device; torch.tensor would copy from the host, which a capture forbids
    batch = k if isinstance(k, Tensor) else torch.full((), k, device=device)
    task = torch.arange(first, first + tasks, device=device)[:, None]
    return stream(seed & WORD, seed >> 32, batch & WORD, task & WORD)


def choose(of: Stream, episodes: Episodes, sizes: Sequence[int], counts: Tensor | None = None) -> Choice:
    """Choose an episode from its stream: a key for each class, each turn, and each image of a way.

    The largest keys win, in their order: uniform, and without replacement. `sizes` are classes and images per class.
    """
    (classes, per_class), ways = sizes, episodes.ways
    lengths = [classes * episodes.variants, ways, ways * per_class]
    keys: Tensor = number(of, torch.arange(sum(lengths), device=of.a.device))
    class_keys, turn_keys, image_keys = torch.split(keys, lengths, dim=1)

    winners = class_keys.topk(ways).indices
    chosen = winners % classes
    turns = winners // classes if episodes.variants > 1 else turn_keys & 3
    image_keys = image_keys.reshape(-1, ways, per_class)
    if counts is not None:  # padding sorts after all real images
        real = torch.arange(per_class, device=keys.device) < counts[chosen][..., None]
        image_keys = torch.where(real, image_keys, -1)
    return Choice(chosen, turns, image_keys.topk(episodes.images).indices)


def real_counts(
    counts: Sequence[int], episodes: Episodes, device: torch.device | str, names: Sequence[str] = ()
) -> Tensor | None:
    """Return the `counts` of an image set for `draw`, checked once, since reading them there would wait for a GPU."""
    if not counts:
        return None
    require_sizes(counts, episodes, names)
    return torch.tensor(counts, device=device)


def _labelled(images: Tensor, rows: Tensor, turns: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return (x, y) of the images in `rows` (tasks, ways, n), which number all images of all classes."""
    tasks, ways, n = rows.shape
    x = images.flatten(0, 1).index_select(0, rows.flatten())
    if turns is not None:
        x = _turned(x.view(tasks, ways, n, *images.shape[2:]), turns)
    x = x.reshape(tasks, ways * n, *images.shape[2:]).float()
    y = torch.arange(ways, device=rows.device)[:, None].expand(ways, n).flatten().repeat(tasks, 1)
    return x.mul_(1 / 255), y  # a product rounds equally everywhere; GPUs and compilers divide in several ways


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    """Turn x (tasks, ways, n, channels, side, side), each class by its own quarter turns.

    One gather by a table of the four turned grids takes a third of the time of choosing among turned copies.
    """
    side = x.shape[-1]
    grid = torch.arange(side * side, device=x.device).view(side, side)
    table = torch.stack([grid.rot90(turn) for turn in range(4)]).flatten(1)
    pixels = x.flatten(-2)
    return pixels.gather(-1, table[turns][:, :, None, None].expand(pixels.shape)).view(x.shape)


def _require_images(images: Tensor, episodes: Episodes) -> None:
    if images.dim() != 5 or images.dtype != torch.uint8 or not images.is_contiguous():
        raise MetastepError(
            f"images are {images.dtype} {tuple(images.shape)}{'' if images.is_contiguous() else ', not contiguous'}: "
            "episodes need contiguous bytes, torch.uint8 (classes, per_class, channels, height, width)."
        )
    classes, per_class, _, height, width = images.shape
    require_classes(classes, episodes)
    require_largest(per_class, episodes)
    if episodes.rotations != "none" and height != width:
        raise MetastepError(
            f"pictures of {height}×{width} cannot be turned by 90 degrees: make them square, or set rotations='none'."
        )


def _require_numbers(images: Tensor, seed: int, k: int | Tensor, tasks: int, first: int) -> None:
    if not 0 <= seed < 2**64:
        raise MetastepError(f"seed = {seed} must be from 0 to 2**64 − 1.")
    if tasks < 1 or first < 0 or first + tasks > WORD:
        raise MetastepError(f"tasks = {tasks}, first = {first}: ask for at least 1 task, counted from 0 to 2**32 − 1.")
    if not isinstance(k, Tensor):
        if not 0 <= k <= WORD:
            raise MetastepError(f"k = {k}: batches are counted from 0 to 2**32 − 1.")
    elif k.dim() != 0 or k.dtype != torch.int64 or k.device != images.device:
        raise MetastepError(
            f"k is a {k.dtype} {tuple(k.shape)} on {k.device}: as a tensor it must be one torch.int64 number, "
            f"torch.zeros((), dtype=torch.int64), on {images.device} where the images are."
        )


def _require_counts(images: Tensor, episodes: Episodes, counts: Tensor | None) -> None:
    if counts is None:
        return
    if counts.shape != images.shape[:1] or counts.device != images.device:
        raise MetastepError(
            f"counts are {tuple(counts.shape)} on {counts.device} for {images.shape[0]} classes on {images.device}: "
            "make them with real_counts, one for each class."
        )
    if counts.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere, looking would wait
        real_counts(counts.tolist(), episodes, "cpu")


# ---- labelled batches


Batch = tuple[Tensor, Tensor]


class Epoch(NamedTuple):
    """Hold what is drawn for one pass through the data."""

    number: int
    order: Tensor  # (pictures,)
    numbers: Tensor  # (pictures, numbers of each)


class Batches:
    """Make batches: shuffled and augmented for training; in order, with a crop of the middle, for testing."""

    def __init__(
        self, data: Pictures, size: int, augmentation: str = "none", seed: int = 0, *, training: bool = True
    ) -> None:
        """Take `data` on its device; the last batch of an epoch has the rest."""
        _require(data, size, seed)
        self.data, self.size, self.seed, self.training = data, size, seed, training
        self.augmentation = known_augmentation(augmentation)
        self.scaling = scaling(data.images.shape[1], data.images.device)
        self._drawn: Epoch | None = None

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return -(-len(self.data.labels) // self.size)

    def batch(self, epoch: int, i: int) -> Batch:
        """Return x float32 (pictures, channels, side, side), normalised, and y int64 (pictures,)."""
        if not 0 <= i < len(self):
            raise MetastepError(f"batch {i}: an epoch has {len(self)}, counted from 0.")
        here = slice(i * self.size, (i + 1) * self.size)
        if not self.training:
            return plain(self.data.images[here], self.augmentation, self.scaling), self.data.labels[here]
        drawn = self._epoch(epoch)
        rows = drawn.order[here]
        images, numbers = self.data.images.index_select(0, rows), drawn.numbers.index_select(0, rows)
        return augmented(images, numbers, self.augmentation, self.scaling), self.data.labels.index_select(0, rows)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield all batches of an epoch."""
        return (self.batch(epoch, i) for i in range(len(self)))

    def _epoch(self, epoch: int) -> Epoch:
        """Draw once for all batches of an epoch: a batch then costs a few kernels instead of a hundred."""
        if self._drawn is None or self._drawn.number != epoch:
            self._drawn = draw_epoch(self.seed, epoch, len(self.data.labels), self.data.labels.device)
        return self._drawn


def draw_epoch(seed: int, epoch: int, pictures: int, device: torch.device | str = "cpu") -> Epoch:
    """Return a permutation, by sorting random keys that never tie, and the numbers of each picture."""
    if not 0 <= epoch <= WORD:
        raise MetastepError(f"epoch = {epoch}: epochs are counted from 0 to 2**32 − 1.")
    positions = torch.arange(pictures, device=device)
    keys: Tensor = number(stream(seed & WORD, seed >> 32, epoch, 0), positions)
    return Epoch(epoch, keys.argsort(), random_numbers(seed, epoch, positions))


def _require(data: Pictures, size: int, seed: int) -> None:
    images, labels = data.images, data.labels
    if images.dim() != 4 or images.dtype != torch.uint8 or images.shape[2] != images.shape[3]:
        raise MetastepError(
            f"images are {images.dtype} {tuple(images.shape)}: batches need bytes of square pictures, "
            "torch.uint8 (pictures, channels, side, side)."
        )
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64 or labels.device != images.device:
        raise MetastepError(
            f"labels are {labels.dtype} {tuple(labels.shape)} on {labels.device}: batches need torch.int64 "
            f"({len(images)},) on {images.device}, where the images are."
        )
    if size < 1 or not len(images):
        raise MetastepError(f"batch size {size} of {len(images)} pictures: there must be at least one of each.")
    if not 0 <= seed < 2**64:
        raise MetastepError(f"seed = {seed} must be from 0 to 2**64 − 1.")


# ---- crop and flip: bytes and random numbers in, normalised floats out
# The change of a picture depends on its own numbers alone, so it is the same in every batch.


PAD = 4
ATTEMPTS = 10  # windows drawn until one fits; nine in ten fit, and otherwise the whole picture is taken
AREA, LOG_RATIO = (0.08, 1.0), (math.log(3 / 4), math.log(4 / 3))
NUMBERS = 3 + 2 * ATTEMPTS  # of a picture, in this order: mirror, top, left, then area and ratio of each attempt
MOMENTS = {  # mean and standard deviation of each channel: of grey drawings, and ImageNet's
    1: ((0.5,), (0.5,)),
    3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


class Scaling(NamedTuple):
    """Hold (x/255 − mean)/std as scale·x + shift, each (channels, 1, 1)."""

    scale: Tensor
    shift: Tensor


def scaling(channels: int, device: torch.device | str = "cpu") -> Scaling:
    """Make it once: it copies to the device."""
    if channels not in MOMENTS:
        raise MetastepError(f"pictures with {channels} channels: there must be 1 (grey) or 3 (RGB).")
    mean, std = torch.tensor(MOMENTS[channels], dtype=torch.float64)[:, :, None, None]
    return Scaling((1 / (255 * std)).float().to(device), (-mean / std).float().to(device))


def output_side(side: int, kind: Augmentation) -> int:
    """The side, in pixels, of what `augmented` and `plain` return."""
    return side * 7 // 8 if kind in ("crop224", "resized_crop") else side


def random_numbers(seed: int, epoch: int, positions: Tensor) -> Tensor:
    """Return int64 (pictures, NUMBERS) of 32 bits each, for pictures at these positions of a data set."""
    of = stream(seed & WORD, seed >> 32, epoch, 1, positions[:, None])
    keys: Tensor = number(of, torch.arange(NUMBERS, device=positions.device))
    return keys


def augmented(images: Tensor, numbers: Tensor, kind: Augmentation, by: Scaling) -> Tensor:
    """Return bytes (n, channels, side, side) as floats, each changed by its own row of `numbers`."""
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
    """Return the middle of the picture for testing, as large as training sees it."""
    side = output_side(images.shape[-1], kind)
    start = (images.shape[-1] - side) // 2
    return normalised(images[..., start : start + side, start : start + side], by)


def normalised(images: Tensor, by: Scaling) -> Tensor:
    """Normalise bytes, or floats from 0 to 255, to mean 0 and deviation 1 over ImageNet."""
    return images.float() * by.scale + by.shift


def _below(key: Tensor, bound: Tensor | int) -> Tensor:
    """Return a whole number from 0 to bound − 1 from 32 random bits."""
    return (key * bound) >> 32


def _mirrored(numbers: Tensor) -> Tensor:
    return numbers[:, 0] < 2**31


def _window(images: Tensor, top: Tensor, left: Tensor, flip: Tensor, side: int) -> Tensor:
    """Gather the pixel that each new pixel copies."""
    n, channels, _, width = images.shape
    along = torch.arange(side, device=images.device)
    rows = top[:, None] + along
    columns = left[:, None] + torch.where(flip[:, None], side - 1 - along, along)
    source = (rows[:, :, None] * width + columns[:, None, :]).view(n, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, source).view(n, channels, side, side)


def _resized_window(images: Tensor, numbers: Tensor) -> Tensor:
    """Resize by one matrix for rows and one for columns, R·X·Cᵀ."""
    side = images.shape[-1]
    height, width = _window_size(numbers, side)
    top, left = _below(numbers[:, 1], side - height + 1), _below(numbers[:, 2], side - width + 1)
    out = output_side(side, "resized_crop")
    rows, columns = _triangles(top, height, side, out), _triangles(left, width, side, out)
    columns = torch.where(_mirrored(numbers)[:, None, None], columns.flip(1), columns)
    return rows[:, None] @ images.float() @ columns[:, None].mT


def _window_size(numbers: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Return height and width of the first attempt that fits, or of the whole picture."""
    unit = numbers[:, 3:].double() / 2**32
    area = side**2 * (AREA[0] + (AREA[1] - AREA[0]) * unit[:, :ATTEMPTS])
    ratio = torch.exp(LOG_RATIO[0] + (LOG_RATIO[1] - LOG_RATIO[0]) * unit[:, ATTEMPTS:])
    sizes = torch.stack([(area / ratio).sqrt(), (area * ratio).sqrt()]).round().long()
    fits = (sizes <= side).all(0)
    first = fits.int().argmax(1, keepdim=True)
    height, width = torch.where(fits.any(1), sizes.gather(2, first.expand(2, -1, -1))[..., 0], side)
    return height, width


def _triangles(start: Tensor, length: Tensor, side: int, out: int) -> Tensor:
    """Return Pillow's bilinear filter as matrices (n, out, side): `length` pixels from `start` become `out` pixels."""
    scale = length.double()[:, None, None] / out
    centre = start[:, None, None] + (torch.arange(out, device=start.device)[:, None] + 0.5) * scale
    pixel = torch.arange(side, device=start.device)
    weight = (1 - (pixel + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    inside = (pixel >= start[:, None, None]) & (pixel < (start + length)[:, None, None])
    weight = weight * inside
    return (weight / weight.sum(2, keepdim=True)).float()
