"""A compiled step is the step; what cannot be compiled is called as it is, and says why."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from shutil import which
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import metastep as ms
from metastep.core.trees import from_vector, to_vector, tree_leaves
from metastep.step.capture import Captured
from metastep.step.compiler import merging
from metastep.step.compiler.compiling import Compiled, as_traced, compiled, traced
from metastep.train.config import Transfer
from metastep.train.transfer.iteration import initial_state, iteration
from tests.train.transfer.helpers import batches, parts
from tests.train.transfer.test_iteration import METHODS, RATES, SCRATCH

# The tracers still call what PyTorch deprecates.
pytestmark = [
    pytest.mark.compiled,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


ADAM = ms.Adam(1e-2)


def transfer_step(method: Transfer) -> tuple[Any, Any]:
    target, guided = parts()
    guided_or_none = guided if method.needs_source else None
    tapped = target if guided_or_none else target._replace(layers=())
    return iteration(method, tapped, guided_or_none), initial_state(method, tapped, guided_or_none)


def followed(step: Any, state: Any, rates: Sequence[float]) -> list[Tensor]:
    """All that three iterations give"""
    seen: list[Tensor] = []
    for batch, lr in zip(batches(len(rates)), rates, strict=True):
        state, metrics = step(state, batch, torch.tensor(lr, dtype=torch.float64))
        seen += [leaf.clone() for leaf in tree_leaves((state, metrics))]
    return seen


def equal_to_the_step(method: Transfer, **backend: Any) -> None:
    step, start = transfer_step(method)
    made = Compiled(step, **backend)
    rates = RATES["adam" if method.inner is ADAM else "sgd"]
    got, expected = (followed(each, start, rates) for each in (made, step))
    assert "not " not in made.path
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    [SCRATCH, METHODS["2.9*lr"], METHODS["total"], replace(METHODS["T=3, n=2"], inner=ADAM)],
)
def test_a_traced_iteration_is_the_iteration(method: Transfer) -> None:
    equal_to_the_step(method, backend=as_traced)


def second_order(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """One step on a loss, and the derivative of its gradient along that step"""
    gradient = torch.func.grad(lambda w: (x @ w).tanh().square().mean())
    slope, bend = torch.func.jvp(gradient, (state,), (gradient(state),))
    return state - 0.1 * slope, bend


@pytest.mark.skipif(not (which("g++") or which("clang++")), reason="inductor needs a C++ compiler")
def test_inductor() -> None:
    state, x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4), torch.eye(3, dtype=torch.float64)
    made = Compiled(second_order)
    assert "minutes" in made.notice
    torch.testing.assert_close(made(state, x), second_order(state, x), rtol=1e-9, atol=1e-12)
    assert made.path.startswith("compiled in")


def test_no_convolution_is_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivatives that a second-order product looks at were made when φ took its step; zeros are not convolved."""
    monkeypatch.setattr(merging, "LARGEST", 0)
    monkeypatch.setattr(merging, "SAVED", 0)
    windows = 2
    step, start = transfer_step(METHODS["T=2"])
    graph = traced(step, (start, batches(1)[0], torch.tensor(0.1, dtype=torch.float64)))[0].graph
    count = Counter(str(node.target) for node in graph.nodes)
    forward = 2 + 4 * (1 + windows) + 2 * 2  # source; real step and windows with two matching layers; both on labels
    products = 3 + (windows - 1) * 7 + 7  # on labels; windows in full; the first one's mixed part. The picture is fixed
    assert count["aten.convolution.default"] == forward + products
    gradients = sum(sum(node.args[10][:2]) for node in graph.nodes if "convolution_backward" in str(node.target))
    assert gradients == (3 + 4) * (1 + windows) + 2 * 3 + (4 + 1) + (windows - 1) * (4 + 1 + 2 * 4)


