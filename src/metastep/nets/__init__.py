"""Plain modules; no meta-learning inside."""

from metastep.nets.conv4 import Conv4, HeadInit
from metastep.nets.registry import CLASSIFIERS, NETS, load_net
from metastep.nets.resnet import ResNet, ResNet18, ResNet34
from metastep.nets.resnet32 import ResNet32
from metastep.nets.vgg import VGG
from metastep.nets.weights import load_weights

__all__ = [
    "CLASSIFIERS", "NETS", "VGG", "Conv4", "HeadInit", "ResNet", "ResNet18", "ResNet32", "ResNet34", "load_net",
    "load_weights",
]  # fmt: skip
