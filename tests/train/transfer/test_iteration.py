"""An iteration equals an independent one: torch.optim, plain modules, and autograd through every virtual step."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import metastep as ms
from metastep.core.counting import counting, peak_bytes
from metastep.core.optimizers import State
from metastep.core.trees import tree_flatten, tree_leaves
from metastep.core.windows import InnerLoop, Window
from metastep.train.config import Outer, Scratch, Transfer
from metastep.train.transfer import iteration as algorithm
from metastep.train.transfer.features import Tapped, tap
from metastep.train.transfer.iteration import TransferState, guided_by, initial_state, inner_of, iteration
from metastep.train.transfer.losses import Guidance, guidance
from tests.train.transfer.helpers import USUAL, batches, configured, naive_transfer_loss, parts, pupil_by_hand

RATES = {"sgd": (0.1, 0.08, 0.05), "adam": (1e-2, 8e-3, 5e-3)}
DECAYED = {"sgd": ms.SGD(0.1, 0.9, weight_decay=1e-2), "adam": ms.Adam(1e-3, weight_decay=1e-2)}
SCRATCH = Transfer(method=Scratch(), inner=USUAL)
METHODS = {
    "T=1": configured(steps=1),
    "T=2": configured(steps=2),
    "T=3": configured(steps=3),
    "T=2, n=2": configured(steps=2, window=2),
    "T=3, n=3": configured(steps=3, window=3),
    "T=3, n=2": configured(steps=3, window=2),
    "2*lr": configured(steps=1, transfer_rate=2.0),
    "2.9*lr": configured(steps=2, window=2, transfer_rate=2.9),
    "total": configured(steps=2, outer="total"),
    "T=0": configured(steps=0),
    "fixed": configured(learned=False),
}


def trained(method: Transfer, target: Tapped, guided: Guidance | None, rates: Sequence[Any]) -> TransferState:
    state, iterate = initial_state(method, target, guided), iteration(method, target, guided)
    for batch, lr in zip(batches(len(rates)), rates, strict=True):
        state, _ = iterate(state, batch, lr)
    return state


class Reference:
    """Algorithm 1 on plain modules that are stepped in place."""

    def __init__(self, method: Transfer, target: Tapped, guided: Guidance) -> None:
        self.method, self.source, self.pairs = method, guided.source, guided.networks.pairs
        self.target, self.networks, self.matching = map(deepcopy, (target.module, guided.networks, guided.matching))
        self.target.train()
        params = [*self.target.parameters(), *self.matching.parameters()]
        decay = {"weight_decay": method.inner.weight_decay}
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(params, 1.0, momentum=method.inner.momentum, **decay)
            if isinstance(method.inner, ms.SGD)
            else torch.optim.Adam(params, 1.0, **decay)
        )
        self.meta_optimizer = torch.optim.Adam(
            self.networks.parameters(), method.outer.lr, weight_decay=method.outer.weight_decay
        )

    def transfer(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        """β L_tfr; names of the target's parameters as they are, those of matching layers too"""
        with torch.no_grad():
            wanted = tap(self.source.module, {}, {}, x, self.source.layers)[1]
        features, meta = pupil_by_hand(params, x)[1], dict(self.networks.named_parameters())
        return guided_by(self.method).beta * naive_transfer_loss(wanted, features, params, meta, self.pairs)

    def named(self) -> dict[str, nn.Parameter]:
        return {**dict(self.target.named_parameters()), **dict(self.matching.named_parameters())}

    def iterate(self, x: Tensor, y: Tensor, lr: float) -> None:
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.zero_grad()
        (F.cross_entropy(self.target(x), y) + self.transfer(self.named(), x)).backward()
        self.optimizer.step()
        if self.method.learns_weights:
            meta = list(self.networks.parameters())
            outer = self.lookahead(x, y, lr)
            for p, g in zip(meta, torch.autograd.grad(outer, meta, materialize_grads=True), strict=True):
                p.grad = g
            self.meta_optimizer.step()

    def lookahead(self, x: Tensor, y: Tensor, lr: float) -> Tensor:
        params: dict[str, Any] = {name: p.detach().clone().requires_grad_() for name, p in self.named().items()}
        memory = {name: dict(self.optimizer.state[p]) for name, p in self.named().items()}
        for t in range(self.method.steps):
            if t % self.method.window == 0:
                grads = self.gradient(self.transfer(params, x), params)
            self.step(params, memory, grads, guided_by(self.method).transfer_rate * lr)
        self.step(params, memory, self.gradient(F.cross_entropy(pupil_by_hand(params, x)[0], y), params), lr)
        if guided_by(self.method).outer == "accuracy":
            return F.cross_entropy(pupil_by_hand(params, x)[0], y)
        return self.transfer({name: p.detach() for name, p in params.items()}, x)

    def gradient(self, loss: Tensor, params: dict[str, Tensor]) -> dict[str, Tensor]:
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=True, materialize_grads=True)
        return dict(zip(params, grads, strict=True))

    def step(self, params: dict[str, Any], memory: Any, grads: dict[str, Tensor], lr: float) -> None:
        for name, old in memory.items():
            g = grads[name] + self.method.inner.weight_decay * params[name]
            if isinstance(self.method.inner, ms.SGD):
                v = old["momentum_buffer"] = 0.9 * old["momentum_buffer"] + g
                params[name] = params[name] - lr * v
            else:
                m = old["exp_avg"] = 0.9 * old["exp_avg"] + 0.1 * g
                v = old["exp_avg_sq"] = 0.999 * old["exp_avg_sq"] + 0.001 * g**2
                k = old["step"] = old["step"].item() + 1 if isinstance(old["step"], Tensor) else old["step"] + 1
                params[name] = params[name] - lr * (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-8)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", METHODS)
