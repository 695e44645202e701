"""Numbers that record what is calculated with them, so that a trace can take them as inputs.

A trace of an optimizer's step would freeze the count of steps and the learning rate. A `Number` is a float with a
value, so that the step's own Python code runs as it is; the arithmetic and the comparisons made with it are kept, and
are made again with the values of every later step.
"""

import operator
from collections import defaultdict
from collections.abc import Callable
from functools import partialmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from metastep.core.trees import is_number, tree_leaves, tree_map
from metastep.errors import MetastepError


class UntraceableError(MetastepError):
    """Say why a step cannot be traced."""


class DecidesError(UntraceableError):
    """Say that a step branches on a number whose value is not known."""


class Expression(NamedTuple):
    """How a number is calculated: an operation and its operands; of an input, None and its name."""

    operation: Any
    operands: tuple[Any, ...]


class Ledger:
    """Keep what one trace does with its numbers.

    Args:
        values: Each input by name: a number, or None if it is a tensor, whose value may not decide anything.
    """

    def __init__(self, values: dict[str, float | None]) -> None:
        self.values = values
        self.answers: dict[Expression, bool] = {}
        """Comparisons that the step made. Where one has another answer, this trace does not hold."""
        self.inputs: dict[tuple[Expression, torch.dtype, torch.device], Tensor] = {}
        """Numbers that meet tensors, in the order in which the graph takes them."""

    def __getitem__(self, name: str) -> "Number":
        value = self.values[name]
        return Number(float("nan") if value is None else value, Expression(None, (name,)), self, value is not None)

    def tensor(self, number: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        key = number.expression, dtype, device
        if key not in self.inputs:
            self.inputs[key] = torch.tensor(float.__float__(number), dtype=dtype, device=device)
        return self.inputs[key]


class Number(float):
    """A float that records the arithmetic and the comparisons that are made with it."""

    value: Any
    expression: Expression
    ledger: Ledger
    is_known: bool

    def __new__(cls, value: Any, expression: Expression, ledger: Ledger, is_known: bool) -> "Number":
        number = super().__new__(cls, value)
        number.value, number.expression, number.ledger, number.is_known = value, expression, ledger, is_known
        return number

    def __hash__(self) -> int:
        return hash(self.expression)

    def __bool__(self) -> bool:
        return bool(_ask(operator.ne, self, 0))

    def __float__(self) -> float:
        raise UntraceableError(f"it takes {_named(self)} out of the arithmetic, with float(…)")

    def __int__(self) -> int:
        raise UntraceableError(f"it takes {_named(self)} out of the arithmetic, with int(…)")

    __round__ = __trunc__ = __floor__ = __ceil__ = __int__  # type: ignore[assignment]


def _calculate(operation: Callable[..., Any], *operands: Any) -> Any:
    numbers = [x for x in operands if isinstance(x, Number)]
    value = operation(*(x.value if isinstance(x, Number) else x for x in operands))
    expression = Expression(operation, tuple(x.expression if isinstance(x, Number) else x for x in operands))
    return Number(value, expression, numbers[0].ledger, all(x.is_known for x in numbers))


def _alone(number: Number, operation: Callable[..., Any]) -> Any:
    return _calculate(operation, number)


def _ask(operation: Callable[..., Any], number: Number, other: Any) -> Any:
    """Compare. A tensor is taken to be neither 0 nor anything else that it could be compared with."""
    if not (number.is_known and getattr(other, "is_known", True)):
        if operation in (operator.eq, operator.ne) and is_number(other) and other == 0:
            return operation is operator.ne
        raise DecidesError(f"it decides by the value of {_named(number)}, which is a tensor here")
    answer = bool(operation(number.value, getattr(other, "value", other)))
    expression = Expression(operation, (number.expression, getattr(other, "expression", other)))
    number.ledger.answers[expression] = answer
    return answer


def _method(operation: Callable[..., Any], reflected: bool, by: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Number, other: Any) -> Any:
        if not is_number(other):
            return NotImplemented
        return by(operation, other, self) if reflected else by(operation, self, other)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    for _prefix in ("", "r"):
        setattr(Number, f"__{_prefix}{_name}__", _method(getattr(operator, _name), bool(_prefix), _calculate))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Number, f"__{_name}__", _method(getattr(operator, _name), False, _ask))
