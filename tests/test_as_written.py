"""Losses, modules and optimizers as people write them: what used to end in other numbers, without a word."""

import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import metastep as ms
from metastep.compiler.compiling import Compiled, as_traced
from metastep.hidden import Hidden
from tests.helpers import relative_error

SGD = ms.SGD(0.1)


def regression(tasks: int = 3) -> ms.Task:
    torch.manual_seed(0)
    shapes = ((tasks, 5, 3), (tasks, 5, 2))
    return ms.Task(*(tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes) for _ in range(2)))


def one(tasks: ms.Task) -> ms.Task:
    return ms.Task(*(tuple(x[0] for x in part) for part in tasks))


def squared(w: Tensor, batch: Any) -> Tensor:
    x, y = batch
    return (x @ w - y[:, 0]).square().mean()


def test_noise_of_a_problem_written_by_hand_is_drawn_once() -> None:
    def noisy(w: Tensor, meta: Tensor, batch: Any) -> Tensor:
        x, y = batch
        return squared(w, (F.dropout(x, 0.5), y))

    problem = ms.Problem(lambda meta, task: meta, ms.every_window(noisy), lambda w, meta, task: squared(w, task.query))
    found = []
    for method in (ms.maml(problem, SGD, 4), ms.reference(problem, SGD, 4)):
        torch.manual_seed(1)
        found.append(method(torch.ones(3, dtype=torch.float64), one(regression())))
    assert found[0].loss == found[1].loss
    assert relative_error(found[0].grad, found[1].grad) < 1e-12


def test_a_start_that_draws_is_refused() -> None:
    problem = ms.Problem(
        lambda meta, task: meta * torch.randn_like(meta),
        ms.every_window(lambda w, meta, batch: squared(w, batch)),
        lambda w, meta, task: squared(w, task.query),
    )
    with pytest.raises(ms.MetastepError, match="start of a problem draws random numbers"):
        ms.maml(problem, SGD, 2)(torch.ones(3, dtype=torch.float64), one(regression()))


class Noisy(nn.Module):
    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(3, 2, dtype=torch.float64), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(self.layer(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("draw", "refused"),
    [
        (lambda x: x + torch.randn_like(x) * x, True),
        (lambda x: F.dropout(x, 0.5), True),
        (lambda x: x * torch.empty_like(x).uniform_(), True),
        (lambda x: x * x.sigmoid().detach().bernoulli(), True),
        (lambda x: x[..., torch.randperm(2)], True),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), True),
        (lambda x: F.scaled_dot_product_attention(x, x, x), False),
        (lambda x: F.dropout(x, 0.5, training=False), False),
        (lambda x: F.dropout(x, 0.0), False),
    ],
)
def test_a_step_that_draws_is_not_recorded(draw: Any, refused: bool) -> None:
    net, tasks = Noisy(draw), regression()
    step = ms.over_tasks(ms.maml(ms.few_shot(net, F.mse_loss), SGD, 3), check_finite=False)
    unit = Compiled(lambda meta, tasks: (meta, step(meta, tasks)), as_traced)
    meta = {name: p.detach() for name, p in ms.parameters_of(net).items()}
    found = []
    for call in (lambda: unit(meta, tasks)[1], lambda: step(meta, tasks)):
        torch.manual_seed(2)
        found.append(call().grad)
    assert ("not traced: NoiseError" in unit.path) is refused, unit.path
    assert relative_error(found[0], found[1]) < 1e-12


