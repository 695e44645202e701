"""Read the options of what is registered (type, default, bound, help), and refuse numbers that are out of bounds.

Options are the fields of a dataclass, or the parameters of a function. `Annotated[float, Bound(ge=0, lt=1)]` gives a
bound, and the `Args:` section of the docstring the help. `Annotated[Any, Bound(...)]` is a number too, in whose place
Python code may give a tensor, a tree of tensors, or a function of (meta, step).
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import inf, isfinite
from numbers import Integral
from types import GenericAlias, NoneType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from metastep.core.checks import require_takes
from metastep.core.derivatives import is_recorded
from metastep.core.registry import KINDS, named, names
from metastep.core.trees import is_number, tree_leaves
from metastep.errors import MetastepError, did_you_mean

REQUIRED = MISSING  # the default of an option that has none


class Bound(NamedTuple):
    """The interval that a number must lie in."""

    ge: float = -inf
    gt: float = -inf
    le: float = inf
    lt: float = inf

    def holds(self, x: Any) -> Any:
        """Compare a number, or every element of a tensor."""
        return (x >= self.ge) & (x > self.gt) & (x <= self.le) & (x < self.lt)

    def __str__(self) -> str:
        told = {"at least": self.ge, "above": self.gt, "at most": self.le, "below": self.lt}
        return " and ".join(f"{words} {limit:g}" for words, limit in told.items() if isfinite(limit)) or "finite"


class Option(NamedTuple):
    """What can be said of one option without running anything."""

    name: str
    type: Any
    """What a configuration keeps: bool, int, float, str, a Literal or a tuple of them; else the annotation itself."""
    default: Any
    """REQUIRED if there is none."""
    bound: Bound | None
    help: str


def options_of(thing: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a registered class or function.

    Args:
        thing: A dataclass, or a function or another class, whose parameters are its options.

    Returns:
        Every option by its name, in order.

    Example:
        >>> import metastep as ms
        >>> from metastep.core.options import options_of
        >>> print(options_of(ms.SGD)["lr"].bound)
        at least 0
    """
    return dict(_options(thing))  # a copy: what is cached is not for the caller to change


@cache
def _options(thing: Callable[..., Any]) -> dict[str, Option]:
    source = getattr(thing, "func", thing)  # of a partial
    hints, helps = _hints(source), _helps(source)
    defaults = _defaults(thing)
    return {
        name: Option(name, _plain(hints.get(name, Any)), default, _bound(hints.get(name, Any)), helps.get(name, ""))
        for name, default in defaults.items()
    }


def require_options(instance: Any) -> None:
    """Refuse options of the wrong kind or out of their bounds, by name; for `__post_init__` of a dataclass.

    Args:
        instance: A dataclass whose annotations say what its fields must be.

    Raises:
        MetastepError: A field does not fit its annotation.

    Example:
        >>> import metastep as ms
        >>> ms.SGD(lr=-0.1)
        Traceback (most recent call last):
        metastep.errors.MetastepError: SGD: lr = -0.1 must be a number that is at least 0. ...
    """
    hints = _hints(type(instance))
    for field in fields(instance):
        _require(getattr(instance, field.name), hints[field.name], f"{type(instance).__name__}: {field.name}")


_BELONGS = {
    "lr": "The learning rate belongs to the inner optimizer: ms.SGD(lr=0.1).",
    "window": "The window belongs to the method: ms.MultiStep(window=4).",
    "steps": "The steps belong to the MetaGradient: ms.MetaGradient(problem, method, inner, steps=5).",
    "batch": "The batch belongs to the MetaGradient: ms.MetaGradient(problem, method, inner, steps=5, batch=10).",
}  # options that are often given to the wrong class


def call_of(thing: Callable[..., Any]) -> str:
    """Return how a registered class or function is written in code, with the options that it needs.

    Args:
        thing: The class; or a function, which is written without a call.

    Returns:
        Such as "ms.MultiStep(window=…)". What is not ours is written by its own name.

    Example:
        >>> import metastep as ms
        >>> from metastep.core.options import call_of
        >>> call_of(ms.MultiStep), call_of(ms.curvature.exact)
        ('ms.MultiStep(window=…)', 'ms.curvature.exact')
    """
    name = getattr(thing, "__name__", repr(thing))
    where = next((place for place, listed in _public() if listed.get(name) is thing), "")
    ours = options_of(thing).values() if where else ()  # a builtin has no signature to read
    needed = [f"{option.name}=…" for option in ours if option.default is REQUIRED]
    return f"{where}{name}({', '.join(needed)})" if isinstance(thing, type) else f"{where}{name}"


