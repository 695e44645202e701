"""`TorchOptimizer`: any torch.optim optimizer as a pure function, by tracing its own step."""

import inspect
from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import SequenceKey

from metastep.core.derivatives import is_recorded
from metastep.core.entrywise import State, combination
from metastep.core.options import Bound, require_number
from metastep.core.rates import Rate, rate_at, rates_of_leaves
from metastep.core.recorded_numbers import DecidesError, Ledger
from metastep.core.torch_state import (
    MISSED,
    Group,
    Member,
    Slots,
    count_of,
    is_torchs,
    listed,
    memory_of,
    with_missed,
    without_missed,
)
from metastep.core.traced_step import (
    FLAGS,
    OwnStep,
    Trace,
    of_one_vector,
    outside_of_transforms,
    require_inputs,
    traced,
    without_derivative,
)
from metastep.core.trees import (
    Tree,
    alike,
    is_number,
    map_tree,
    relative_change,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)
from metastep.core.value import Value
from metastep.errors import MetastepError, first_line, how_many

# ---- compare the trace of a third party's optimizer with its own steps

STEPS = 8
AGREE = 1e-9


def copy_of(optimizer: Optimizer) -> Optimizer:
    """Return a copy with parameters of its own. Nothing in it reaches the original."""
    copied: Optimizer = object.__new__(type(optimizer))  # Optimizer's own copies leave attributes out
    own = {name: value for name, value in vars(optimizer).items() if name != "step"}  # a scheduler's, of the original
    vars(copied).update(deepcopy(own, {id(optimizer): copied}))
    return copied


def require_original(traced: "TorchOptimizer", optimizer: Optimizer, held: set[int]) -> None:
    """Compare the traces with the optimizer's own steps, from its first one, with its own options.

    Args:
        traced: Its steps as traces.
        optimizer: The optimizer.
        held: The ids of those of its parameters that φ has.

    Raises:
        MetastepError: They differ.
    """
    try:
        with outside_of_transforms():
            for step, difference in enumerate(_differences(_from_start(traced), optimizer, held), start=1):
                if not difference < AGREE:
                    raise MetastepError(
                        f"its trace differs from its own steps by {difference:.1e} after {how_many(step, 'step')}, so "
                        "it may keep something outside of its parameters' state, or mix parameters"
                    )
    except Exception as error:  # its code may raise anything
        raise traced.refused(first_line(error)) from error


def _from_start(traced: "TorchOptimizer") -> "TorchOptimizer":
    """Return the same for parameters in a list, without a state."""
    groups, paths = [], list(traced.shapes)
    for options, own in traced.groups:
        groups.append(Group(options, tuple((SequenceKey(i),) for i, path in enumerate(paths) if path in own)))
    return replace(traced, groups=tuple(groups), slots={})


def _differences(traced: "TorchOptimizer", optimizer: Optimizer, held: set[int]) -> Iterator[float]:
    """Return how far φ and the memory are from those of the original after each step, relative to their size.

    φ has double precision, and the gradients change their signs.
    """
    start = [
        torch.linspace(-1, 1, shape.numel(), dtype=torch.float64).reshape(shape) for shape in traced.shapes.values()
    ]
    original = copy_of(optimizer)
    own, state = _moved_to(original, optimizer, held, start), traced.init(start)
    for t in range(STEPS):
        grads = [torch.sin(3 * p + t) for p in state.params]
        state = traced.advance(state, grads, None, 1)
        for p, g in zip(own, grads, strict=True):
            p.grad = g.clone()
        inspect.unwrap(type(original).step)(original)
        memory = [memory_of(original.state[p]) for p in own]
        yield max(float(relative_change(a, b)) for a, b in ((own, state.params), (memory, state.memory)))


def _moved_to(copied: Optimizer, optimizer: Optimizer, held: set[int], start: list[Tensor]) -> list[Tensor]:
    """Give a copy these parameters, and no others. Return them."""
    own: list[Tensor] = []
    for group, of in zip(copied.param_groups, optimizer.param_groups, strict=True):
        group["params"] = [p for p, q in zip(group["params"], of["params"], strict=True) if id(q) in held]
        own += group["params"]
    for p, x in zip(own, start, strict=True):
        p.grad, p.data = None, x.clone()
    copied.state = defaultdict(dict)
    return own


MOST = 8  # traces of one kind of call; torch.optim needs 3

Rows = tuple[list[float], dict[str, list[float]]]  # coefficients of a parameter, its memory and its gradient
Values = tuple[Any, ...]  # the count of steps, and each option that was replaced