def test_es_maml_refuses_a_theta_that_stands_in_the_losses() -> None:
    """Though it has the shapes of φ"""
    net, task = nn.Linear(3, 2, dtype=torch.float64), one(regression())
    problem, meta = ms.few_shot(net, F.mse_loss), ms.parameters_of(net)
    curvature = ms.zeroth_order(2)
    weighted = ms.Problem(
        lambda meta, task: meta["w"],
        ms.every_window(lambda w, meta, batch: squared(w, batch) + (meta["penalty"] * w.square()).sum()),
        lambda w, meta, task: squared(w, task.query),
    )
    theta = {"w": torch.ones(3, dtype=torch.float64), "penalty": torch.ones(3, dtype=torch.float64)}
    calls = [
        lambda: ms.imaml(problem, SGD, 2, curvature=curvature)(meta, task),
        lambda: ms.anil(problem, SGD, 2, lambda name: name == "bias", curvature=curvature)(meta, task),
        lambda: ms.es_maml(weighted, SGD, 2)(theta, task),
    ]
    for call in calls:
        with pytest.raises(ms.MetastepError, match="ES-MAML"):
            call()
    rates = ms.meta_sgd(problem, SGD, 2, curvature=curvature)(ms.with_rates(meta, 0.1), task)  # stands in no loss
    assert rates.grad["rates"]["bias"].abs().sum() > 0


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


class Counting(nn.Module):
    """Writes a buffer on the way"""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        self.seen = 0.9 * self.seen + 0.1 * y.mean(0).detach()
        return y - self.seen


