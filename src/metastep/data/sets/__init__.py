"""One file for each data set; importing this package registers them all, and a user's own folder."""

from importlib import import_module
from pkgutil import iter_modules

from metastep.data import folder

__all__ = ["folder"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