class Numbers:
    """What changes from step to step: the count of steps, and the options that were replaced."""

    def __init__(self, step: Any, rates: list[Any]) -> None:
        self._step, self._rates = step, rates
        self._shared = None if any(isinstance(rate, list) for rate in rates) else (step, *rates)

    def of(self, member: Member, missed: Any) -> Values:
        """Return those of one parameter."""
        if self._shared is not None and not member.behind and missed is None:
            return self._shared
        step = self._step - member.behind if missed is None else _seen(self._step - member.behind - missed)
        return step, *(rate[member.leaf] if isinstance(rate, list) else rate for rate in self._rates)


@dataclass(frozen=True, eq=False, repr=False)
class TorchOptimizer(Value):
    """An optimizer of torch.optim, or of a third party. `from_torch` makes it.

    Parameters of φ that the optimizer does not hold stay as they are, and so do those whose gradient is None. The
    memory is a list with a dict for each parameter.
    """

    kind: type[torch.optim.Optimizer]
    attributes: dict[str, Any]
    groups: tuple[Group, ...]
    slots: dict[Any, Slots]
    """The state that the optimizer has already, by paths."""
    shapes: dict[Any, torch.Size]
    """The shapes of its parameters, by paths."""
    overrides: dict[str, Rate] = field(default_factory=dict)
    """Options that are functions, tensors or trees, by names such as "lr" and "betas[0]"."""

    def __repr__(self) -> str:
        usual = {n: p.default for n, p in inspect.signature(self.kind).parameters.items()}
        given = {n: v for n, v in self.groups[0].options.items() if n in usual and n not in (*FLAGS, *self.overrides)}
        told = [f"{name}={value!r}" for name, value in given.items() if value != usual[name]]
        told += [f"{name}={getattr(rate, '__name__', rate)}" for name, rate in self.overrides.items()]
        more = f", {len(self.groups)} groups" if len(self.groups) > 1 else ""
        return f"from_torch({self.kind.__name__}({', '.join(told)}){more})"

    # ---- options

    @property
    def lr(self) -> Rate:
        """The learning rate, which Meta-SGD learns."""
        if "lr" not in self.numbers:
            raise MetastepError(f"{self!r} has no option lr that could be learned. Use another inner optimizer.")
        rates = {group.options["lr"] for group in self.groups}
        if "lr" not in self.overrides and len(rates) > 1:
            raise MetastepError(f"{self!r} has a learning rate for each group. Give one that is learned with lr=….")
        return self.overrides.get("lr", next(iter(rates)))

    @property
    def weight_decay(self) -> Rate:
        """The largest of all groups."""
        return self.overrides.get("weight_decay", max(group.options.get("weight_decay", 0.0) for group in self.groups))

    @property
    def numbers(self) -> list[str]:
        """The names of the options that functions, tensors and trees can replace."""
        names = []
        for name, value in self.groups[0].options.items():
            if isinstance(value, tuple):
                names += [f"{name}[{i}]" for i, x in enumerate(value) if is_number(x)]
            elif is_number(value) and name != "initial_lr":
                names.append(name)
        return names

    def with_options(self, given: dict[str, Rate]) -> "TorchOptimizer":
        """Return the same with other options."""
        for name, rate in given.items():
            require_number(rate, _bound(name), f"{self.kind.__name__}: {name}")
        return replace(self, overrides=self.overrides | given)

    def with_lr(self, lr: Rate) -> "TorchOptimizer":
        """Return the same with another learning rate."""
        return self.with_options({"lr": lr})

    # ---- the protocol

    @cached_property
    def begin(self) -> int:
        """Return how many steps the optimizer has taken before."""
        return max((count_of(slots) for slots in self.slots.values()), default=0)

    def init(self, params: Tree) -> State:
        memory = [dict[str, Tensor]() for _ in tree_leaves(params)]
        for member in self._members(params):
            memory[member.leaf] = map_tree(torch.clone, memory_of(member.slots))
        return State(params, memory, self.begin)

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        """Take `steps` steps that share a gradient."""
        leaves, spec = tree_flatten(state.params)
        grads, members, memory = _grads(grad, state.params), self._members(state.params), list(state.memory)
        for member in members:
            if grads[member.leaf] is None:
                memory[member.leaf] = with_missed(memory[member.leaf], leaves[member.leaf], steps)
        moving = [member for member in members if grads[member.leaf] is not None]
        counts = [state.step + i for i in range(steps)]
        numbers = [Numbers(_seen(count), self._rates(meta, count, state.params)) for count in counts]
        ready: dict[Any, Any] = {}
        for member in moving:
            j = member.leaf
            values = [each.of(member, memory[j].get(MISSED)) for each in numbers]
            leaves[j], memory[j] = self._moved(member, leaves[j], memory[j], grads[j], values, ready)
        return State(tree_unflatten(leaves, spec), memory, state.step + steps)

    def of_one_vector(self, params: list[Tensor]) -> "TorchOptimizer | None":
        """Return the same for all parameters of φ as one vector, or None if an entry may move by more than itself."""
        key = tuple((p.shape, p.dtype, p.device) for p in params)
        if key not in self._vectors:
            self._vectors[key] = of_one_vector(self, params)
        return self._vectors[key]

    @cached_property
    def _vectors(self) -> dict[Any, "TorchOptimizer | None"]:
        return {}

    def trace_of(self, p: Tensor) -> Trace:
        """Return how it moves φ that is one tensor, at its first step."""
        (member,) = self._members([p])
        own = memory_of(member.slots)
        values = (self.begin, *self._rates((), self.begin, [p]))
        return self._trace(member, [p, p, *own.values()], tuple(own), values)

    def _moved(
        self, member: Member, p: Tensor, memory: Slots, g: Tensor, values: list[Values], ready: dict[Any, Any]
    ) -> tuple[Tensor, Slots]:
        """Take a step for each of the values, or all at once if they are linear"""
        tensors = [p, *memory.values(), g]
        if all((x.shape, x.dtype) == (p.shape, p.dtype) for x in tensors):
            own, after = self._rows(member, p, tuple(memory), values) or (None, {})
            if own:
                return _mixed(tensors, own), {name: _mixed(tensors, row) for name, row in after.items()}
        for each in values:
            p, memory = self._step(member, p, memory, g, each, ready)
        return p, memory

    def _rows(self, member: Member, p: Tensor, slots: tuple[str, ...], values: list[Values]) -> Rows | None:
        """The coefficients of (p, memory, g) after steps that are linear in them, or None"""
        key = member.group, member.constants, slots, (p.shape, p.dtype, p.device), len(values)
        if key not in self._known_rows:
            with outside_of_transforms():
                self._known_rows[key] = self._of_units(member, p, slots, values)
        return self._known_rows[key]

    def _of_units(self, member: Member, p: Tensor, slots: tuple[str, ...], values: list[Values]) -> Rows | None:
        """Let unit vectors move: entry i of what they become is the coefficient of tensor i"""
        own, *others, g = torch.eye(len(slots) + 2, dtype=torch.float64, device=p.device)
        memory = dict(zip(slots, others, strict=True))
        for each in values:
            trace = self._trace(member, [p] * (len(memory) + 2), tuple(memory), each)
            if not trace.is_linear:
                return None
            own, memory = trace([own, g, *memory.values()], trace.ready(each))
        return own.tolist(), {name: x.tolist() for name, x in memory.items()}

    @cached_property
    def _known_rows(self) -> dict[Any, Rows | None]:
        return {}

    def _step(
        self, member: Member, p: Tensor, memory: Slots, g: Tensor, values: Values, ready: dict[Any, Any]
    ) -> tuple[Tensor, Slots]:
        """ready: inputs that were made of numbers for another parameter"""
        own = without_missed(memory)
        tensors = [p, g, *own.values()]
        trace = self._trace(member, tensors, tuple(own), values)
        key = id(trace), id(values)
        if key not in ready:
            ready[key] = values, trace.ready(values)  # with the values: while they live, nothing else has their id
        p, after = trace(tensors, ready[key][1])
        if trace.is_rounded:
            p, after = without_derivative(self.kind.__name__, (p, after))
        return p, after | {MISSED: memory[MISSED]} if MISSED in memory else after

    def _rates(self, meta: Tree, step: Any, params: Tree) -> list[Any]:
        """Each option that was replaced: a number, a tensor, or a list with one for each parameter"""
        rates = []
        for name, rate in self.overrides.items():
            value = rate_at(rate, meta, step, f"{self.kind.__name__}: {name}", _bound(name))
            one = is_number(value) or isinstance(value, Tensor)
            rates.append(value if one else rates_of_leaves(value, params))
        return rates

    # ---- the traces

    @cached_property
    def _own(self) -> OwnStep:
        return OwnStep(self.kind, self.attributes, self.groups, tuple(self.overrides))

    @cached_property
    def _traces(self) -> dict[Any, list[Trace]]:
        """All that were made, by what they were made for"""
        return {}

    def _trace(self, member: Member, tensors: list[Tensor], slots: tuple[str, ...], values: Values) -> Trace:
        looks = tuple((x.shape, x.dtype, x.device) for x in tensors)
        learned = tuple(isinstance(value, Tensor) for value in values)
        key = member.group, member.constants, slots, looks, learned
        traces = self._traces.setdefault(key, [])
        for trace in traces:
            if trace.holds(values):
                return trace
        if len(traces) == MOST:
            raise self.refused(f"it takes another way through its code after {MOST} others")
        traces.append(self._new_trace(member, tensors, slots, values))
        return traces[-1]

    def _new_trace(self, member: Member, tensors: list[Tensor], slots: tuple[str, ...], values: Values) -> Trace:
        known = {
            n: None if isinstance(x, Tensor) else x for n, x in zip(("step", *self.overrides), values, strict=True)
        }

        def step(ledger: Ledger, given: list[Tensor]) -> Any:
            p, g, *memory = given
            return self._own(ledger, member, p, dict(zip(slots, memory, strict=True)), g)

        try:
            trace = traced(step, tensors, known)
            if not is_torchs(self.kind):
                require_inputs(trace, traced(step, tensors, {name: _another(name, x) for name, x in known.items()}))
            return trace
        except Exception as error:  # an optimizer's code may raise anything when it is traced
            if isinstance(error, DecidesError) and isinstance(values[0], Tensor):
                raise MetastepError(
                    f"{self.kind.__name__} decides by its count of steps, which is a tensor where each task has its "
                    "own, and in a compiled plan. Use chunk_size=1 there, and compile=False."
                ) from error
            raise self.refused(first_line(error)) from error

    def refused(self, why: str) -> MetastepError:
        """Return why it cannot be an inner optimizer."""
        name = f"{self.kind.__name__} cannot be an inner optimizer"
        if why.startswith(name):
            return MetastepError(why)
        return MetastepError(f"{name}: {why.rstrip('.')}. Use another, or write its step with ms.StepFunction.")

    # ---- which parameters of φ are its own

    @cached_property
    def _bound_to(self) -> dict[Any, list[Member]]:
        return {}

    def _members(self, params: Tree) -> list[Member]:
        """Return the parameters of φ that the optimizer holds."""
        spec = tree_flatten(params)[1]
        if spec not in self._bound_to:
            self._bound_to[spec] = self._bind(params)
        return self._bound_to[spec]

    def _bind(self, params: Tree) -> list[Member]:
        group_of = {path: i for i, group in enumerate(self.groups) for path in group.paths}
        paths: list[Any] = [path for path, _ in tree_flatten_with_path(params)[0]]
        slots = [self.slots.get(path, {}) for path in paths]
        members = [
            Member(i, group_of[path], own, self.begin - count_of(own))
            for i, (path, own) in enumerate(zip(paths, slots, strict=True))
            if path in group_of
        ]
        if not members:
            raise MetastepError(
                f"{self!r} holds no parameter of φ: its parameters are {listed(group_of)}, those of φ {listed(paths)}. "
                "Make it of the parameters of the module that is adapted, or name them: "
                "from_torch(optimizer, parameters=…)."
            )
        return members


