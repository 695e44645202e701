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
from metastep.core.tasks import stack
from metastep.core.torch_originals import ours
from metastep.core.trees import map_tree
from tests.core.as_written import MAML, SGD, gradient_of
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
    gradient = gradient_of(ms.few_shot(net, loss), chunk_size=chunk_size)
    return gradient(net, ms.Task(parts, parts))


def estimate(problem: ms.Problem, meta: Any = META, tasks: Any = TASKS) -> Any:
    return gradient_of(problem)(meta, tasks)


def of_one(meta: Any = META, steps: int = 2, method: Any = MAML, inner: Any = SGD) -> Any:
    return gradient_of(P, steps, method, inner).estimator(meta, first(TASKS))


def stepping(step: Any) -> Any:
    return of_one(inner=ms.StepFunction(step))


class Looking(nn.Module):
    """Multiplies by something that it finds in its inputs"""

    def __init__(self, look: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.look = nn.Linear(2, 1).double(), look

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x) * self.look(x)


def mapped(net: nn.Module) -> Any:
    return gradient_of(ms.few_shot(net, F.mse_loss), chunk_size=3)(net, TASKS)


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
        gradient = gradient_of(problem, 4, ms.MultiStep(2, curvature))
        return gradient.estimator(ms.parameters(net), ms.Task(batch, batch))

    return run


def enormous_rate() -> Any:
    net = torch.nn.Linear(2, 2)
    x, y = torch.randn(3, 2), torch.randn(3, 2)
    problem = ms.few_shot(net, torch.nn.functional.mse_loss)
    return gradient_of(problem, inner=ms.SGD(1e300)).estimator(ms.parameters(net), ms.Task((x, y), (x, y)))


def disjoint(method: Any) -> Any:
    p, meta, tasks = case("meta_network")
    return gradient_of(p, 2, method)(meta, tasks)


def weighted(weights: list[float]) -> Any:
    gradient = gradient_of(P, 2, ms.methods.MAMLPP(weights))
    return gradient(gradient.init(META), TASKS)


def advanced(params: Any, grad: Any) -> Any:
    return SGD.advance(SGD.init(params), grad, None, 1)


def meta_step(gradient: Any = None, optimizer: Any = None) -> Any:
    return ms.MetaStep(gradient or gradient_of(P), META, optimizer or torch.optim.SGD(META.values(), lr=0.1))


