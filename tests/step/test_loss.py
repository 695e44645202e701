"""`gradient.loss` is a scalar of autograd: its backward adds the meta-gradient, however it is used."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import metastep as ms
from metastep.core.trees import Tree, map_tree, scale
from metastep.errors import MetastepError
from tests.core.helpers import PROBLEMS, case, method, relative_error
from tests.step.helpers import each, gradient_by_hand, gradient_of, grads_of, loss_by_hand, some_tasks, tanh_net

TASKS = some_tasks()


@pytest.fixture
def net() -> nn.Sequential:
    return tanh_net()


@pytest.fixture
def gradient(net: nn.Sequential) -> ms.MetaGradient:
    return gradient_of(net)


@pytest.fixture
def expected(net: nn.Sequential) -> Tree:
    return gradient_by_hand(net, each(TASKS))


def learnable(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}


def decay(net: nn.Module) -> Tensor:
    return torch.stack([p.square().sum() for p in net.parameters()]).sum()


USES: dict[str, tuple[Callable[[Tensor, nn.Module], Tensor], Callable[[Tensor, nn.Module], Tensor]]] = {
    "alone": (lambda loss, net: loss, lambda loss, net: loss),
    "scaled": (lambda loss, net: 3 * loss, lambda loss, net: 3 * loss),
    "squared": (lambda loss, net: loss.square(), lambda loss, net: loss.square()),
    "with a regulariser": (lambda loss, net: loss + 0.1 * decay(net), lambda loss, net: loss + 0.1 * decay(net)),
    "weighted by θ": (lambda loss, net: loss * decay(net), lambda loss, net: loss * decay(net)),
    "as one of several": (lambda loss, net: torch.stack([loss, 2 * loss, decay(net)]).logsumexp(0),) * 2,
    "without a sign": (lambda loss, net: -loss.log(), lambda loss, net: -loss.log()),
}


@pytest.mark.parametrize("use", USES)
def test_it_is_one_term_of_any_scalar(use: str, net: nn.Sequential, gradient: ms.MetaGradient) -> None:
    ours, theirs = USES[use]
    ours(gradient.loss(net, TASKS), net).backward()
    by_hand = theirs(loss_by_hand(net, dict(net.named_parameters()), each(TASKS)), net)
    names = [name for name, _ in net.named_parameters()]
    wanted = torch.autograd.grad(by_hand, list(net.parameters()))
    assert relative_error(grads_of(net), dict(zip(names, wanted, strict=True))) < 1e-12


def test_backward_adds(net: nn.Sequential, gradient: ms.MetaGradient, expected: Tree) -> None:
    gradient.loss(net, TASKS).backward()
    loss = gradient.loss(net, TASKS)
    loss.backward(retain_graph=True)
    loss.backward()
    assert relative_error(grads_of(net), scale(3, expected)) < 1e-12
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_batches_of_tasks_add_up(net: nn.Sequential, gradient: ms.MetaGradient, expected: Tree) -> None:
    for part, share in ((each(TASKS)[:2], 0.4), (each(TASKS)[2:], 0.6)):
        (share * gradient.loss(net, part)).backward()
    assert relative_error(grads_of(net), expected) < 1e-12


def test_autograd_grad_and_inputs(net: nn.Sequential, gradient: ms.MetaGradient, expected: Tree) -> None:
    found = torch.autograd.grad(gradient.loss(net, TASKS), list(net.parameters()))
    assert relative_error(list(found), list(expected.values())) < 1e-12
    assert not grads_of(net)
    gradient.loss(net, TASKS).backward(inputs=[net[0].weight])
    assert grads_of(net).keys() == {"0.weight"}


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem(name: str) -> None:
    problem, meta, tasks = case(name)
    meta = map_tree(lambda x: x.detach().clone().requires_grad_(), meta)
    gradient = ms.MetaGradient(problem, ms.MultiStep(window=2), ms.SGD(lr=0.1), steps=4)
    (2 * gradient.loss(meta, tasks)).backward()
    found = [leaf.grad for leaf in ms.trees.leaves(meta)]
    assert relative_error(found, ms.trees.leaves(scale(2, gradient(meta, tasks).grad))) < 1e-14


@pytest.mark.parametrize("name", ["meta_sgd", "maml_pp", "imaml", "reptile", "fo_maml"])
def test_methods_that_learn_more_or_give_another_direction(name: str, net: nn.Sequential) -> None:
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), method(name), ms.SGD(lr=0.1), steps=4)
    meta = gradient.init(learnable(net))
    gradient.loss(meta, TASKS).backward()
    found = [leaf.grad for leaf in ms.trees.leaves(meta)]
    assert relative_error(found, ms.trees.leaves(gradient(meta, TASKS).grad)) == 0


def test_theta_that_another_net_makes(net: nn.Sequential, gradient: ms.MetaGradient) -> None:
    torch.manual_seed(0)
    hyper, z = nn.Linear(4, sum(p.numel() for p in net.parameters())).double(), torch.randn(4, dtype=torch.float64)

    def theta() -> dict[str, Tensor]:
        parts = hyper(z).split([p.numel() for p in net.parameters()])
        return {name: v.view_as(p) for (name, p), v in zip(net.named_parameters(), parts, strict=True)}

    gradient.loss(theta(), TASKS).backward()
    wanted = torch.autograd.grad(loss_by_hand(net, theta(), each(TASKS)), list(hyper.parameters()))
    assert relative_error([p.grad for p in hyper.parameters()], list(wanted)) < 1e-12


def test_one_tensor_in_two_places_of_theta() -> None:
    problem = ms.Problem(
        lambda meta, task: torch.zeros((), dtype=torch.float64),
        ms.every_window(lambda p, meta, batch: (p - batch).square() * meta["a"].exp() + meta["b"] * p.square()),
        lambda p, meta, task: (p - task.query).square(),
    )
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=3)
    tasks = ms.Task(torch.linspace(0, 1, 4).double(), torch.linspace(1, 2, 4).double())
    tied = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    gradient.loss({"a": tied, "b": tied}, tasks).backward()
    apart = gradient({"a": tied, "b": tied}, tasks).grad
    torch.testing.assert_close(tied.grad, apart["a"] + apart["b"])


def test_frozen_parts_get_no_gradient(net: nn.Sequential, gradient: ms.MetaGradient, expected: Tree) -> None:
    """Frozen in θ they are adapted still; frozen in the module, before the problem is made, they are constants"""
    meta = learnable(net)
    meta["0.weight"].requires_grad_(False)
    gradient.loss(meta, TASKS).backward()
    assert meta["0.weight"].grad is None
    rest = {name: leaf.grad for name, leaf in meta.items() if name != "0.weight"}
    assert relative_error(rest, {name: expected[name] for name in rest}) < 1e-12

    net[0].requires_grad_(False)
    of_head = gradient_of(net)
    of_head.loss(net, TASKS).backward()
    assert grads_of(net).keys() == {"2.weight", "2.bias"}
    assert relative_error(grads_of(net), of_head(net, TASKS).grad) == 0


def test_hooks_of_theta_see_the_meta_gradient(net: nn.Sequential, gradient: ms.MetaGradient, expected: Tree) -> None:
    seen: list[str] = []
    weight = net[0].weight
    weight.register_hook(lambda grad: (seen.append("tensor"), 2 * grad)[1])
    weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    gradient.loss(net, TASKS).backward()
    assert seen == ["tensor", "accumulated"]
    wanted = {**expected, "0.weight": 2 * expected["0.weight"]}
    assert relative_error(grads_of(net), wanted) < 1e-12


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_of_the_module(net: nn.Sequential, expected: Tree) -> None:
    """Forward hooks run in every look at a window; a backward hook has no place under vmap, and runs without it"""
    seen: list[str] = []
    handle = net.register_forward_hook(lambda *of: seen.append("forward"))
    gradient_of(net).loss(net, TASKS).backward()
    assert set(seen) == {"forward"}
    assert relative_error(grads_of(net), expected) < 1e-12
    handle.remove()
    net.zero_grad()
    net.register_full_backward_hook(lambda *of: seen.append("backward"))
    gradient_of(net, chunk_size=1).loss(net, TASKS).backward()
    assert "backward" in seen
    assert relative_error(grads_of(net), expected) < 1e-12


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_around_it(reentrant: bool, net: nn.Sequential, gradient: ms.MetaGradient, expected: Tree) -> None:
    meta = learnable(net)

    def loss(*leaves: Tensor) -> Tensor:
        return gradient.loss(dict(zip(meta, leaves, strict=True)), TASKS)

    checkpoint(loss, *meta.values(), use_reentrant=reentrant).backward()
    assert relative_error({name: leaf.grad for name, leaf in meta.items()}, expected) < 1e-12


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_hooks_on_saved_tensors_around_it(chunk_size: int | None, net: nn.Sequential, expected: Tree) -> None:
    """`save_on_cpu` and the like are for the caller's graph; the hooks are there again afterwards"""
    packed: list[Tensor] = []
    gradient = gradient_of(net, chunk_size=chunk_size)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (packed.append(x), x)[1], lambda x: x):
        loss = gradient.loss(net, TASKS)
        assert not packed
        (loss * decay(net).detach() / decay(net).detach()).backward()
        assert packed
    assert relative_error(grads_of(net), expected) < 1e-12


