"""An optimizer's memory that goes on from task to task: a part of meta, which Reptile moves as it moves θ."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import metastep as ms
from metastep.core.kept_memory import accept_memory, continued, with_memory
from metastep.core.trees import Tree, add_scaled, map_tree, norm
from metastep.core.windows import InnerLoop, task_gradient
from metastep.step.chain import plain
from metastep.step.chain.chain import chain_of
from metastep.step.chain.problem import fused_problem
from metastep.step.mapped import mapped
from tests.core.helpers import case, relative_error
from tests.step.chain.helpers import Net, close

OPTIMIZERS: dict[str, Any] = {
    "adam": ms.Adam(0.02),
    "adam of reptile": ms.Adam(0.02, betas=(0.0, 0.99)),
    "adamw": ms.AdamW(0.02, weight_decay=0.1),
    "rmsprop": ms.RMSprop(0.01, momentum=0.5),
}
over_optimizers = pytest.mark.parametrize("dynamics", OPTIMIZERS.values(), ids=OPTIMIZERS)
over_problems = pytest.mark.parametrize("problem", ["regression", "convolution"])


def one(tasks: Any, i: int) -> Any:
    return map_tree(lambda x: x[i], tasks)


def after(meta: Tree, rate: float, estimate: ms.Estimate) -> Tree:
    return add_scaled(meta, -rate, estimate.grad)


@over_optimizers
@over_problems
def test_at_rate_1_tasks_one_after_the_other_are_one_long_run(problem: str, dynamics: ms.Adam) -> None:
    p, params, tasks = case(problem)
    gradient = ms.MetaGradient(p, ms.Reptile(window=2, keep_memory=True), dynamics, steps=5)
    meta = gradient.init(params)
    plain = InnerLoop(p, dynamics, gradient.loop.lengths)
    state = dynamics.init(params)
    for i in range(3):
        meta = after(meta, 1.0, gradient.estimator(meta, one(tasks, i)))
        state = plain.run(plain.windows(one(tasks, i)), state, params)
        assert relative_error(meta["params"], state.params) < 1e-9  # BatchNorm makes gradients of biases rounding
        found = list(meta["memory"].values())[: len(state.memory)]
        assert relative_error(found, list(state.memory)) < 1e-9


@over_optimizers
@over_problems
def test_several_tasks_move_all_of_meta_towards_their_mean(problem: str, dynamics: ms.Adam) -> None:
    p, params, tasks = case(problem)
    gradient = ms.MetaGradient(p, ms.Reptile(keep_memory=True), dynamics, steps=3)
    meta = gradient.init(params)
    for rate in (1.0, 0.25):
        ends = [gradient.loop.adapt(meta, one(tasks, i))[:2] for i in range(3)]
        mean = map_tree(lambda *x: torch.stack(x).mean(0), *ends)
        reached = {"params": mean[0], "memory": dict(zip(meta["memory"], mean[1], strict=True))}
        expected = map_tree(lambda old, new, rate=rate: old + rate * (new - old), meta, reached)
        meta = after(meta, rate, gradient(meta, tasks))
        assert relative_error(meta, expected) < 1e-9


def test_what_the_moments_lack_of_a_mean_is_averaged_as_they_are() -> None:
    """Of a gradient that is always the same, every mean is that gradient, however tasks and rates were mixed"""
    dynamics, params = ms.Adam(0.1, betas=(0.9, 0.99), eps=0.0), {"w": torch.zeros(3, dtype=torch.float64)}
    grad = {"w": torch.tensor([2.0, -3.0, 0.5], dtype=torch.float64)}
    state = continued(dynamics).init(params)
    for rate, steps in ((0.3, 2), (1.0, 1), (0.05, 4)):
        ahead = continued(dynamics).advance(state, grad, (), steps)
        memory = map_tree(lambda old, new, rate=rate: old + rate * (new - old), state.memory, ahead.memory)
        state = ms.optimizers.State(params, memory)
        _, second, lacking = memory
        torch.testing.assert_close(second["w"] / (1 - lacking), grad["w"] ** 2)


def test_nothing_is_lacking_after_very_many_steps() -> None:
    dynamics = ms.Adam(0.1, betas=(0.0, 0.9), eps=0.0)
    params, grad = {"w": torch.zeros(2)}, {"w": torch.tensor([1.0, -4.0])}
    memory = (grad, {"w": grad["w"] ** 2}, torch.tensor(0.0))
    moved = continued(dynamics).advance(ms.optimizers.State(params, memory), grad, (), 1)
    torch.testing.assert_close(moved.params["w"], torch.tensor([-0.1, 0.1]))


@pytest.mark.parametrize("chunk", [None, 1, 3])
@over_optimizers
def test_by_hand_is_mapped(dynamics: ms.Adam, chunk: int | None) -> None:
    net = Net(ways=5, shots=2, bias=False)  # before BatchNorm, its gradient is 0 by hand, and rounding by autograd
    module, tasks = net.build(), net.tasks()
    problem, method = ms.few_shot(module, cross_entropy), ms.Reptile(keep_memory=True)
    gradient = ms.MetaGradient(problem, method, dynamics, steps=3, batch=4, chunk_size=chunk)
    meta, other = gradient.init(module), mapped(method, gradient.loop, chunk)
    for rate in (1.0, 0.5):
        found, expected = gradient(meta, tasks), other(meta, tasks)
        assert gradient.path == "derivatives by hand, in PyTorch (float64)"
        close(found.grad, expected.grad, 1e-8)
        close(found.loss, expected.loss, 1e-9)
        meta = after(meta, rate, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_by_kernels_on_a_gpu_too() -> None:
    net, dynamics = Net(ways=5, size=14, filters=(16, 16), bias=False), ms.Adam(1e-3, betas=(0.0, 0.999), eps=1e-3)
    module, tasks = net.build(), net.tasks()
    on_cpu, gradient = (
        ms.MetaGradient(ms.few_shot(each, cross_entropy), ms.Reptile(keep_memory=True), dynamics, steps=3)
        for each in (module, net.build().float().cuda())
    )
    meta, expected = on_cpu.init(module), mapped(on_cpu.method, on_cpu.loop, None)
    for rate in (1.0, 0.5):
        there = map_tree(lambda x: x.detach().cuda().float() if x.is_floating_point() else x.cuda(), (meta, tasks))
        found, wanted = gradient(*there).grad, expected(meta, tasks)
        assert "Triton kernels (float32)" in gradient.path
        assert relative_error(map_tree(lambda x: x.cpu().double(), found), wanted.grad) < 1e-3
        meta = after(meta, rate, wanted)


def test_the_sweep_learns_a_memory_to_start_from() -> None:
    """It is a part of meta as any other: exact against autograd"""
    p, params, tasks = case("regression")
    dynamics = ms.Adam(0.02, eps=1e-3)
    meta = with_memory(params, dynamics)
    meta["memory"]["1"] = map_tree(lambda v: torch.rand_like(v) + 0.1, meta["memory"]["1"])
    problem, onwards = accept_memory(p), continued(dynamics)
    found, expected = (
        ms.MetaGradient(problem, method, onwards, steps=4).estimator(meta, one(tasks, 0)).grad
        for method in (ms.MultiStep(window=2), ms.methods.Reference(window=2))
    )
    assert relative_error(found, expected) < 1e-10
    assert float(expected["memory"]["1"]["0.weight"].abs().max()) > 0


def test_a_loss_by_hand_keeps_its_derivatives_beside_a_memory() -> None:
    net = Net(bias=False)
    module, tasks = net.build(), net.tasks()
    chain, stacked = chain_of(module, net.size), ms.Task(*((x.permute(0, 1, 3, 4, 2), y) for x, y in net.tasks()))
    theta = chain.to_flat(ms.parameters(module)).detach()
    params, problem = theta.expand(len(tasks.support[1]), -1), fused_problem(chain, plain)
    (alone,), (beside,) = (p.windows(stacked, [1]) for p in (problem, accept_memory(problem)))
    meta, along = {"params": theta, "memory": {"0": torch.rand_like(theta)}}, torch.randn_like(params)
    torch.testing.assert_close(task_gradient(beside, params, meta), task_gradient(alone, params, theta))
    h, c = ms.curvature.exact(beside, params, meta, along)
    expected, of_theta = ms.curvature.exact(alone, params, theta, along)
    torch.testing.assert_close(h, expected)
    assert float(norm(h)) > 0
    torch.testing.assert_close(c, {"params": of_theta, "memory": {"0": torch.zeros_like(theta)}})


def test_what_has_no_memory_cannot_carry_it() -> None:
    with pytest.raises(
        ms.MetastepError, match=r"SGD has no memory that could be carried .*Use one of ms\.Adam, ms\.AdamW, ms\.RMSprop"
    ):
        ms.MetaGradient(case("regression").problem, ms.Reptile(keep_memory=True), ms.SGD(0.1, momentum=0.9), steps=2)