def unequal_steps() -> Any:
    params = {"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(2))}
    optimizer = torch.optim.Adam(params.values())
    params["a"].grad = torch.ones(2)
    optimizer.step()
    return ours(optimizer, params)


def optimizer_of(kind: Any, **options: Any) -> Callable[[], Any]:
    params = {"a": nn.Parameter(torch.ones(2))}
    return lambda: ours(kind(params.values(), **options), params)


BAD: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "steps 0": (lambda: gradient_of(P, 0), ["steps = 0", "at least 1"]),
    "window 0": (lambda: ms.MultiStep(window=0), ["window = 0", "at least 1"]),
    "window -1": (lambda: ms.MultiStep(window=-1), ["window = -1"]),
    "empty list": (lambda: gradient_of(P, []), ["steps = []", "at least one"]),
    "empty list of windows": (lambda: ms.MultiStep(window=[]), ["window = []", "at least one"]),
    "list with 0": (lambda: gradient_of(P, [4, 0]), ["steps = [4, 0]"]),
    "list and window": (lambda: gradient_of(P, [4, 4], ms.MultiStep(2)), ["[4, 4]", "window = 2"]),
    "windows of other steps": (
        lambda: gradient_of(P, 8, ms.MultiStep([4, 2])), ["window = [4, 2] has 6 steps, not 8"]
    ),
    "depth 0": (lambda: ms.methods.Truncated(depth=0), ["depth = 0", "at least 1"]),
    "negative rate": (lambda: ms.SGD(-0.1), ["SGD: lr = -0.1", "at least 0"]),
    "nan rate": (lambda: ms.Adam(float("nan")), ["lr = nan"]),
    "infinite decay": (lambda: ms.RMSprop(0.1, weight_decay=float("inf")), ["weight_decay = inf"]),
    "negative in a tree": (lambda: ms.SGD({"a": 0.1, "b": -1.0}), ["lr = -1.0"]),
    "nan in a tensor": (lambda: ms.SGD(torch.tensor([0.1, float("nan")])), ["lr = tensor", "finite"]),
    "negative in a schedule": (
        lambda: of_one(steps=3, inner=ms.SGD(lambda meta, step: 0.1 - step)), ["step 1", "-0.9"]
    ),
    "betas": (lambda: ms.Adam(betas=(0.9, 1.0)), ["Adam: betas[1] = 1.0", "at least 0 and below 1"]),
    "nesterov": (lambda: ms.SGD(0.1, nesterov=True), ["nesterov", "momentum"]),
    "rates of another tree": (
        lambda: of_one(inner=ms.SGD({"x": 0.1})),
        ["rates does not match", "only in the rates: 'x'", "only in the parameters: '0.bias'", "one number"],
    ),
    "gradient of another tree": (lambda: advanced(W, {"v": torch.ones(2)}), ["params and gradients"]),
    "gradient of another shape": (lambda: advanced(W, {"w": torch.ones(3)}), ["(2,)", "(3,)"]),
    "gradient of more names": (
        lambda: advanced(META, {**W, **dict(list(META.items())[:2])}),
        ["only in the first: '2.bias', '2.weight'", "only in the second: 'w'"],
    ),
    "gradient in another order": (lambda: advanced(META, dict(reversed(META.items()))), ["not the order"]),
    "an optimizer of another tree": (
        lambda: meta_step(optimizer=torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)),
        ["does not hold 0.weight", "ms.trees.leaves(meta)"],
    ),
    "no task": (lambda: gradient_of(P)(META, []), ["no task"]),
    "tasks of unequal shape": (
        lambda: stack([ms.Task(torch.ones(2), torch.ones(2)), ms.Task(torch.ones(3), torch.ones(2))]),
        ["task 0 and task 1", "(2,)", "(3,)", "list of tasks to an ms.MetaGradient"],
    ),
    "stacked unequally": (
        lambda: gradient_of(P)(META, map_tree(lambda x: x[: 1 + x.shape[-1]], TASKS)),
        ["one number of tasks", "'2', '3'"],
    ),
    "chunk 0": (lambda: gradient_of(P, chunk_size=0), ["chunk_size = 0", "at least 1"]),
    "half an example": (lambda: gradient_of(P, batch=0.5), ["batch = 0.5", "whole number"]),
    "examples in parts of 0": (lambda: gradient_of(P, example_chunk_size=0), ["example_chunk_size = 0"]),
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
        lambda: gradient_of(P, 2, ms.methods.ANIL(lambda name: name == "x"))(META, TASKS), ["accepts none", "0.weight"]
    ),
    "no head of this name": (
        lambda: gradient_of(P, 2, ms.methods.ANIL("x"))(META, TASKS), ["accepts none", "0.weight"]
    ),
    "a head by number": (lambda: ms.methods.ANIL(head=2), ["head = 2", 'such as "head"']),
    "no forward mode": (
        lambda: linear(F.huber_loss)(ms.curvature.exact_forward),
        ["huber_loss_backward", "curvature=ms.curvature.exact, which"],
    ),
    "no second backward": (
        lambda: linear(lambda a, b: torch.cdist(a, b).mean())(ms.curvature.exact),
        ["_cdist_backward", "curvature=ms.curvature.CentralDifference()", "ms.FOMAML()"],
    ),
    "a rate beyond numbers": (enormous_rate, ["Lower the inner learning rate"]),
    "es with disjoint theta": (
        lambda: disjoint(ms.methods.ESMAML()), ["ES-MAML", "needs θ to act through φ's start alone", "ms.MultiStep"]
    ),
    "reptile with disjoint theta": (lambda: disjoint(ms.Reptile()), ["Reptile", "ms.MultiStep"]),
    "imaml with decay": (
        lambda: gradient_of(P, 4, ms.IMAML(), ms.SGD(0.1, weight_decay=0.1)), ["weight_decay = 0.1", "inner loss"]
    ),
    "strength 0": (lambda: ms.IMAML(strength=0), ["strength = 0", "above 0"]),
    "proximal 0": (lambda: ms.problems.proximal(P, 0), ["strength = 0", "above 0"]),
    "weights": (
        lambda: ms.estimators.unrolled(gradient_of(P).loop, weights=[1.0])(META, first(TASKS)),
        ["weights: 1 for 2 windows"],
    ),
    "weights of a method": (lambda: weighted([1.0]), ["weights: 1 for 2 windows"]),
    "weights and depth": (
        lambda: ms.estimators.unrolled(gradient_of(P).loop, weights=[0.5, 0.5], depth=1), ["exclude each other"]
    ),
    "samples 0": (lambda: ms.methods.GGSMAML(samples=0), ["samples = 0"]),
    "sigma 0": (lambda: ms.methods.ESMAML(sigma=0.0), ["sigma = 0.0"]),
    "delta 0": (lambda: ms.methods.HFMAML(delta=-1), ["delta = -1"]),
    "a curvature of 0 samples": (lambda: ms.curvature.GaussianSmoothing(samples=0), ["samples = 0"]),
    "a curvature of sigma 0": (lambda: ms.curvature.ZerothOrder(sigma=0.0), ["sigma = 0.0"]),
    "a curvature of delta 0": (lambda: ms.curvature.CentralDifference(delta=-1), ["delta = -1"]),
    "an option by another name": (lambda: ms.MultiStep(windw=4), ["no option 'windw'", "'window'?"]),
    "a rate for a method": (lambda: ms.MAML(lr=0.1), ["MAML has no option 'lr'", "ms.SGD(lr=0.1)"]),
    "no window": (lambda: ms.MultiStep(), ["MultiStep: ", "'window'"]),
    "unequal step counts": (unequal_steps, ["different numbers of steps"]),
    "amsgrad": (optimizer_of(torch.optim.Adam, amsgrad=True), ["amsgrad=True", "none of metastep's own"]),
    "unknown optimizer": (optimizer_of(torch.optim.Adagrad), ["Adagrad", "SGD, Adam, AdamW and RMSprop"]),
    "foreign parameters": (
        lambda: ours(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), W), ["does not hold 'w'"]
    ),
    "an optimizer of torch": (
        lambda: gradient_of(P, inner=torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)),
        ["SGD holds none of these parameters", "ms.parameters(net)"],
    ),
    "a rate for an inner optimizer": (
        lambda: gradient_of(P, inner=0.1), ["0.1 is not an inner optimizer", "ms.SGD(lr=0.1)"]
    ),
    "a class for an inner optimizer": (lambda: gradient_of(P, inner=ms.Adam), ["Adam is the class", "ms.Adam()"]),
    "a module for a problem": (
        lambda: gradient_of(nn.Linear(1, 1)), ["Linear is a module, not a problem", "ms.few_shot(net, "]
    ),
    "a function for a problem": (
        lambda: gradient_of(F.mse_loss), ["function is not a problem: it has no start, windows", "ms.Problem"]
    ),
    "half a step": (lambda: gradient_of(P, 3.0), ["steps = 3.0", "whole number"]),
    "half a window": (lambda: ms.MultiStep([2, 1.5]), ["[2, 1.5]", "whole number"]),
    "nothing to compare": (lambda: ms.compare({}, META, TASKS), ["no method"]),
    "rates without room": (lambda: of_one(method=ms.MetaSGD()), ["θ alone", "gradient.init(net)"]),
    "rates of each step without room": (
        lambda: of_one(method=ms.methods.MAMLPP()), ["θ alone", "gradient.init(net)"]
    ),
    "a memory without room": (
        lambda: of_one(method=ms.Reptile(keep_memory=True), inner=ms.Adam(0.1)), ["θ alone", "gradient.init(net)"]
    ),
    "no rate to learn": (
        lambda: gradient_of(P, 3, ms.MetaSGD(), ms.StepFunction(own_step)),
        ["StepFunction has no field `lr`", "ms.MultiStep"],
    ),
    "a task without names": (
        lambda: gradient_of(P).estimator(META, tuple(first(TASKS))), ["given as a tuple", "ms.Task("]
    ),
    "meta of another module": (
        lambda: of_one(ms.parameters(nn.Linear(2, 1))),
        ["not θ of this Sequential", "only in the module: '0.bias'", "only in meta: 'bias', 'weight'", "parameters("],
    ),
    "another module for meta": (lambda: estimate(P, meta=nn.Linear(2, 1)), ["only in meta: 'bias', 'weight'"]),
    "a name too few": (
        lambda: estimate(P, meta={name: p for name, p in META.items() if name != "2.bias"}),
        ["only in the module: '2.bias'", "requires_grad_(False)", "ms.methods.ANIL(head)"],
    ),
    "a name too many": (lambda: estimate(P, meta={**META, "x": torch.ones(1)}), ["only in meta: 'x'"]),
    "another shape": (
        lambda: estimate(P, meta={**META, "2.bias": torch.ones(())}), ["'2.bias' is (1,) in the module and () in meta"]
    ),
    "meta of another module beside rates": (
        lambda: of_one(ms.problems.with_rates(W, 0.1), method=ms.MetaSGD()), ["only in meta: 'w'"]
    ),
    "another meta for a head": (
        lambda: of_one(W, method=ms.methods.ANIL(lambda name: name == "w")), ["only in meta: 'w'"]
    ),
    "meta without names": (lambda: estimate(P, meta=list(META.values())), ["only in meta: '0', '1', '2' and 1 more"]),
    "a module for the tensors of meta": (lambda: of_one(UNIT), ["meta: Linear", "ms.parameters(module)"]),
    "a generator for meta": (lambda: estimate(P, meta=iter(META.values())), ["floating-point tensors are needed"]),
    "numbers for meta": (lambda: estimate(P, meta={"w": 1.0}), ["meta has float", "torch.tensor(…)"]),
    "nothing for meta": (lambda: estimate(P, meta={}), ["meta has nothing", "ms.parameters(net)"]),
    "a task for meta": (lambda: gradient_of(P)(TASKS, META), ["meta is a Task", "(meta, tasks)"]),
    "a class for a module": (lambda: ms.few_shot(nn.Linear, F.mse_loss), ["Linear'> is not an nn.Module", "Linear(…)"]),
    "a function for a module": (lambda: ms.few_shot(F.relu, F.mse_loss), ["relu", "is not an nn.Module", "ms.Problem"]),
    "no loss": (lambda: ms.few_shot(UNIT, None), ["the loss is None", "(prediction, target)", "cross_entropy"]),
    "a class for a loss": (lambda: ms.few_shot(UNIT, nn.MSELoss), ["MSELoss is the class", "MSELoss()"]),
    "a loss of something else": (
        lambda: ms.few_shot(UNIT, lambda p: p.mean()), ["the loss is called with (prediction, target)", "(p)"]
    ),
    "metrics without names": (
        lambda: ms.few_shot(UNIT, F.mse_loss, [ms.accuracy]), ["metrics is a list", "ms.accuracy}"]
    ),
    "a metric that is a number": (
        lambda: estimate(P._replace(outer_loss=lambda p, m, t: (p["2.bias"].sum(), {"half": 0.5}))),
        ["'half' is a float", ".item()"],
    ),
    "metrics that are no dict": (
        lambda: estimate(P._replace(outer_loss=lambda p, m, t: (p["2.bias"].sum(), 0.5))), ["metrics as a float"]
    ),
    "rates of too few steps": (
        lambda: of_one(ms.problems.with_rates(META, 0.1, 3), 4, ms.methods.MAMLPP()),
        ["rates (3,) for step 3", "gradient.init(net)", "with_rates(params, lr, steps)"],
    ),
    "methods without names": (lambda: ms.compare([gradient_of(P)], META, TASKS), ["methods is a list"]),
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
        lambda: ms.optimizers.from_torch(torch.optim.SGD(META.values(), lr=0.1), iter(META.values())),
        ["parameters is a dict_valueiterator", "named_parameters()"],
    ),
    "an inner loss for windows": (
        lambda: gradient_of(P._replace(windows=lambda params, meta, batch: batch.sum())),
        ["(task, lengths)", "(params, meta, batch)", "every_window(loss)"],
    ),
    "the same, held": (
        lambda: ms.problems.proximal(P._replace(windows=lambda p, m, b: b), 1.0), ["every_window(loss)"]
    ),
    "windows that are none": (
        lambda: estimate(P._replace(windows=lambda task, lengths: task.support[0].sum())),
        ["returned a Tensor", "list of ms.Window"],
    ),
    "windows that are pairs": (
        lambda: estimate(ms.problems.proximal(P._replace(windows=lambda task, lengths: [task.support]), 1.0)),
        ["a list of something else"],
    ),
    "a method by name": (
        lambda: gradient_of(P, 2, "multi_step"), ["method = 'multi_step'", "ms.MultiStep(window=…)"]
    ),
    "a builtin class for a curvature": (lambda: ms.MAML(curvature=int), ["curvature = int is the class"]),
    "a class for a method": (lambda: gradient_of(P, 2, ms.MAML), ["MAML is the class", "ms.MAML()"]),
    "a method that is applied already": (
        lambda: gradient_of(P, 2, gradient_of(P)), ["method = MetaGradient(", "must be a method"]
    ),
    "an inner optimizer for a method": (
        lambda: gradient_of(P, 2, SGD), ["SGD(", "where the method belongs", "ms.MetaGradient(problem, "]
    ),
    "a method for an inner optimizer": (
        lambda: gradient_of(P, inner=ms.MAML()), ["MAML()", "where the inner optimizer belongs"]
    ),
    "a solution for a method of steps": (
        lambda: gradient_of(P).at(META, first(TASKS), META), ["MAML() differentiates the steps", "ms.IMAML("]
    ),
    "what is not kept": (lambda: gradient_of(P)(META, TASKS, keep="all"), ["keep = 'all'", '"state"']),
    "arrays": (
        lambda: gradient_of(P).estimator(META, map_tree(lambda x: x.numpy(), first(TASKS))),
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
        lambda: gradient_of(PICTURES.problem)(PICTURES.meta, map_tree(lambda x: x.byte(), PICTURES.tasks)),
        ["unsigned char", "bytes of pictures by 255"],
    ),
    "a checkpointed module": (
        lambda: of_module(lambda layer, x: checkpoint(layer, x, use_reentrant=False), chunk_size=3),
        ["save_on_cpu", "chunk_size=1"],
    ),
    "a reentrant one": (
        lambda: of_module(lambda layer, x: checkpoint(nn.Tanh(), layer(x), use_reentrant=True), chunk_size=1),
        ["use_reentrant=False", "gradient_checkpointing_enable"],
    ),
    "a function of the old kind": (
        lambda: of_module(lambda layer, x: Doubled.apply(layer(x)), chunk_size=3), ["setup_context(ctx"]
    ),
    "a tensor of zeros that is filled": (lambda: of_module(filled, chunk_size=3), ["x.new_zeros", "chunk_size=1"]),
    "one_hot": (
        lambda: of_module(lambda layer, x: layer(x) * F.one_hot((x[:, 0] > 0).long(), 2), chunk_size=3),
        ["torch.eye(n)[y]"],
    ),
    "a loss of whole numbers": (
        lambda: of_module(lambda layer, x: layer(x), lambda p, y: (p > y).sum()), ["torch.int64", "no gradient"]
    ),
    "a number for a loss": (lambda: of_module(lambda layer, x: layer(x), lambda p, y: 1.0), ["a tensor", "not float"]),
    "stacked tasks for one": (
        lambda: gradient_of(PICTURES.problem).estimator(PICTURES.meta, PICTURES.tasks),
        ["[3, 6, 1, 8, 8]", "gradient(meta, tasks) takes stacked tasks"],
    ),
    "one task for stacked ones": (
        lambda: gradient_of(PICTURES.problem)(PICTURES.meta, first(PICTURES.tasks)), ["has one target", "[task]"]
    ),
    "one task of two lengths for stacked ones": (lambda: estimate(P, tasks=first(TASKS)), ["'6', '7'", "[task]"]),
    "an estimate for a step": (
        lambda: meta_step(estimate(P)), ["Estimate is not a MetaGradient", "ms.MetaStep(gradient, meta, torch.optim"]
    ),
    "an inner optimizer for a step": (
        lambda: meta_step(optimizer=SGD), ["SGD is not an optimizer of torch.optim", "torch.optim.Adam("]
    ),
    "a step without tasks": (lambda: meta_step()(), ["no tasks", "step(tasks)"]),
    "no such reference": (lambda: ms.compare({"a": gradient_of(P)}, META, TASKS, "b"), ["'b'", "a"]),
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
        gradient_of(P._replace(outer_loss=broken)).estimator(META, first(TASKS))
    assert error.value.__cause__ is None


