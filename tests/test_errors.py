"""Bad input: the message has the input, the reason and the remedy."""

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import metastep as ms
from metastep.trees import map_tree
from tests.helpers import case, first, own_step, randn, relative_error

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


def of_module(forward: Any, loss: Any = F.mse_loss) -> Any:
    net, generator = Around(forward), torch.Generator().manual_seed(0)
    parts = [torch.randn(2, 5, n, dtype=torch.float64, generator=generator) for n in (3, 2)]
    return ms.over_tasks(ms.maml(ms.few_shot(net, loss), ms.SGD(0.1), 2))(ms.parameters_of(net), ms.Task(parts, parts))


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


def of_loss(loss: Any, module: nn.Module, batch: Any, curvature: Any = ms.exact, mapped: bool = False) -> Any:
    """A loss(module, params, batch) of one's own, inside and outside"""
    own = ms.Problem(
        lambda meta, task: meta,
        ms.every_window(lambda params, meta, batch: loss(module, params, batch)),
        lambda params, meta, task: loss(module, params, task.query),
    )
    method, task = ms.maml(own, ms.SGD(0.1), 2, curvature), ms.Task(batch, batch)
    return (
        ms.over_tasks(method)(ms.parameters_of(module), [task, task])
        if mapped
        else method(ms.parameters_of(module), task)
    )


