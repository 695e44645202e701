"""Data sets: pictures by class with the few-shot episodes drawn from them, and labelled ones with their batches."""

from metastep.data.batches import Batches
from metastep.data.catalog import load
from metastep.data.errors import DataError
from metastep.data.images import ImageSet, LabelledSet, LabelledSplits
from metastep.data.labelled import load_labelled

__all__ = ["Batches", "DataError", "ImageSet", "LabelledSet", "LabelledSplits", "load", "load_labelled"]
