"""Whatever a module does, its meta-gradient is that of a loop by hand, or refused; and the module stays as it was."""

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import metastep as ms
from metastep.core.trees import map_tree
from tests.core.adversaries import ONE_BY_ONE, REFUSED, SERVED, Checkpointed, Plain, Reversible, Stepped
from tests.core.as_written import by_autograd, gradient_of, one, regression, squared_error
from tests.core.helpers import relative_error

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
EXACT = {"MAML": ms.MAML(), "Reference": ms.methods.Reference()}
WAYS = ("alone", "one by one", "mapped")


def seeded() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def found_by(net: nn.Module, method: Any, way: str, steps: int = 3) -> Any:
    chunk_size = {"alone": None, "one by one": 1, "mapped": 3}[way]
    gradient = gradient_of(ms.few_shot(net, squared_error), steps, method, chunk_size=chunk_size)
    seeded()
    if way == "alone":
        return gradient.estimator(ms.parameters(net), one(regression())).grad
    tasks = regression()
    seeded()
    return gradient(net, tasks).grad


def by_hand(net: nn.Module, way: str, steps: int = 3) -> Any:
    tasks = regression()
    seeded()
    number = 1 if way == "alone" else 3
    alone = [by_autograd(net, ms.Task(*[(x[i], y[i]) for x, y in tasks]), steps) for i in range(number)]
    return map_tree(lambda *grads: sum(grads) / number, *alone)


def held(net: nn.Module) -> Any:
    """All that a module holds: objects, and the numbers in tensors"""
    tensors = [(x, x.detach().clone()) for x in net.state_dict(keep_vars=True).values()]
    attributes = [{n: (id(v), repr(v) if isinstance(v, dict | list | set) and not isinstance(v, nn.Module) else "")
                   for n, v in vars(part).items() if n not in ("_parameters", "_buffers", "_modules")}
                  for part in net.modules()]  # fmt: skip
    return tensors, attributes


def unchanged(net: nn.Module, before: Any) -> bool:
    tensors, attributes = held(net)
    same = all(a is b and torch.equal(x, y) for (a, x), (b, y) in zip(tensors, before[0], strict=True))
    return same and attributes == before[1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("name", SERVED)
def test_served(name: str, method: str, way: str) -> None:
    make, plain = SERVED[name]
    net = make()
    before = held(net)
    found = found_by(net, EXACT[method], way)
    assert relative_error(list(found.values()), list(by_hand(plain(), way).values())) < 1e-12
    assert unchanged(net, before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_served_one_by_one_and_refused_where_mapped(name: str, way: str) -> None:
    make, plain, why = ONE_BY_ONE[name]
    net = make()
    before = held(net)
    if way == "mapped":
        with pytest.raises(ms.MetastepError, match=why):
            found_by(net, ms.MAML(), way)
    else:
        found = found_by(net, ms.MAML(), way)
        assert relative_error(found, by_hand(plain(), way)) < 1e-12
    assert unchanged(net, before)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, way: str) -> None:
    make, why = REFUSED[name]
    net = make()
    before = held(net)
    with pytest.raises(ms.MetastepError, match=why):
        found_by(net, ms.MAML(), way)
    assert unchanged(net, before)


def test_the_remedies_that_messages_name_work() -> None:
    for served in (ms.FOMAML(), ms.MAML(curvature=ms.curvature.CentralDifference())):
        net = REFUSED["an adjoint"][0]()
        expected = found_by(Stepped(), served, "alone")
        assert relative_error(found_by(net, served, "alone"), expected) < 1e-9
    with pytest.raises(ms.MetastepError, match=r"adds to \.grad"):
        found_by(Reversible(), ms.FOMAML(), "alone")
    with pytest.raises(ms.MetastepError, match=r"runs again in its backward.*ms\.MAML\(\)"):
        found_by(Checkpointed(), ms.methods.Reference(), "alone")


class Failing(Plain):
    def __init__(self, at: int, error: type[BaseException]) -> None:
        super().__init__()
        self.failure = iter(range(1, at + 1)), at, error  # counts outside of what can be put back

    def forward(self, x: Tensor) -> Any:
        self.left_behind = x
        calls, at, error = self.failure
        if next(calls, at) == at:
            raise error("stop")
        return super().forward(x)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", [1, 2, 4, 7, 9])
def test_an_error_at_any_call_leaves_the_module_as_it_was(at: int, way: str, error: type[BaseException]) -> None:
    net = Failing(at, error)
    before = held(net)
    with pytest.raises(error, match="stop"):
        found_by(net, ms.MAML(), way)
    assert unchanged(net, before)


def of_three(start: Any = None, inner: Any = None, step: Any = None) -> Any:
    """A problem by hand on the net's parameters"""
    net = Plain()

    def loss(params: Any, meta: Any, batch: Any) -> Tensor:
        return squared_error(ms.apply(net, params, batch[0]), batch[1])

    problem = ms.Problem(
        start or (lambda meta, task: meta),
        ms.every_window(inner or loss),
        lambda params, meta, task: loss(params, meta, task.query),
    )
    return net, gradient_of(problem, 2, inner=ms.SGD(0.1) if step is None else ms.StepFunction(step))


SCALE = nn.Linear(1, 1, dtype=torch.float64)
ONES = torch.ones(1, 1, dtype=torch.float64)


def stepping(params: Any, memory: Any, grad: Any, meta: Any, t: int) -> Any:
    return {n: p - 0.1 * SCALE(ONES).sum() * grad[n] for n, p in params.items()}, memory


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "parts",
    [
        {"step": stepping},
        {"start": lambda meta, task: {n: p * SCALE(ONES).sum() for n, p in meta.items()}},
        {"inner": lambda params, meta, batch: SCALE(ONES).sum() * sum(p.square().sum() for p in params.values())},
    ],
)
def test_a_module_that_is_called_directly_is_told(parts: Any, mapped: bool) -> None:
    net, gradient = of_three(**parts)
    with pytest.warns(UserWarning, match=r"neither φ nor θ.* ms\.apply\(module, meta, x\)"):
        (gradient if mapped else gradient.estimator)(ms.parameters(net), regression() if mapped else one(regression()))