def by_functional_call(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
    out = functional_call(module, params, (x,))
    return (out[0] if isinstance(out, tuple) else out).square().mean()  # type: ignore[no-any-return]


def by_apply(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
    out = ms.apply(module, params, x)
    return (out[0] if isinstance(out, tuple) else out).square().mean()  # type: ignore[no-any-return]


class Flash(nn.Module):
    """Chooses its kernel itself"""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v)


def slope_by_autograd(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
    (slope,) = torch.autograd.grad(ms.apply(module, params, x).sum(), x, create_graph=True)
    return slope.square().mean()


def slope_of_a_leaf(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
    return slope_by_autograd(module, params, x.detach().requires_grad_())


def slope_by_backward(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
    ms.apply(module, params, x).sum().backward()
    return x.grad.square().mean()  # type: ignore[union-attr]


class Words(nn.Module):
    """As models of transformers are: inputs and results by name"""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4, **options), nn.Linear(4, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        mask = 1 if attention_mask is None else attention_mask.unsqueeze(-1)
        return TextOutput(logits=self.head((self.embedding(input_ids) * mask).mean(1)))


class TextOutput(OrderedDict[str, torch.Tensor]):
    pass


class ByName(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.model(**batch)


def of_words(net: nn.Module, x: Any, mapped: bool = False, loss: Any = lambda p, y: p["logits"].mean()) -> Any:
    method, task = ms.maml(ms.few_shot(net, loss), ms.SGD(0.1), 2), ms.Task((x, LABELS), (x, LABELS))
    meta = ms.parameters_of(net)
    return ms.over_tasks(method)(meta, [task, task]) if mapped else method(meta, task)


ATTENTION, LSTM = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.LSTM(4, 4, batch_first=True)
SEQUENCE = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
WORDS, LABELS = torch.arange(6).reshape(2, 3), torch.arange(2)
NAMED = {"input_ids": WORDS, "attention_mask": torch.ones(2, 3)}


def padded(**options: Any) -> Any:
    """A transformer that is judged as it is used, with a padding mask"""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, **options)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.encoder(x, src_key_padding_mask=mask).mean(1)  # type: ignore[no-any-return]

    net, x = Padded().eval(), (torch.randn(2, 3, 4), torch.tensor([[False, False, True]] * 2))
    return of_words(net, x, True, lambda p, y: F.cross_entropy(p, y))


def measured_by_an_if() -> Any:
    """By a method that measures outside of any derivative"""
    net = nn.Linear(2, 1).double()
    problem = ms.few_shot(net, F.mse_loss, {"above": lambda p, y: torch.ones(()) if p.sum() > 0 else torch.zeros(())})
    return ms.over_tasks(ms.reptile(problem, ms.SGD(0.1), 2))(ms.parameters_of(net), TASKS)


def compiled_apart() -> Any:
    net = nn.Linear(2, 1).double()
    problem = ms.few_shot(torch.compile(net, backend="eager"), F.mse_loss)  # type: ignore[arg-type]
    return ms.maml(problem, ms.SGD(0.1), 2)(ms.parameters_of(net), first(TASKS))


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
        lambda: linear(F.huber_loss)(ms.exact), ["huber_loss_backward", "curvature=metastep.exact_reverse"]
    ),
    "no second backward": (
        lambda: linear(lambda a, b: torch.cdist(a, b).mean())(ms.exact_reverse),
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
    "item": (lambda: looking(lambda x: x.max().item()), [".item()", "vmap", "torch.where", "chunk_size=1"]),
    "if": (lambda: looking(lambda x: 1.0 if x.sum() > 0 else -1.0), ["or an if", "vmap", "chunk_size=1"]),
    "a mask": (lambda: looking(lambda x: x[x > 0].mean()), ["indexing with a boolean mask", "vmap"]),
    "an array on the way": (lambda: looking(lambda x: float(x.numpy().max())), [".numpy()", "metastep.apply("]),
    "no batching rule": (
        lambda: mapped(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 1).double())),
        ["the operator div.out", "vmap", "spectral_norm", "module.eval()"],
    ),
    "several devices": (lambda: ms.few_shot(nn.DataParallel(UNIT), F.mse_loss), ["DataParallel 'itself'", ".module,"]),
    "a part for several devices": (
        lambda: ms.apply(nn.Sequential(nn.DataParallel(UNIT)), {}, torch.ones(1, 1)), ["DataParallel '0'", "all_reduce"]
    ),
    "a scripted module": (
        lambda: ms.few_shot(torch.jit.script(UNIT), F.mse_loss), ["ScriptModule 'itself'", "scripted or traced from"]
    ),
    "a part that is scripted": (
        lambda: of_loss(by_apply, nn.Sequential(torch.jit.script(UNIT)), torch.ones(1, 1)), ["ScriptModule '0'"]
    ),
    "a scripted module, called otherwise": (
        lambda: of_loss(by_functional_call, torch.jit.script(UNIT), torch.ones(1, 1)),
        ["torch.jit", "metastep.apply(module, params, x)"],
    ),
    "theta of what was compiled": (compiled_apart, ["_orig_mod.", "compile the step"]),
    "attention without apply": (
        lambda: of_loss(by_functional_call, ATTENTION, SEQUENCE), ["scaled_dot_product", "Call the module by metastep."]
    ),
    "attention without apply, backward twice": (
        lambda: of_loss(by_functional_call, ATTENTION, SEQUENCE, ms.exact_reverse), ["_backward)", "metastep.apply("]
    ),
    "a fused recurrence": (lambda: of_loss(by_functional_call, LSTM, SEQUENCE), ["mkldnn_rnn", "metastep.apply("]),
    "a fused recurrence, backward twice": (
        lambda: of_loss(by_functional_call, LSTM, SEQUENCE, ms.exact_reverse), ["workspace", "metastep.apply("]
    ),
    "a recurrence without apply, mapped": (
        lambda: of_loss(by_functional_call, nn.GRU(4, 4), SEQUENCE, mapped=True), ["in place", "metastep.apply("]
    ),
    "attention by its own kernel": (
        lambda: of_loss(by_apply, Flash(), SEQUENCE), ["called so already", "sdpa_kernel", "central_difference()"]
    ),
    "a slope by autograd": (
        lambda: of_loss(slope_by_autograd, UNIT, torch.ones(3, 1)), ["does not require grad", "torch.func.grad(lambda"]
    ),
    "a slope by autograd, of a leaf": (
        lambda: of_loss(slope_of_a_leaf, UNIT, torch.ones(3, 1)), ["requires_grad_()", "torch.func.grad(", "vjp or jvp"]
    ),
    "a slope by backward": (
        lambda: of_loss(slope_by_backward, UNIT, torch.ones(3, 1)), ["backward() called", "torch.func.grad("]
    ),
    "nonzero": (lambda: looking(lambda x: x[torch.where(x > 0)].mean()), ["nonzero gives a shape", "torch.where(mask"]),
    "unique": (lambda: looking(lambda x: len(x.unique())), ["_unique2 gives a shape", "chunk_size=1"]),
    "masked_select": (lambda: looking(lambda x: x.masked_select(x > 0).mean()), ["masked_select gives a shape"]),
    "a slice up to a tensor": (lambda: looking(lambda x: x[: (x > 0).sum()].sum()), ["x[:n]", "chunk_size=1"]),
    "an if in a metric": (measured_by_an_if, ["or an if", "torch.where"]),
    "an embedding of sparse gradients": (lambda: of_words(Words(sparse=True), WORDS), ["Leave sparse=True out"]),
    "the same, mapped": (lambda: of_words(Words(sparse=True), WORDS, True), ["Leave sparse=True out"]),
    "an embedding that is held small": (lambda: of_words(Words(max_norm=1.0), WORDS, True), ["Leave max_norm out"]),
    "inputs by name": (lambda: of_words(Words(), NAMED), ["dict was given", "return self.model(**batch)"]),
    "inputs by name, of pictures": (
        lambda: of_words(nn.Conv2d(1, 1, 1), {"x": torch.ones(2, 1, 3, 3)}), ["dict was given", "self.model(**batch)"]
    ),
    "inputs by name, looked at": (
        lambda: of_words(Around(lambda layer, x: layer(x) if x.dim() else x), NAMED), ["dict was given", "(**batch)"]
    ),
    "results by name": (
        lambda: of_words(Words(), WORDS, loss=F.cross_entropy), ["TextOutput was given", 'out["logits"]']
    ),
    "a padding mask": (padded, ["nested tensor", "enable_nested_tensor=False"]),
    "no such reference": (lambda: ms.compare({"a": ms.maml(P, ms.SGD(0.1), 2)}, META, TASKS, "b"), ["'b'", "a"]),
}  # fmt: skip


if not torch.backends.mkldnn.is_available():
    BAD = {name: row for name, row in BAD.items() if not name.startswith("a fused recurrence")}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, words = BAD[name]
    with pytest.raises(ms.MetastepError) as error:
        call()
    for word in words:
        assert word in str(error.value)


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


def test_what_the_message_recommends_works() -> None:
    assert linear(F.huber_loss)(ms.exact_reverse).loss.isfinite()
    assert linear(lambda a, b: torch.cdist(a, b).mean())(ms.central_difference()).loss.isfinite()
    assert mapped(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 1).double()).eval()).loss.isfinite()
    for net in (ATTENTION, LSTM, nn.GRU(4, 4)):
        assert of_loss(by_apply, net, SEQUENCE, mapped=True).loss.isfinite()
    assert of_loss(by_apply, Flash(), SEQUENCE, ms.central_difference()).loss.isfinite()
    assert of_words(ByName(Words()), NAMED, True).loss.isfinite()
    assert padded(enable_nested_tensor=False).loss.isfinite()


