"""A loss, guarded once: whatever a user's function does inside, it is called as any other.

The sweep returns to a window, so its loss must give the same value for the same φ as often as it is called.
`guarded(loss)` sees to it in one place: noise is drawn once, what the loss holds constant is constant to every
derivative, modules are left as they were, and the value is one floating-point number.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from metastep.core.derivatives import is_recorded, is_transformed, may_draw
from metastep.core.in_place import Change, Inventory
from metastep.core.random import Generators, drawn_since, generators, set_generators
from metastep.core.trees import tree_leaves
from metastep.errors import MetastepError


class Guarded:
    """A loss of one window: each call sees the noise of the first."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        self.loss = loss
        self._drawn: Generators | None = None
        self._called = False

    def __call__(self, *args: Any) -> Tensor:
        if torch.compiler.is_compiling():  # dynamo knows neither generators nor modes
            return require_scalar(self.loss(*args), "an inner loss")
        with session() as here:
            try:
                return require_scalar(self._replayed(here, args), "an inner loss")
            finally:
                here.put_back()

    def once(self, *args: Any) -> Tensor:
        """Call the loss once, in an open session. Nobody returns to its window, so its noise is not kept."""
        here = _here.sessions[-1]
        try:
            return require_scalar(self.loss(*args), "an inner loss")
        finally:
            here.put_back()

    def twice(self, *args: Any) -> Tensor:
        """The same, where second derivatives are taken of it."""
        with Constants() if is_transformed() else nullcontext():
            return self(*args)

    def _replayed(self, here: "Session", args: tuple[Any, ...]) -> Any:
        if is_recorded():
            with nullcontext() if may_draw() else _NoNoise():  # type: ignore[no-untyped-call]
                return self.loss(*args)
        if self._called and self._drawn is None:
            return self.loss(*args)
        now = generators(here.others)
        if self._drawn is not None:
            set_generators(self._drawn)
        try:
            return self.loss(*args)
        finally:
            if self._called:
                set_generators(now)
            else:
                self._called, self._drawn = True, now if here.others or drawn_since(now) else None


def guarded(loss: Callable[..., Any]) -> Guarded:
    return loss if isinstance(loss, Guarded) else Guarded(loss)


def guarded_windows(windows: list[Any]) -> list[Any]:
    """Guard each window's loss by itself, so that each draws noise of its own. Derivatives by hand draw none."""
    return [w if _by_hand(w.loss) else w._replace(loss=guarded(w.loss)) for w in windows]


def _by_hand(loss: Any) -> bool:
    return hasattr(loss, "gradient_by_hand") or hasattr(loss, "product_by_hand")


