"""Three problems as a new user writes them: an own regression, a meta-network and a learned rate, each by hand too."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import metastep as ms
from metastep.core.trees import Tree
from metastep.errors import MetastepError
from tests.core.helpers import relative_error
from tests.step.helpers import each


def drawn(seed: int) -> ms.Task:
    """Lines with a slope of their own for each of 6 tasks"""
    generator = torch.Generator().manual_seed(seed)
    slope, x = (torch.randn(6, n, 1, dtype=torch.float64, generator=generator) for n in (1, 10))
    y = slope * x + 0.3
    return ms.Task((x[:, :5], y[:, :5]), (x[:, 5:], y[:, 5:]))


def net_of(*sizes: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).double()


def train(step: ms.MetaStep, by_hand: Callable[[list[Any]], Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Meta-train both ways, and compare θ after every update; the loss of tasks that were not seen falls"""
    ours, theirs = ms.trees.leaves(step.meta), [p for group in optimizer.param_groups for p in group["params"]]
    before = step.gradient.judge(step.meta, drawn(99)).loss
    for seed in range(20):
        step(drawn(seed))
        optimizer.zero_grad()
        by_hand(each(drawn(seed))).backward()
        optimizer.step()
        assert relative_error([p.detach() for p in ours], [p.detach() for p in theirs]) < 1e-9
    assert step.gradient.judge(step.meta, drawn(99)).loss < 0.95 * before


def sgd(loss: Callable[[dict[str, Tensor]], Tensor], params: Mapping[str, Tensor], rate: Any, steps: int) -> Tree:
    for _ in range(steps):
        grads = torch.autograd.grad(loss(dict(params)), list(params.values()), create_graph=True)
        params = {name: p - rate * grad for (name, p), grad in zip(params.items(), grads, strict=True)}
    return dict(params)


def copied(meta: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: p.detach().clone().requires_grad_() for name, p in meta.items()}


def test_an_own_regression() -> None:
    net = net_of(1, 8, 1)
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.SGD(lr=0.1), steps=3)
    theta = copied(dict(net.named_parameters()))

    def by_hand(tasks: list[Any]) -> Tensor:
        losses = []
        for (x, y), (x2, y2) in tasks:
            params = sgd(lambda p, x=x, y=y: F.mse_loss(functional_call(net, p, x), y), theta, 0.1, 3)
            losses.append(F.mse_loss(functional_call(net, params, x2), y2))
        return torch.stack(losses).mean()

    step = ms.MetaStep(gradient, net, torch.optim.Adam(net.parameters(), lr=1e-2))
    train(step, by_hand, torch.optim.Adam(theta.values(), lr=1e-2))


def learned_loss() -> tuple[nn.Sequential, nn.Sequential, ms.Problem]:
    """θ: a network that is the loss of the inner loop; φ: a line, which starts from the same for every task"""
    critic, line = net_of(2, 8, 1), net_of(1, 1)
    start = {name: p.detach() for name, p in line.named_parameters()}

    def inner(params: Tree, meta: Tree, batch: Any) -> Tensor:
        x, y = batch
        return ms.apply(critic, meta, torch.cat([ms.apply(line, params, x), y], -1)).square().mean()  # type: ignore[no-any-return]

    def outer(params: Tree, meta: Tree, task: Any) -> Tensor:
        x, y = task.query
        return F.mse_loss(ms.apply(line, params, x), y)

    return critic, line, ms.Problem(lambda meta, task: start, ms.every_window(inner), outer)


def test_a_meta_network() -> None:
    critic, line, problem = learned_loss()
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=3)
    theta = copied(dict(critic.named_parameters()))

    def by_hand(tasks: list[Any]) -> Tensor:
        losses = []
        for (x, y), (x2, y2) in tasks:

            def inner(p: dict[str, Tensor], x: Tensor = x, y: Tensor = y) -> Tensor:
                found = functional_call(critic, theta, torch.cat([functional_call(line, p, x), y], -1))
                return found.square().mean()  # type: ignore[no-any-return]

            params = sgd(inner, copied(dict(line.named_parameters())), 0.1, 3)
            losses.append(F.mse_loss(functional_call(line, params, x2), y2))
        return torch.stack(losses).mean()

    step = ms.MetaStep(gradient, critic, torch.optim.Adam(critic.parameters(), lr=1e-2))
    train(step, by_hand, torch.optim.Adam(theta.values(), lr=1e-2))


