"""A MetaGradient is called with tasks and θ of every kind, from any thread, and gives what the loop by hand gives."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.core.trees import Tree, map_tree
from metastep.errors import MetastepError
from tests.core.helpers import relative_error
from tests.step.helpers import each, gradient_by_hand, gradient_of, loss_by_hand, some_tasks, tanh_net

TASKS = some_tasks()


def shorter(task: Any, examples: int) -> ms.Task:
    return ms.Task(map_tree(lambda x: x[:examples], task.support), task.query)


MIXED = [shorter(task, n) for task, n in zip(each(TASKS), (3, 6, 2, 5, 3), strict=True)]
MANY: dict[str, tuple[Any, list[Any]]] = {
    "stacked": (TASKS, each(TASKS)),
    "list": (each(TASKS), each(TASKS)),
    "one": ([each(TASKS)[0]], each(TASKS)[:1]),
    "different shapes": (MIXED, MIXED),
}


@pytest.mark.parametrize("chunk_size", [None, 1, 2])
@pytest.mark.parametrize("kind", MANY)
def test_tasks_stacked_in_a_list_and_of_different_shapes(kind: str, chunk_size: int | None) -> None:
    net, (tasks, listed) = tanh_net(), MANY[kind]
    gradient = gradient_of(net, chunk_size=chunk_size)
    found = gradient(net, tasks)
    assert relative_error(found.grad, gradient_by_hand(net, listed)) < 1e-12
    losses = torch.stack([loss_by_hand(net, dict(net.named_parameters()), [task]) for task in listed]).detach()
    torch.testing.assert_close(found.metrics["loss"], losses)
    torch.testing.assert_close(found.loss, losses.mean())
    for judged in (gradient.judge(net, tasks), gradient.unchecked(ms.parameters(net), tasks)):
        torch.testing.assert_close(judged.metrics["loss"], losses)
    assert relative_error(gradient.unchecked(ms.parameters(net), tasks).grad, found.grad) == 0


def test_the_batch_is_the_mean_of_its_tasks_one_by_one() -> None:
    net = tanh_net()
    gradient = gradient_of(net)
    singles = [gradient(net, [task]).grad for task in each(TASKS)]
    assert relative_error(gradient(net, TASKS).grad, map_tree(lambda *gs: torch.stack(gs).mean(0), *singles)) < 1e-14


class Theta(NamedTuple):
    start: Tensor
    decay: Tensor


class AsModule(nn.Module):
    def __init__(self, start: Tensor, decay: Tensor) -> None:
        super().__init__()
        self.start, self.decay = nn.Parameter(start), nn.Parameter(decay)


def ridge(parts: Callable[[Tree], Any]) -> ms.Problem:
    """θ: where φ starts, and how strongly it is held to zero"""

    def inner(params: Tree, meta: Tree, batch: Any) -> Tensor:
        x, y = batch
        return (x @ params - y).square().mean() + (parts(meta)[1].exp() * params.square()).sum()

    def outer(params: Tree, meta: Tree, task: Any) -> Tensor:
        x, y = task.query
        return (x @ params - y).square().mean()

    return ms.Problem(lambda meta, task: parts(meta)[0], ms.every_window(inner), outer)


START, DECAY = torch.tensor([[0.5], [-0.3]], dtype=torch.float64), torch.tensor(-1.0, dtype=torch.float64)
THETAS: dict[str, tuple[Callable[[], Any], Callable[[Tree], Any]]] = {
    "dict": (lambda: {"start": START, "decay": DECAY}, lambda m: (m["start"], m["decay"])),
    "nested": (lambda: {"a": {"s": START}, "b": [(DECAY,)]}, lambda m: (m["a"]["s"], m["b"][0][0])),
    "list": (lambda: [START, DECAY], lambda m: m),
    "tuple": (lambda: (START, DECAY), lambda m: m),
    "NamedTuple": (lambda: Theta(START, DECAY), lambda m: (m.start, m.decay)),
    "OrderedDict": (lambda: OrderedDict(start=START, decay=DECAY), lambda m: (m["start"], m["decay"])),
    "module": (lambda: AsModule(START, DECAY), lambda m: (m["start"], m["decay"])),
    "tensor": (lambda: DECAY, lambda m: (START, m)),
}


def ridge_by_hand() -> list[Tensor]:
    start, decay = START.clone().requires_grad_(), DECAY.clone().requires_grad_()
    losses = []
    for task in each(TASKS):
        (x, y), params = task.support, start
        for _ in range(3):
            loss = (x @ params - y).square().mean() + (decay.exp() * params.square()).sum()
            params = params - 0.05 * torch.autograd.grad(loss, params, create_graph=True)[0]
        x, y = task.query
        losses.append((x @ params - y).square().mean())
    return list(torch.autograd.grad(torch.stack(losses).mean(), [start, decay]))


@pytest.mark.parametrize("kind", THETAS)
def test_theta_is_any_tree_or_a_module(kind: str) -> None:
    make, parts = THETAS[kind]
    gradient, expected = ms.MetaGradient(ridge(parts), ms.MAML(), ms.SGD(lr=0.05), steps=3), ridge_by_hand()
    meta = make()
    found = gradient(meta, TASKS).grad
    if kind == "module":
        assert found.keys() == {"start", "decay"}
    else:
        assert type(found) is type(meta)
    wanted = expected[-len(ms.trees.leaves(found)) :]
    assert relative_error(ms.trees.leaves(found), wanted) < 1e-12

    learned = meta if kind == "module" else map_tree(lambda x: x.clone().requires_grad_(), meta)
    leaves = list(learned.parameters()) if kind == "module" else ms.trees.leaves(learned)
    gradient.loss(learned, TASKS).backward()
    assert relative_error([leaf.grad for leaf in leaves], wanted) < 1e-12
    before = [leaf.detach().clone() for leaf in leaves]
    ms.MetaStep(gradient, learned, torch.optim.SGD(leaves, 1.0))(TASKS)
    moved = [old - leaf.detach() for old, leaf in zip(before, leaves, strict=True)]
    assert relative_error(moved, wanted) < 1e-12


@pytest.mark.parametrize(
    ("meta", "named"),
    [(torch.tensor(3), "torch.int64"), (0.5, "float"), ({"a": None}, "NoneType"), ([], "nothing"), ("net", "str")],
)
def test_what_has_no_gradient_is_no_theta(meta: Any, named: str) -> None:
    gradient = ms.MetaGradient(ridge(lambda m: (START, m)), ms.MAML(), ms.SGD(lr=0.05), steps=3)
    for call in (gradient, gradient.loss, gradient.judge, gradient.adapt):
        with pytest.raises(MetastepError, match=f"meta has {named} where floating-point tensors are needed"):
            call(meta, TASKS)


def test_threads_take_turns() -> None:
    """φ stands in the place of the module's parameters while one of them computes"""
    net = nn.Sequential(tanh_net(), nn.Dropout(0.5), nn.Linear(1, 1).double())
    gradient = ms.MetaGradient(ms.few_shot(net.eval(), F.mse_loss), ms.MultiStep(window=2), ms.SGD(lr=0.1), steps=4)
    expected, phi = gradient(net, TASKS), gradient.adapt(net, each(TASKS)[0])
    own, found = list(net.parameters()), list[float]()

    def work() -> None:
        for _ in range(4):
            found.append(relative_error(gradient(net, TASKS).grad, expected.grad))
            found.append(relative_error(gradient.adapt(net, each(TASKS)[0]), phi))
            found.append(float(gradient.loss(net, TASKS).detach() - expected.loss))

    threads = [Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0.0] * 36
    assert all(ours is theirs for ours, theirs in zip(net.parameters(), own, strict=True))