def _public() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the public classes and functions of each module that registers some."""
    import metastep

    yield "ms.", {name: getattr(metastep, name) for name in metastep.__all__ if name[0].isupper()}
    for room in ("methods", "optimizers", "curvature", "solvers"):
        module = getattr(metastep, room)
        yield f"ms.{room}.", {name: getattr(module, name) for name in module.__all__}


def written(instance: Any) -> str:
    """Return how a dataclass is written in code, without the options that have their default.

    Args:
        instance: The dataclass.

    Returns:
        Such as "MultiStep(window=4)". Functions and classes are written by their names.

    Example:
        >>> import metastep as ms
        >>> ms.MultiStep(window=4)
        MultiStep(window=4)
    """
    given = [(field.name, getattr(instance, field.name), field.default) for field in fields(instance)]
    told = [f"{name}={_word(value)}" for name, value, default in given if not _is_default(value, default)]
    return f"{type(instance).__name__}({', '.join(told)})"


class Checked:
    """Refuse arguments that a class does not take, and missing ones, by name, before anything is made of them.

    Example:
        >>> import metastep as ms
        >>> ms.MultiStep(windw=4)
        Traceback (most recent call last):
        metastep.errors.MetastepError: MultiStep has no option 'windw'. Did you mean 'window'? ...
    """

    usage: ClassVar[str] = ""
    """What to write, for the end of the message. By default, it names the options."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        signature = inspect.signature(cls.__init__)
        known = list(signature.parameters)[1:]
        named = cls.usage or (f"Its options: {', '.join(known)}." if known else "It has none.")
        for name in options:
            if name not in known:
                near = f" {_BELONGS[name]}" if name in _BELONGS else did_you_mean(name, known)
                raise MetastepError(f"{cls.__name__} has no option {name!r}.{near} {named}")
        if args and isinstance(args[0], Iterator):
            raise MetastepError(
                f"{cls.__name__} was given a {type(args[0]).__name__}, such as net.parameters(). An inner optimizer "
                f"takes no parameters, since the problem says where φ starts. Write {cls.__name__}(lr=0.1)."
            )
        try:
            signature.bind(None, *args, **options)
        except TypeError as error:
            raise MetastepError(f"{cls.__name__}: {error}. {named}") from None
        return super().__new__(cls)


