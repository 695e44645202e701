"""`TorchOptimizer`: any torch.optim optimizer as a pure function, by tracing its own step."""

import inspect
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import SequenceKey

from metastep.core.derivatives import is_recorded
from metastep.core.entrywise import State
from metastep.core.options import Bound, require_number
from metastep.core.rates import Rate, rate_at, rates_of_leaves
from metastep.core.recorded_numbers import Ledger
from metastep.core.torch_comparison import differences
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
from metastep.core.torch_step import FLAGS, OwnStep
from metastep.core.traced_step import Trace, outside_of_transforms, require_inputs, traced, without_derivative
from metastep.core.trees import (
    Tree,
    alike,
    is_number,
    map_tree,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)
from metastep.core.value import Value
from metastep.errors import MetastepError, first_line, how_many

MOST = 8  # traces of one kind of call; torch.optim needs 3


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
    overrides: dict[str, Rate] = field(default_factory=dict)
    """Options that are functions, tensors or trees, by names such as "lr" and "betas[0]"."""
    compared: bool = True
    """Whether a third party's is compared with its own steps at first use."""

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
        """How many steps the optimizer has taken before."""
        return max((count_of(slots) for slots in self.slots.values()), default=0)

    def init(self, params: Tree) -> State:
        memory = [dict[str, Tensor]() for _ in tree_leaves(params)]
        for member in self._members(params):
            memory[member.leaf] = map_tree(torch.clone, memory_of(member.slots))
        return State(params, memory, self.begin)

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        """Take `steps` steps that share a gradient."""
        leaves, spec = tree_flatten(state.params)
        grads, members = _grads(grad, state.params), self._members(state.params)
        memory = list(state.memory)
        for member in members:
            if grads[member.leaf] is None:
                memory[member.leaf] = with_missed(memory[member.leaf], leaves[member.leaf], steps)
        moving = [member for member in members if grads[member.leaf] is not None]
        shared = [grads[member.leaf] for member in moving]
        for i in range(steps):
            values = self._values(meta, state.step + i, state.params, memory)
            before = [leaves[m.leaf] for m in moving], [without_missed(memory[m.leaf]) for m in moving], shared
            for member, p, slots in zip(moving, *self._step(moving, before, values), strict=True):
                missed = {MISSED: memory[member.leaf][MISSED]} if MISSED in memory[member.leaf] else {}
                leaves[member.leaf], memory[member.leaf] = p, slots | missed
        return State(tree_unflatten(leaves, spec), memory, state.step + steps)

    def _step(self, members: list[Member], before: Any, values: dict[str, Any]) -> tuple[list[Tensor], list[Slots]]:
        tensors, nesting = tree_flatten(before)
        trace = self._trace(members, tensors, nesting, values)
        after = trace(tensors, list(values.values()))
        return without_derivative(self.kind.__name__, after) if trace.is_rounded else after  # type: ignore[no-any-return]

    def _values(self, meta: Tree, step: Any, params: Tree, memory: list[Slots]) -> dict[str, Any]:
        """Return by name what changes from step to step: counts of steps, and options that were replaced."""
        values: dict[str, Any] = {"step": _seen(step)}
        values |= {f"step {i}": _seen(step - slots[MISSED]) for i, slots in enumerate(memory) if MISSED in slots}
        for name, rate in self.overrides.items():
            value = rate_at(rate, meta, step, f"{self.kind.__name__}: {name}", _bound(name))
            if is_number(value) or isinstance(value, Tensor):
                values[name] = value
            else:
                values |= {f"{name} {i}": own for i, own in enumerate(rates_of_leaves(value, params))}
        return values

    # ---- the traces

    @cached_property
    def _own(self) -> OwnStep:
        return OwnStep(self.kind, self.attributes, self.groups, tuple(self.overrides), self.begin)

    @cached_property
    def _traces(self) -> dict[Any, list[Trace]]:
        """All that were made, by what they were made for"""
        return {}

    def clone(self, groups: list[dict[str, Any]], state: Any) -> torch.optim.Optimizer:
        """Return an optimizer of this kind with these groups and this state."""
        return self._own.clone(groups, state)

    @property
    def _is_strange(self) -> bool:
        return self.compared and not is_torchs(self.kind)

    def _trace(self, members: list[Member], tensors: list[Tensor], nesting: Any, values: dict[str, Any]) -> Trace:
        known = {name: None if isinstance(value, Tensor) else value for name, value in values.items()}
        looks = tuple((x.shape, x.dtype, x.device) for x in tensors)
        key = tuple(m.leaf for m in members), nesting, looks, tuple((n, v is None) for n, v in known.items())
        traces = self._traces.setdefault(key, [])
        for trace in traces:
            if trace.holds(list(values.values())):
                return trace
        if len(traces) == MOST:
            raise self._refused(f"it takes another way through its code after {MOST} others")
        traces.append(self._new_trace(members, tensors, nesting, known))
        return traces[-1]

    def _new_trace(self, members: list[Member], tensors: list[Tensor], nesting: Any, known: dict[str, Any]) -> Trace:
        def step(ledger: Ledger, given: list[Tensor]) -> Any:
            return self._own(ledger, members, *tree_unflatten(given, nesting))

        params = tree_unflatten(tensors, nesting)[0]
        try:
            if self._is_strange and not any(self._traces.values()):
                self._require_original(members, params)
            self._own.learn_layouts(Ledger(known), members, params)
            trace = traced(step, tensors, known)
            if self._is_strange:
                require_inputs(trace, traced(step, tensors, {name: _another(name, x) for name, x in known.items()}))
            return trace
        except Exception as error:  # an optimizer's code may raise anything when it is traced
            raise self._refused(first_line(error)) from error

    def _require_original(self, members: list[Member], params: list[Tensor]) -> None:
        """Compare the trace with the optimizer's own steps, from its first one, with its own options."""
        used = sorted({member.group for member in members})
        paths: list[Any] = [[(SequenceKey(i),) for i, m in enumerate(members) if m.group == n] for n in used]
        groups = tuple(Group(self.groups[n].options, tuple(own)) for n, own in zip(used, paths, strict=True))
        plain = replace(self, groups=groups, slots={}, overrides={}, compared=False)
        with outside_of_transforms():
            for step, difference in enumerate(differences(plain, params), start=1):
                if not difference < 1e-9:
                    raise MetastepError(
                        f"its trace differs from its own steps by {difference:.1e} after {how_many(step, 'step')}, so "
                        "it may keep something outside of its parameters' state"
                    )

    def _refused(self, why: str) -> MetastepError:
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
        members = [Member(i, group_of[p], self.slots.get(p, {})) for i, p in enumerate(paths) if p in group_of]
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