def test_tensors_that_the_step_holds_are_read_anew() -> None:
    held = torch.ones(3)

    def step(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return state + held * x, (held * x).sum()

    made = compiled(step, (torch.zeros(3), torch.ones(3)), as_traced)
    held.fill_(5.0)
    assert made(torch.zeros(3), torch.ones(3))[1] == 15


def test_smaller_inputs_run_as_they_are() -> None:
    backend: list[int] = []

    def counted(graph: GraphModule, examples: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        backend.append(len(examples[1]))
        return graph

    made = Compiled(lambda state, x: (state + x.sum(), x.mean()), counted)
    for size in (4, 4, 2, 4, 2, 8):
        x = torch.rand(size)
        torch.testing.assert_close(made(torch.zeros(()), x), (x.sum(), x.mean()))
    assert backend == [4, 8]


def test_a_trace_is_made_for_smaller_inputs_too() -> None:
    """It takes seconds; and whichever came first, in a run that goes on, the numbers are the same"""
    called: list[int] = []

    def step(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        called.append(len(x))
        return state + x.sum(), x.mean()

    made = Compiled(step, as_traced)
    for size in (4, 4, 2, 2):
        made(torch.zeros(()), torch.rand(size))
    assert called == [4, 2]


def test_a_captured_step_may_be_compiled() -> None:
    def again(run: Callable[[], None]) -> Callable[[], None]:
        run()
        return run

    step, start = transfer_step(METHODS["T=0"])
    captured = Captured(Compiled(step, as_traced), again)
    got, expected = (followed(each, start, RATES["sgd"]) for each in (captured, step))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    assert captured.path.startswith("traced in")
    assert captured.path.endswith("captured")


def test_what_cannot_be_traced_is_called_and_said() -> None:
    def looks(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return (state + x if x.sum() > 0 else state - x), x

    made = Compiled(looks, as_traced)
    torch.testing.assert_close(made(torch.zeros(2), -torch.ones(2))[0], torch.ones(2))
    assert made.path.startswith("not traced: ")


def test_what_the_compiler_refuses_is_run_as_traced() -> None:
    def refuse(graph: GraphModule, examples: Sequence[Tensor]) -> Any:
        raise RuntimeError("no such kernel\nand a long story")

    made = Compiled(lambda state, x: (state + x, x), refuse)
    assert made(torch.zeros(2), torch.ones(2))[0].sum() == 2
    assert made.path == "traced in 0 s; not compiled: RuntimeError: no such kernel"


def test_an_error_of_the_step_itself_is_not_hidden() -> None:
    def wrong(state: Any, x: Any) -> Any:
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        Compiled(wrong, as_traced)(torch.zeros(2), torch.ones(2))


def nodes(function: Callable[[Tensor], Any], x: Tensor) -> Counter[str]:
    graph = traced(lambda state, x: (state, function(x)), (torch.zeros(1), x))[0].graph
    return Counter(str(node.target) for node in graph.nodes if node.op == "call_function")


def test_equal_operators_are_merged_and_others_are_not() -> None:
    x = torch.arange(3)
    assert nodes(lambda x: x.sin() * x.clone().sin(), x)["aten.sin.default"] == 1
    assert nodes(lambda x: (x + 1, x + 1.0), x)["aten.add.Tensor"] == 2
    assert nodes(lambda x: (torch.rand_like(x), torch.rand_like(x)), x.float())["aten.rand_like.default"] == 2


def test_what_is_written_to_is_read_before_and_after() -> None:
    """Equal operators are not equal where memory that they see, through any view, was written to between them"""

    def step(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        own = x.clone()
        part = own.view(-1)[1:3]
        before = own.sin(), part.sin()
        part.add_(1)
        return own.sin() + x.clone().sin(), torch.cat([part.sin(), part.view(1, 2).flatten().sin(), *before])

    arguments = torch.zeros(1), torch.rand(4)
    torch.testing.assert_close(compiled(step, arguments, as_traced)(*arguments), step(*arguments))


def test_zeros_go() -> None:
    x = torch.rand(3, 3)
    assert not nodes(lambda x: x + x.mm(torch.zeros_like(x)), x)
    assert not nodes(lambda x: x - 2 * torch.zeros_like(x), x)
    assert nodes(lambda x: torch.zeros_like(x) - x, x)["aten.sub.Tensor"] == 1
    assert nodes(lambda x: x + (torch.zeros_like(x) + 1), x)["aten.add.Tensor"] == 2
    assert nodes(lambda x: torch.zeros(2, 3, 3) + x, x)["aten.add.Tensor"] == 1  # it is larger than x


def test_vectors_are_not_joined_of_their_own_parts() -> None:
    like = [torch.zeros(2, 2), torch.zeros(3)]
    found = nodes(lambda x: to_vector(from_vector(x, like)).sin(), torch.rand(7))
    assert found["aten.cat.default"] == 0
    assert nodes(lambda x: to_vector(from_vector(x, like)[::-1]).sin(), torch.rand(7))["aten.cat.default"] == 1
    assert nodes(lambda x: torch.cat([x, 2 * x])[7:14].sin(), torch.rand(7))["aten.cat.default"] == 0
    assert nodes(lambda x: torch.cat([x, 2 * x])[6:13].sin(), torch.rand(7))["aten.cat.default"] == 1


def test_what_is_convolved_is_laid_out_once() -> None:
    weight = torch.rand(4, 2, 3, 3)

    def twice(x: Tensor) -> Tensor:
        others = (x.flatten() + 1).view(x.shape)  # in the order of its dimensions
        return torch.stack([torch.nn.functional.conv2d(each, weight) for each in (x, 2 * x, others)])

    x = torch.rand(1, 2, 5, 5)
    assert nodes(twice, x)["aten.clone.default"] == 0
    assert nodes(twice, x.contiguous(memory_format=torch.channels_last))["aten.clone.default"] == 2


def test_what_is_joined_to_be_convolved_is_laid_out_before_it_is_joined() -> None:
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        others = (x.flatten() + 1).view(x.shape)  # in the order of its dimensions
        pairs = [torch.cat([first, x], 1) for first in (x, others)]
        return x, torch.stack([torch.nn.functional.conv2d(pair, weight) for pair in pairs])

    weight = torch.rand(1, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    x = torch.rand(1, 2, 5, 5).contiguous(memory_format=torch.channels_last)
    (copy,) = [node for node in traced(step, (x,))[0].graph.nodes if node.target is torch.ops.aten.clone.default]
    assert [user.target for user in copy.users] == [torch.ops.aten.cat.default]
    torch.testing.assert_close(compiled(step, (x,), as_traced)(x), step(x))


def test_the_output_of_a_relu_is_not_kept_for_its_gradient() -> None:
    def step(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.func.vjp(lambda x: (2 * x).relu(), x)[1](dy)[0]

    x = torch.tensor([1.0, -1.0, 0.0, -0.0, torch.nan, torch.inf], dtype=torch.float64)
    arguments = x, torch.ones_like(x)
    torch.testing.assert_close(compiled(step, arguments, as_traced)(*arguments), step(*arguments), equal_nan=True)
    assert "relu" not in str(traced(step, arguments)[0].graph)


def test_memory_layouts_must_be_free() -> None:
    with pytest.raises(Exception, match="as_strided"):
        nodes(lambda x: x.as_strided((2,), (2,)), torch.rand(4))