def test_iterations_equal_torch_optim_and_autograd(name: str, optimizer: Any) -> None:
    """φ, memory, running statistics, θ and its moments, after three iterations at three rates"""
    method = replace(METHODS[name], inner=DECAYED[optimizer], outer=Outer(weight_decay=1e-2))
    target, guided = parts()
    reference = Reference(method, target, guided)
    state = trained(method, target, guided, [torch.tensor(lr, dtype=torch.float64) for lr in RATES[optimizer]])
    for batch, lr in zip(batches(3), RATES[optimizer], strict=True):
        reference.iterate(*batch, lr)

    slots = ["momentum_buffer"] if optimizer == "sgd" else ["exp_avg", "exp_avg_sq"]
    own = reference.named()
    mine = {**state.target.params["target"], **state.target.params["matching"]}
    assert mine.keys() == own.keys()
    for key, p in own.items():
        close(mine[key], p)
        for slot, tree in zip(slots, state.target.memory, strict=True):
            close({**tree["target"], **tree["matching"]}[key], reference.optimizer.state[p][slot])
    for key, buffer in reference.target.named_buffers():
        close(state.buffers[key], buffer)
    assert state.target.step == 3
    assert state.meta.step == (3 if method.learns_weights else 0)
    for key, p in reference.networks.named_parameters():
        close(state.meta.params[key], p)
        if method.learns_weights:  # moments are the meta-gradients themselves, to full precision
            for slot, tree in zip(["exp_avg", "exp_avg_sq"], state.meta.memory, strict=True):
                close(tree[key], reference.meta_optimizer.state[p][slot])
                assert tree[key].any()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_virtual_steps_leave_no_trace(optimizer: Any) -> None:
    target, guided = parts()
    method = configured(steps=3, window=2, inner=DECAYED[optimizer])
    state = trained(method, target, guided, [0.01, 0.01])
    held = {name: tensor.clone() for name, tensor in target.module.state_dict().items()}
    (batch,) = batches(1, seed=7)
    looked, _ = iteration(method, target, guided)(state, batch, 0.01)
    plain, _ = iteration(replace(method, steps=0), target, guided)(state, batch, 0.01)
    for a, b in zip(
        tree_leaves((looked.target, looked.buffers)), tree_leaves((plain.target, plain.buffers)), strict=True
    ):
        assert torch.equal(a, b)
    assert not torch.equal(looked.meta.memory[0]["what.0-0.weight"], plain.meta.memory[0]["what.0-0.weight"])
    assert all(torch.equal(tensor, held[name]) for name, tensor in target.module.state_dict().items())
    assert all(part.track_running_stats for part in target.module.modules() if isinstance(part, nn.BatchNorm2d))


@pytest.mark.parametrize("method", [METHODS["T=0"], METHODS["fixed"]])
def test_theta_is_untouched_without_transfer_steps_or_learning(method: Transfer) -> None:
    target, guided = parts()
    start = initial_state(method, target, guided)
    state, metrics = iteration(method, target, guided)(start, batches(1)[0], 0.1)
    assert all(a is b for a, b in zip(tree_leaves(state.meta), tree_leaves(start.meta), strict=True))
    assert "outer" not in metrics


@pytest.mark.parametrize(
    ("name", "products", "gradients"),
    [("T=1", 2, 4), ("T=2", 3, 5), ("T=3", 4, 6), ("T=2, n=2", 2, 4), ("T=3, n=3", 2, 4), ("T=3, n=2", 3, 5),
     ("total", 0, 5), ("T=0", 0, 1)],
)  # fmt: skip
def test_work_of_an_iteration(name: str, products: int, gradients: int) -> None:
    """T/n + 1 second-order products; gradients: the real step, T/n windows, L_acc, the outer loss"""
    target, guided = parts()
    with counting() as counts:
        trained(METHODS[name], target, guided, [0.1])
    assert (counts.products, counts.gradients) == (products, gradients)


