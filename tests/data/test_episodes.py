"""Episodes: laws of the hash and of the draw, their distribution, and what is refused."""

from itertools import product

import pytest
import torch

from metastep.core.random import MULTIPLIERS, WORD, mix, number, stream
from metastep.data.draw import Choice, choose, draw, real_counts, streams
from metastep.data.episodes import Episodes
from metastep.errors import MetastepError

ROTATIONS = ("none", "per_episode", "as_classes")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def pictures(classes=12, per_class=9, channels=1, side=4):
    """Every picture says in its bytes which one it is: class, number, then the position of the pixel"""
    images = torch.zeros(classes, per_class, channels, side, side, dtype=torch.uint8)
    images.flatten(3)[..., 2:] = torch.arange(2, side * side, dtype=torch.uint8)
    images[..., 0, 0] = torch.arange(classes, dtype=torch.uint8)[:, None, None]
    images[..., 0, 1] = torch.arange(per_class, dtype=torch.uint8)[:, None]
    return images


def as_bytes(x):
    return (x * 255).round().to(torch.uint8)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip((*a.support, *a.query), (*b.support, *b.query), strict=True))


def choices(tasks, episodes, classes=8, per_class=6, seed=0, k=0, first=0, counts=None) -> Choice:
    return choose(streams(seed, k, tasks, first, "cpu"), episodes, (classes, per_class), counts)


def deviation(cells, number_of_cells):
    """Pearson's χ² against uniform, in standard deviations from its mean"""
    observed = torch.bincount(cells, minlength=number_of_cells).double()
    expected = len(cells) / number_of_cells
    assert expected > 20
    freedom = number_of_cells - 1
    return abs((((observed - expected) ** 2).sum() / expected).item() - freedom) / (2 * freedom) ** 0.5


# The hash


def test_tensors_agree_with_integers_that_cannot_overflow():
    words = torch.tensor([0, 1, 2, 1199, 2**31 - 1, 2**31, WORD - 1, WORD])
    assert mix(words).tolist() == [mix(word) for word in words.tolist()]
    a, b = stream(3, WORD, words)
    assert list(zip(a.tolist(), b.tolist(), strict=True)) == [stream(3, WORD, word) for word in words.tolist()]
    assert number(stream(WORD, 0), words).tolist() == [number(stream(WORD, 0), word) for word in words.tolist()]


def test_no_product_leaves_int64():
    """Compiled for a CPU, one that did would be undefined behaviour: wrong numbers, or worse."""
    assert max(MULTIPLIERS) * WORD < 2**63
    assert mix(torch.arange(WORD - 1000, WORD + 1)).max() <= WORD


def test_mixing_is_a_bijection():
    """Each step can be undone, the last first."""
    z = torch.arange(0, WORD, 43_046_721)
    undone = mix(z)
    undone ^= (undone >> 15) ^ (undone >> 30)
    undone = torch.tensor([word * pow(MULTIPLIERS[1], -1, 2**32) & WORD for word in undone.tolist()])
    undone ^= (undone >> 15) ^ (undone >> 30)
    undone = torch.tensor([word * pow(MULTIPLIERS[0], -1, 2**32) & WORD for word in undone.tolist()])
    assert torch.equal(undone ^ (undone >> 16), z)


def test_streams_depend_on_the_order_of_their_words_and_never_tie():
    assert stream(1, 2) != stream(2, 1)
    assert number(stream(1, 2), torch.arange(100_000)).unique().numel() == 100_000


def test_all_64_bits_of_a_seed_and_all_32_of_k_and_task_count():
    one = {number(streams(seed, k, 1, task, "cpu"), 0).item() for seed, k, task in one_bit_apart()}
    assert len(one) == 1 + 64 + 32 + 32


def one_bit_apart():
    yield 0, 0, 0
    yield from ((1 << bit, 0, 0) for bit in range(64))
    yield from ((0, 1 << bit, 0) for bit in range(32))
    yield from ((0, 0, 1 << bit) for bit in range(32))


# The draw


