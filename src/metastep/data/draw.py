"""Draw few-shot episodes from images that live on the device as bytes.

Batch k is a pure function of (seed, k, task): the same episodes on a CPU and a GPU, on one rank or many, after a
resume, and inside a captured CUDA graph. All shapes are static, and nothing waits for the device.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from metastep.core.random import WORD, Stream, number, stream
from metastep.core.windows import Task
from metastep.data.episodes import Episodes, require_classes, require_largest, require_sizes
from metastep.errors import MetastepError


class Choice(NamedTuple):
    """What episodes are made of, before any picture is looked at"""

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
    """Tasks first, …, first + tasks − 1 of batch k, stacked: support and query are each (x, y).

    images: uint8 (classes, per_class, channels, height, width).
    k: in a captured graph a 0-d int64 tensor on the device, to be counted up in place between replays.
    counts: from `real_counts`, where rows of `images` are filled up because classes have different sizes.
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
    """Where the numbers of each task start, (tasks, 1); k and the number of a task count up to 2³²"""
    # torch.full fills on the device; torch.tensor would copy from the host, which a capture forbids
    batch = k if isinstance(k, Tensor) else torch.full((), k, device=device)
    task = torch.arange(first, first + tasks, device=device)[:, None]
    return stream(seed & WORD, seed >> 32, batch & WORD, task & WORD)


def choose(of: Stream, episodes: Episodes, sizes: Sequence[int], counts: Tensor | None = None) -> Choice:
    """An episode is read off its stream: a key for each class, for each turn, and for each image of a way.

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
    if counts is not None:  # what fills up a row is behind all that is real
        real = torch.arange(per_class, device=keys.device) < counts[chosen][..., None]
        image_keys = torch.where(real, image_keys, -1)
    return Choice(chosen, turns, image_keys.topk(episodes.images).indices)


def real_counts(
    counts: Sequence[int], episodes: Episodes, device: torch.device | str, names: Sequence[str] = ()
) -> Tensor | None:
    """The `counts` of an image set for `draw`, checked here once, since looking at them there would wait for a GPU."""
    if not counts:
        return None
    require_sizes(counts, episodes, names)
    return torch.tensor(counts, device=device)


def _labelled(images: Tensor, rows: Tensor, turns: Tensor | None) -> tuple[Tensor, Tensor]:
    """(x, y) of the images in `rows` (tasks, ways, n), which number all images of all classes"""
    tasks, ways, n = rows.shape
    x = images.flatten(0, 1).index_select(0, rows.flatten())
    if turns is not None:
        x = _turned(x.view(tasks, ways, n, *images.shape[2:]), turns)
    x = x.reshape(tasks, ways * n, *images.shape[2:]).float()
    y = torch.arange(ways, device=rows.device)[:, None].expand(ways, n).flatten().repeat(tasks, 1)
    return x.mul_(1 / 255), y  # a product rounds alike everywhere; GPUs and compilers divide in several ways


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    """x (tasks, ways, n, channels, side, side), each class by its own quarter turns.

    One gather by a table of the four turned grids: a third of the time of choosing among turned copies.
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