class Count(TorchDispatchMode):
    """How many operations run"""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


def operations(function: Callable[[], Any]) -> int:
    with Count() as count:
        function()
    return count.number


def test_without_grad_mode_it_costs_the_inner_loop_alone(net: nn.Sequential, gradient: ms.MetaGradient) -> None:
    whole = operations(lambda: gradient.loss(net, TASKS))
    with torch.no_grad():
        forward = operations(lambda: gradient.loss(net, TASKS))
        assert not gradient.loss(net, TASKS).requires_grad
    judged = operations(lambda: gradient.judge(net, TASKS))
    constant = operations(lambda: gradient.loss(map_tree(torch.Tensor.detach, dict(net.named_parameters())), TASKS))
    assert forward == judged
    assert constant - forward <= 2 * len(list(net.parameters()))  # θ is detached once
    assert forward < 0.5 * whole
    with torch.inference_mode():
        torch.testing.assert_close(gradient.loss(net, TASKS), gradient(net, TASKS).loss)


def test_a_second_derivative_is_refused(net: nn.Sequential, gradient: ms.MetaGradient, expected: Tree) -> None:
    params = list(net.parameters())
    first = torch.autograd.grad(gradient.loss(net, TASKS), params, create_graph=True)
    assert relative_error([g.detach() for g in first], list(expected.values())) < 1e-12
    with pytest.raises(MetastepError, match=r"differentiated twice\. Leave create_graph=True out"):
        sum(g.square().sum() for g in first).backward()  # type: ignore[union-attr]
    through_a_product = torch.autograd.grad(gradient.loss(net, TASKS) ** 2, params, create_graph=True)
    with pytest.raises(MetastepError, match="differentiated twice"):
        torch.autograd.grad(sum(g.sum() for g in through_a_product), params)


