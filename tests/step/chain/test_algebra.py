"""Derivatives by hand equal those of autograd, for one product and for whole methods."""

from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.functional import cross_entropy

import metastep as ms
from metastep.core.estimators import first_order
from metastep.core.method import Method
from metastep.core.optimizers import InnerOptimizer
from metastep.core.trees import map_tree
from metastep.core.windows import inner_loop
from metastep.nets.conv4 import Conv4
from metastep.step.chain import plain, problem
from metastep.step.chain.algebra import differentiate
from metastep.step.chain.chain import chain_of
from metastep.step.chain.problem import fused_problem, mean_over_tasks, tasks_at_a_time
from metastep.step.chain.serving import compares_with_theta
from metastep.step.mapped import mapped
from tests.step.chain.helpers import NETS, Net, close


def with_plain(net: Net) -> tuple[Any, ...]:
    """Parameters of each of three tasks, a direction, and the support with channels last"""
    module = net.build()
    chain, (x, y) = chain_of(module, net.size), net.tasks().support
    params = {name: p.detach() for name, p in module.named_parameters()}
    each = map_tree(lambda p: p + 0.1 * torch.randn(3, *p.shape, dtype=p.dtype), params)
    along = map_tree(torch.randn_like, each)
    flat, flat_t = (
        torch.stack([chain.to_flat(map_tree(lambda p, i=i: p[i], t)) for i in range(3)]) for t in (each, along)
    )
    return module, chain, params, each, along, flat, flat_t, x, y


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_gradient_and_product_of_every_chain(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    module, chain, params, each, along, flat, flat_t, x, y = with_plain(net)

    def loss(p: Any, x: Any, y: Any) -> Any:
        return cross_entropy(functional_call(module, p, (x,)), y)

    def both(p: Any, d: Any, x: Any, y: Any) -> Any:
        return jvp(lambda p: grad(loss)(p, x, y), (p,), (d,))

    expected, expected_t = vmap(both)(each, along, x, y)  # in this order: jvp of vmap is wrong with BatchNorm
    last = x.permute(0, 1, 3, 4, 2).contiguous()
    judged, found = differentiate(plain, chain, flat, last, y)
    _, found_t = differentiate(plain, chain, flat, last, y, flat_t)
    close(judged.means[0], vmap(loss)(each, x, y), 1e-12)
    monkeypatch.setattr(plain, "MANY", 0)  # one task is convolved as a whole
    for i in range(3):
        close(chain.from_flat(found[i], params), map_tree(lambda g: g[i], expected), 1e-11)  # noqa: B023
        close(chain.from_flat(found_t[i], params), map_tree(lambda g: g[i], expected_t), 1e-10)  # noqa: B023
        alone = flat[i : i + 1], last[i : i + 1], y[i : i + 1]
        close(differentiate(plain, chain, *alone)[1][0], found[i], 1e-11)
        close(differentiate(plain, chain, *alone, flat_t[i : i + 1])[1][0], found_t[i], 1e-10)


def test_one_task_with_many_patches_is_convolved_as_a_whole() -> None:
    first, second = chain_of(Conv4(5, filters=64), 28).blocks[:2]
    few, many = torch.zeros(1, 5 * 14 * 14, 64), torch.zeros(1, 75 * 14 * 14, 64)
    assert plain.convolution_for(second, many) is plain.whole
    assert plain.convolution_for(second, few) is plain.convolution_for(second, many.expand(2, -1, -1)) is plain.patches
    assert plain.convolution_for(first, torch.zeros(1, 75, 28, 28, 1)) is plain.patches
    behind = chain_of(Net(size=28, padding=0, same=True, filters=(64,)).build(), 28).blocks[0]  # zeros behind alone
    assert plain.convolution_for(behind, torch.zeros(1, 10_000, 28, 28, 1)) is plain.patches


def test_the_product_is_the_slope_of_the_gradient() -> None:
    _, chain, _, _, _, flat, flat_t, x, y = with_plain(Net(size=6, filters=(4,)))
    last, h = x.permute(0, 1, 3, 4, 2).contiguous(), 1e-6
    ahead, behind = (differentiate(plain, chain, flat + s * flat_t, last, y)[1] for s in (h, -h))
    close(differentiate(plain, chain, flat, last, y, flat_t)[1], (ahead - behind) / (2 * h), 1e-5)


DYNAMICS: dict[str, InnerOptimizer] = {
    "sgd": ms.SGD(0.1),
    "momentum": ms.SGD(0.05, momentum=0.9, weight_decay=1e-2),
    "dampened": ms.SGD(0.05, momentum=0.9, dampening=0.3),
    "nesterov": ms.SGD(0.05, momentum=0.9, nesterov=True),
    # ε above the noise: a bias before BatchNorm has gradient 0 here, and rounding in autograd
    "adam": ms.Adam(0.02, eps=1e-4, weight_decay=1e-2),
    "adamw": ms.AdamW(0.02, eps=1e-4),
    "rmsprop": ms.RMSprop(0.01, alpha=0.9, eps=1e-4, momentum=0.5),
}
METHODS: dict[str, tuple[Method, int]] = {
    "maml": (ms.MAML(), 3),
    "multi_step": (ms.MultiStep(window=2), 5),
    "truncated": (ms.methods.Truncated(depth=2), 4),
    "fo_maml": (ms.FOMAML(window=2), 3),
    "reptile": (ms.Reptile(), 3),
}


def both(net: Net, name: str, dynamics: InnerOptimizer, chunk: int | None = None) -> tuple[ms.Estimate, ms.Estimate]:
    """By hand, and by vmap and autograd"""
    module, tasks, (method, steps) = net.build(), net.tasks(), METHODS[name]
    chain, meta = chain_of(module, net.size), ms.parameters(module)
    by_hand = method.estimator(method.loop(fused_problem(chain, plain), dynamics, steps))
    problem = ms.few_shot(module, cross_entropy, {"accuracy": ms.accuracy})
    return (
        mean_over_tasks(chain, by_hand, chunk, apart=compares_with_theta(method))(meta, tasks),
        mapped(method, method.loop(problem, dynamics, steps), None)(meta, tasks),
    )


def same(found: ms.Estimate, expected: ms.Estimate) -> None:
    close(found.loss, expected.loss, 1e-10)
    close(found.grad, expected.grad, 1e-9)
    assert found.metrics.keys() == expected.metrics.keys()
    close(found.metrics["loss"], expected.metrics["loss"], 1e-10)
    close(found.metrics["accuracy"].float(), expected.metrics["accuracy"], 1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_methods_by_hand_equal_those_by_autograd(method: str, dynamics: str) -> None:
    same(*both(Net(), method, DYNAMICS[dynamics]))


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_every_chain_meta_learns_alike(net: Net) -> None:
    same(*both(net, "multi_step", ms.SGD(0.05, momentum=0.9, weight_decay=1e-3)))


@pytest.mark.parametrize("method", ["multi_step", "reptile"])
def test_chunks_are_added_up(method: str) -> None:
    same(*both(Net(), method, DYNAMICS["momentum"], chunk=2))


def test_a_cpu_takes_as_many_tasks_as_its_cache_holds() -> None:
    chains = [chain_of(Conv4(5, filters=filters), 28) for filters in (8, 16, 32, 64)]
    queries, support = torch.zeros(32, 75, 28, 28, 1), torch.zeros(32, 5, 28, 28, 1)
    assert [tasks_at_a_time(chain, queries) for chain in chains] == [9, 4, 2, 1]
    assert tasks_at_a_time(chains[-1], support) == 17


@pytest.mark.parametrize("method", ["multi_step", "reptile"])
def test_what_a_cache_does_not_hold_is_computed_in_parts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = both(Net(), method, DYNAMICS["momentum"])[1]
    for cache in (1, 30_000):  # each task on its own; two and one of three
        monkeypatch.setattr(problem, "CACHE", cache)
        same(both(Net(), method, DYNAMICS["momentum"])[0], expected)


def test_other_pictures_than_prepared_for_are_refused() -> None:
    module = Net().build()
    chain = chain_of(module, 8)
    estimate = mean_over_tasks(chain, first_order(inner_loop(fused_problem(chain, plain), ms.SGD(0.1), 1)))
    with pytest.raises(ms.MetastepError, match=r"pictures \(1, 9, 9\) for a net that was prepared for \(1, 8, 8\)"):
        estimate(ms.parameters(module), Net(size=9).tasks())


def test_the_layout_of_theta_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it takes some forty operators, which a captured update would replay."""
    read: list[Any] = []
    of = problem.Places.of
    monkeypatch.setattr(problem.Places, "of", lambda *given: read.append(given) or of(*given))
    module, tasks = NETS["standard"].build(), NETS["standard"].tasks()
    gradient = ms.MetaGradient(ms.few_shot(module, cross_entropy), ms.MAML(), ms.SGD(0.1), steps=1)
    for _ in range(3):
        gradient(module, tasks)
        assert "by hand" in gradient.path
    assert len(read) == 1