class Cell(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell = kind(3, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.cell(x)
        return y[0] if isinstance(y, tuple) else y  # type: ignore[no-any-return]


@pytest.mark.parametrize("net", [Counting(), Cell(nn.GRUCell), Cell(nn.LSTMCell), Cell(nn.RNNCell)])
def test_modules(net: nn.Module) -> None:
    tasks = regression()
    problem, meta = ms.few_shot(net, lambda p, y: (p - y).square().mean()), ms.parameters_of(net)
    buffers = {name: b.clone() for name, b in net.named_buffers()}
    for estimate in (lambda method: method(meta, one(tasks)), lambda method: ms.over_tasks(method)(meta, tasks)):
        exact, reference = (estimate(method(problem, SGD, 3)).grad for method in (ms.maml, ms.reference))
        assert relative_error(exact, reference) < 1e-12
    torch.testing.assert_close(dict(net.named_buffers()), buffers)
    assert all(type(p) is nn.Parameter for p in net.parameters())


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"answer": self.layer(x)}


def test_metrics_of_what_is_no_tensor() -> None:
    def error(prediction: Any, target: Tensor) -> Tensor:
        return F.mse_loss(prediction["answer"], target)

    net, task = Named(), one(regression())
    estimate = ms.maml(ms.few_shot(net, error, {"error": error}), SGD, 2)(ms.parameters_of(net), task)
    torch.testing.assert_close(estimate.metrics["error"], estimate.loss)


def test_mini_batches_of_a_support_with_names() -> None:
    x, y = one(regression()).support

    def loss(w: Tensor, meta: Tensor, batch: Any) -> Tensor:
        return squared(w, (batch["x"], batch["y"]))

    problem = ms.Problem(
        lambda meta, task: meta, ms.every_window(loss), lambda w, meta, task: loss(w, meta, task.query)
    )
    windows = ms.in_batches(problem, 2).windows(ms.Task({"x": x, "y": y}, {"x": x, "y": y}), [1, 1, 1])
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
    problem, meta = ms.few_shot(net, lambda p, y: (p - y).square().mean()), ms.parameters_of(net)
    methods = {"exact": ms.maml(problem, SGD, 2), "first order": ms.fo_maml(problem, SGD, 2)}
    row = ms.compare(methods, meta, tasks, repeats=1)[1]
    exact, first = (method(meta, one(tasks)).grad["w"] for method in methods.values())
    assert row.relative_error == pytest.approx(float((first - exact).norm() / exact.norm()))


@pytest.mark.parametrize("curvature", [ms.gaussian_smoothing(20_000, 1e-3), ms.zeroth_order(20_000, 1e-2)])
def test_random_directions_of_complex_parameters(curvature: Any) -> None:
    torch.manual_seed(0)
    w, direction = (torch.randn(2, dtype=torch.complex128) for _ in range(2))
    window = ms.Window(lambda w, meta, batch: w.abs().square().sum(), (), 1)  # ∂²L · d = 2d
    product = curvature(window, w, torch.zeros(1, dtype=torch.float64), direction)[0]
    assert relative_error(product, 2 * direction) < 0.2


# ---- optimizers


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
    dynamics, state = ms.from_optimizer(optimizer, named)
    for step in range(4):
        grads = {name: torch.full((2,), 1.0 + step, dtype=torch.float64) for name in named}
        state = dynamics.advance(state, grads, None, 1)
        a.grad, b.grad = grads["a"], grads["b"]
        optimizer.step()
        torch.testing.assert_close(state.params, {name: p.detach() for name, p in named.items()})
        torch.testing.assert_close(ms.from_optimizer(optimizer, named)[1].memory[0]["b"], state.memory[0]["b"])


def test_an_optimizer_with_steps_of_its_own_is_not_taken_for_its_parent() -> None:
    class Signed(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise NotImplementedError

    p = nn.Parameter(torch.ones(2))
    with pytest.raises(ms.MetastepError, match=r"Signed has no dynamics here.*StepFunction"):
        ms.from_optimizer(Signed([p], lr=0.1), {"p": p})
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        ms.from_optimizer(kind([p], lr=0.1), {"p": p})


def test_a_rate_may_not_enlarge_a_parameter() -> None:
    sgd = ms.SGD(torch.full((3, 3), 0.1))
    with pytest.raises(ms.MetastepError, match=r"turned a parameter \(1, 3\) into \(3, 3\)"):
        sgd.advance(sgd.init({"p": torch.ones(1, 3)}), {"p": torch.ones(1, 3)}, None, 1)


def test_a_constant_target_has_a_remedy() -> None:
    net, task = nn.Linear(3, 2, dtype=torch.float64), one(regression())
    problem = ms.few_shot(net, lambda p, y: F.mse_loss(p, torch.zeros_like(p)))
    with pytest.raises(ms.MetastepError, match=r"exact_forward.* Pass curvature=metastep.exact, "):
        ms.maml(problem, SGD, 2, ms.exact_forward)(ms.parameters_of(net), task)
    ms.maml(problem, SGD, 2)(ms.parameters_of(net), task)


def test_a_metric_is_not_called_loss() -> None:
    net = nn.Linear(3, 2, dtype=torch.float64)
    problem = ms.few_shot(net, F.mse_loss, {"loss": F.mse_loss})
    with pytest.raises(ms.MetastepError, match="called 'loss'"):
        ms.over_tasks(ms.maml(problem, SGD, 2))(ms.parameters_of(net), regression())


def test_a_stop_in_the_middle_of_a_derivative_is_a_stop() -> None:
    """TorchScript, by which some derivatives are made, says it in an error of its own"""

    def stopped(prediction: Tensor, target: Tensor) -> Tensor:
        raise RuntimeError("The following operation failed in the TorchScript interpreter: … KeyboardInterrupt: ")

    net = nn.Linear(3, 2, dtype=torch.float64)
    with pytest.raises(KeyboardInterrupt):
        ms.maml(ms.few_shot(net, stopped), SGD, 2)(ms.parameters_of(net), one(regression()))


def drawn_rule(params: Any, memory: Any, grad: Any, meta: Any, t: int) -> Any:
    return params - 0.1 * torch.bernoulli(torch.full_like(grad, 0.5)) * grad, memory


@pytest.mark.parametrize(
    "dynamics", [ms.StepFunction(drawn_rule), ms.SGD(lambda meta, step: 0.1 * torch.rand((), dtype=torch.float64))]
)
def test_an_optimizer_that_draws_is_refused(dynamics: Any) -> None:
    problem = ms.Problem(
        lambda meta, task: meta,
        ms.every_window(lambda w, meta, batch: squared(w, batch)),
        lambda w, meta, task: squared(w, task.query),
    )
    with pytest.raises(ms.MetastepError, match="an inner optimizer, or a rate of it, draws random numbers"):
        ms.maml(problem, dynamics, 2)(torch.ones(3, dtype=torch.float64), one(regression()))


def test_a_start_that_draws_pulls_nowhere() -> None:
    problem = ms.Problem(
        lambda meta, task: torch.randn(3, dtype=torch.float64),
        ms.every_window(lambda w, meta, batch: 0 * w.sum()),
        lambda w, meta, task: squared(w, task.query),
    )
    with pytest.raises(ms.MetastepError, match="the start of a problem draws"):
        ms.imaml(problem, SGD, 2).adapt(torch.ones(3, dtype=torch.float64), one(regression()))


def test_methods_are_compared_under_the_same_noise() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2)).double()
    method = ms.maml(ms.few_shot(net, F.mse_loss), SGD, 3)
    rows = ms.compare({"one": method, "the same": method}, ms.parameters_of(net), regression(), repeats=2)
    assert [row.cosine for row in rows] == pytest.approx([1, 1])
    assert [row.relative_error for row in rows] == pytest.approx([0, 0], abs=1e-12)


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
    adam = ms.Adam(0.1)
    fresh = problem(lambda meta, task: torch.ones(3, dtype=torch.float64))
    half = ms.maml(fresh, adam, 3).end(meta, task)
    assert not any(leaf.requires_grad for leaf in (half.params, *half.memory))
    whole, rest = ms.maml(fresh, adam, 6).end(meta, task), ms.maml(problem(lambda *_: half), adam, 3).end(meta, task)
    torch.testing.assert_close(rest, whole, rtol=1e-14, atol=0)


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
        ms.StepFunction(drawn_rule, memory).init(torch.ones(3))