@pytest.mark.parametrize(
    "tasks",
    [
        ms.Task((TASKS.support[0].clone().requires_grad_(), TASKS.support[1]), TASKS.query),
        [ms.Task(each(TASKS)[0].support, (TASKS.query[0][0], TASKS.query[1][0].clone().requires_grad_()))],
    ],
    ids=["stacked", "list"],
)
def test_tasks_that_require_grad_are_refused(tasks: Any, net: nn.Sequential, gradient: ms.MetaGradient) -> None:
    with pytest.raises(MetastepError, match=r"a tensor of the tasks requires grad.*Put it into meta"):
        gradient.loss(net, tasks)
    with torch.no_grad():
        gradient.loss(net, tasks)


def test_the_remedy_for_tasks_that_require_grad() -> None:
    """Put it into meta: learned pictures, as in the distillation of a data set"""
    drawn = torch.Generator().manual_seed(0)
    start, shown, x, y = (torch.randn(n, dtype=torch.float64, generator=drawn) for n in (3, (4, 3), (6, 3), 6))  # type: ignore[call-overload]
    shown.requires_grad_()

    def inner(params: Tree, meta: Tree, batch: Any) -> Tensor:
        return (meta["shown"] @ params - 1).square().mean()

    def outer(params: Tree, meta: Tree, task: Any) -> Tensor:
        x, y = task.query
        return (x @ params - y).square().mean()

    problem = ms.Problem(lambda meta, task: start, ms.every_window(inner), outer)
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=3)
    gradient.loss({"shown": shown}, [ms.Task((x, y), (x, y))]).backward()
    params = start
    for _ in range(3):
        params = params - 0.1 * 2 / 4 * shown.T @ (shown @ params - 1)
    (wanted,) = torch.autograd.grad((x @ params - y).square().mean(), shown)
    assert relative_error(shown.grad, wanted) < 1e-12


def test_theta_that_was_changed_before_backward_is_told(net: nn.Sequential, gradient: ms.MetaGradient) -> None:
    loss = gradient.loss(net, TASKS)
    with torch.no_grad():
        net[0].weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