class Described(Checked):
    """Check, print and pickle the options of a frozen dataclass by what its annotations say.

    Example:
        >>> from dataclasses import dataclass
        >>> from metastep.core.options import Described
        >>> @dataclass(frozen=True, repr=False)
        ... class Options(Described):
        ...     window: int = 1
        >>> Options(window=4)
        Options(window=4)
    """

    def __post_init__(self) -> None:
        require_options(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return written(self)


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (not isinstance(value, Tensor) and type(value) is type(default) and value == default)


def _word(value: Any) -> str:
    return value.__name__ if inspect.isroutine(value) or isinstance(value, type) else repr(value)


def require_number(value: Any, bound: Bound, name: str) -> None:
    """Refuse a number, tensor or tree that is not finite or out of bounds.

    Args:
        value: A number, a tensor, a tree of them, or a function of (meta, step), whose values are not looked at.
        bound: Where it must lie.
        name: What the message calls it.

    Raises:
        MetastepError: It is something else, is out of bounds, or is a tensor that requires grad.

    Example:
        >>> from metastep.core.options import Bound, require_number
        >>> require_number(0.9, Bound(ge=0, lt=1), "momentum")
    """
    if callable(value):
        require_takes(value, name, "meta, step")
        return
    leaves = tree_leaves(value)
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            raise MetastepError(
                f"{name} requires grad, but a tensor given here is a constant. To learn it, put it into meta and "
                f'give a function, such as lambda meta, step: meta["{name.split()[-1]}"]. Otherwise detach it.'
            )
        if not _lies_in(leaf, bound):
            raise MetastepError(
                f"{name} = {leaf!r} must be a number that is {bound}. "
                "Give a finite number or tensor in these bounds, a tree of them, or a function of (meta, step)."
            )
    if not leaves:
        raise MetastepError(f"{name} = {value!r} has no number in it. Give one for each parameter.")


def _lies_in(leaf: Any, bound: Bound) -> bool:
    if is_number(leaf):
        return isfinite(leaf) and bool(bound.holds(leaf))
    if not isinstance(leaf, Tensor) or leaf.dtype == torch.bool or leaf.is_complex():
        return False
    # Looking at a tensor on a GPU waits for the GPU and cannot be captured; in a trace there are no values.
    return leaf.is_cuda or is_recorded() or bool((torch.isfinite(leaf) & bound.holds(leaf)).all())


def _require(value: Any, hint: Any, name: str) -> None:
    kind, bound = _parted(hint)
    if value is None and NoneType in get_args(kind):
        return
    kind = _without_none(kind)
    if bound is not None and kind is Any:
        require_number(value, bound, name)
    elif get_origin(kind) is tuple:
        _require_tuple(value, get_args(kind), name)
    elif get_origin(kind) is Callable:
        _require_function(value, name)
    elif get_origin(kind) is Literal and value not in get_args(kind):
        raise MetastepError(f"{name} = {value!r} must be one of {', '.join(map(repr, get_args(kind)))}. Choose one.")
    elif kind in _KINDS and not _KINDS[kind].fits(value):
        raise MetastepError(f"{name} = {value!r} must be {_KINDS[kind].words}. Correct its type.")
    elif bound is not None and not _lies_in(value, bound):
        raise MetastepError(f"{name} = {value!r} must be {bound}. Choose a value in these bounds.")


_SUCH = {"curvature": "ms.curvature.exact", "solver": "ms.solvers.ConjugateGradient()"}


def _require_function(value: Any, name: str) -> None:
    if isinstance(value, type):
        raise MetastepError(f"{name} = {value.__name__} is the class. Call it: {call_of(value)}.")
    if callable(value):
        return
    kind = name.split(" ")[-1]
    by_name = kind in KINDS and isinstance(value, str) and value in names(kind)
    such = call_of(named(kind, value)) if by_name else _SUCH.get(kind, "the function itself")
    inner = " An inner optimizer belongs to the MetaGradient." if hasattr(value, "advance") else ""
    raise MetastepError(f"{name} = {value!r} must be a function.{inner} Give {such}.")


def _require_tuple(value: Any, kinds: tuple[Any, ...], name: str) -> None:
    any_number = kinds[-1] is ...
    if not isinstance(value, tuple | list) or not (any_number or len(value) == len(kinds)):
        size = "" if any_number else f" of {len(kinds)}"
        raise MetastepError(f"{name} = {value!r} must be a tuple{size}. Write it with brackets and commas.")
    for i, item in enumerate(value):
        _require(item, kinds[0 if any_number else i], f"{name}[{i}]")


class _Kind(NamedTuple):
    fits: Callable[[Any], bool]
    words: str


_KINDS = {
    bool: _Kind(lambda x: isinstance(x, bool), "True or False"),
    int: _Kind(lambda x: isinstance(x, Integral) and not isinstance(x, bool), "a whole number"),
    float: _Kind(lambda x: is_number(x) and isfinite(x), "a finite number"),
    str: _Kind(lambda x: isinstance(x, str), "text"),
}


def _hints(source: Callable[..., Any]) -> dict[str, Any]:
    of = source.__init__ if isinstance(source, type) and not is_dataclass(source) else source  # type: ignore[misc]
    return get_type_hints(of, include_extras=True)


def _defaults(thing: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(thing).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name: REQUIRED if p.default is p.empty else p.default for p in named}


def _parted(hint: Any) -> tuple[Any, Bound | None]:
    """Return what is annotated, and its own bound."""
    kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    return kind, next((part for part in metadata if isinstance(part, Bound)), None)


def _without_none(kind: Any) -> Any:
    """Return the one type that is optional; any other union as it is."""
    others = [member for member in get_args(kind) if member is not NoneType]
    return others[0] if NoneType in get_args(kind) and len(others) == 1 else kind


def _bound(hint: Any) -> Bound | None:
    """Return the bound of a hint; of a tuple, that of its first element."""
    kind, bound = _parted(hint)
    return bound or (_bound(get_args(kind)[0]) if get_origin(kind) is tuple else None)


def _plain(hint: Any) -> Any:
    kind, bound = _parted(hint)
    if get_origin(kind) is tuple:
        return GenericAlias(tuple, tuple(item if item is ... else _plain(item) for item in get_args(kind)))
    return float if kind is Any and bound is not None else kind


def _helps(source: Callable[..., Any]) -> dict[str, str]:
    """Return what the `Args:` section of a docstring says of each argument, on one line."""
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", inspect.getdoc(source) or "", re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+):((?:.*\n?)(?: {5,}.*\n?)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
