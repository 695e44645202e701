"""Let a package import its public names when they are first used, so that it can be read without torch."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose public names are in other modules.

    Args:
        package: Its `__name__`.
        places: The module of each public name.

    Returns:
        Both functions, to be assigned to their names in the package.

    Example:
        >>> from metastep.lazy import lazily
        >>> get, names = lazily("mine", {"Fraction": "fractions"})
        >>> get("Fraction").__name__, names()
        ('Fraction', ['Fraction'])
    """

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(places[name]), name)

    return get, lambda: sorted(places)
