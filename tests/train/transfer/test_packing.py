"""Large parameters step alone, small ones as a vector; neither that nor their layout changes a number."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from metastep.core.optimizers import SGD, Adam, State
from metastep.core.trees import map_tree, tree_leaves
from metastep.train.transfer import building, iteration as algorithm
from metastep.train.transfer.iteration import (
    Packed,
    TransferState,
    from_tree,
    initial_state,
    iteration,
    to_tree,
)
from tests.train.transfer.helpers import batches, configured, parts


def tree() -> dict[str, Tensor]:
    return {name: torch.randn(n, dtype=torch.float64) for name, n in (("a", 3), ("b", 8), ("c", 1), ("d", 9))}


@pytest.mark.parametrize("large", [1, 8, 100])  # all, some, none
@pytest.mark.parametrize("inner", [SGD(0.1, 0.9, weight_decay=0.2), Adam(0.1, weight_decay=0.2)])
def test_steps_are_those_of_the_inner_optimizer(inner: SGD | Adam, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithm, "LARGE", large)
    torch.manual_seed(0)
    memory = (tree(),) if isinstance(inner, SGD) else (tree(), map_tree(torch.square, tree()))
    state, gradient = State(tree(), memory, 4), tree()
    assert len(algorithm.packed(state.params)) == {1: 4, 8: 3, 100: 1}[large]
    got, expected = (each.advance(state, gradient, (), 3) for each in (Packed(inner), inner))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def laid(layout: torch.memory_format) -> tuple[list[TransferState], TransferState]:
    """The states of three iterations, and the one before"""
    target, guide = parts()
    building.laid_out(target.module, layout)
    method = configured(steps=2, window=1)
    state, step = initial_state(method, target, guide), iteration(method, target, guide)
    start, states = state, []
    for x, y in batches(3):
        state, _ = step(state, (x.contiguous(memory_format=layout), y), 0.1)
        states.append(state)
    return states, start


def strides(state: TransferState) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in tree_leaves(state)]


def test_weights_keep_their_layout_through_steps_and_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (algorithm, building):
        monkeypatch.setattr(module, "LARGE", 100)  # the second convolution's weight
    plain, _ = laid(torch.contiguous_format)
    states, start = laid(torch.channels_last)
    torch.testing.assert_close(states, plain, rtol=1e-9, atol=1e-12)
    assert strides(start) != strides(plain[0])
    assert all(strides(state) == strides(start) for state in states)
    saved = map_tree(torch.Tensor.contiguous, to_tree(states[-1], {}))
    restored, _ = from_tree(saved, start, Path("last"))
    assert strides(restored) == strides(start)
    torch.testing.assert_close(restored, states[-1], rtol=0, atol=0)