@pytest.mark.parametrize("text", ["expected 3D volumes in a file", "my running_mean_loss is nan"])
def test_a_users_own_words_are_left_alone(text: str) -> None:
    def broken(params: Any, meta: Any, task: Any) -> torch.Tensor:
        raise ValueError(text)

    with pytest.raises(ValueError, match=text) as error:
        gradient_of(P._replace(outer_loss=broken)).estimator(META, first(TASKS))
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
    gradient = gradient_of(ms.few_shot(net, F.mse_loss))
    for meta in (ms.parameters(net), dict(net.named_parameters())):
        assert gradient.estimator(meta, first(TASKS)).grad.keys() == meta.keys()


def test_a_parameter_may_be_frozen_after_the_problem_was_made() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
    estimator, task = gradient_of(ms.few_shot(net, F.mse_loss)).estimator, first(TASKS)
    before = ms.parameters(net)
    net[0].requires_grad_(False)
    assert estimator(before, task).grad.keys() == before.keys()
    assert estimator(ms.parameters(net), task).grad.keys() == {"1.weight", "1.bias"}


def test_a_step_may_return_its_parameters_in_any_order() -> None:
    def step(params: Any, memory: Any, grad: Any, meta: Any, t: int) -> Any:
        return {name: params[name] - 0.1 * grad[name] for name in reversed(params)}, memory

    assert relative_error(stepping(step).grad, of_one().grad) < 1e-9


