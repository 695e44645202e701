"""Nets, by class and by registered name. `__init__.pyi` lists the same names."""

from metastep.lazy import lazily

_PLACE = {
    "Conv4": "metastep.nets.conv4",
    "ResNet": "metastep.nets.resnet",
    "ResNet32": "metastep.nets.resnet32",
    "VGG": "metastep.nets.vgg",
    "build": "metastep.nets.making",
    "load_weights": "metastep.nets.weights",
}
__all__ = sorted(_PLACE)
__getattr__, __dir__ = lazily(__name__, _PLACE)
