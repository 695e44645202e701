"""One of each kind: what the entry point of the package imports."""

from metastep_example import curvature, dataset, method, net, optimizer  # noqa: F401 - each registers what it has