def test_a_head_may_be_given_by_name() -> None:
    by_name, by_function = ms.methods.ANIL("2"), ms.methods.ANIL(lambda name: name.startswith("2"))
    assert relative_error(of_one(method=by_name).grad, of_one(method=by_function).grad) == 0


def test_tasks_of_different_shapes_run_one_by_one() -> None:
    tasks = [first(TASKS), map_tree(lambda x: x[1, :4], TASKS)]
    gradient = gradient_of(P)
    mean = map_tree(lambda a, b: (a + b) / 2, *(gradient.estimator(META, task).grad for task in tasks))
    assert relative_error(gradient(META, tasks).grad, mean) < 1e-12


def test_a_module_is_its_parameters() -> None:
    net = nn.Linear(2, 1).double()
    gradient = gradient_of(ms.few_shot(net, F.mse_loss))
    assert relative_error(gradient(net, TASKS).grad, gradient(ms.parameters(net), TASKS).grad) == 0


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_non_finite_gradients_name_task_and_window(chunk_size: int | None) -> None:
    p, meta, tasks = case("regression")
    gradient = gradient_of(p, 4, chunk_size=chunk_size)
    x, y = tasks.support
    spoiled = tasks._replace(support=(x, y.clone().index_fill_(0, torch.tensor([1]), float("nan"))))
    with pytest.raises(ms.NonFiniteError, match=r"task 1: the inner gradient of window 0"):
        gradient(meta, spoiled)
    with pytest.raises(ms.NonFiniteError, match=r"task 0: the inner gradient of window \d+ \(of 300"):
        gradient_of(p, 300, inner=ms.SGD(1e6), chunk_size=chunk_size)(meta, tasks)
    spoiled = tasks._replace(query=(tasks.query[0], tasks.query[1] * float("inf")))
    with pytest.raises(ms.NonFiniteError, match=r"task 0: all inner gradients are finite, but the outer loss is not"):
        gradient(meta, spoiled)
    assert not gradient.unchecked(meta, spoiled).loss.isfinite()


def test_a_failed_call_leaves_nothing_behind() -> None:
    net = nn.Linear(2, 1).double()
    meta = ms.parameters(net)
    before = map_tree(lambda p: p.detach().clone(), meta)
    gradient = gradient_of(ms.few_shot(net, vector_loss))
    step = ms.MetaStep(gradient, meta, torch.optim.SGD(meta.values(), lr=0.1))
    for call in (lambda: gradient(meta, TASKS), lambda: gradient.loss(meta, TASKS), lambda: step(TASKS)):
        with pytest.raises(ms.MetastepError, match="must be one number for each task"):
            call()
    assert all(p.grad is None for p in meta.values())
    assert all(torch.equal(p, before[name]) for name, p in meta.items())
    assert torch.is_grad_enabled()
