"""From one task to many."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

import metastep as ms
from metastep.core.counting import peak_bytes
from metastep.core.trees import Tree, map_tree, scale
from tests.core.helpers import DYNAMICS, PROBLEMS, case, relative_error


def each(tasks: ms.Task) -> list[ms.Task]:
    return [map_tree(lambda x, i=i: x[i], tasks) for i in range(3)]


def mean(trees: list[Tree]) -> Tree:
    return scale(1 / len(trees), map_tree(lambda *g: sum(g), *trees))


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 3, 10])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_mean_over_tasks_is_the_mean_of_single_tasks(problem: str, chunk_size: int | None) -> None:
    p, meta, tasks = case(problem)
    gradient = ms.MetaGradient(p, ms.MultiStep(2), DYNAMICS["momentum"], steps=4, chunk_size=chunk_size)
    single = [gradient.estimator(meta, task) for task in each(tasks)]
    together = gradient(meta, tasks)
    assert relative_error(together.grad, mean([s.grad for s in single])) < 1e-12
    torch.testing.assert_close(together.metrics["loss"], torch.stack([s.loss for s in single]))
    torch.testing.assert_close(together.loss, together.metrics["loss"].mean())
    assert all(values.shape == (3,) for values in together.metrics.values())


def test_a_list_of_tasks_is_stacked() -> None:
    p, meta, tasks = case("regression")
    gradient = ms.MetaGradient(p, ms.MAML(), ms.SGD(0.1), steps=2)
    assert relative_error(gradient(meta, each(tasks)).grad, gradient(meta, tasks).grad) == 0


def test_gradients_through_a_mapped_batchnorm_are_wrong_and_ours_are_not() -> None:
    """The trap that the order of vmap and mean avoids. This test fails when PyTorch removes it."""
    p, meta, tasks = case("convolution")
    gradient = ms.MetaGradient(p, ms.methods.Reference(), ms.SGD(0.1), steps=1)

    def mapped_loss(meta: dict[str, Tensor]) -> Tensor:
        def one(task: ms.Task) -> Tensor:
            state = gradient.loop.adapt(meta, task)
            loss: Tensor = p.outer_loss(state.params, meta, task)[0]
            return loss

        return vmap(one)(tasks).mean()

    looped = mean([gradient.estimator(meta, task).grad for task in each(tasks)])
    assert relative_error(grad(mapped_loss)(meta), looped) > 1e-4
    assert relative_error(gradient(meta, tasks).grad, looped) < 1e-12


def test_backward_adds_to_grad() -> None:
    net = torch.nn.Linear(2, 1).double()
    x, y = torch.randn(4, 5, 2, dtype=torch.float64), torch.randn(4, 5, 1, dtype=torch.float64)
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.SGD(0.1), steps=3)
    tasks = [ms.Task((x[i], y[i]), (x[i], y[i])) for i in range(4)]
    for group in (tasks[:1], tasks[1:]):
        (len(group) / len(tasks) * gradient.loss(net, group)).backward()
    expected = gradient(net, tasks).grad
    torch.testing.assert_close({name: p.grad for name, p in net.named_parameters()}, expected)


def test_all_tensors_of_a_nested_meta_are_for_an_optimizer() -> None:
    net = torch.nn.Linear(2, 1)
    meta = ms.problems.with_rates(ms.parameters(net), 0.1)
    assert [tensor.shape for tensor in ms.trees.leaves(meta)] == 2 * [p.shape for p in net.parameters()]


def test_the_sweep_needs_no_memory_for_more_steps() -> None:
    """Beyond the stored φ, the peak does not grow with the number of windows; autograd's does."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    problem, meta = ms.few_shot(net, F.mse_loss), ms.parameters(net)
    task = ms.Task((torch.randn(1000, 8), torch.randn(1000, 1)), (torch.randn(5000, 8), torch.randn(5000, 1)))

    def peak(method: ms.methods.Method, steps: int) -> int:
        estimator: Any = ms.MetaGradient(problem, method, ms.SGD(0.01, momentum=0.9), steps=steps).estimator
        return peak_bytes(lambda: estimator(meta, task), torch.device("cpu"))[1]

    parameters = 4 * sum(p.numel() for p in meta.values())
    few, many = peak(ms.MAML(), 4), peak(ms.MAML(), 40)
    assert many - few < 1.5 * 36 * parameters
    assert peak(ms.methods.Reference(), 40) > 4 * many
    assert many < 1.1 * peak(ms.FOMAML(), 40)