@pytest.mark.parametrize("mapped", [False, True])
def test_parameters_that_are_read_past_the_arguments_are_refused(mapped: bool) -> None:
    net = Plain()
    decay = ms.few_shot(net, lambda out, y: squared_error(out, y) + sum(p.square().sum() for p in net.parameters()))
    gradient = gradient_of(decay, 2)
    with pytest.raises(ms.MetastepError, match=r"an inner loss uses .* itself and not what stands for it"):
        (gradient if mapped else gradient.estimator)(ms.parameters(net), regression() if mapped else one(regression()))


@pytest.mark.parametrize("mapped", [False, True])
def test_parts_of_theta_that_reach_nothing_are_told(mapped: bool) -> None:
    net, gradient = of_three(start=lambda meta, task: meta["net"])
    meta = {"net": ms.parameters(net), "more": torch.ones(2, dtype=torch.float64, requires_grad=True)}
    with pytest.warns(UserWarning, match=r"more of meta: nothing that this method differentiates depends on it"):
        (gradient if mapped else gradient.estimator)(meta, regression() if mapped else one(regression()))


class Measuring(nn.Module):
    """Writes into a buffer that it does not read"""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)
        self.register_buffer("mean", torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        self.mean += y.detach().mean(0)
        return y


@pytest.mark.parametrize("mapped", [False, True])
def test_buffers_that_a_loop_by_hand_would_keep_are_told(mapped: bool) -> None:
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2, dtype=torch.float64))

    def call(net: nn.Module) -> None:
        gradient = gradient_of(ms.few_shot(net, squared_error), 2)
        (gradient if mapped else gradient.estimator)(ms.parameters(net), regression() if mapped else one(regression()))

    with pytest.warns(UserWarning, match=r"writes into its buffers in forward, and reads them"):
        call(normed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(normed.eval())
        call(Measuring())


def test_one_task_is_told_what_many_are() -> None:
    net, gradient = of_three(start=lambda meta, task: {n: p.detach() for n, p in meta.items()})
    with pytest.warns(UserWarning, match="exactly 0"):
        gradient.estimator(ms.parameters(net), one(regression()))
    (x, y), query = one(regression())
    gradient = gradient_of(ms.few_shot(net, squared_error), 2)
    with pytest.raises(ms.NonFiniteError, match="the inner gradient of window 0"):
        gradient.estimator(ms.parameters(net), ms.Task((x, y * float("nan")), query))


def test_noise_that_begins_later_is_refused() -> None:
    calls = iter(range(1000))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return squared_error(out, y) * (1 + (random.random() if next(calls) > 14 else 0.0))

    net = Plain()
    gradient = gradient_of(ms.few_shot(net, loss), 2).estimator
    meta, task = ms.parameters(net), one(regression())
    gradient(meta, task)
    gradient(meta, task)
    with pytest.raises(ms.MetastepError, match="did not at its first call"):
        gradient(meta, task)


def test_a_kind_is_looked_at_once() -> None:
    net, calls = Plain(), []
    problem = ms.few_shot(net, lambda out, y: calls.append(1) or squared_error(out, y))  # type: ignore[func-returns-value]
    gradient, task = gradient_of(problem, 2).estimator, one(regression())
    numbers = []
    for _ in range(3):
        calls.clear()
        gradient(ms.parameters(net), task)
        numbers.append(len(calls))
    assert numbers[0] > numbers[1] == numbers[2] == 5  # 2 gradients, 2 products, the outer loss
    calls.clear()
    gradient(ms.parameters(net.eval()), task)
    assert len(calls) == numbers[0]  # another mode is another kind


def test_a_first_look_draws_nothing_from_anybody() -> None:
    net = Plain()
    gradient = gradient_of(ms.few_shot(net, lambda out, y: squared_error(out + torch.randn_like(out), y)), 2).estimator
    values = []
    for _ in range(2):
        seeded()
        values.append((gradient(ms.parameters(net), one(regression())).loss, torch.rand(()), random.random()))
    assert values[0] == values[1]


def test_a_quiet_module_is_not_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for way in WAYS:
            found_by(Plain(), ms.MAML(), way)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_start_that_is_a_constant_is_quiet(mapped: bool) -> None:
    """Weights of examples are learned for a net that starts as it is"""
    net, tasks = Plain(), regression()

    def loss(params: Any, meta: Any, batch: Any) -> Tensor:
        errors = (ms.apply(net, params, batch[0]) - batch[1]).square().mean(-1)
        return (meta["weights"].sigmoid() * errors).mean()

    def outer(params: Any, meta: Any, task: Any) -> Tensor:
        return squared_error(ms.apply(net, params, task.query[0]), task.query[1])

    problem = ms.Problem(lambda meta, task: ms.parameters(net), ms.every_window(loss), outer)
    gradient = gradient_of(problem, 2, chunk_size=3 if mapped else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = (gradient if mapped else gradient.estimator)(
            {"weights": torch.zeros(5, dtype=torch.float64)}, tasks if mapped else one(tasks)
        )
    assert bool(found.grad["weights"].any())
