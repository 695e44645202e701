from metastep.nets.conv4 import Conv4 as Conv4
from metastep.nets.making import build as build
from metastep.nets.resnet import ResNet as ResNet
from metastep.nets.resnet32 import ResNet32 as ResNet32
from metastep.nets.vgg import VGG as VGG
from metastep.nets.weights import load_weights as load_weights

__all__: list[str]