class Autocast(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out: Tensor = self.net(x).float()
        return out


def pictures() -> tuple[nn.Module, ms.Task]:
    """With BatchNorm, in float32"""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    parts = ((torch.randn(2, 9, 1, 6, 6), torch.arange(9).repeat(2, 1) % 3) for _ in range(2))
    return ms.use_batch_statistics(net), ms.Task(*parts)


def meta_gradient(
    net: nn.Module, tasks: ms.Task, curvature: Any = ms.exact, chunk_size: int | None = None
) -> dict[str, Tensor]:
    problem, meta = ms.few_shot(net, F.cross_entropy), ms.parameters_of(net)
    found: dict[str, Tensor] = ms.over_tasks(ms.multi_step(problem, SGD, 4, 2, curvature), chunk_size)(meta, tasks).grad
    return found


@pytest.mark.parametrize("curvature", [ms.exact, ms.exact_forward])
def test_a_net_and_its_data_in_bfloat16(curvature: Any) -> None:
    net, tasks = pictures()
    expected = list(meta_gradient(net, tasks).values())
    half = ms.Task(*((x.bfloat16(), y) for x, y in tasks))
    found = [each.float() for each in meta_gradient(net.bfloat16(), half, curvature).values()]
    assert relative_error(found, expected) < 0.1


@pytest.mark.parametrize("curvature", [ms.exact, ms.exact_forward])
def test_autocast_without_normalisation(curvature: Any) -> None:
    net, tasks = pictures()
    net[1] = nn.Identity()
    expected = list(meta_gradient(net, tasks).values())
    found = list(meta_gradient(Autocast(net), tasks, curvature).values())
    assert 0 < relative_error(found, expected) < 0.1


def test_autocast_with_normalisation_says_what_to_do_instead() -> None:
    net, tasks = pictures()
    with pytest.raises(ms.MetastepError, match=r"torch.autocast .* cast in a loss .*p\.bfloat16\(\).* chunk_size=1"):
        meta_gradient(Autocast(net), tasks)
    found = list(meta_gradient(Autocast(net), tasks, chunk_size=1).values())
    assert 0 < relative_error(found, list(meta_gradient(net, tasks).values())) < 0.1


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target).square().mean()