@pytest.mark.parametrize("rotations", ROTATIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_episode_has_the_shapes_and_only_what_belongs_to_it(rotations, channels):
    images = pictures(channels=channels)
    episodes = Episodes(ways=5, shots=2, queries=3, rotations=rotations)
    (xs, ys), (xq, yq) = draw(images, episodes, seed=1, k=2, tasks=4)
    assert xs.shape == (4, 10, channels, 4, 4)
    assert xq.shape == (4, 15, channels, 4, 4)
    assert xs.dtype == xq.dtype == torch.float32
    assert ys.dtype == yq.dtype == torch.int64
    assert ys.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]] * 4
    assert torch.equal(yq, torch.arange(5).repeat_interleave(3).repeat(4, 1))
    whole = torch.cat([xs.unflatten(1, (5, 2)), xq.unflatten(1, (5, 3))], 2)
    for episode in as_bytes(whole):
        kinds = {classify(of_class, images) for of_class in episode}
        assert len(kinds) == 5  # classes, or classes and turns, differ
        if rotations != "as_classes":
            assert len({kind[0] for kind in kinds}) == 5
        if rotations == "none":
            assert {kind[1] for kind in kinds} == {0}


def classify(pictures_of_one, images):
    """(class, turn) of all pictures of one way; they must share both, and be different images"""
    for turn in range(4):
        back = pictures_of_one.rot90(-turn, (-2, -1))
        name, numbers = back[0, 0, 0, 0].item(), back[:, 0, 0, 1].tolist()
        if name < len(images) and max(numbers) < images.shape[1] and torch.equal(back, images[name, numbers]):
            assert len(set(numbers)) == len(numbers)
            return name, turn
    raise AssertionError("not a picture of the set")


def test_bytes_become_floats_from_0_to_1():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 1, 16, 16).repeat(1, 2, 1, 1, 1)
    x = draw(images, Episodes(1, 1, 1), 0, 0, 1).support[0]
    assert x.min() == 0
    assert x.max() == 1
    torch.testing.assert_close(x.flatten(), torch.arange(256) / 255, rtol=2e-7, atol=0)


@pytest.mark.parametrize("rotations", ROTATIONS)
def test_ranks_draw_their_share_of_the_one_batch(rotations):
    images, episodes = pictures(), Episodes(3, 1, 2, rotations)
    whole = draw(images, episodes, 7, 11, tasks=8)
    parts = [draw(images, episodes, 7, 11, count, first) for first, count in ((0, 3), (3, 1), (4, 4))]
    for side in (0, 1):
        for leaf in (0, 1):
            assert torch.equal(whole[side][leaf], torch.cat([part[side][leaf] for part in parts]))


def test_batch_k_does_not_depend_on_what_was_drawn_before_or_on_the_type_of_k():
    images, episodes = pictures(), Episodes(3, 1, 2, "per_episode")
    run = [draw(images, episodes, 0, k, 2) for k in range(4)]
    torch.rand(3)
    counter = torch.tensor(3)
    assert same(run[3], draw(images, episodes, 0, counter, 2))
    counter -= 1
    assert same(run[2], draw(images, episodes, 0, counter, 2))
    assert not same(run[2], run[3])
    assert not same(run[2], draw(images, episodes, 1, 2, 2))


def test_rotations_leave_classes_and_images_as_they_are():
    plain, turned = (choices(50, Episodes(3, 1, 2, r)) for r in ("none", "per_episode"))
    assert torch.equal(plain.classes, turned.classes)
    assert torch.equal(plain.images, turned.images)


def test_the_episodes_of_a_seed_never_change():
    """Saved runs resume with these, and published evaluations were made with them."""
    chosen = choices(2, Episodes(5, 1, 1, "per_episode"), classes=1200, per_class=20, seed=42, k=1000)
    assert chosen.classes.tolist() == GOLDEN_CLASSES
    assert chosen.turns.tolist() == GOLDEN_TURNS
    assert chosen.images.flatten(1).tolist() == GOLDEN_IMAGES


# computed apart, with Python's integers and its sort
GOLDEN_CLASSES = [[768, 326, 410, 837, 350], [82, 990, 912, 334, 498]]
GOLDEN_TURNS = [[1, 2, 3, 0, 0], [1, 0, 2, 3, 2]]
GOLDEN_IMAGES = [[18, 2, 2, 12, 16, 10, 12, 1, 1, 4], [13, 11, 7, 9, 14, 10, 14, 7, 18, 1]]


# Classes of different sizes


