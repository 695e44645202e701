"""A sum of two convolutions, or of two gradients of their inputs, is one; what is no such sum stays as it is."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp
from torch.nn.functional import conv2d

from metastep.step.compiler import merging
from metastep.step.compiler.compiling import compiled, traced

# The tracers still call what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

Function = Callable[[dict[str, Tensor]], object]


@pytest.fixture
def values() -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = {"x": (3, 2, 6, 6), "w": (4, 2, 3, 3), "deep": (3, 5, 6, 6), "wide": (4, 5, 3, 3), "bias": (4,)}
    twins = {f"{name}_t": shape for name, shape in shapes.items()}
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in {**shapes, **twins}.items()}


def convolutions(function: Function, values: dict[str, Tensor]) -> int:
    """How many are left in `function`, which must still give the same"""
    step = lambda state, v: (state, function(v))  # noqa: E731
    arguments = (torch.zeros(1), values)
    torch.testing.assert_close(compiled(step, arguments, lambda graph, _: graph)(*arguments), step(*arguments))
    graph = traced(step, arguments)[0].graph
    forward = Counter(str(node.target) for node in graph.nodes)["aten.convolution.default"]
    return forward + sum(sum(node.args[10][:2]) for node in graph.nodes if "convolution_backward" in str(node.target))


SUMS: dict[str, Function] = {
    "outputs": lambda v: conv2d(v["x"], v["w"]) + conv2d(v["x_t"], v["w_t"]),
    "of other depths": lambda v: conv2d(v["x"], v["w"], padding=1) + conv2d(v["deep"], v["wide"], padding=1),
    "with one bias": lambda v: conv2d(v["x"], v["w"]) + conv2d(v["x_t"], v["w_t"], v["bias"]),
    "strided": lambda v: conv2d(v["x"], v["w"], None, 2, 1) + conv2d(v["x_t"], v["w_t"], v["bias"], 2, 1),
    "a shared weight": lambda v: conv2d(v["x"], v["w"]) + conv2d(v["x_t"], v["w"]),
    "a shared input": lambda v: conv2d(v["x"], v["w"]) + conv2d(v["x"], v["w_t"]),
}
OTHERS: dict[str, Function] = {
    "two biases": lambda v: conv2d(v["x"], v["w"], v["bias"]) + conv2d(v["x_t"], v["w_t"], v["bias_t"]),
    "other settings": lambda v: conv2d(v["x"], v["w"]) + conv2d(v["x_t"], v["w_t"][..., ::2, ::2], dilation=2),
    "another kernel": lambda v: conv2d(v["x"], v["w"]) + conv2d(v["x_t"][..., 1:, 1:], v["w_t"][..., 1:, 1:]),
    "broadcast": lambda v: conv2d(v["x"], v["w"]) + conv2d(v["x_t"][:1], v["w_t"]),
    "a difference": lambda v: conv2d(v["x"], v["w"]) - conv2d(v["x_t"], v["w_t"]),
    "scaled": lambda v: torch.add(conv2d(v["x"], v["w"]), conv2d(v["x_t"], v["w_t"]), alpha=2),
    "groups": lambda v: conv2d(v["x"], v["w"][:, :1], groups=2) + conv2d(v["x_t"], v["w_t"][:, :1], groups=2),
}  # fmt: skip


def read_twice(v: dict[str, Tensor]) -> object:
    y = conv2d(v["x"], v["w"])
    return y + conv2d(v["x_t"], v["w_t"]), y.sin()


def one_after_the_other(v: dict[str, Tensor]) -> object:
    """They share a weight, but the second waits for the first"""
    y = conv2d(v["x"], v["w"], padding=1)
    return y, conv2d(y[:, :2].sin(), v["w"], padding=1)


def test_a_sum_of_convolutions_is_one(values: dict[str, Tensor]) -> None:
    for name, function in SUMS.items():
        assert convolutions(function, values) == 1, name


def test_what_is_no_such_sum_stays(values: dict[str, Tensor]) -> None:
    for name, function in {**OTHERS, "read twice": read_twice, "in turn": one_after_the_other}.items():
        assert convolutions(function, values) == 2, name


def test_large_sums_stay(values: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = SUMS["outputs"]
    numbers = sum(values[name].numel() for name in ("x", "x_t", "w", "w_t"))
    monkeypatch.setattr(merging, "SAVED", 0)
    for limit, left in ((numbers, 1), (numbers - 1, 2)):
        monkeypatch.setattr(merging, "LARGEST", limit)
        assert convolutions(outputs, values) == left


def test_sums_that_are_larger_than_what_is_copied_are_merged(
    values: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {**values, "w": torch.cat([values["w"]] * 8), "w_t": torch.cat([values["w_t"]] * 8)}
    monkeypatch.setattr(merging, "LARGEST", 0)
    assert [convolutions(SUMS["outputs"], each) for each in (values, wide)] == [2, 1]


def second_order(v: dict[str, Tensor]) -> object:
    """How all gradients of two layers move along (ẋ, ẇ, ḃ)"""

    def loss(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        y = conv2d(x, w, bias, padding=1)
        return conv2d(y.tanh(), w.transpose(0, 1), stride=2).sin().sum()

    return jvp(grad(loss, (0, 1, 2)), (v["x"], v["w"], v["bias"]), (v["x_t"], v["w_t"], v["bias_t"]))


def test_in_a_second_order_product_all_but_gradients_of_weights_are_merged(
    values: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, gradient = 2, 3  # y, dx, dw
    assert convolutions(second_order, values) == layers * (2 * gradient + 1)
    monkeypatch.setattr(merging, "LARGEST", 0)
    monkeypatch.setattr(merging, "SAVED", 0)
    assert convolutions(second_order, values) == layers * 3 * gradient
