"""Losses and optimizers as people write them: what used to end in other numbers, without a word."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.core.guards import Hidden
from metastep.core.torch_originals import ours
from tests.core.as_written import gradient_of, one, regression, squared, squared_error
from tests.core.helpers import relative_error


def test_es_maml_refuses_a_theta_that_stands_in_the_losses() -> None:
    """Though it has the shapes of φ"""
    net, task = nn.Linear(3, 2, dtype=torch.float64), one(regression())
    problem, meta = ms.few_shot(net, F.mse_loss), ms.parameters(net)
    curvature = ms.curvature.ZerothOrder(samples=2)
    weighted = ms.Problem(
        lambda meta, task: meta["w"],
        ms.every_window(lambda w, meta, batch: squared(w, batch) + (meta["penalty"] * w.square()).sum()),
        lambda w, meta, task: squared(w, task.query),
    )
    theta = {"w": torch.ones(3, dtype=torch.float64), "penalty": torch.ones(3, dtype=torch.float64)}
    calls = [
        (gradient_of(problem, 2, ms.IMAML(curvature=curvature)), meta),
        (gradient_of(problem, 2, ms.methods.ANIL(lambda name: name == "bias", curvature=curvature)), meta),
        (gradient_of(weighted, 2, ms.methods.ESMAML()), theta),
    ]
    for gradient, given in calls:
        with pytest.raises(ms.MetastepError, match="ES-MAML"):
            gradient.estimator(given, task)
    rates = gradient_of(problem, 2, ms.MetaSGD(curvature=curvature))  # they are in no loss
    assert rates.estimator(rates.init(net), task).grad["rates"]["bias"].abs().sum() > 0


@pytest.mark.parametrize(
    "use",
    [
        lambda w, h: 2 * h["a"] * w,
        lambda w, h: w - h["a"],
        lambda w, h: torch.stack([h["a"], w]),
        lambda w, h: torch.mul(w, other=h["a"]),
        lambda w, h: w * float(h["a"]),
        lambda w, h: "a" in h,
        lambda w, h: sum(h),
        lambda w, h: {**h},
        lambda w, h: h["a"].exp() * w,
        lambda w, h: not h["a"],
    ],
)
def test_whatever_a_loss_does_with_a_hidden_theta_is_refused(use: Any) -> None:
    with pytest.raises(ms.MetastepError, match="a window's loss computes with it"):
        use(torch.ones(2), Hidden("this method"))


def test_mini_batches_of_a_support_with_names() -> None:
    x, y = one(regression()).support

    def loss(w: Tensor, meta: Tensor, batch: Any) -> Tensor:
        return squared(w, (batch["x"], batch["y"]))

    problem = ms.Problem(
        lambda meta, task: meta, ms.every_window(loss), lambda w, meta, task: loss(w, meta, task.query)
    )
    windows = ms.problems.in_batches(problem, 2).windows(ms.Task({"x": x, "y": y}, {"x": x, "y": y}), [1, 1, 1])
    assert [len(window.batch["y"]) for window in windows] == [2, 2, 1]


def test_complex_parameters_are_compared_as_they_are() -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 1, dtype=torch.complex128))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex128) @ self.w + 1j).abs()

    tasks = regression(1)
    net = Turning()
    problem, meta = ms.few_shot(net, lambda p, y: (p - y).square().mean()), ms.parameters(net)
    methods = {"exact": gradient_of(problem), "first order": gradient_of(problem, 2, ms.FOMAML())}
    row = ms.compare(methods, meta, tasks, repeats=1)[1]
    exact, first = (gradient.estimator(meta, one(tasks)).grad["w"] for gradient in methods.values())
    assert row.relative_error == pytest.approx(float((first - exact).norm() / exact.norm()))


@pytest.mark.parametrize(
    "curvature", [ms.curvature.GaussianSmoothing(20_000, 1e-3), ms.curvature.ZerothOrder(20_000, 1e-2)]
)
def test_random_directions_of_complex_parameters(curvature: Any) -> None:
    torch.manual_seed(0)
    w, direction = (torch.randn(2, dtype=torch.complex128) for _ in range(2))
    window = ms.Window(lambda w, meta, batch: w.abs().square().sum(), (), 1)  # ∂²L · d = 2d
    product = curvature(window, w, torch.zeros(1, dtype=torch.float64), direction)[0]
    assert relative_error(product, 2 * direction) < 0.2


def test_memory_in_another_order_is_refused() -> None:
    adam = ms.Adam(0.1)
    params = {"a": torch.ones(3), "b": torch.ones(3)}
    state = adam.advance(adam.init(params), {"a": torch.ones(3), "b": 100 * torch.ones(3)}, None, 1)
    turned = state._replace(memory=tuple({"b": tree["b"], "a": tree["a"]} for tree in state.memory))
    with pytest.raises(ms.MetastepError, match="params and memory are not alike"):
        adam.advance(turned, params, None, 1)


def test_groups_without_momentum_are_not_dampened() -> None:
    a, b = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    groups = [{"params": [a], "momentum": 0.0}, {"params": [b], "momentum": 0.9}]
    optimizer, named = torch.optim.SGD(groups, lr=0.1, dampening=0.5), {"a": a, "b": b}
    dynamics, state = ours(optimizer, named)
    for step in range(4):
        grads = {name: torch.full((2,), 1.0 + step, dtype=torch.float64) for name in named}
        state = dynamics.advance(state, grads, None, 1)
        a.grad, b.grad = grads["a"], grads["b"]
        optimizer.step()
        torch.testing.assert_close(state.params, {name: p.detach() for name, p in named.items()})
        torch.testing.assert_close(ours(optimizer, named)[1].memory[0]["b"], state.memory[0]["b"])


def test_an_optimizer_with_steps_of_its_own_is_not_taken_for_its_parent() -> None:
    class Signed(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise NotImplementedError

    p = nn.Parameter(torch.ones(2))
    with pytest.raises(ms.MetastepError, match="Signed is none of metastep's own"):
        ours(Signed([p], lr=0.1), {"p": p})
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        ours(kind([p], lr=0.1), {"p": p})


def test_a_rate_may_not_enlarge_a_parameter() -> None:
    sgd = ms.SGD(torch.full((3, 3), 0.1))
    with pytest.raises(ms.MetastepError, match=r"turned a parameter \(1, 3\) into \(3, 3\)"):
        sgd.advance(sgd.init({"p": torch.ones(1, 3)}), {"p": torch.ones(1, 3)}, None, 1)


def test_a_constant_target_has_a_remedy() -> None:
    net, task = nn.Linear(3, 2, dtype=torch.float64), one(regression())
    problem = ms.few_shot(net, lambda p, y: F.mse_loss(p, torch.zeros_like(p)))
    with pytest.raises(ms.MetastepError, match=r"exact_forward.* Use curvature=ms.curvature.exact, "):
        gradient_of(problem, 2, ms.MAML(ms.curvature.exact_forward)).estimator(ms.parameters(net), task)
    gradient_of(problem, 2, ms.MAML(ms.curvature.exact)).estimator(ms.parameters(net), task)


def test_a_metric_is_not_called_loss() -> None:
    net = nn.Linear(3, 2, dtype=torch.float64)
    problem = ms.few_shot(net, F.mse_loss, {"loss": F.mse_loss})
    with pytest.raises(ms.MetastepError, match="called 'loss'"):
        gradient_of(problem)(ms.parameters(net), regression())


def test_a_stop_in_the_middle_of_a_derivative_is_a_stop() -> None:
    """TorchScript, by which some derivatives are made, says it in an error of its own"""

    def stopped(prediction: Tensor, target: Tensor) -> Tensor:
        raise RuntimeError("The following operation failed in the TorchScript interpreter: … KeyboardInterrupt: ")

    net = nn.Linear(3, 2, dtype=torch.float64)
    with pytest.raises(KeyboardInterrupt):
        gradient_of(ms.few_shot(net, stopped)).estimator(ms.parameters(net), one(regression()))


def test_a_rate_that_requires_grad_is_not_held_in_silence() -> None:
    with pytest.raises(ms.MetastepError, match=r"lr requires grad.*lambda meta, step"):
        ms.SGD(torch.tensor(0.1, requires_grad=True))


def test_adams_count_has_the_precision_of_its_parameters() -> None:
    adam, params = ms.Adam(0.1), torch.ones(3, dtype=torch.float64)
    state = adam.advance(adam.init(params), params, None, 2)
    counted = state._replace(step=torch.tensor(2))
    torch.testing.assert_close(
        adam.advance(counted, params, None, 3).params, adam.advance(state, params, None, 3).params, rtol=1e-14, atol=0
    )


def test_an_inner_loop_goes_on_from_its_end() -> None:
    def problem(start: Any) -> ms.Problem:
        return ms.Problem(
            start,
            ms.every_window(lambda w, meta, batch: squared(w, batch) + (meta * w.square()).sum()),
            lambda w, meta, task: squared(w, task.query),
        )

    meta, task = torch.full((3,), 0.1, dtype=torch.float64, requires_grad=True), one(regression())

    def end(start: Any, steps: int) -> Any:
        gradient = ms.MetaGradient(problem(start), ms.MAML(), ms.Adam(0.1), steps=steps)
        return gradient.estimator(meta, task).state.state

    def fresh(meta: Any, task: Any) -> Tensor:
        return torch.ones(3, dtype=torch.float64)

    half = end(fresh, 3)
    assert not any(leaf.requires_grad for leaf in (half.params, *half.memory))
    torch.testing.assert_close(end(lambda *_: half, 3), end(fresh, 6), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (lambda params: {"count": 0}, "a leaf that is int"),
        (lambda params: torch.zeros(1, dtype=torch.int64), "a leaf that is torch.int64"),
        (lambda: (), r"is called with \(params\)"),
        ({"moment": torch.zeros(3)}, "the memory of a StepFunction"),
    ],
)
def test_memory_of_ones_own_optimizer(memory: Any, message: str) -> None:
    with pytest.raises(ms.MetastepError, match=message):
        ms.StepFunction(lambda params, memory, grad, meta, t: (params, memory), memory).init(torch.ones(3))


def test_a_meta_gradient_of_zeros_is_told() -> None:
    net, tasks = nn.Linear(3, 2, dtype=torch.float64), regression()
    problem, meta = ms.few_shot(net, squared_error), ms.parameters(net)
    detached = problem._replace(start=lambda meta, task: {name: p.detach() for name, p in meta.items()})
    with pytest.warns(UserWarning, match="exactly 0"):
        gradient_of(detached)(meta, tasks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient_of(problem)(meta, tasks)