def test_what_fills_up_a_small_class_is_never_drawn_and_the_rest_evenly():
    counts = torch.tensor([3, 6, 4, 5])
    chosen = choices(9000, Episodes(2, 1, 2), classes=4, per_class=6, counts=counts)
    assert (chosen.images < counts[chosen.classes][..., None]).all()
    for name, count in enumerate(counts.tolist()):
        assert deviation(chosen.images[:, 0, 0][chosen.classes[:, 0] == name], count) < 4


def test_full_counts_change_nothing():
    images, episodes = pictures(), Episodes(3, 1, 2, "as_classes")
    full = real_counts([9] * 12, episodes, "cpu")
    assert same(draw(images, episodes, 0, 0, 4), draw(images, episodes, 0, 0, 4, counts=full))
    assert real_counts((), episodes, "cpu") is None


# The distribution: χ² within 4 standard deviations of its mean, on seeds that are fixed


@pytest.mark.parametrize("rotations", ROTATIONS)
@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_classes_turns_and_images_are_uniform_and_independent(rotations, seed):
    chosen = choices(20_000, Episodes(3, 1, 2, rotations), seed=seed)
    kinds = 32 if rotations == "as_classes" else 8
    kind = chosen.classes + (8 * chosen.turns if rotations == "as_classes" else 0)
    a, b = kind[:, 0], kind[:, 1]
    pairs = a * (kinds - 1) + b - (b > a).long()  # ordered pairs of different classes
    assert deviation(pairs, kinds * (kinds - 1)) < 4
    first, second = chosen.images[:, 1, 0], chosen.images[:, 1, 1]
    assert deviation(first * 5 + second - (second > first).long(), 30) < 4
    assert deviation(b * 6 + first, kinds * 6) < 4
    assert deviation(chosen.images[:, 0, 2] * 6 + chosen.images[:, 1, 2], 36) < 4
    assert deviation(chosen.turns[:, 0], 4) < 4
    if rotations != "as_classes":  # there, a turned class that was drawn leaves fewer with its turn
        assert deviation(chosen.turns[:, 0] * 4 + chosen.turns[:, 2], 16) < 4


