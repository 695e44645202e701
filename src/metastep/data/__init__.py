"""Data sets: pictures by class with episodes, and labelled pictures. `__init__.pyi` lists the same names."""

from metastep.lazy import lazily

_PLACE = {
    "ClassSplit": "metastep.data.registry",
    "DataSet": "metastep.data.registry",
    "Labelled": "metastep.data.pictures",
    "PictureSplit": "metastep.data.official",
    "Pictures": "metastep.data.pictures",
    "classes_by_share": "metastep.data.pictures",
    "load": "metastep.data.registry",
}
__all__ = sorted(_PLACE)
__getattr__, __dir__ = lazily(__name__, _PLACE)