for _name in ("neg", "pos", "abs"):
    setattr(Number, f"__{_name}__", partialmethod(_alone, getattr(operator, _name)))


def function_of(expressions: list[Expression], names: list[str]) -> Callable[..., tuple[Any, ...]]:
    """Return a function of the inputs, in the order of `names`, that calculates all expressions once."""
    graph, nodes = fx.Graph(), dict[Any, fx.Node]()
    for name in names:
        nodes[Expression(None, (name,))] = graph.placeholder(f"x{len(nodes)}")

    def node(x: Any) -> Any:
        if not isinstance(x, Expression):
            return x
        if x not in nodes:
            nodes[x] = graph.call_function(x.operation, tuple(node(operand) for operand in x.operands))
        return nodes[x]

    graph.output(tuple(node(expression) for expression in expressions))
    return fx.GraphModule(torch.nn.Module(), graph).forward


def as_tensors(tree: Any, like: Tensor) -> Any:
    """Replace numbers in the arguments of an operation by tensors of the type of the tensor that they meet."""
    dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
    return tree_map(lambda x: x.ledger.tensor(x, dtype, like.device) if isinstance(x, Number) else x, tree)


def _named(number: Number) -> str:
    names, left = [], [number.expression]
    while left:
        operation, operands = left.pop()
        names += [operands[0]] if operation is None else []
        left += [x for x in operands if isinstance(x, Expression)]
    return " and ".join(dict.fromkeys(names))


# ---- operations of PyTorch with recorded numbers, and with tensors, where they take Python numbers only