def test_many_classes_are_drawn_evenly():
    chosen = choices(10_000, Episodes(20, 1, 1), classes=1200, per_class=2)
    for way in (0, 7, 19):
        assert deviation(chosen.classes[:, way] // 3, 400) < 4
    every = torch.bincount(chosen.classes.flatten(), minlength=1200).double()
    share = 20 / 1200  # of the episodes; they draw without replacement, which takes 1 − share off the variance
    assert abs(every.var().item() / (10_000 * share * (1 - share)) - 1) < 0.2


@pytest.mark.parametrize("neighbour", ["task", "k", "seed"])
def test_neighbouring_tasks_batches_and_seeds_are_independent(neighbour):
    def episodes_of(**change):
        numbers = {"seed": 3, "k": 5, **change}
        chosen = choices(20_000, Episodes(3, 1, 1, "per_episode"), **numbers)
        return torch.stack([chosen.classes[:, 0], chosen.images[:, 0, 0], chosen.turns[:, 0]])

    here = episodes_of()
    there = {"task": episodes_of(first=1), "k": episodes_of(k=6), "seed": episodes_of(seed=4)}[neighbour]
    for (x, n), (y, m) in product(zip(here, (8, 6, 4), strict=True), zip(there, (8, 6, 4), strict=True)):
        assert deviation(x * m + y, n * m) < 4


def test_a_long_run_is_uniform_over_batches():
    few = [choices(4, Episodes(2, 1, 1), k=k, seed=9).classes[:, 0] for k in range(2000)]
    assert deviation(torch.cat(few), 8) < 4
    later, sooner = torch.stack(few[1:])[:, 0], torch.stack(few[:-1])[:, 0]
    assert deviation(sooner * 8 + later, 64) < 4


# Static shapes, no waiting, compilers and graphs


@pytest.mark.parametrize("rotations", ROTATIONS)
def test_nothing_looks_at_data(rotations):
    """On the meta device there is no data to look at."""
    images, k = pictures().to("meta"), torch.zeros((), dtype=torch.int64, device="meta")
    counts = torch.zeros(12, dtype=torch.int64, device="meta")
    task = draw(images, Episodes(5, 1, 2, rotations), 0, k, 4, counts=counts)
    assert task.query[0].shape == (4, 10, 1, 4, 4)


@pytest.mark.parametrize("rotations", ROTATIONS)
def test_it_compiles_in_one_graph(rotations):
    images, episodes = pictures(), Episodes(3, 1, 2, rotations)
    compiled = torch.compile(lambda k: draw(images, episodes, 5, k, 4), fullgraph=True, backend="aot_eager")
    for k in (0, 1, 2**31):
        assert same(compiled(torch.tensor(k)), draw(images, episodes, 5, k, 4))


@CUDA
@pytest.mark.parametrize("rotations", ROTATIONS)
def test_a_gpu_draws_the_same_compiled_or_not_also_in_a_captured_graph(rotations):
    images, episodes = pictures(classes=50, per_class=20, side=7), Episodes(5, 1, 15, rotations)
    counts = torch.arange(50) % 5 + 16
    on_device, counts_on_device = images.cuda(), counts.cuda()
    k = torch.zeros((), dtype=torch.int64, device="cuda")

    def drawn():
        return draw(on_device, episodes, 2**63 + 5, k, 8, counts=counts_on_device)

    for function in (drawn, torch.compile(drawn, fullgraph=True)):
        function()  # compiles, and warms up, before the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = function()
        for step in (0, 1, 2, 2**31, 2**32 - 1):
            k.fill_(step)
            expected = draw(images, episodes, 2**63 + 5, step, 8, counts=counts)
            assert same(on_host(function()), expected)
            graph.replay()
            assert same(on_host(captured), expected)


def on_host(task):
    return type(task)(*(tuple(leaf.cpu() for leaf in part) for part in task))


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ways": 0}, "ways = 0"),
        ({"shots": 1.5}, "shots = 1.5"),
        ({"queries": -1}, "queries = -1"),
        ({"rotations": "always"}, "none, per_episode, as_classes"),
    ],
)
def test_impossible_episodes_are_refused(arguments, message):
    with pytest.raises(MetastepError, match=message):
        Episodes(**{"ways": 5, "shots": 1, "queries": 1, **arguments})


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        (Episodes(13, 1, 1), "13-way episodes need 13 classes, but there are 12"),
        (Episodes(49, 1, 1, "as_classes"), "49 classes, but there are 12, 4 rotations of each"),
        (Episodes(5, 5, 5), "5 shots and 5 queries need 10 images of each class, but no class has more than 9. Lower"),
    ],
)
def test_too_few_classes_or_images(episodes, message):
    with pytest.raises(MetastepError, match=message):
        draw(pictures(), episodes, 0, 0, 1)


def test_small_classes_are_named():
    message = r"of 2 classes 1 has fewer: lynx \(3\)\. Lower shots or queries, or add images"
    with pytest.raises(MetastepError, match=message):
        real_counts([9, 3], Episodes(2, 1, 3), "cpu", names=["cat", "lynx"])
    with pytest.raises(MetastepError, match=r"class 1 \(3\)"):
        draw(pictures(2), Episodes(2, 1, 3), 0, 0, 1, counts=torch.tensor([9, 3]))


@pytest.mark.parametrize(
    ("images", "changes", "message"),
    [
        (pictures().float(), {}, "torch.float32"),
        (pictures()[0], {}, "per_class, channels, height, width"),
        (pictures()[:, ::2], {}, "not contiguous"),
        (pictures(side=4)[..., :3].contiguous(), {}, "4×3 cannot be turned"),
        (pictures(), {"seed": -1}, "seed = -1"),
        (pictures(), {"seed": 2**64}, "seed = 18446744073709551616 must be from 0"),
        (pictures(), {"tasks": 0}, "tasks = 0"),
        (pictures(), {"first": -2}, "first = -2"),
        (pictures(), {"k": -1}, "k = -1"),
        (pictures(), {"k": torch.tensor([1])}, "one torch.int64 number"),
        (pictures(), {"k": torch.tensor(1.0)}, "torch.float32"),
        (pictures(), {"k": torch.zeros((), dtype=torch.int64, device="meta")}, "on cpu where the images are"),
        (pictures(), {"counts": torch.tensor([9])}, "12 classes"),
    ],
)
def test_unusable_arguments_are_refused(images, changes, message):
    arguments = {"seed": 0, "k": 0, "tasks": 1, **changes}
    with pytest.raises(MetastepError, match=message):
        draw(images, Episodes(2, 1, 1, "per_episode"), **arguments)