def _grads(grad: Tree, params: Tree) -> list[Any]:
    """The gradient of each parameter; None, where there is none"""
    (grads, own), (leaves, spec) = tree_flatten(grad), tree_flatten(params)
    if own != spec or any(g is not None and g.shape != p.shape for g, p in zip(grads, leaves, strict=True)):
        alike(grad, params, "gradients")
    return grads


def _seen(count: Any) -> Any:
    """A count of steps as a number, where its value can be seen"""
    if not isinstance(count, Tensor) or count.is_cuda or is_recorded():
        return count
    try:
        return int(count)
    except RuntimeError:  # each task that is mapped has a count of its own
        return count


def _bound(name: str) -> Bound:
    return Bound(ge=0) if name in ("lr", "weight_decay") else Bound()


def _another(name: str, value: Any) -> Any:
    """Another value of a number, for a second trace"""
    return None if value is None else value + 1 if name.startswith("step") else 1.25 * value + 1e-3


def _mixed(tensors: list[Tensor], row: list[float]) -> Tensor:
    """Return Σ coefficient · tensor, first the tensor that needs no product."""
    terms = sorted([(x, c) for x, c in zip(tensors, row, strict=True) if c], key=lambda term: term[1] != 1)
    return combination(terms or [(tensors[0], 0.0)])
