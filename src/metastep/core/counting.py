"""Count the work of an estimator: gradients of a loss, and second-order products."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Counts:
    gradients: int = 0
    products: int = 0  # second-order: one Hessian-vector product together with its mixed part ∂²L/∂θ∂φ


_open: list[Counts] = []


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what runs inside for one task, however many tasks there are."""
    counts = Counts()
    _open.append(counts)
    try:
        yield counts
    finally:
        _open.remove(counts)


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing that runs inside: it is done for another task, or to look."""
    before = _open[:]
    _open.clear()
    try:
        yield
    finally:
        _open[:] = before


def count_gradient() -> None:
    for counts in _open:
        counts.gradients += 1


def count_product() -> None:
    for counts in _open:
        counts.products += 1
