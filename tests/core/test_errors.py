"""Bad input: the message has the input, the reason and the remedy."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import metastep as ms
from metastep.core.trees import map_tree
from tests.core.helpers import case, first, own_step, randn, relative_error

P, META, TASKS = case("regression")
W = {"w": torch.ones(2)}
UNIT = nn.Linear(1, 1)


PICTURES = case("convolution")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * gradient


class Around(nn.Module):
    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.layer, self.around = nn.Linear(3, 2, dtype=torch.float64), forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.around(self.layer, x)


def filled(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(x), 2, dtype=x.dtype)
    out[:] = layer(x)
    return out


def of_module(forward: Any, loss: Any = F.mse_loss, chunk_size: int | None = None) -> Any:
    net, generator = Around(forward), torch.Generator().manual_seed(0)
    parts = [torch.randn(2, 5, n, dtype=torch.float64, generator=generator) for n in (3, 2)]
    step = ms.over_tasks(ms.maml(ms.few_shot(net, loss), ms.SGD(0.1), 2), chunk_size)
    return step(ms.parameters_of(net), ms.Task(parts, parts))


def estimate(problem: ms.Problem, meta: Any = META, tasks: Any = TASKS) -> Any:
    return ms.over_tasks(ms.maml(problem, ms.SGD(0.1), 2))(meta, tasks)


def stepping(step: Any) -> Any:
    return ms.maml(P, ms.StepFunction(step), 2)(META, first(TASKS))


class Looking(nn.Module):
    """Multiplies by something that it finds in its inputs"""

    def __init__(self, look: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.look = nn.Linear(2, 1).double(), look

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x) * self.look(x)


def mapped(net: nn.Module) -> Any:
    return ms.over_tasks(ms.maml(ms.few_shot(net, F.mse_loss), ms.SGD(0.1), 2))(ms.parameters_of(net), TASKS)


def looking(look: Callable[[torch.Tensor], Any]) -> Any:
    return mapped(Looking(look))


def vector_loss(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (prediction - target).square().squeeze(-1)


def running_statistics(where: str) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2)) if where == "1.0" else nn.BatchNorm1d(2))


def linear(loss: Callable[[Any, Any], torch.Tensor]) -> Callable[[Any], Any]:
    def run(curvature: Any) -> Any:
        torch.manual_seed(0)
        net = nn.Linear(2, 3).double()
        batch = (randn(4, 2), randn(4, 3))
        problem = ms.few_shot(net, loss)
        return ms.multi_step(problem, ms.SGD(0.1), 4, 2, curvature)(ms.parameters_of(net), ms.Task(batch, batch))

    return run


def enormous_rate() -> Any:
    net = torch.nn.Linear(2, 2)
    x, y = torch.randn(3, 2), torch.randn(3, 2)
    problem = ms.few_shot(net, torch.nn.functional.mse_loss)
    return ms.maml(problem, ms.SGD(1e300), 2)(ms.parameters_of(net), ms.Task((x, y), (x, y)))


def disjoint_es() -> Any:
    p, meta, tasks = case("meta_network")
    return ms.over_tasks(ms.es_maml(p, ms.SGD(0.1), 2))(meta, tasks)


def disjoint_reptile() -> Any:
    p, meta, tasks = case("meta_network")
    return ms.over_tasks(ms.reptile(p, ms.SGD(0.1), 2))(meta, tasks)


def unequal_steps() -> Any:
    params = {"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(2))}
    optimizer = torch.optim.Adam(params.values())
    params["a"].grad = torch.ones(2)
    optimizer.step()
    return ms.from_optimizer(optimizer, params)


def optimizer_of(kind: Any, **options: Any) -> Callable[[], Any]:
    params = {"a": nn.Parameter(torch.ones(2))}
    return lambda: ms.from_optimizer(kind(params.values(), **options), params)


BAD: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "steps 0": (lambda: ms.maml(P, ms.SGD(0.1), 0), ["steps = 0", "at least 1"]),
    "window 0": (lambda: ms.multi_step(P, ms.SGD(0.1), 8, 0), ["window = 0", "at least 1"]),
    "window -1": (lambda: ms.multi_step(P, ms.SGD(0.1), 8, -1), ["window = -1"]),
    "empty list": (lambda: ms.multi_step(P, ms.SGD(0.1), []), ["at least one"]),
    "list with 0": (lambda: ms.multi_step(P, ms.SGD(0.1), [4, 0]), ["[4, 0]"]),
    "list and window": (lambda: ms.multi_step(P, ms.SGD(0.1), [4, 4], 2), ["[4, 4]", "window = 2"]),
    "depth 0": (lambda: ms.truncated(P, ms.SGD(0.1), 8, depth=0), ["depth = 0"]),
    "negative rate": (lambda: ms.SGD(-0.1), ["lr = -0.1", "not negative"]),
    "nan rate": (lambda: ms.Adam(float("nan")), ["lr = nan"]),
    "infinite decay": (lambda: ms.RMSprop(0.1, weight_decay=float("inf")), ["weight_decay = inf"]),
    "negative in a tree": (lambda: ms.SGD({"a": 0.1, "b": -1.0}), ["lr = -1.0"]),
    "nan in a tensor": (lambda: ms.SGD(torch.tensor([0.1, float("nan")])), ["lr = tensor", "finite"]),
    "negative in a schedule": (
        lambda: ms.maml(P, ms.SGD(lambda meta, step: 0.1 - step), 3)(META, first(TASKS)), ["step 1", "-0.9"]
    ),
    "betas": (lambda: ms.Adam(betas=(0.9, 1.0)), ["betas", "[0, 1)"]),
    "nesterov": (lambda: ms.SGD(0.1, nesterov=True), ["nesterov", "momentum"]),
    "rates of another tree": (
        lambda: ms.maml(P, ms.SGD({"x": 0.1}), 2)(META, first(TASKS)),
        ["rates does not match", "only in the rates: 'x'", "only in the parameters: '0.bias'", "one number"],
    ),
    "gradient of another tree": (
        lambda: ms.SGD(0.1).advance(ms.SGD(0.1).init(W), {"v": torch.ones(2)}, None, 1), ["params and gradients"]
    ),
    "gradient of another shape": (
        lambda: ms.SGD(0.1).advance(ms.SGD(0.1).init(W), {"w": torch.ones(3)}, None, 1), ["(2,)", "(3,)"]
    ),
    "written to another tree": (lambda: ms.write_grads(W, {"v": torch.ones(2)}), ["parameters and meta-gradients"]),
    "no task": (lambda: ms.over_tasks(ms.maml(P, ms.SGD(0.1), 2))(META, []), ["no task"]),
    "tasks of unequal shape": (
        lambda: ms.stack([ms.Task(torch.ones(2), torch.ones(2)), ms.Task(torch.ones(3), torch.ones(2))]),
        ["task 0 and task 1", "(2,)", "(3,)", "group them by shape"],
    ),
    "stacked unequally": (
        lambda: ms.over_tasks(ms.maml(P, ms.SGD(0.1), 2))(META, map_tree(lambda x: x[: 1 + x.shape[-1]], TASKS)),
        ["one number of tasks", "'2', '3'"],
    ),
    "chunk 0": (lambda: ms.over_tasks(ms.maml(P, ms.SGD(0.1), 2), 0), ["chunk_size = 0"]),
    "inner loss is a vector": (
        lambda: estimate(P._replace(windows=ms.every_window(lambda p, m, b: b[0].sum(-1) * p["2.bias"]))),
        ["an inner loss", "(6,)", ".mean()"],
    ),
    "outer loss is a vector": (
        lambda: estimate(P._replace(outer_loss=lambda p, m, t: t.query[0].sum(-1))), ["the outer loss", "(7,)"]
    ),
    "loss is a number": (
        lambda: estimate(P._replace(outer_loss=lambda p, m, t: 1.0)), ["the outer loss", "float"]
    ),
    "running statistics": (
        lambda: ms.few_shot(running_statistics("1"), F.mse_loss), ["BatchNorm1d '1'", "use_batch_statistics", "eval()"]
    ),
    "running statistics, nested": (
        lambda: ms.few_shot(running_statistics("1.0"), F.mse_loss), ["BatchNorm1d '1.0'"]
    ),
    "nothing to learn": (lambda: ms.few_shot(nn.ReLU(), F.mse_loss), ["no parameter to learn"]),
    "no head": (
        lambda: ms.over_tasks(ms.anil(P, ms.SGD(0.1), 2, lambda name: name == "x"))(META, TASKS),
        ["accepts none", "0.weight"],
    ),
    "no forward mode": (
        lambda: linear(F.huber_loss)(ms.exact_forward), ["huber_loss_backward", "curvature=metastep.exact, which"]
    ),
    "no second backward": (
        lambda: linear(lambda a, b: torch.cdist(a, b).mean())(ms.exact),
        ["_cdist_backward", "curvature=metastep.central_difference()"],
    ),
    "a rate beyond numbers": (enormous_rate, ["Lower the inner rate"]),
    "es with disjoint theta": (disjoint_es, ["ES-MAML", "needs θ to act through φ's start alone", "multi_step"]),
    "reptile with disjoint theta": (disjoint_reptile, ["Reptile", "multi_step"]),
    "imaml with decay": (lambda: ms.imaml(P, ms.SGD(0.1, weight_decay=0.1), 4), ["weight_decay = 0.1", "inner loss"]),
    "proximal 0": (lambda: ms.imaml(P, ms.SGD(0.1), 4, strength=0), ["strength = 0"]),
    "weights": (
        lambda: ms.over_tasks(ms.unrolled(ms.InnerLoop(P, ms.SGD(0.1), (1, 1)), weights=[1.0]))(META, TASKS),
        ["1 weights for 2 windows"],
    ),
    "weights and depth": (
        lambda: ms.unrolled(ms.InnerLoop(P, ms.SGD(0.1), (1, 1)), weights=[0.5, 0.5], depth=1), ["exclude each other"]
    ),
    "samples 0": (lambda: ms.ggs_maml(P, ms.SGD(0.1), 4, samples=0), ["samples = 0"]),
    "sigma 0": (lambda: ms.es_maml(P, ms.SGD(0.1), 4, sigma=0.0), ["sigma = 0.0"]),
    "delta 0": (lambda: ms.hf_maml(P, ms.SGD(0.1), 4, delta=-1), ["delta = -1"]),
    "unequal step counts": (unequal_steps, ["'b' has taken 0 steps and 'a' 1", "zeros, not None"]),
    "amsgrad": (optimizer_of(torch.optim.Adam, amsgrad=True), ["amsgrad=True", "turn it off"]),
    "unknown optimizer": (optimizer_of(torch.optim.Adagrad), ["Adagrad", "StepFunction"]),
    "foreign parameters": (
        lambda: ms.from_optimizer(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), W), ["does not hold 'w'"]
    ),
    "an optimizer of torch": (
        lambda: ms.maml(P, torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), 3),
        ["SGD of torch.optim", "metastep.SGD(lr)", "from_optimizer"],
    ),
    "a rate for dynamics": (lambda: ms.maml(P, 0.1, 3), ["0.1 is no inner optimizer", "metastep.SGD(lr)"]),
    "a module for a problem": (
        lambda: ms.maml(nn.Linear(1, 1), ms.SGD(0.1), 3), ["Linear is no problem", "few_shot(module, loss)"]
    ),
    "half a step": (lambda: ms.maml(P, ms.SGD(0.1), 3.0), ["steps = 3.0", "whole numbers"]),
    "half a window": (lambda: ms.multi_step(P, ms.SGD(0.1), [2, 1.5]), ["[2, 1.5]", "whole numbers"]),
    "nothing to compare": (lambda: ms.compare({}, META, TASKS), ["no method"]),
    "a head by name": (lambda: ms.anil(P, ms.SGD(0.1), 3, head="2"), ["head = '2'", "startswith('2')"]),
    "rates without room": (lambda: ms.meta_sgd(P, ms.SGD(0.1), 3)(META, first(TASKS)), ["θ alone", "with_rates"]),
    "rates of each step without room": (
        lambda: ms.maml_pp(P, ms.SGD(0.1), 3)(META, first(TASKS)), ["θ alone", "with_rates"]
    ),
    "a memory without room": (
        lambda: ms.reptile(P, ms.Adam(0.1), 3, carried=True)(META, first(TASKS)), ["θ alone", "with_memory"]
    ),
    "no rate to learn": (
        lambda: ms.meta_sgd(P, ms.StepFunction(own_step), 3), ["StepFunction has no rate", "multi_step"]
    ),
    "a task without names": (
        lambda: ms.maml(P, ms.SGD(0.1), 3)(META, tuple(first(TASKS))), ["given as a tuple", "metastep.Task("]
    ),
    "meta of another module": (
        lambda: ms.maml(P, ms.SGD(0.1), 2)(ms.parameters_of(nn.Linear(2, 1)), first(TASKS)),
        ["not θ of this Sequential", "only in the module: '0.bias'", "only in meta: 'bias', 'weight'", "parameters_of"],
    ),
    "a name too few": (
        lambda: estimate(P, meta={name: p for name, p in META.items() if name != "2.bias"}),
        ["only in the module: '2.bias'", "requires_grad_(False)", "adapt_only"],
    ),
    "a name too many": (lambda: estimate(P, meta={**META, "x": torch.ones(1)}), ["only in meta: 'x'"]),
    "another shape": (
        lambda: estimate(P, meta={**META, "2.bias": torch.ones(())}), ["'2.bias' is (1,) in the module and () in meta"]
    ),
    "meta of another module beside rates": (
        lambda: ms.meta_sgd(P, ms.SGD(0.1), 2)(ms.with_rates(W, 0.1), first(TASKS)), ["only in meta: 'w'"]
    ),
    "another meta for a head": (
        lambda: ms.anil(P, ms.SGD(0.1), 2, lambda name: name == "w")(W, first(TASKS)), ["only in meta: 'w'"]
    ),
    "meta without names": (lambda: estimate(P, meta=list(META.values())), ["only in meta: '0', '1', '2' and 1 more"]),
    "a module for meta": (lambda: estimate(P, meta=UNIT), ["meta: Linear", "metastep.parameters_of(module)"]),
    "a generator for meta": (lambda: estimate(P, meta=iter(META.values())), ["where tensors are needed"]),
    "a class for a module": (lambda: ms.few_shot(nn.Linear, F.mse_loss), ["Linear'> is no nn.Module", "Linear(…)"]),
    "a function for a module": (lambda: ms.few_shot(F.relu, F.mse_loss), ["relu", "is no nn.Module", "Problem"]),
    "no loss": (lambda: ms.few_shot(UNIT, None), ["the loss is None", "(prediction, target)", "cross_entropy"]),
    "a class for a loss": (lambda: ms.few_shot(UNIT, nn.MSELoss), ["MSELoss is the class", "MSELoss()"]),
    "a loss of something else": (
        lambda: ms.few_shot(UNIT, lambda p: p.mean()), ["the loss is called with (prediction, target)", "(p)"]
    ),
    "metrics without names": (
        lambda: ms.few_shot(UNIT, F.mse_loss, [ms.accuracy]), ["metrics is a list", "metastep.accuracy}"]
    ),
    "a metric that is a number": (
        lambda: estimate(P._replace(outer_loss=lambda p, m, t: (p["2.bias"].sum(), {"half": 0.5}))),
        ["'half' is a float", ".item()"],
    ),
    "metrics that are no dict": (
        lambda: estimate(P._replace(outer_loss=lambda p, m, t: (p["2.bias"].sum(), 0.5))), ["metrics as a float"]
    ),
    "rates of too few steps": (
        lambda: ms.maml_pp(P, ms.SGD(0.1), 4)(ms.with_rates(META, 0.1, 3), first(TASKS)),
        ["rates (3,) for step 3", "with_rates(params, lr, steps)"],
    ),
    "methods without names": (lambda: ms.compare([ms.maml(P, ms.SGD(0.1), 2)], META, TASKS), ["methods is a list"]),
    "a step that forgets the memory": (
        lambda: stepping(lambda params, memory, grad, meta, t: params), ["returned a dict", "(params, memory)"]
    ),
    "a step that drops names": (
        lambda: stepping(lambda params, memory, grad, meta, t: ({"2.bias": params["2.bias"]}, memory)),
        ["changed φ", "only in φ before it: '0.bias'"],
    ),
    "a step of other arguments": (
        lambda: ms.StepFunction(lambda params, grad: params), ["(params, memory, grad, meta, t)", "(params, grad)"]
    ),
    "parameters without names": (
        lambda: ms.from_optimizer(torch.optim.SGD(META.values(), lr=0.1), iter(META.values())),
        ["parameters is a dict_valueiterator", "named_parameters()"],
    ),
    "an inner loss for windows": (
        lambda: ms.maml(P._replace(windows=lambda params, meta, batch: batch.sum()), ms.SGD(0.1), 2),
        ["(task, lengths)", "(params, meta, batch)", "every_window(loss)"],
    ),
    "the same, held": (lambda: ms.proximal(P._replace(windows=lambda p, m, b: b), 1.0), ["every_window(loss)"]),
    "windows that are none": (
        lambda: estimate(P._replace(windows=lambda task, lengths: task.support[0].sum())),
        ["gave a Tensor", "list of metastep.Window"],
    ),
    "windows that are pairs": (
        lambda: estimate(ms.proximal(P._replace(windows=lambda task, lengths: [task.support]), 1.0)),
        ["a list of something else"],
    ),
    "a method by name": (
        lambda: ms.meta_gradient(UNIT, "multi_step", ms.SGD(0.1), 2, 1), ["'multi_step'", "metastep.multi_step"]
    ),
    "a method that is applied already": (
        lambda: ms.meta_gradient(UNIT, ms.maml(P, ms.SGD(0.1), 2), ms.SGD(0.1), 2, 1), ["= Estimator"]
    ),
    "a problem over tasks": (lambda: ms.over_tasks(P), ["a Problem is no method", "multi_step(problem"]),
    "arrays": (
        lambda: ms.maml(P, ms.SGD(0.1), 2)(META, map_tree(lambda x: x.numpy(), first(TASKS))),
        ["numpy.ndarray", "torch.as_tensor"],
    ),
    "stacked arrays": (
        lambda: estimate(P, tasks=map_tree(lambda x: x.numpy(), TASKS)), ["tasks: ndarray", "torch.as_tensor"]
    ),
    "a list of arrays": (
        lambda: estimate(P, tasks=[map_tree(lambda x: x.numpy(), first(TASKS))]), ["tasks: ndarray", "torch.as_tensor"]
    ),
    "data of another precision": (
        lambda: estimate(P, tasks=map_tree(lambda x: x.float(), TASKS)), ["different precisions", "same dtype", "x.to("]
    ),
    "bytes": (
        lambda: ms.over_tasks(ms.maml(PICTURES.problem, ms.SGD(0.1), 2))(
            PICTURES.meta, map_tree(lambda x: x.byte(), PICTURES.tasks)
        ),
        ["unsigned char", "divided by 255"],
    ),
    "a checkpointed module": (
        lambda: of_module(lambda layer, x: checkpoint(layer, x, use_reentrant=False)), ["save_on_cpu", "one window"]
    ),
    "a checkpointed module, task by task": (
        lambda: of_module(lambda layer, x: checkpoint(layer, x, use_reentrant=False), chunk_size=1), ["own parameters"]
    ),
    "a reentrant one": (
        lambda: of_module(lambda layer, x: checkpoint(nn.Tanh(), layer(x), use_reentrant=True), chunk_size=1),
        ["own parameters", "use_reentrant"],
    ),
    "a function of the old kind": (lambda: of_module(lambda layer, x: Doubled.apply(layer(x))), ["setup_context(ctx"]),
    "a tensor of zeros that is filled": (lambda: of_module(filled), ["x.new_zeros", "chunk_size=1"]),
    "one_hot": (
        lambda: of_module(lambda layer, x: layer(x) * F.one_hot((x[:, 0] > 0).long(), 2)), ["torch.eye(n)[y]"]
    ),
    "a loss of whole numbers": (
        lambda: of_module(lambda layer, x: layer(x), lambda p, y: (p > y).sum()), ["torch.int64", "no gradient"]
    ),
    "a number for a loss": (lambda: of_module(lambda layer, x: layer(x), lambda p, y: 1.0), ["a tensor", "not float"]),
    "stacked tasks for one": (
        lambda: ms.maml(PICTURES.problem, ms.SGD(0.1), 2)(PICTURES.meta, PICTURES.tasks),
        ["[3, 6, 1, 8, 8]", "metastep.over_tasks(method)"],
    ),
    "one task for stacked ones": (
        lambda: ms.over_tasks(ms.maml(PICTURES.problem, ms.SGD(0.1), 2))(PICTURES.meta, first(PICTURES.tasks)),
        ["got 3D input", "[task]"],
    ),
    "one task of two lengths for stacked ones": (lambda: estimate(P, tasks=first(TASKS)), ["'6', '7'", "[task]"]),
    "a whole estimate": (lambda: ms.write_grads(META, estimate(P)), ["pass estimate.grad"]),
    "gradients for a module": (
        lambda: ms.write_grads(UNIT, estimate(P).grad), ["parameters: Linear", "parameters_of(module)"]
    ),
    "names that differ": (
        lambda: ms.write_grads(META, {**W, **dict(list(META.items())[:2])}),
        ["only in the first: '2.bias', '2.weight'", "only in the second: 'w'"],
    ),
    "names in another order": (lambda: ms.write_grads(META, dict(reversed(META.items()))), ["not the order"]),
    "no such reference": (lambda: ms.compare({"a": ms.maml(P, ms.SGD(0.1), 2)}, META, TASKS, "b"), ["'b'", "a"]),
}  # fmt: skip


def refused(call: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises(ms.MetastepError) as error:
        call()
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    refused(*BAD[name])


def test_what_has_no_remedy_is_raised_as_it_was() -> None:
    def broken(params: Any, meta: Any, task: Any) -> torch.Tensor:
        raise RuntimeError("something of the user's own")

    with pytest.raises(RuntimeError, match="own") as error:
        ms.maml(P._replace(outer_loss=broken), ms.SGD(0.1), 2)(META, first(TASKS))
    assert error.value.__cause__ is None


@pytest.mark.parametrize("text", ["expected 3D volumes in a file", "my running_mean_loss is nan"])
def test_a_users_own_words_are_left_alone(text: str) -> None:
    def broken(params: Any, meta: Any, task: Any) -> torch.Tensor:
        raise ValueError(text)

    with pytest.raises(ValueError, match=text) as error:
        ms.maml(P._replace(outer_loss=broken), ms.SGD(0.1), 2)(META, first(TASKS))
    assert not isinstance(error.value, ms.MetastepError)


def test_a_decorated_loss_takes_what_its_decorator_takes() -> None:
    @wraps(F.smooth_l1_loss)
    def loss(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return smooth(prediction, target, 0.1)

    def smooth(prediction: torch.Tensor, target: torch.Tensor, by: float) -> torch.Tensor:
        return F.mse_loss(prediction, target) * by

    loss.__wrapped__ = smooth  # type: ignore[attr-defined]
    assert ms.few_shot(nn.Linear(2, 1), loss)


def test_frozen_parameters_may_be_a_part_of_theta() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    net[0].weight.requires_grad_(False)
    method = ms.maml(ms.few_shot(net, F.mse_loss), ms.SGD(0.1), 2)
    for meta in (ms.parameters_of(net), dict(net.named_parameters())):
        assert method(meta, first(TASKS)).grad.keys() == meta.keys()


def test_a_parameter_may_be_frozen_after_the_problem_was_made() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
    method, task = ms.maml(ms.few_shot(net, F.mse_loss), ms.SGD(0.1), 2), first(TASKS)
    before = ms.parameters_of(net)
    net[0].requires_grad_(False)
    assert method(before, task).grad.keys() == before.keys()
    assert method(ms.parameters_of(net), task).grad.keys() == {"1.weight", "1.bias"}


def test_a_step_may_return_its_parameters_in_any_order() -> None:
    def step(params: Any, memory: Any, grad: Any, meta: Any, t: int) -> Any:
        return {name: params[name] - 0.1 * grad[name] for name in reversed(params)}, memory

    assert relative_error(stepping(step).grad, ms.maml(P, ms.SGD(0.1), 2)(META, first(TASKS)).grad) < 1e-9


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_non_finite_gradients_name_task_and_window(chunk_size: int | None) -> None:
    p, meta, tasks = case("regression")
    x, y = tasks.support
    spoiled = tasks._replace(support=(x, y.clone().index_fill_(0, torch.tensor([1]), float("nan"))))
    with pytest.raises(ms.NonFiniteError, match=r"task 1: the inner gradient of window 0"):
        ms.over_tasks(ms.maml(p, ms.SGD(0.1), 4), chunk_size)(meta, spoiled)
    with pytest.raises(ms.NonFiniteError, match=r"task 0: the inner gradient of window \d+ \(of 300"):
        ms.over_tasks(ms.maml(p, ms.SGD(1e6), 300), chunk_size)(meta, tasks)
    spoiled = tasks._replace(query=(tasks.query[0], tasks.query[1] * float("inf")))
    with pytest.raises(ms.NonFiniteError, match=r"task 0: all inner gradients are finite, but the outer loss is not"):
        ms.over_tasks(ms.maml(p, ms.SGD(0.1), 4), chunk_size)(meta, spoiled)
    assert not ms.over_tasks(ms.maml(p, ms.SGD(0.1), 4), check_finite=False)(meta, spoiled).loss.isfinite()


def test_a_failed_call_leaves_nothing_behind() -> None:
    net = nn.Linear(2, 1).double()
    meta = ms.parameters_of(net)
    before = map_tree(lambda p: p.detach().clone(), meta)
    with pytest.raises(ms.MetastepError):
        ms.write_grads(meta, {"weight": torch.ones(1, 2), "bias": torch.ones(7)})
    assert all(p.grad is None for p in meta.values())
    with pytest.raises(ms.MetastepError):
        ms.over_tasks(ms.maml(ms.few_shot(net, vector_loss), ms.SGD(0.1), 2))(meta, TASKS)
    assert all(torch.equal(p, before[name]) for name, p in meta.items())
    assert torch.is_grad_enabled()
