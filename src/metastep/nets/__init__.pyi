from metastep.nets.conv4 import Conv4 as Conv4
from metastep.nets.deep import VGG as VGG, ResNet as ResNet, ResNet32 as ResNet32
from metastep.nets.registry import build as build, load_weights as load_weights

__all__: list[str]
