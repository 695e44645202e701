"""An epoch shows every picture once, in an order and a shape that depend on (seed, epoch) only."""

import pytest
import torch

from metastep.data.draw import Batches, augmented, draw_epoch, plain, random_numbers
from metastep.data.episodes import AUGMENTATIONS
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError

COUNT = 50


def numbered(count: int = COUNT, side: int = 8) -> Pictures:
    """Pictures of one colour, which is their number; labels say it, too."""
    images = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, side, side).contiguous()
    return Pictures(images, torch.arange(count), ("x",) * count)


def order(batches: Batches, epoch: int) -> list[int]:
    return [int(label) for _, y in batches.epoch(epoch) for label in y]


@pytest.mark.parametrize(("size", "count"), [(1, 50), (7, 8), (25, 2), (50, 1), (64, 1)])
def test_every_picture_comes_once(size: int, count: int) -> None:
    batches = Batches(numbered(), size)
    assert len(batches) == count
    sizes = [len(y) for _, y in batches.epoch(0)]
    assert sizes == [size] * (COUNT // size) + ([COUNT % size] if COUNT % size else [])
    assert sorted(order(batches, 0)) == list(range(COUNT))


def test_pictures_keep_their_labels() -> None:
    for x, y in Batches(numbered(), 8).epoch(3):
        assert torch.equal(((x[:, 0, 0, 0] * 0.5 + 0.5) * 255).round().long(), y)


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    first = Batches(numbered(), 8, seed=1)
    orders = {tuple(order(first, epoch)) for epoch in range(5)} | {tuple(order(Batches(numbered(), 8), 0))}
    assert len(orders) == 6
    assert order(first, 0) == order(Batches(numbered(), 13, "crop", seed=1), 0)  # after others, and in other sizes


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_a_batch_is_what_its_pictures_are(kind: str) -> None:
    images = torch.randint(0, 256, (COUNT, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = Pictures(images, torch.arange(COUNT), ("x",) * COUNT)
    batches = Batches(data, 8, kind, seed=9)
    x, y = batches.batch(4, 6)
    assert len(y) == 2
    expected = augmented(images[y], random_numbers(9, 4, y), batches.augmentation, batches.scaling)
    assert torch.equal(x, expected)
    assert torch.equal(Batches(data, 8, kind, seed=9).batch(4, 6)[0], x)


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_testing_is_in_order_and_without_chance(kind: str) -> None:
    data = numbered()
    batches = Batches(data, 8, kind, training=False)
    assert order(batches, 0) == order(batches, 1) == list(range(COUNT))
    x = torch.cat([x for x, _ in batches.epoch(0)])
    assert torch.equal(x, plain(data.images, batches.augmentation, batches.scaling))


def test_orders_are_fair() -> None:
    """Each picture comes first equally often, within five standard deviations."""
    first = torch.stack([draw_epoch(0, epoch, 10).order[0] for epoch in range(2000)])
    assert (first.bincount(minlength=10) - 200).abs().max() < 5 * (2000 * 0.1 * 0.9) ** 0.5


def test_orders_never_change() -> None:
    assert draw_epoch(7, 2, 12).order.tolist() == GOLDEN


GOLDEN = [1, 8, 0, 7, 9, 4, 5, 11, 2, 6, 3, 10]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # that it is a prototype
@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_a_gpu_draws_the_same(kind: str) -> None:
    data = numbered()
    torch.cuda.synchronize()
    on_gpu = Batches(data.to("cuda"), 8, kind, seed=3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = [on_gpu.batch(1, i) for i in range(len(on_gpu))]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for (x, y), (same_x, same_y) in zip(Batches(data, 8, kind, seed=3).epoch(1), batches, strict=True):
        assert torch.equal(y, same_y.cpu())
        assert torch.allclose(x, same_x.cpu(), atol=1e-5)


def test_what_cannot_be_is_refused() -> None:
    data = numbered()
    for arguments, words in (
        ((data._replace(images=data.images.float()), 8), "batches need bytes"),
        ((data._replace(images=data.images[..., :5]), 8), "square pictures"),
        ((data._replace(labels=data.labels[1:]), 8), "labels are"),
        ((data._replace(labels=data.labels.int()), 8), "torch.int64"),
        ((data, 0), "batch size 0"),
        ((data, 8, "flip"), "augmentation = 'flip'"),
        ((data, 8, "none", -1), "seed = -1"),
    ):
        with pytest.raises(MetastepError, match=words):
            Batches(*arguments)
    for epoch, i, words in ((0, 7, "an epoch has 7"), (0, -1, "batch -1"), (-1, 0, "epoch = -1")):
        with pytest.raises(MetastepError, match=words):
            Batches(data, 8).batch(epoch, i)