def by_autograd(net: nn.Module, task: ms.Task, steps: int) -> dict[str, Tensor]:
    """MAML's meta-gradient, written as everybody does"""
    phi = meta = dict(net.named_parameters())
    for _ in range(steps):
        loss = squared_error(functional_call(net, phi, task.support[0], tie_weights=False), task.support[1])
        grads = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
        phi = {name: p - 0.1 * g for (name, p), g in zip(phi.items(), grads, strict=True)}
    outer = squared_error(functional_call(net, phi, task.query[0], tie_weights=False), task.query[1])
    return dict(zip(meta, torch.autograd.grad(outer, list(meta.values())), strict=True))


def twice(between: nn.Module) -> nn.Module:
    """A part that occurs twice, under two names"""
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(3, 3, dtype=torch.float64), between)
    return nn.Sequential(part, part, nn.Linear(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("between", [nn.Tanh(), nn.BatchNorm1d(3, dtype=torch.float64).eval()])
def test_a_part_that_occurs_twice_is_left_in_its_place(between: nn.Module) -> None:
    net, tasks = twice(between), regression()
    problem, meta = ms.few_shot(net, squared_error), ms.parameters_of(net)
    before = {name: (tensor, tensor.clone()) for name, tensor in net.state_dict(keep_vars=True).items()}
    method = ms.maml(problem, SGD, 4)
    expected = by_autograd(twice(deepcopy(between)), one(tasks), 4)
    assert relative_error(method(meta, one(tasks)).grad, expected) < 1e-12
    ms.over_tasks(method)(meta, tasks)
    ms.apply(net, method.adapt(meta, one(tasks)), tasks.query[0][0])
    after = net.state_dict(keep_vars=True)
    assert all(after[name] is tensor and torch.equal(tensor, kept) for name, (tensor, kept) in before.items())
    assert list(ms.parameters_of(net)) == list(meta)


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5)
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize("mapped", [False, True])
def test_a_module_that_writes_into_its_data_is_refused(mapped: bool) -> None:
    net, tasks = Writing(), regression()
    method = ms.maml(ms.few_shot(net, squared_error), SGD, 2)
    with pytest.raises(ms.MetastepError, match=r"writes into its data.* Write x = x \+ 1"):
        (ms.over_tasks(method) if mapped else method)(ms.parameters_of(net), tasks if mapped else one(tasks))


def test_a_meta_gradient_of_zeros_is_told() -> None:
    net, tasks = nn.Linear(3, 2, dtype=torch.float64), regression()
    problem, meta = ms.few_shot(net, squared_error), ms.parameters_of(net)
    detached = problem._replace(start=lambda meta, task: {name: p.detach() for name, p in meta.items()})
    with pytest.warns(UserWarning, match="exactly 0"):
        ms.over_tasks(ms.maml(detached, SGD, 2))(meta, tasks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ms.over_tasks(ms.maml(problem, SGD, 2))(meta, tasks)


def test_apply_takes_any_name_of_a_tensor_and_no_others() -> None:
    net = twice(nn.Tanh())
    x = torch.ones(1, 3, dtype=torch.float64)
    changed = {name: tensor + 1 for name, tensor in net.state_dict().items()}
    expected = ms.apply(net, {name: p + 1 for name, p in ms.parameters_of(net).items()}, x)
    assert torch.equal(ms.apply(net, changed, x), expected)
    assert torch.equal(ms.apply(net, {n: t for n, t in changed.items() if not n.startswith("0.")}, x), expected)
    with pytest.raises(ms.MetastepError, match="Sequential has no parameter or buffer 'wrong'"):
        ms.apply(net, {"wrong": x}, x)