def test_torch_func_around_a_call_is_refused_since_it_would_find_0() -> None:
    net = tanh_net()
    gradient, meta = gradient_of(net), dict(tanh_net().named_parameters())
    for call in (gradient.loss, lambda meta, tasks: gradient(meta, tasks).loss, gradient.judge):
        with pytest.raises(MetastepError, match=r"would find 0: an estimate is a value\. Use estimate\.grad"):
            torch.func.grad(lambda meta, call=call: call(meta, TASKS))(meta)
        with pytest.raises(MetastepError, match="would find 0"):
            torch.func.jvp(lambda meta, call=call: call(meta, TASKS), (meta,), (meta,))


def test_vmap_around_the_loss_is_refused_and_its_remedy_works() -> None:
    net = tanh_net()
    gradient, meta = gradient_of(net), ms.parameters(net)
    with pytest.raises(MetastepError, match=r"torch\.func\.vmap cannot map gradient\.loss.*map gradient\.estimator"):
        torch.func.vmap(lambda task: gradient.loss(meta, [task]))(TASKS)
    grads = torch.func.vmap(lambda task: gradient.estimator(meta, task).grad)(TASKS)
    assert relative_error(map_tree(lambda g: g.mean(0), grads), gradient(meta, TASKS).grad) < 1e-14