def undrawn(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Return `function`, which refuses to draw: it is called more than once for one result."""

    def call(*args: Any) -> Any:
        if is_recorded():
            return function(*args)
        before = generators()
        value = function(*args)
        if drawn_since(before):
            raise MetastepError(
                f"{what} draws random numbers, and would draw others when it is differentiated. Draw them before the "
                "call and put them into the task."
            )
        return value

    return call


# ---- what modules hold


class Session:
    """One call of an estimator: what it knows of the functions and modules of its problem."""

    def __init__(self, others: bool = False, rest: str = "own", keeps_changes: bool = False) -> None:
        self.others = others
        """Whether losses draw by Python's or numpy's generators."""
        self.rest = rest
        """What stands in modules for tensors that are not given: "own", "constant" or "copy"."""
        self.keeps_changes = keeps_changes
        """Whether modules stay as a call leaves them, if it does not fail."""
        self.changes: list[Change] = []
        """What modules have changed of themselves in this loss, which may read it."""
        self.written: dict[int, Tensor] = {}
        """What modules have left in their buffers, at a first look."""
        self.carried: dict[int, Tensor] = {}
        """What modules find in their buffers instead of their own."""
        self._inventories: dict[int, Inventory] = {}

    def inventory(self, module: nn.Module) -> Inventory:
        """Return what a module holds."""
        found = self._inventories.get(id(module))
        if found is None or not found.is_current():
            found = self._inventories[id(module)] = Inventory(module)
        return found

    def modules(self) -> list[nn.Module]:
        """Return the modules that were applied."""
        return [inventory.module for inventory in self._inventories.values()]

    def put_back(self) -> None:
        while self.changes:
            self.changes.pop().undo()


class _Here(threading.local):
    def __init__(self) -> None:
        self.sessions: list[Session] = []


_here = _Here()


def is_open() -> bool:
    """Return whether a session is open."""
    return bool(_here.sessions)


def is_alone() -> bool:
    """Return whether nobody around this call looks at it: no session is open, and nothing maps or traces it."""
    return not is_open() and not is_transformed()


@contextmanager
def opened(made: Session) -> Iterator[Session]:
    """Open a session. Attention runs by its plain kernel inside, since fused ones cannot be differentiated twice."""
    _here.sessions.append(made)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield made
    finally:
        _here.sessions.pop()
        made.put_back()


def session(**options: Any) -> AbstractContextManager[Session]:
    """Open a session, unless one is open."""
    return nullcontext(_here.sessions[-1]) if _here.sessions else opened(Session(**options))


# ---- constants


_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


class Constants(TorchFunctionMode):
    """What a loss holds constant has no second derivative either, in whichever way it says so.

    torch.no_grad() stops gradients, and forward mode alone does not look at it; nor does it at torch.autograd.grad
    without create_graph, whose result is a constant. `.data` leaves out the innermost derivative alone, where functions
    are differentiated twice; .detach() leaves out all of them.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch._C._set_grad_enabled:
            torch._C._set_fwd_grad_enabled(args[0])
        elif function == _DATA:
            return args[0].detach()
        elif function is torch.autograd.grad and not kwargs["create_graph"]:
            return tuple(found if found is None else found.detach() for found in function(*args, **kwargs))
        elif function is torch.Tensor.detach_:
            raise MetastepError(
                "a module or a loss calls .detach_(), which second derivatives do not see. Write x = x.detach()."
            )
        return function(*args, **(kwargs or {}))


def with_constants(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with its constants held constant in every derivative."""

    def value(*args: Any) -> Any:
        with Constants() if is_transformed() else nullcontext():
            return function(*args)

    return value


class NoiseError(MetastepError, RuntimeError):
    """Report that a recorded step draws noise. The recorder then falls back to calling it directly."""


class _NoNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuse random numbers: what is recorded would draw new ones in every evaluation of a window."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise NoiseError(
                "a loss or a module draws random numbers, which a recorded sweep cannot draw again. Draw them before "
                "the call and put them into the task, or do not compile."
            )
        return function(*args, **(kwargs or {}))


# ---- values and data


def require_scalar(value: Any, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise MetastepError(
            f"{what} must be a tensor, not {type(value).__name__}. Return one number for each task, made by torch."
        )
    if value.dim() != 0:
        shape = tuple(value.shape)
        raise MetastepError(f"{what} must be one number for each task, not {shape}. Reduce it with .mean() or .sum().")
    if not value.is_floating_point():
        raise MetastepError(
            f"{what} must be a floating-point number, not {value.dtype}: whole numbers have no gradient. Return a loss "
            "that is differentiable."
        )
    return value


def versions(data: Any) -> list[int]:
    """Return how often each tensor was written to. Mapped ones are checked where they are mapped."""
    if torch.compiler.is_compiling():
        return []
    return [leaf._version for leaf in tree_leaves(data) if _is_counted(leaf)]


def require_unwritten(data: Any, before: list[int]) -> None:
    if versions(data) != before:
        raise MetastepError(
            "a module or a loss writes into its data, as x += 1 and x.sub_(…) do. The sweep returns to the data, so "
            "the meta-gradient would be wrong, and the data may be changed now. Write x = x + 1."
        )


def _is_counted(leaf: Any) -> bool:
    return (
        isinstance(leaf, Tensor)
        and not leaf.is_inference()
        and not torch._C._functorch.is_functorch_wrapped_tensor(leaf)
    )


# ---- a θ that is kept from a loss


_USES = "iter len bool float neg add radd sub rsub mul rmul truediv rtruediv pow rpow matmul rmatmul lt le gt ge"


class Hidden:
    """Stand in for θ: a loss may take it apart and pass it on, and is refused when it computes with it."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __getitem__(self, name: Any) -> "Hidden":
        return self

    def __getattr__(self, name: str) -> Any:
        raise self.refusal()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls)).refusal()

    def refusal(self) -> MetastepError:
        return MetastepError(
            f"{self._method} needs θ to act through φ's start alone, but a window's loss computes with it. It leaves "
            "∂²L/∂θ∂φ out, so it cannot learn this θ. Use ms.MultiStep, ms.MAML, ms.methods.HFMAML or "
            "ms.methods.GGSMAML."
        )


def require_shown(meta: Any) -> None:
    if isinstance(meta, Hidden):
        raise meta.refusal()


def _refused(hidden: Hidden, *others: Any) -> Any:
    raise hidden.refusal()


for _use in _USES.split():
    setattr(Hidden, f"__{_use}__", _refused)