def test_the_first_window_is_asked_for_its_mixed_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for name in ("mixed", "exact_forward"):
        product = getattr(algorithm, name)
        monkeypatch.setattr(algorithm, name, lambda *a, n=name, p=product: asked.append(n) or p(*a))
    trained(METHODS["T=2"], *parts(), [0.1])
    assert asked == ["exact_forward", "exact_forward", "mixed"]  # from the last window to the first


def test_memory_is_flat_in_the_steps() -> None:
    """Six steps more may keep φ six times more, and nothing else: activations are much larger"""
    target, guided = parts()
    x, y = torch.randn(64, 1, 8, 8).double(), torch.randint(3, (64,))
    lr = torch.tensor(0.1).double()

    def peak(steps: int) -> int:
        method = configured(steps=steps)
        state, iterate = initial_state(method, target, guided), iteration(method, target, guided)
        return peak_bytes(lambda: iterate(state, (x, y), lr), x.device)[1]

    size = sum(p.numel() * 8 for p in tree_leaves(initial_state(configured(), target, guided).target.params))
    two, eight = peak(2), peak(8)
    assert two > 100 * size
    assert eight - two < 7 * size


def test_scratch_is_plain_training() -> None:
    target, _ = parts()
    module = deepcopy(target.module).train()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    state = trained(SCRATCH, target, None, [0.1] * 4)
    for x, y in batches(4):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    for name, p in module.named_parameters():
        close(state.target.params["target"][name], p)
    for name, buffer in module.named_buffers():
        close(state.buffers[name], buffer)


def test_metrics() -> None:
    method, (target, guided) = configured(), parts(uniform=True)
    (x, y), state = batches(1)[0], initial_state(method, target, guided)
    metrics = iteration(method, target, guided)(state, (x, y), 0.1)[1]
    logits, features = pupil_by_hand(state.target.params["target"], x)
    wanted = tap(guided.source.module, {}, {}, x, guided.source.layers)[1]
    transfer = naive_transfer_loss(
        wanted, features, state.target.params["matching"], state.meta.params, guided.networks.pairs
    )
    close(metrics["transfer"], transfer)
    close(metrics["cross_entropy"], F.cross_entropy(logits, y))
    close(metrics["loss"], metrics["cross_entropy"] + 0.5 * transfer)
    assert metrics["correct"] == (logits.argmax(1) == y).sum()
    ones = torch.ones(4, dtype=torch.float64)  # weights that are fixed: λ = 1, w = 1/C, exactly
    assert torch.equal(metrics["where"], ones)
    torch.testing.assert_close(metrics["what"], ones)
    assert metrics["outer"] < metrics["cross_entropy"]


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_gradient_difference(factor: float) -> None:
    """‖∇L(φ₁) − ∇L(φ₀)‖ / ‖∇L(φ₁)‖ over one step of the optimizer, with a gradient of its own, whatever the window"""
    target, guided = parts()
    method = configured(steps=2, window=2, transfer_rate=factor)
    state, (batch,) = initial_state(method, target, guided), batches(1)
    reference = Reference(replace(method, steps=0), target, guided)
    reference.iterate(*batch, 0.1)
    params: dict[str, Any] = {name: p.detach().clone().requires_grad_() for name, p in reference.named().items()}
    memory = {name: dict(reference.optimizer.state[p]) for name, p in reference.named().items()}
    before = reference.gradient(reference.transfer(params, batch[0]), params)
    reference.step(params, memory, before, factor * 0.1)
    after = reference.gradient(reference.transfer(params, batch[0]), params)
    a, b = (torch.cat([g.flatten() for g in grads.values()]) for grads in (after, before))
    metrics = iteration(method, target, guided, measure_difference=True)(state, batch, 0.1)[1]
    close(metrics["gradient_difference"], (a - b).norm() / a.norm())


def test_source_runs_once_unless_asked_otherwise() -> None:
    target, guided = parts()
    calls: list[int] = []
    guided.source.module.register_forward_hook(lambda *_: calls.append(1))
    state, (batch,) = initial_state(configured(), target, guided), batches(1)
    once, _ = iteration(configured(), target, guided)(state, batch, 0.1)
    assert len(calls) == 1
    often, _ = iteration(configured(), target, guided, recompute_source=True)(state, batch, 0.1)
    assert len(calls) == 1 + 1 + 2 + 2  # before, in the real step, forward and back through two windows
    for a, b in zip(tree_leaves(once), tree_leaves(often), strict=True):
        torch.testing.assert_close(a, b)


