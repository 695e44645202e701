"""Define nets, by class and by registered name. `__init__.pyi` lists the same names."""

from metastep.lazy import lazily

_PLACE = {
    "Conv4": "metastep.nets.conv4",
    "ResNet": "metastep.nets.deep",
    "ResNet32": "metastep.nets.deep",
    "VGG": "metastep.nets.deep",
    "build": "metastep.nets.registry",
    "load_weights": "metastep.nets.registry",
}
__all__ = sorted(_PLACE)
__getattr__, __dir__ = lazily(__name__, _PLACE)
