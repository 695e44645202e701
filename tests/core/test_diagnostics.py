"""The gradient-difference statistic and `compare`."""

import pytest
import torch

import metastep as ms
from metastep.core.counting import peak_bytes
from tests.core.helpers import DYNAMICS, case


def test_gradient_difference_of_a_quadratic() -> None:
    """L = ½aφ² under SGD: the gradient shrinks by 1 − ηa each step, so the statistic is ηa / (1 − ηa) throughout."""
    problem = ms.Problem(
        lambda meta, task: meta, ms.every_window(lambda p, m, a: 0.5 * (a * p.square()).sum()), lambda p, m, t: p.sum()
    )
    tasks = ms.Task(torch.tensor([[2.0], [4.0]]).double(), torch.zeros(2, 1))
    difference = ms.gradient_difference(problem, ms.SGD(0.1), 5)(torch.ones(3).double(), tasks)
    expected = torch.tensor([0.25, 2 / 3]).double()[:, None].expand(2, 5)
    torch.testing.assert_close(difference, expected)


def test_gradient_difference_follows_the_definition() -> None:
    p, meta, tasks = case("convolution")
    difference = ms.gradient_difference(p, DYNAMICS["momentum"], 4)(meta, tasks)
    assert difference.shape == (3, 4)
    assert bool((difference > 0).all())
    smaller = ms.gradient_difference(p, ms.SGD(1e-6), 4)(meta, tasks)
    assert bool((smaller < 1e-4).all())


def gradients(problem: ms.Problem, steps: int, lr: float, **methods: ms.methods.Method) -> dict[str, ms.MetaGradient]:
    return {name: ms.MetaGradient(problem, method, ms.SGD(lr), steps=steps) for name, method in methods.items()}


def test_compare_tells_what_a_method_loses_and_costs() -> None:
    p, meta, tasks = case("regression")
    methods = {"one": ms.MultiStep(1), "four": ms.MultiStep(4), "first_order": ms.FOMAML(), "imaml": ms.IMAML()}
    named = gradients(p, 8, 0.05, maml=ms.MAML(), **methods)
    rows = {row.method: row for row in ms.compare(named, meta, tasks)}
    assert rows["maml"].cosine == pytest.approx(1)
    assert rows["maml"].relative_error == rows["one"].relative_error == 0
    assert 0 < rows["four"].relative_error < 1
    assert (rows["maml"].gradients, rows["maml"].products) == (9, 8)
    assert (rows["four"].gradients, rows["four"].products) == (3, 2)
    assert (rows["first_order"].gradients, rows["first_order"].products) == (9, 0)
    assert all(row.seconds > 0 and row.peak_bytes > 0 for row in rows.values())


def test_compare_measures_against_the_named_reference() -> None:
    p, meta, tasks = case("regression")
    methods = gradients(p, 4, 0.1, FO=ms.FOMAML(), MAML=ms.MAML())
    told: list[tuple[int, int]] = []
    first_order, exact = ms.compare(
        methods, meta, tasks, reference="MAML", repeats=1, progress=lambda *done: told.append(done)
    )
    assert exact.relative_error == 0
    assert first_order.relative_error > 0
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_memory_is_measured_where_the_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a GPU, too, tensors may be on the CPU"""
    p, meta, tasks = case("regression")
    methods = gradients(p, 4, 0.1, MAML=ms.MAML())
    (expected,) = ms.compare(methods, meta, tasks, repeats=1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("metastep.core.counting._on_gpu", lambda call, *_: (call(), 0))
    (found,) = ms.compare(methods, meta, tasks, repeats=1)
    assert found.peak_bytes == expected.peak_bytes > 0


def test_peak_bytes_is_what_was_alive_at_once() -> None:
    def call() -> float:
        a = torch.zeros(1000, 1000)
        b = a + 1
        del a
        c = b * 2
        return float(c[0, 0])

    value, peak = peak_bytes(call, torch.device("cpu"))
    assert value == 2
    assert 8_000_000 <= peak < 8_100_000
