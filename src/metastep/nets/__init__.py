"""The nets, imported when they are first used, so that the command line can read this package without torch."""

from importlib import import_module

_PLACE = {
    "Conv4": "metastep.nets.conv4",
    "ResNet": "metastep.nets.resnet",
    "ResNet32": "metastep.nets.resnet32",
    "VGG": "metastep.nets.vgg",
    "build": "metastep.nets.making",
    "load_weights": "metastep.nets.weights",
}
__all__ = sorted(_PLACE)


def __getattr__(name: str) -> object:
    if name not in _PLACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