def test_a_learned_rate() -> None:
    net = net_of(1, 8, 1)
    problem = ms.problems.accept_rates(ms.few_shot(net, F.mse_loss))
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=lambda meta, step: meta["rates"].exp()), steps=3)
    start = torch.tensor(-3.0, dtype=torch.float64)
    meta = {"params": ms.parameters(net), "rates": start.clone().requires_grad_()}
    theta, rate = copied(dict(net.named_parameters())), start.clone().requires_grad_()

    def by_hand(tasks: list[Any]) -> Tensor:
        losses = []
        for (x, y), (x2, y2) in tasks:
            params = sgd(lambda p, x=x, y=y: F.mse_loss(functional_call(net, p, x), y), theta, rate.exp(), 3)
            losses.append(F.mse_loss(functional_call(net, params, x2), y2))
        return torch.stack(losses).mean()

    step = ms.MetaStep(gradient, meta, torch.optim.Adam(ms.trees.leaves(meta), lr=1e-2))
    train(step, by_hand, torch.optim.Adam([*theta.values(), rate], lr=1e-2))
    assert meta["rates"] > start + 0.05  # larger steps help here


def test_two_nets_in_one_theta() -> None:
    critic, line, problem = learned_loss()
    meta = {"loss": ms.parameters(critic), "start": ms.parameters(line)}

    def of(part: str, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda params, meta, batch: loss(params, meta[part], batch)

    inner = problem.windows(ms.Task(None, None), [1])[0].loss
    both = ms.Problem(
        lambda meta, task: meta["start"], ms.every_window(of("loss", inner)), of("loss", problem.outer_loss)
    )
    gradient = ms.MetaGradient(both, ms.MultiStep(window=2), ms.SGD(lr=0.1), steps=4)
    groups = [{"params": list(critic.parameters()), "lr": 1e-2}, {"params": list(line.parameters()), "lr": 1e-3}]
    step = ms.MetaStep(gradient, meta, torch.optim.Adam(groups))
    before = gradient.judge(meta, drawn(99)).loss
    for seed in range(20):
        step(drawn(seed))
    assert gradient.judge(meta, drawn(99)).loss < before


@pytest.mark.filterwarnings("ignore:an inner loss depends on a tensor")  # which is told too
def test_a_theta_that_reaches_nothing_is_told_where_it_was_called() -> None:
    critic, line, problem = learned_loss()

    def direct(params: Tree, meta: Tree, batch: Any) -> Tensor:
        x, y = batch
        return critic(torch.cat([ms.apply(line, params, x), y], -1)).square().mean()  # type: ignore[no-any-return]

    for wrong, method in ((problem._replace(windows=ms.every_window(direct)), ms.MAML()), (problem, ms.FOMAML())):
        gradient = ms.MetaGradient(wrong, method, ms.SGD(lr=0.1), steps=2)
        with pytest.warns(UserWarning, match="the meta-gradient is exactly 0: θ does not reach the outer loss") as told:
            gradient(critic, drawn(0))
        assert told[0].filename == __file__


@pytest.mark.parametrize("kind", ["Linear", "generator"])
def test_a_start_that_is_no_tree_is_refused(kind: str) -> None:
    critic, _, problem = learned_loss()
    line = nn.Linear(1, 1).double()
    wrong = problem._replace(start=lambda meta, task: line if kind == "Linear" else line.named_parameters())
    with pytest.raises(MetastepError, match=f"{kind} was given or returned where a tensor is needed.*ms.parameters"):
        ms.MetaGradient(wrong, ms.MAML(), ms.SGD(lr=0.1), steps=2)(critic, drawn(0))
