"""Find inner optimizers, methods, curvatures, solvers, nets and data sets by name.

A class or function joins with `@register(kind, name)`. The modules of ours that register are imported when their kind
is first asked for, and then, once, every installed package with an entry point in the group `metastep.plugins`.
This module loads no torch.
"""

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from metastep.errors import MetastepError, did_you_mean, first_line

GROUP = "metastep.plugins"

# By name, since core must not import what stands above it.
_MODULES = {
    "optimizer": "metastep.core.optimizers",
    "method": "metastep.core.methods",
    "curvature": "metastep.core.curvature",
    "solver": "metastep.core.solvers",
    "net": "metastep.nets.registry",
    "dataset": "metastep.data.sets",
}
KINDS = tuple(_MODULES)
_registered: dict[str, dict[str, Any]] = {kind: {} for kind in _MODULES}
_failed: dict[str, str] = {}  # plug-ins that cannot be imported, and why
_begun: list[str] = []  # the group of plug-ins, once it is being imported

T = TypeVar("T")


def register(kind: str, name: str) -> Callable[[T], T]:
    """Make a class or function available under a name, everywhere that names are used.

    Args:
        kind: What it is: "optimizer", "method", "curvature", "solver", "net" or "dataset".
        name: What it is called in Python, in configurations and on the command line.

    Returns:
        A decorator that returns its argument unchanged.

    Raises:
        MetastepError: There is no such kind, or the name is taken.

    Example:
        >>> import metastep as ms
        >>> from dataclasses import dataclass
        >>> @ms.register("optimizer", "sign_sgd")
        ... @dataclass(frozen=True)
        ... class SignSGD:
        ...     lr: float = 1e-3
        ...     def init(self, params):
        ...         return ms.optimizers.State(params)
        ...     def advance(self, state, grad, meta, steps):
        ...         moved = {name: p - steps * self.lr * grad[name].sign() for name, p in state.params.items()}
        ...         return ms.optimizers.State(moved, step=state.step + steps)
    """
    table = _table(kind)
    if not str(name).strip() or str(name) != name:
        raise MetastepError(f"name = {name!r} must be text, such as @ms.register({kind!r}, 'mine').")

    def add(thing: T) -> T:
        if not callable(thing) and kind != "dataset":
            raise MetastepError(
                f"{thing!r} is a value, not {_a(kind)} to make others of. Put @ms.register({kind!r}, {name!r}) above "
                "the class or function."
            )
        if not is_ours(thing):
            import_module(_MODULES[kind])  # so that a name that is taken is refused here, not when ours are imported
        if name in table and not _is_same(table[name], thing):
            raise MetastepError(
                f"there is already {_a(kind)} {name!r}, {_place(table[name])}. "
                f"Register {_place(thing)} under another name."
            )
        table[name] = thing
        return thing

    return add


def named(kind: str, name: str) -> Any:
    """Return what is registered under a name.

    Args:
        kind: What it is, as for `register`.
        name: Its name.

    Returns:
        The class or function itself.

    Raises:
        MetastepError: Nothing has this name; the message lists the names there are.

    Example:
        >>> from metastep.core.registry import named
        >>> named("optimizer", "adam").__name__
        'Adam'
    """
    table = _complete(kind)
    if name not in table:
        broken = [f" The plug-in {plugin!r} could not be imported: {why}." for plugin, why in _failed.items()]
        raise MetastepError(
            f"there is no {_WORDS[kind]} {name!r}.{did_you_mean(str(name), table)}{''.join(broken)} "
            f"Choose one of {', '.join(table) or 'none so far'}, or register your own."
        )
    return table[name]


def names(kind: str) -> list[str]:
    """Return all names of a kind, ours first.

    Args:
        kind: What they name, as for `register`.

    Returns:
        Names in the order of registration.

    Raises:
        MetastepError: There is no such kind.

    Example:
        >>> from metastep.core.registry import names
        >>> "sgd" in names("optimizer")
        True
    """
    return list(_complete(kind))


def names_so_far(kind: str) -> list[str]:
    """Return the names of a kind that are registered by now: nothing is imported, ours included.

    Args:
        kind: What they name, as for `register`.

    Returns:
        Names in the order of registration.

    Example:
        >>> from metastep.core.registry import names_so_far
        >>> isinstance(names_so_far("dataset"), list)
        True
    """
    return list(_table(kind))


def name_of(thing: Any) -> str | None:
    """Return the name under which a value, or its class, is registered.

    Args:
        thing: A registered class or function, or an instance of a registered class.

    Returns:
        Its name, or None if it has none. A subclass does not inherit the name.

    Example:
        >>> import metastep as ms
        >>> from metastep.core.registry import name_of
        >>> name_of(ms.SGD(0.1))
        'sgd'
    """
    for kind in _MODULES:  # only what is registered already: nothing that exists was made of a module not yet imported
        for name, found in _registered[kind].items():
            if found is thing or found is type(thing):
                return name
    return None


def load_plugins() -> None:
    """Import every installed package with an entry point in the group `metastep.plugins`, once.

    One that cannot be imported is reported by a warning. The error about an unknown name repeats the reason.

    Example:
        >>> from metastep.core.registry import load_plugins
        >>> load_plugins()
    """
    if _begun:
        return
    _begun.append(GROUP)  # first, since a plug-in may look up names too
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:  # a user's module may fail in any way
            _failed[entry.name] = f"{first_line(error)} ({type(error).__name__})"
            warnings.warn(
                f"the plug-in {entry.name!r} ({entry.value}) of metastep could not be imported, and what it registers "
                f"is missing: {_failed[entry.name]}. Repair or uninstall it.",
                stacklevel=2,
            )


_WORDS = {kind: kind for kind in _MODULES} | {"optimizer": "inner optimizer", "dataset": "data set"}


def _table(kind: str) -> dict[str, Any]:
    if kind not in _registered:
        raise MetastepError(f"there is no kind {kind!r}.{did_you_mean(kind, _MODULES)} Kinds: {', '.join(_MODULES)}.")
    return _registered[kind]


def _complete(kind: str) -> dict[str, Any]:
    table = _table(kind)
    import_module(_MODULES[kind])
    load_plugins()
    return table


def is_ours(thing: Any) -> bool:
    """Return whether a class or function comes with metastep."""
    return _module(thing).partition(".")[0] == "metastep"


def _is_same(first: Any, second: Any) -> bool:
    """Return whether the second is the first, or the same definition run again."""
    return first is second or (hasattr(first, "__qualname__") and _place(first) == _place(second))


def _place(thing: Any) -> str:
    return f"{_module(thing)}.{getattr(thing, '__qualname__', type(thing).__name__)}"


def _module(thing: Any) -> str:
    return str(getattr(thing, "func", thing).__module__)  # of a partial, its function's


def _a(kind: str) -> str:
    word = _WORDS[kind]
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