@pytest.mark.parametrize("curvature", [ms.exact, ms.exact_reverse])
def test_slopes_in_a_loss_are_differentiated_again(curvature: Any) -> None:
    def slope(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: ms.apply(module, params, x).sum())(x).square().mean()

    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double(), randn(5, 1)
    phi = meta = ms.parameters_of(net)
    for step in range(3):  # the last is the outer loss
        x = x.detach().requires_grad_()  # φ must not depend on it
        (by_x,) = torch.autograd.grad(functional_call(net, phi, (x,)).sum(), x, create_graph=True)
        grads = torch.autograd.grad(
            by_x.square().mean(), list((phi if step < 2 else meta).values()), create_graph=True, materialize_grads=True
        )
        phi = {name: p - 0.1 * g for (name, p), g in zip(phi.items(), grads, strict=True)}
    swept = of_loss(slope, net, x.detach(), curvature, mapped=True).grad
    assert relative_error(list(swept.values()), [g.detach() for g in grads]) < 1e-12


@pytest.mark.parametrize("look", [lambda x: x.max().item(), lambda x: 1.0 if x.sum() > 0 else -1.0])
def test_tasks_that_cannot_be_mapped_are_taken_one_by_one(look: Any) -> None:
    net = Looking(look)
    problem, meta = ms.few_shot(net, F.mse_loss), ms.parameters_of(net)
    tasks = [map_tree(lambda x, i=i: x[i], TASKS) for i in range(3)]
    swept = ms.over_tasks(ms.maml(problem, ms.SGD(0.1), 2), chunk_size=1)(meta, TASKS)
    stored = ms.stack([ms.reference(problem, ms.SGD(0.1), 2)(meta, task).grad for task in tasks])
    assert relative_error(swept.grad, {name: grad.mean(0) for name, grad in stored.items()}) < 1e-9
    assert swept.metrics["loss"].shape == (3,)


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
