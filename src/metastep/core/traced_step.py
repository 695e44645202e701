"""Trace one step of a torch.optim optimizer into a graph of pure functions, which is differentiable and can be mapped.

The optimizer's own `step` runs on clones. make_fx records what it does, and functionalize turns what it writes in place
into values. Counts of steps, and options that change, are inputs of the graph (see `recorded_numbers`). Detached
values are followed, and √ has slope 0 at 0.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import SequenceKey

from metastep.core.entrywise import root
from metastep.core.recorded_numbers import (
    CountedSlots,
    Following,
    Ledger,
    Number,
    States,
    UntraceableError,
    function_of,
)
from metastep.core.torch_state import Group, Member, Slots, is_torchs, layout_of, memory_of
from metastep.core.trees import Tree, is_number, tree_flatten, tree_unflatten
from metastep.errors import MetastepError

# ---- the own step of a torch.optim optimizer on one parameter, with tensors and numbers that are given


if TYPE_CHECKING:
    from metastep.core.torch_optimizer import TorchOptimizer

# Flags that say how the same step is computed.
FLAGS = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}


class OwnStep:
    """An optimizer's own step: a function of a parameter, what the optimizer remembers of it, and its gradient.

    Args:
        kind: The optimizer's class.
        attributes: What an instance has besides groups and state.
        groups: Its parameter groups.
        replaced: The names of options that are inputs.
    """

    def __init__(
        self,
        kind: type[torch.optim.Optimizer],
        attributes: dict[str, Any],
        groups: tuple[Group, ...],
        replaced: Collection[str],
    ) -> None:
        self.kind, self.attributes, self.groups, self.replaced = kind, attributes, groups, replaced
        self._layouts: dict[int, Slots] = {}
        """What is no tensor of a parameter's state, by its group."""

    def __call__(self, ledger: Ledger, member: Member, p: Tensor, memory: Slots, g: Tensor) -> tuple[Tensor, Slots]:
        """Return the parameter and the memory after the step. Nothing that is given is written to."""
        p, g, following = p.clone(), g.clone(), Following(is_torchs(self.kind))
        following.gradients[id(p)] = g
        states = States(lambda p: CountedSlots(ledger["step"], following))
        if memory:
            for name, value in {**self._layout(ledger, member, p), **memory}.items():
                states[p][name] = value.clone() if name in memory else value
        optimizer = self._clone([self._options(ledger, member) | {"params": [p]}], states)
        with following:
            inspect.unwrap(self.kind.step)(optimizer)
        slots: Slots = states.get(p, {})
        self._note_layout(member, slots)
        return p, memory_of(slots)

    def _clone(self, groups: list[dict[str, Any]], state: Any) -> torch.optim.Optimizer:
        """Return an optimizer of this kind with these groups and this state."""
        optimizer: torch.optim.Optimizer = object.__new__(self.kind)
        vars(optimizer).update(self.attributes, param_groups=groups, state=state)
        return optimizer

    def _layout(self, ledger: Ledger, member: Member, p: Tensor) -> Slots:
        """Return what the state of a parameter holds besides tensors, if need be by a first step."""
        if member.slots:
            return layout_of(member.slots)
        if member.group not in self._layouts:
            with outside_of_transforms():
                self(Ledger(ledger.values), member, example(p), {}, example(p))
        return self._layouts[member.group]

    def _note_layout(self, member: Member, slots: Slots) -> None:
        """Keep what is no tensor of a parameter's state; it must not change"""
        found = layout_of(slots)
        known = layout_of(member.slots) if member.slots else self._layouts.setdefault(member.group, found)
        for name, value in found.items():
            if name != "step" and (isinstance(value, Number) or known.get(name) != value):
                raise UntraceableError(f"its state of a parameter holds '{name}', a number that changes")
        for name, x in memory_of(slots).items():
            if not x.is_floating_point():
                raise UntraceableError(f"its state of a parameter holds '{name}', a tensor of {x.dtype}")

    def _options(self, ledger: Ledger, member: Member) -> dict[str, Any]:
        options = dict(self.groups[member.group].options)
        options |= {name: flag for name, flag in FLAGS.items() if name in options}
        for name in self.replaced:
            option, _, index = name.partition("[")  # "betas[0]" is the first of a pair
            if index:
                pair = list(options[option])
                pair[int(index[:-1])] = ledger[name]
                options[option] = tuple(pair)
            else:
                options[option] = ledger[name]
        return options


