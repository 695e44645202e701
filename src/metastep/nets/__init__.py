"""Plain modules; no meta-learning inside."""

from metastep.nets.conv4 import Conv4

__all__ = ["Conv4"]
