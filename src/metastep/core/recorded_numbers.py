"""Numbers that record what is calculated with them, so that a trace can take them as inputs.

A trace of an optimizer's step would freeze the count of steps and the learning rate. A `Number` is a float with a
value, so that the step's own Python code runs as it is; the arithmetic and the comparisons made with it are kept, and
are made again with the values of every later step.
"""

import operator
from collections.abc import Callable
from functools import partialmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from metastep.core.trees import is_number, tree_map
from metastep.errors import MetastepError


class UntraceableError(MetastepError):
    """Say why a step cannot be traced."""


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
        raise UntraceableError(f"it decides by the value of {_named(number)}, which is a tensor here")
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