# ---- all parameters of a traced optimizer as one vector, if an entry moves by no other entry


LARGE = 2**14  # numbers: to join and part as many takes longer than the few operations of a linear step
VECTOR: Any = (SequenceKey(0),)  # its path in [vector]


def of_one_vector(optimizer: "TorchOptimizer", params: list[Tensor]) -> "TorchOptimizer | None":
    """Return the same optimizer for φ as one vector, or None if an entry may move by more than itself.

    Args:
        optimizer: The optimizer.
        params: φ, parameter by parameter.
    """
    rates = optimizer.overrides.values()  # a function may give each parameter another number
    plain = all(is_number(rate) or getattr(rate, "places", None) == () for rate in rates)
    same = len({(p.dtype, p.device) for p in params}) == len(optimizer.groups) == 1
    all_held = len(optimizer.shapes) == len(params) and all(p.dim() > 0 for p in params)
    if not (plain and same and all_held and is_torchs(optimizer.kind)):
        return None
    vector = torch.cat([example(p).reshape(-1) for p in params])
    slots = _joined([optimizer.slots.get(path, {}) for path in optimizer.shapes], optimizer.shapes.values(), vector)
    if slots is None:
        return None
    groups = (Group(optimizer.groups[0].options, (VECTOR,)),)
    joined = replace(optimizer, groups=groups, slots={VECTOR: slots} if slots else {}, shapes={VECTOR: vector.shape})
    try:
        trace = joined.trace_of(vector)
        is_slower = trace.is_linear and vector.numel() > LARGE
        return joined if trace.is_entrywise and not is_slower else None
    except MetastepError:  # one that needs matrices
        return None


def _joined(each: list[Slots], shapes: Collection[torch.Size], vector: Tensor) -> Slots | None:
    """Return a state like that of all parameters, or None if they differ by more than their entries"""
    first, *others = each
    if any(str(layout_of(slots)) != str(layout_of(first)) for slots in others):
        return None
    joined: Slots = layout_of(first)
    for name in memory_of(first):
        found: list[Any] = [slots[name] for slots in each]
        if all(x.shape == shape for x, shape in zip(found, shapes, strict=True)):
            joined[name] = vector
        elif all(x.dim() == 0 and torch.equal(x, found[0]) for x in found):
            joined[name] = found[0]
        else:
            return None
    return joined


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
    is_entrywise: bool
    """Whether an entry of a parameter moves by no other entry."""
    is_linear: bool
    """Whether the step is linear in the parameter, its memory and its gradient, by numbers that never change."""

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
    entrywise = all(_is_entrywise(node.target) for node in module.graph.nodes if node.op == "call_function")
    entrywise &= all(x.dim() == 0 for x in constants)
    linear = not inputs and not answers and _is_linear(module, given)
    return Trace(ask, answers, numbers, inputs, module.forward, spec, text, bool(halves - starts), entrywise, linear)


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


_MADE = {  # of one number for all entries
    aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.zeros.default, aten.ones.default,
    aten.full.default, aten.scalar_tensor.default, aten.copy.default, aten._to_copy.default,
}  # fmt: skip


def _is_entrywise(target: Any) -> bool:
    return target in _MADE or target in _FASTER.values() or torch.Tag.pointwise in getattr(target, "tags", ())


def _is_linear(module: fx.GraphModule, given: int) -> bool:
    """Whether the first `given` inputs are scaled and added, and nothing else"""
    made = set([node for node in module.graph.nodes if node.op == "placeholder"][:given])
    for node in module.graph.nodes:
        if node.op != "output" and any(arg in made for arg in node.all_input_nodes):
            if not _scales_or_adds(node.target, [arg in made for arg in node.args]):
                return False
            made.add(node)
    return all(x in made for x in module.graph.output_node().all_input_nodes)


def _scales_or_adds(target: Any, are_made: list[bool]) -> bool:
    """Whether an operation on values that are made of the inputs, or not, is linear in them"""
    return {
        torch.add: are_made == [True, True], torch.sub: are_made == [True, True], torch.neg: True,
        torch.mul: sum(are_made) == 1, torch.div: are_made == [True, False],
    }.get(target, False)  # fmt: skip


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
