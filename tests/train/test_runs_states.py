"""Optimizers: through a checkpoint and on, as if nothing had happened."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from metastep.train.checkpoints import load, optimizer_tree, restore_optimizer, save
from metastep.train.io import CheckpointError

MAKERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "sgd": lambda params: SGD(params, lr=0.1),
    "momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda params: Adam(params, lr=0.01, betas=(0.8, 0.99)),
    "amsgrad": lambda params: Adam(params, lr=0.01, amsgrad=True),
    "adamw": lambda params: AdamW(params, lr=0.01),
    "rmsprop": lambda params: RMSprop(params, lr=0.01, momentum=0.5, centered=True),
    "rate as a tensor": lambda params: Adam(params, lr=torch.tensor(0.01), foreach=False),
    "groups": lambda params: Adam([{"params": params[:1], "lr": 0.1}, {"params": params[1:]}]),
}


def weights() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in ((3, 4), (5,), ())]


def train(params: list[Tensor], optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        sum((p.sin() * torch.randn(p.shape)).sum() for p in params).backward()  # type: ignore[union-attr]
        optimizer.step()


@pytest.mark.parametrize("name", MAKERS)
def test_a_resumed_optimizer_goes_on_bit_for_bit(tmp_path: Path, name: str) -> None:
    torch.manual_seed(1)
    params = weights()
    optimizer = MAKERS[name](params)
    train(params, optimizer, 3)
    tree = {"params": dict(zip("abc", params, strict=True)), "optimizer": optimizer_tree(optimizer)}
    save(tmp_path / "x", tree, "test")
    torch.manual_seed(2)
    train(params, optimizer, 4)

    kept = load(tmp_path / "x", "test")
    resumed = [kept["params"][key].requires_grad_() for key in "abc"]
    second = MAKERS[name](resumed)
    restore_optimizer(second, kept["optimizer"])
    torch.manual_seed(2)
    train(resumed, second, 4)

    assert all(torch.equal(a, b) for a, b in zip(params, resumed, strict=True))
    assert repr(optimizer.state_dict()) == repr(second.state_dict())  # tuples, None and types too


def test_before_the_first_step_there_is_nothing_to_keep_and_that_is_kept(tmp_path: Path) -> None:
    save(tmp_path / "x", optimizer_tree(Adam(weights())), "test")
    fresh = Adam(weights())
    restore_optimizer(fresh, load(tmp_path / "x", "test"))
    assert not fresh.state


def test_a_step_after_restoring_does_not_change_the_tree() -> None:
    params = weights()
    optimizer = Adam(params)
    train(params, optimizer, 1)
    tree = optimizer_tree(optimizer)
    second = Adam(other := weights())
    restore_optimizer(second, tree)
    before = tree["state"]["0"]["exp_avg"].clone()
    train(other, second, 1)
    assert torch.equal(tree["state"]["0"]["exp_avg"], before)


@pytest.mark.parametrize("other", [SGD(weights(), lr=0.1), Adam(weights()[:2]), MAKERS["groups"](weights())])
def test_the_state_of_another_optimizer_is_refused(other: Optimizer) -> None:
    with pytest.raises(CheckpointError, match=r"holds the state of Adam over \[3\] parameters, and this run has"):
        restore_optimizer(other, optimizer_tree(Adam(weights())))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_a_gpu_are_kept(tmp_path: Path) -> None:
    before = torch.rand(5, device="cuda")
    save(tmp_path / "x", {"before": before}, "test")
    assert torch.equal(load(tmp_path / "x", "test")["before"], before.cpu())
