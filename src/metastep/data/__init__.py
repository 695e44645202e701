"""Data sets of pictures by class, and the few-shot episodes drawn from them."""

from metastep.data.catalog import load
from metastep.data.errors import DataError
from metastep.data.images import ImageSet

__all__ = ["DataError", "ImageSet", "load"]