def test_the_structure_of_a_state_is_constant() -> None:
    """As a captured iteration needs it, also for parameters without dimension in float32, and without momentum"""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.scale, self.fc = nn.Conv2d(1, 2, 3), nn.Parameter(torch.tensor(1.0)), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.scale * self.conv(x).mean((-2, -1)))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    source, target = Tapped(Scaled(), ("conv",)), Tapped(Scaled(), ("conv",))
    x, y = torch.randn(4, 1, 8, 8), torch.randint(3, (4,))
    guided = guidance(source, target, "one-to-one", x)
    plain = ms.SGD(0.1, weight_decay=1e-4)
    for method in (
        configured(),
        configured(inner=DECAYED["adam"]),
        configured(inner=plain),
        configured(transfer_rate=2.0),
    ):
        start = initial_state(method, target, guided)
        state, _ = iteration(method, target, guided)(start, (x, y), torch.tensor(0.1, dtype=torch.float64))
        assert tree_flatten(start)[1] == tree_flatten(state)[1]
        for a, b in zip(tree_leaves(start), tree_leaves(state), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)


def test_the_first_order_surrogate_switches_transfer_off() -> None:
    """L_tfr is linear in λ ≥ 0 with coefficients that are not negative: its explicit gradient only ever lowers λ"""
    method = configured(outer="total", theta=Outer(lr=0.05, weight_decay=1e-4))
    target, guided = parts(uniform=True)
    state, iterate = initial_state(method, target, guided), iteration(method, target, guided)
    for batch in batches(30):
        state, metrics = iterate(state, batch, 0.01)
    assert (metrics["where"] < 0.1).all()


class NoLook(TorchDispatchMode):
    """Refuses what would wait for a GPU: Python seeing the value of a tensor"""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_nothing_waits_for_the_device(name: str, optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "metastep.core.options._lies_in", lambda number, bound: True
    )  # it looks at numbers and at the CPU's tensors
    method, (target, guided) = replace(METHODS[name], inner=DECAYED[optimizer]), parts()
    state, (batch,) = initial_state(method, target, guided), batches(1)
    iterate = iteration(method, target, guided, measure_difference=True)
    with NoLook():
        iterate(state, batch, torch.tensor(0.1, dtype=torch.float64))
    with NoLook(), pytest.raises(AssertionError):
        float(batch[0].sum())


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1, dtype=torch.float64)])
def test_the_self_test_of_l2t(rate: Any) -> None:
    """Ten steps with the dynamics and the state of an iteration: a velocity of 0, a rate that is a tensor"""
    method = configured(inner=ms.SGD(0.1, 0.9, weight_decay=0.01))
    start = {
        "a": torch.tensor([1.0, 3.0], dtype=torch.float64),
        "b": torch.tensor([[-1.0, -2.0], [1.0, 0.0]], dtype=torch.float64),
    }

    def loss(params: Any, meta: Tensor, batch: Any) -> Tensor:
        return params["a"].square().mean() + (meta * params["b"].square()).sum()

    problem = ms.Problem(
        lambda meta, task: State(start, ({k: torch.zeros_like(v) for k, v in start.items()},), 0),
        lambda task, lengths: [Window(loss, (), n) for n in lengths],
        lambda params, meta, task: (params["a"] * params["b"]).mean(),
    )
    estimate = ms.estimators.unrolled(InnerLoop(problem, inner_of(method, rate), (1,) * 10))(
        torch.zeros(2, 2).double(), None
    )
    expected = torch.tensor([[-1.1952, -7.1712], [1.1952, 0.0]]).double()
    torch.testing.assert_close(estimate.grad, expected, atol=1e-4, rtol=1e-4)


def test_refusals() -> None:
    target, guided = parts()
    with pytest.raises(ms.MetastepError, match="transfer needs a source"):
        iteration(configured(), target)
    with pytest.raises(ms.MetastepError, match="the others take none"):
        iteration(SCRATCH, target, guided)
    with pytest.raises(ms.MetastepError, match="steps = -1"):
        configured(steps=-1)
    with pytest.raises(ms.MetastepError, match="has no name: register it"):
        configured(inner=ms.StepFunction(lambda params, memory, grad, meta, t: (params, memory)))
    larger, state = torch.randn(2, 1, 16, 16).double(), initial_state(configured(), target, guided)
    with pytest.raises(ms.MetastepError, match="another size"):
        iteration(configured(), target, guided)(state, (larger, torch.tensor([0, 1])), 0.1)
