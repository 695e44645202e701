"""From one task to many."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

import metastep as ms
from metastep.core.trees import map_tree, scale
from tests.core.helpers import DYNAMICS, PROBLEMS, case, relative_error


def each(tasks: ms.Task) -> list[ms.Task]:
    return [map_tree(lambda x, i=i: x[i], tasks) for i in range(3)]


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 3, 10])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_mean_over_tasks_is_the_mean_of_single_tasks(problem: str, chunk_size: int | None) -> None:
    p, meta, tasks = case(problem)
    estimator = ms.multi_step(p, DYNAMICS["momentum"], 4, 2)
    single = [estimator(meta, task) for task in each(tasks)]
    together = ms.over_tasks(estimator, chunk_size)(meta, tasks)
    mean = scale(1 / 3, map_tree(lambda *g: sum(g), *(s.grad for s in single)))
    assert relative_error(together.grad, mean) < 1e-12
    torch.testing.assert_close(together.metrics["loss"], torch.stack([s.loss for s in single]))
    torch.testing.assert_close(together.loss, together.metrics["loss"].mean())
    assert all(values.shape == (3,) for values in together.metrics.values())


def test_a_list_of_tasks_is_stacked() -> None:
    p, meta, tasks = case("regression")
    step = ms.over_tasks(ms.maml(p, ms.SGD(0.1), 2))
    assert relative_error(step(meta, each(tasks)).grad, step(meta, tasks).grad) == 0


def test_gradients_through_a_mapped_batchnorm_are_wrong_and_ours_are_not() -> None:
    """The trap that the order of vmap and mean avoids; when PyTorch mends it, this test says so."""
    p, meta, tasks = case("convolution")
    estimator = ms.reference(p, ms.SGD(0.1), 1)

    def mapped_loss(meta: dict[str, torch.Tensor]) -> torch.Tensor:
        def one(task: ms.Task) -> torch.Tensor:
            loop = estimator.loop
            state = loop.adapt(meta, task)
            return p.outer_loss(state.params, meta, task)[0]

        return vmap(one)(tasks).mean()

    looped = scale(1 / 3, map_tree(lambda *g: sum(g), *(estimator(meta, task).grad for task in each(tasks))))
    assert relative_error(grad(mapped_loss)(meta), looped) > 1e-4
    assert relative_error(ms.over_tasks(estimator)(meta, tasks).grad, looped) < 1e-12


def test_gradients_are_written_for_any_optimizer() -> None:
    net = torch.nn.Linear(2, 1)
    meta = ms.parameters(net)
    tasks = ms.Task((torch.randn(4, 5, 2), torch.randn(4, 5, 1)), (torch.randn(4, 5, 2), torch.randn(4, 5, 1)))
    step = ms.over_tasks(ms.maml(ms.few_shot(net, F.mse_loss), ms.SGD(0.1), 3))
    estimate = step(meta, tasks)
    before = map_tree(lambda p: p.detach().clone(), meta)
    ms.write_grads(meta, estimate.grad)
    torch.optim.SGD(net.parameters(), lr=0.5).step()
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] - 0.5 * estimate.grad[name])
    torch.testing.assert_close(functional_call(net, meta, tasks.query[0]), net(tasks.query[0]))


def test_gradients_of_several_calls_add_up_to_their_mean() -> None:
    net = torch.nn.Linear(2, 1).double()
    meta, step = ms.parameters(net), ms.over_tasks(ms.maml(ms.few_shot(net, F.mse_loss), ms.SGD(0.1), 3))
    x, y = torch.randn(4, 5, 2, dtype=torch.float64), torch.randn(4, 5, 1, dtype=torch.float64)
    tasks = [ms.Task((x[i], y[i]), (x[i], y[i])) for i in range(4)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(2):  # what an earlier step left behind is not added to
        optimizer.zero_grad()
        for group in (tasks[:1], tasks[1:]):
            ms.write_grads(meta, step(meta, group).grad, share=len(group) / len(tasks))
    torch.testing.assert_close({name: p.grad for name, p in meta.items()}, step(meta, tasks).grad)


def test_all_tensors_of_a_nested_meta_are_for_an_optimizer() -> None:
    net = torch.nn.Linear(2, 1)
    meta = ms.with_rates(ms.parameters(net), 0.1)
    assert [tensor.shape for tensor in ms.leaves(meta)] == 2 * [p.shape for p in net.parameters()]


def test_the_sweep_needs_no_memory_for_more_steps() -> None:
    """Beyond the stored φ, the peak does not grow with the number of windows; autograd's does."""
    from metastep.core.memory import peak_bytes

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    problem, meta = ms.few_shot(net, F.mse_loss), ms.parameters(net)
    task = ms.Task((torch.randn(1000, 8), torch.randn(1000, 1)), (torch.randn(5000, 8), torch.randn(5000, 1)))

    def peak(method: ms.Estimator) -> int:
        return peak_bytes(lambda: method(meta, task), torch.device("cpu"))[1]

    sgd = ms.SGD(0.01, momentum=0.9)
    parameters = 4 * sum(p.numel() for p in meta.values())
    few, many = peak(ms.maml(problem, sgd, 4)), peak(ms.maml(problem, sgd, 40))
    assert many - few < 1.5 * 36 * parameters
    assert peak(ms.reference(problem, sgd, 40)) > 4 * many
    loop = ms.inner_loop(problem, sgd, 40)
    assert peak(ms.unrolled(loop, store_every=8)) - few < 1.5 * 20 * parameters
    assert many < 1.1 * peak(ms.fo_maml(problem, sgd, 40))
