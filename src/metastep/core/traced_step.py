"""Trace one step of a torch.optim optimizer into a graph of pure functions, which is differentiable and can be mapped.

The optimizer's own `step` runs on clones. make_fx records what it does, and functionalize turns what it writes in place
into values. Counts of steps, and options that change, are inputs of the graph (see `recorded_numbers`). Detached
values are followed, and √ has slope 0 at 0.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from metastep.core.entrywise import root
from metastep.core.recorded_numbers import Ledger, UntraceableError, function_of
from metastep.core.trees import Tree, tree_flatten, tree_unflatten
from metastep.errors import MetastepError

aten = torch.ops.aten


class Trace(NamedTuple):
    """A step as a function of tensors, for the numbers for which it holds."""

    ask: Callable[..., tuple[Any, ...]]
    answers: tuple[bool, ...]
    numbers: Callable[..., tuple[Any, ...]]
    inputs: tuple["Input", ...]
    graph: Callable[..., list[Tensor]]
    spec: Any
    """What the graph's results are nested as."""
    text: str
    """The graph and the numbers, to be compared."""
    is_rounded: bool
    """Whether the step calculates in half precision."""

    def holds(self, values: Sequence[Any]) -> bool:
        return tuple(map(bool, self.ask(*values))) == self.answers

    def ready(self, values: Sequence[Any]) -> list[Any]:
        """Return what the graph takes for these numbers."""
        return [put(value) for put, value in zip(self.inputs, self.numbers(*values), strict=True)]

    def __call__(self, tensors: list[Tensor], ready: list[Any]) -> Any:
        return tree_unflatten(self.graph(*tensors, *ready), self.spec)


class Input(NamedTuple):
    """What the graph takes for a number: the number itself where arithmetic takes it, else a tensor."""

    dtype: torch.dtype
    device: torch.device
    is_plain: bool

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self.dtype)
        return value if self.is_plain else torch.tensor(value, dtype=self.dtype, device=self.device)


Step = Callable[[Ledger, list[Tensor]], Any]


def traced(step: Step, tensors: list[Tensor], values: dict[str, float | None]) -> Trace:
    """Trace `step(ledger, tensors)`, which gives a tree of tensors and reads its numbers from the ledger."""
    spec: list[Any] = []
    with outside_of_transforms():
        like = [example(x) for x in tensors]
        first = Ledger(values)
        step(first, [x.clone() for x in like])  # which numbers it needs

        def flat(*given: Tensor) -> list[Tensor]:
            ledger = Ledger(values)
            ledger.inputs.update(zip(first.inputs, given[len(like) :], strict=True))
            leaves, nesting = tree_flatten(step(ledger, list(given[: len(like)])))
            spec[:] = [nesting]
            return leaves

        graph = make_fx(torch.func.functionalize(flat))(*like, *first.inputs.values())
    return _trace(cleaned(graph), first, len(like), spec[0])


def _trace(module: fx.GraphModule, ledger: Ledger, given: int, spec: Any) -> Trace:
    names, asked = list(ledger.values), list(ledger.answers)
    ask, numbers = function_of(asked, names), function_of([key[0] for key in ledger.inputs], names)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"][given:]
    inputs = tuple(
        Input(dtype, device, all(_takes_numbers(user, node) for user in node.users))
        for (_, dtype, device), node in zip(ledger.inputs, placeholders, strict=True)
    )
    kinds = {_dtype(node) for node in module.graph.nodes}
    halves = {torch.bfloat16, torch.float16} & kinds
    starts = {_dtype(node) for node in module.graph.nodes if node.op == "placeholder"}
    constants = [getattr(module, str(node.target)) for node in module.graph.nodes if node.op == "get_attr"]
    text = f"{module.graph}{constants}{list(ledger.inputs)}"
    if None in ledger.values.values() and "nan" in text:
        raise UntraceableError("it takes a learned number out of the arithmetic, as math.sqrt(…) does")
    answers = tuple(ledger.answers.values())
    return Trace(ask, answers, numbers, inputs, module.forward, spec, text, bool(halves - starts))


def require_inputs(first: Trace, second: Trace) -> None:
    """Refuse a step whose traces for two values of its numbers differ: one of them is frozen in the graph."""
    if first.answers == second.answers and first.text != second.text:
        raise UntraceableError("it takes its count of steps or a rate out of the arithmetic, as math.sqrt(…) does")


@contextmanager
def outside_of_transforms() -> Iterator[None]:
    """Trace what is traced for itself: not under the vmap, derivative or trace of a caller"""
    with temporarily_clear_interpreter_stack(), _disable_current_modes(), torch.no_grad():
        yield


def example(x: Tensor) -> Tensor:
    """Return values of the same shape that no step finds special."""
    shape, kind = tuple(x.shape), {"dtype": x.dtype, "device": x.device}
    size = torch.Size(shape).numel()
    return torch.linspace(0.3, 0.7, max(size, 1), **kind)[:size].reshape(shape)  # type: ignore[call-overload, no-any-return]


def _takes_numbers(user: fx.Node, node: fx.Node) -> bool:
    arithmetic: tuple[Any, ...] = (torch.add, torch.sub, torch.mul, torch.div)
    return user.target in arithmetic and user.args[1] is node and user.args[0] is not node


def _dtype(node: fx.Node) -> torch.dtype | None:
    return getattr(node.meta.get("val"), "dtype", None)


_IDENTITIES = {aten.detach.default, aten.alias.default, aten.clone.default, aten.lift_fresh_copy.default}
_FASTER = {  # what has less to look up
    aten.add.Tensor: torch.add, aten.sub.Tensor: torch.sub, aten.mul.Tensor: torch.mul, aten.div.Tensor: torch.div,
    aten.neg.default: torch.neg, aten.addcmul.default: torch.addcmul, aten.addcdiv.default: torch.addcdiv,
    aten.lerp.Scalar: torch.lerp, aten.maximum.default: torch.maximum, aten.abs.default: torch.abs,
    aten.sqrt.default: root,
}  # fmt: skip


def cleaned(module: fx.GraphModule) -> fx.GraphModule:
    """Follow what is detached, give √ slope 0 at 0, and refuse what draws random numbers."""
    for node in list(module.graph.nodes):
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags:
            raise UntraceableError("it draws random numbers, which the sweep could not draw again")
        if target in _IDENTITIES:
            _replace(node, node.args[0])
        elif target is aten.copy.default and _looks(node.args[0]) == _looks(node.args[1]):
            _replace(node, node.args[1])
        elif target is aten.pow.Tensor_Scalar and node.args[1] == 0.5:
            node.target, node.args = root, node.args[:1]
        elif target in _FASTER:
            node.target = _FASTER[target]
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _replace(node: fx.Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def _looks(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return getattr(value, "shape", None), getattr(value, "dtype", None)


class _Rounded(torch.autograd.Function):
    """The identity, without a derivative"""

    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise MetastepError(
            f"{ctx.name} calculates its step in half precision, so the step has no derivative to speak of. Use a "
            "method that needs none, ms.FOMAML() or ms.Reptile(), or another inner optimizer."
        )


def without_derivative(name: str, tree: Tree) -> Tree:
    """Return the same tensors, whose derivative is refused by the name of an optimizer."""
    leaves, spec = tree_flatten(tree)
    return tree_unflatten(list(_Rounded.apply(name, *leaves)), spec)  # type: ignore[no-untyped-call]
