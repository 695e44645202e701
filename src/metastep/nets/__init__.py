"""Plain modules; no meta-learning inside."""

from metastep.nets.conv4 import Conv4, HeadInit
from metastep.nets.registry import NETS, load_net

__all__ = ["NETS", "Conv4", "HeadInit", "load_net"]