def operate(function: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of PyTorch. Its numbers become tensors; where no tensor may stand, its formula is written out."""
    written: Callable[..., Any] = _WRITTEN_OUT.get(getattr(function, "__name__", ""), _plainly)
    return written(function, args, kwargs)


def _plainly(function: Any, args: Any, kwargs: Any) -> Any:
    tensors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
    if tensors:
        args, kwargs = as_tensors((args, kwargs), tensors[0])
    return function(*args, **kwargs)


def _sum(to: str, arguments: str, term: Callable[..., Tensor]) -> Callable[..., Any]:
    """Write an operation of these arguments as x + w · term, by `to` of x. The last argument is w."""
    *tensors, weight = arguments.split()

    def written(function: Any, args: Any, kwargs: Any) -> Any:
        given = dict(zip((*tensors, weight), args, strict=False)) | kwargs
        if not _is_recorded(given.get(weight)):
            return _plainly(function, args, kwargs)
        x, *others = (given[name] for name in tensors)
        return getattr(x, to)(as_tensors(given[weight], x) * term(x, *others))

    return written


def _made(function: Any, args: Any, kwargs: Any) -> Any:
    """A tensor of a number"""
    number, *rest = args
    if not isinstance(number, Number) or rest:
        return _plainly(function, args, kwargs)
    dtype, device = kwargs.get("dtype") or torch.get_default_dtype(), kwargs.get("device") or torch.device("cpu")
    return number.ledger.tensor(number, torch.float64, torch.device(device)).to(dtype)


def _filled(function: Any, args: Any, kwargs: Any) -> Any:
    """Make a tensor like x, with a number everywhere."""
    x, value = args
    if not _is_recorded(value):
        return _plainly(function, args, kwargs)
    return torch.zeros_like(x, **kwargs) + as_tensors(value, x)


def _written_where(function: Any, args: Any, kwargs: Any) -> Any:
    """x[mask] = a number: vmap knows no index of a size that depends on values"""
    x, mask, value = args
    if not (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == x.shape):
        return _plainly(function, args, kwargs)
    value = as_tensors(value, x)
    if isinstance(value, Tensor) and value.dim() > 0:
        raise UntraceableError("it writes a tensor to where a mask is true")
    return x.copy_(torch.where(mask, value, x))


def _clamped(function: Any, args: Any, kwargs: Any) -> Any:
    given = dict(zip(("self", "min", "max"), args, strict=False)) | kwargs
    x, low, high = given["self"], given.get("min"), given.get("max")
    if not (_is_recorded(low) or _is_recorded(high)):
        return _plainly(function, args, kwargs)
    y = x if low is None else torch.maximum(x, _tensor(low, x))
    y = y if high is None else torch.minimum(y, _tensor(high, x))
    return x.copy_(y) if function.__name__.endswith("_") else y


def _tensor(limit: Any, like: Tensor) -> Tensor:
    limit = as_tensors(limit, like)
    return limit if isinstance(limit, Tensor) else torch.full_like(like, limit)


def _is_recorded(x: Any) -> bool:
    return isinstance(x, Number | Tensor)


_SUMS = (
    ("add", "add", "self other alpha", lambda x, y: y),
    ("sub", "sub", "self other alpha", lambda x, y: y),
    ("addcmul", "add", "self tensor1 tensor2 value", lambda x, a, b: a * b),
    ("addcdiv", "add", "self tensor1 tensor2 value", lambda x, a, b: a / b),
    ("lerp", "add", "self end weight", lambda x, y: y - x),
)
_WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    **{name + end: _sum(to + end, arguments, term) for name, to, arguments, term in _SUMS for end in ("", "_")},
    **dict.fromkeys(("tensor", "as_tensor", "scalar_tensor"), _made),
    "full_like": _filled, "__setitem__": _written_where, "clamp": _clamped, "clamp_": _clamped,
}  # fmt: skip


# ---- run an optimizer's own code with counts of steps as recorded numbers, and with gradients that are given


class CountedSlots(dict[str, Any]):
    """An optimizer's state of one parameter, whose "step" is a number that the trace records."""

    def __init__(self, count: Number, following: "Following") -> None:
        super().__init__()
        self._count, self._following = count, following

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "step" and name not in self:
            value = self._following.counted(value, self._count)
        super().__setitem__(name, value)


class Following(TorchFunctionMode):
    """Run an optimizer's operations with numbers as tensors, and with gradients that are given."""

    def __init__(self, is_trusted: bool) -> None:
        super().__init__()
        self.gradients: dict[int, Tensor | None] = {}
        self._is_trusted = is_trusted
        self._counts: dict[int, tuple[Tensor, Number]] = {}
        self._items: dict[int, Tensor] = {}

    def counted(self, value: Any, count: Number) -> Any:
        """Let a tensor stand for a count of steps."""
        if not isinstance(value, Tensor):
            return count
        self._counts[id(value)] = value, count
        return value

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first: Any = args[0] if args else None
        kwargs = kwargs or {}
        if function == _GRAD:
            return self.gradients.get(id(first))
        if id(first) in self._counts and function in (Tensor.add_, Tensor.__iadd__):
            self._counts[id(first)] = first, self._counts[id(first)][1] + args[1]
            return first
        if function is Tensor.item:
            return self._counts[id(first)][1] if id(first) in self._counts else self._item(first)
        if self._is_trusted and id(first) in self._items and function in _EQUALITY:
            return _EQUALITY[function]  # ASGD asks whether a weight is 1, where both ways give the same
        if function in _OUT_OF_TENSORS:
            raise UntraceableError("it decides by the values of tensors, or takes them out as Python numbers")
        args, kwargs = tree_map(self._number, (args, kwargs))
        return operate(function, args, kwargs)

    def _item(self, x: Tensor) -> Tensor:
        item = x.to(torch.float64)
        self._items[id(item)] = item
        return item

    def _number(self, x: Any) -> Any:
        return self._counts[id(x)][1] if id(x) in self._counts else x


_OUT_OF_TENSORS = {
    Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.__index__, Tensor.tolist, Tensor.numpy, Tensor.nonzero,
    Tensor.__contains__, torch.equal, torch.allclose, torch.nonzero,
}  # fmt: skip
_GRAD = vars(torch._C.TensorBase)["grad"].__get__
_EQUALITY = {Tensor.__eq__: False, Tensor.__ne__: True, Tensor.eq: False, Tensor.ne: True}


class States(defaultdict[Tensor, CountedSlots]):
    """An optimizer's state: of every parameter that it has not seen, fresh slots."""

    def __init__(self, fresh: Callable[[Tensor], CountedSlots]) -> None:
        super().__init__()
        self._fresh = fresh

    def __missing__(self, parameter: Tensor) -> CountedSlots:
        self[parameter] = self._fresh(parameter)
        return self[parameter]
