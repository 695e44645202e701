"""Derivatives by plain autograd are those of torch.func, and serve what it does not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.func
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import metastep as ms
from metastep.core.derivatives import by_autograd, grad, grad_and_value, vjp
from metastep.core.trees import map_tree, shapes
from metastep.core.windows import inner_loop
from tests.core.as_written import SGD, by_autograd as by_a_plain_loop, gradient_of, one, regression, squared_error
from tests.core.helpers import randn, relative_error
from tests.core.test_errors import Around, Doubled

VALUES: dict[str, Callable[..., Tensor]] = {
    "a bent one": lambda p, m: (p["a"] @ p["b"][0]).tanh().square().sum() * m["c"].exp().sum(),
    "linear": lambda p, m: p["a"].sum() + 2 * m["c"].sum(),
    "without the second": lambda p, m: (p["a"].pow(3) * p["b"][0]).sum(),
    "a constant": lambda p, m: torch.ones((), dtype=torch.float64),
    "complex": lambda p, m: (torch.fft.fft(p["a"]) * m["c"][0]).abs().square().sum(),
}


def trees() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return {"a": randn(3, 3), "b": (randn(3),)}, {"c": randn(2), "unused": randn(4)}


def of_both(call: Callable[[Any], Any]) -> tuple[Any, Any]:
    """By plain autograd and by torch.func"""
    with torch.no_grad():
        assert by_autograd()
        found = call((grad, grad_and_value, vjp))
    assert not any(leaf.requires_grad for leaf in ms.trees.leaves(found))
    assert not by_autograd()  # with graphs outside, both would be torch.func's
    return found, call((torch.func.grad, torch.func.grad_and_value, torch.func.vjp))


CALLS: dict[str, Callable[..., Any]] = {
    "grad": lambda value, p, m, of: of[0](value)(p, m),
    "both arguments": lambda value, p, m, of: of[0](value, argnums=(0, 1))(p, m),
    "value": lambda value, p, m, of: of[1](value)(p, m),
    "something beside": lambda value, p, m, of: of[1](
        lambda p, m: (value(p, m), {"a": p["a"]}), argnums=(1,), has_aux=True
    )(p, m),
    "pulled": lambda value, p, m, of: pulled(of[2](lambda p, m: (value(p, m), p["a"]), p, m)),
    "of a gradient": lambda value, p, m, of: pulled(of[2](lambda p, m: of[0](value)(p, m), p, m)),
    "of a product": lambda value, p, m, of: of[0](
        lambda p, m: sum(x.sum() for x in ms.trees.leaves(pulled(of[2](lambda p, m: of[0](value)(p, m), p, m))[1]))
    )(p, m),
}


def pulled(result: tuple[Any, Any]) -> Any:
    found, pull = result[:2]
    return found, pull(map_tree(lambda x: x.detach() + 1, found))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("call", CALLS)
def test_plain_autograd_gives_what_functions_of_functions_give(call: str, value: str) -> None:
    p, m = trees()
    found, expected = of_both(lambda of: CALLS[call](VALUES[value], p, m, of))
    assert shapes(found) == shapes(expected)
    for a, b in zip(ms.trees.leaves(found), ms.trees.leaves(expected), strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-12, atol=1e-12)


def slope(layer: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (by_x,) = torch.autograd.grad(layer(x).sin().sum(), x, create_graph=True)
    return torch.tanh(layer(x)) * by_x.mean()


def hooked(layer: nn.Module, x: Tensor) -> Tensor:
    handle = layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    try:
        return layer(x).tanh()  # type: ignore[no-any-return]
    finally:
        handle.remove()


def picked(layer: nn.Module, x: Tensor) -> Tensor:
    out = layer(x)
    return out.tanh() * float(out.detach().max()) if bool((out > 0).any()) else -out  # type: ignore[no-any-return]


PLAIN = {
    "a function of the old kind": lambda layer, x: Doubled.apply(layer(x)).tanh(),
    "a gradient in it": slope,
    "a full backward hook": hooked,
    "numbers and ifs": picked,
}


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("method", [ms.MAML(), ms.methods.Reference()])
def test_task_by_task_any_module_is_what_it_is_to_autograd(method: Any, name: str) -> None:
    torch.manual_seed(0)
    net, tasks = Around(PLAIN[name]), regression()
    gradient = gradient_of(ms.few_shot(net, squared_error), 4, method, chunk_size=1)
    alone = [by_a_plain_loop(net, ms.Task(*[(x[i], y[i]) for x, y in tasks]), 4) for i in range(3)]
    expected = map_tree(lambda *grads: sum(grads) / 3, *alone)
    assert relative_error(gradient(ms.parameters(net), tasks).grad, expected) < 1e-12


def test_where_graphs_are_built_an_inner_loop_is_part_of_them() -> None:
    net, task = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), one(regression())
    loop = inner_loop(ms.few_shot(net, F.mse_loss), SGD, 4)
    meta = ms.parameters(net)
    x, y = task.query
    F.mse_loss(ms.apply(net, loop.adapt(meta, task).params, x), y).backward()
    expected = gradient_of(loop.problem, 4, ms.methods.Reference()).estimator(meta, task).grad
    assert relative_error({name: p.grad for name, p in meta.items()}, expected) < 1e-12
    held = map_tree(lambda p: p.detach(), meta)
    assert not any(p.requires_grad for p in ms.trees.leaves(loop.adapt(held, task).params))


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_inference_mode_changes_nothing(chunk_size: int | None) -> None:
    net, tasks = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), regression()
    gradient, meta = gradient_of(ms.few_shot(net, F.mse_loss), 4, chunk_size=chunk_size), ms.parameters(net)
    expected = gradient(meta, tasks).grad
    with torch.inference_mode():
        inside = gradient(meta, tasks).grad
        made = map_tree(lambda x: x.clone(), (meta, tasks))
    assert relative_error(inside, expected) < 1e-12
    assert relative_error(gradient(*made).grad, expected) < 1e-12
    assert relative_error(gradient.adapt(made[0], one(made[1])), gradient.adapt(meta, one(tasks))) < 1e-12


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


def test_a_backward_that_is_differentiated_once_is_refused() -> None:
    net, tasks = Around(lambda layer, x: Once.apply(layer(x))), regression()
    problem, meta = ms.few_shot(net, squared_error), ms.parameters(net)
    for method in (ms.MAML(), ms.methods.Reference()):
        with pytest.raises(ms.MetastepError, match=r"once_differentiable.*CentralDifference\(\)"):
            gradient_of(problem, 2, method).estimator(meta, one(tasks))
    for served in (ms.FOMAML(), ms.methods.HFMAML(), ms.MAML(curvature=ms.curvature.CentralDifference())):
        assert gradient_of(problem, 2, served).estimator(meta, one(tasks)).loss.isfinite()


def test_gradients_do_not_share_memory() -> None:
    def inner(params: Any, meta: Any, batch: Any) -> Tensor:
        return squared_error(batch[0] @ params, batch[1])

    problem = ms.Problem(
        lambda meta, task: meta["a"] + meta["b"],
        ms.every_window(inner),
        lambda p, meta, task: inner(p, meta, task.query),
    )
    meta = {"a": randn(3, 2), "b": randn(3, 2)}
    for method in (ms.MAML(), ms.methods.Reference()):
        found = gradient_of(problem, 2, method).estimator(meta, one(regression())).grad
        assert found["a"].data_ptr() != found["b"].data_ptr()


class Adding(nn.Module):
    """A part of the loss is kept by the module on the way"""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.more = nn.Linear(3, 2, dtype=torch.float64), torch.zeros(())
        self.register_buffer("first", None)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        if self.first is None:
            self.first = out.mean(0)
        self.more = (out - self.first).pow(4).mean()
        return out


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_what_a_module_keeps_is_there_for_the_loss(chunk_size: int | None) -> None:
    net, tasks = Adding(), regression()
    problem = ms.few_shot(net, lambda out, y: squared_error(out, y) + net.more)

    def plain(params: Any, batch: Any) -> Tensor:
        x, y = batch
        out = x @ params["layer.weight"].T + params["layer.bias"]
        return squared_error(out, y) + (out - out.mean(0)).pow(4).mean()

    same = ms.Problem(
        lambda meta, task: meta,
        ms.every_window(lambda params, meta, batch: plain(params, batch)),
        lambda params, meta, task: plain(params, task.query),
    )
    found, expected = (
        gradient_of(each, 4, chunk_size=chunk_size)(ms.parameters(net), tasks).grad for each in (problem, same)
    )
    assert relative_error(found, expected) < 1e-12
    assert net.first is None
    assert not net.more


class Remembering(nn.Module):
    """By attributes: a mean over calls, which its result depends on, and what there was last"""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.mean = nn.Linear(3, 2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        self.last: Tensor = self.layer(x)
        self.mean = 0.9 * self.mean + self.last.mean()
        return torch.tanh(self.last - self.mean)


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_what_a_module_keeps_of_a_call_is_let_go_of(chunk_size: int | None) -> None:
    net, tasks = Remembering(), regression()
    before = dict(vars(net))
    found, expected = (
        gradient_of(ms.few_shot(net, squared_error), 4, method, chunk_size=chunk_size)(ms.parameters(net), tasks).grad
        for method in (ms.MAML(), ms.methods.Reference())
    )
    assert relative_error(found, expected) < 1e-12
    assert vars(net).keys() == before.keys()
    assert all(vars(net)[name] is kept for name, kept in before.items())
    assert torch.equal(ms.apply(net, {}, tasks.query[0][0]), torch.tanh(net.last - net.mean))


class Counting(nn.Module):
    def __init__(self, as_buffer: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)
        mean = torch.zeros(3, dtype=torch.float64)
        if as_buffer:
            self.register_buffer("mean", mean)
        else:
            self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        out: Tensor = self.layer(x - self.mean)
        return out


@pytest.mark.filterwarnings("ignore:a module writes into its buffers")
def test_a_tensor_that_a_module_writes_into_must_be_a_buffer() -> None:
    kept, refused = Counting(True), Counting(False)
    meta, task = ms.parameters(kept), one(regression())
    problem, methods = ms.few_shot(kept, squared_error), (ms.MAML(), ms.methods.Reference())
    swept, stored = (gradient_of(problem, 4, method).estimator(meta, task).grad for method in methods)
    assert relative_error(swept, stored) < 1e-12
    assert not kept.mean.any()
    gradient = gradient_of(ms.few_shot(refused, squared_error), 4)
    for call, given in ((gradient.estimator, task), (gradient, regression())):
        with pytest.raises(ms.MetastepError, match=r"writes into"):
            call(meta, given)
