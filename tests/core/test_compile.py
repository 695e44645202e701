"""A batched estimator compiles as one graph, and computes the same."""

from shutil import which

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import metastep as ms
from tests.core.helpers import DYNAMICS, case, relative_error

# torch.compile's own tracer still calls what PyTorch deprecates.
pytestmark = [
    pytest.mark.compiled,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def methods(p: ms.Problem, dynamics: str) -> dict[str, ms.Estimator]:
    d = DYNAMICS[dynamics]
    return {
        "multi_step": ms.multi_step(p, d, 4, 2),
        "forward": ms.multi_step(p, d, 4, 2, ms.exact_forward),
        "recompute": ms.unrolled(ms.InnerLoop(p, d, (1, 1, 1)), store_every=2),
        "fo_maml": ms.fo_maml(p, d, 3),
        "hf_maml": ms.hf_maml(p, d, 2),
    }


@pytest.mark.parametrize(
    ("problem", "dynamics", "method"),
    [
        ("regression", "momentum", "multi_step"),
        ("regression", "scheduled", "recompute"),
        ("convolution", "momentum", "multi_step"),
        ("convolution", "adam", "forward"),
        ("convolution", "sgd", "fo_maml"),
        ("meta_network", "nesterov", "hf_maml"),
        ("meta_network", "adam", "multi_step"),
        ("two_losses", "rmsprop", "multi_step"),
        ("example_weights", "own", "multi_step"),
    ],
)
def test_compiles_without_graph_breaks(problem: str, dynamics: str, method: str) -> None:
    p, meta, tasks = case(problem)
    step = ms.over_tasks(methods(p, dynamics)[method])
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(meta, tasks)
    eager = step(meta, tasks)
    assert relative_error(compiled.grad, eager.grad) < 1e-9
    torch.testing.assert_close(compiled.metrics, eager.metrics)


def test_learned_rates_and_heads_compile() -> None:
    p, params, tasks = case("convolution")
    meta = ms.with_rates(params, 0.1)
    step = ms.over_tasks(ms.meta_sgd(p, ms.SGD(0.1, momentum=0.9), 4, 2), chunk_size=2)
    assert (
        relative_error(
            torch.compile(step, fullgraph=True, backend="aot_eager")(meta, tasks).grad, step(meta, tasks).grad
        )
        < 1e-9
    )


def test_many_estimators_compile_in_one_process() -> None:
    """torch.compile gives up on a function after eight versions of it; each estimator is a function of its own."""
    p, meta, tasks = case("example_weights")
    for i in range(9):
        step = ms.over_tasks(ms.fo_maml(p, ms.SGD(0.01 * (i + 1), momentum=0.5), 1))
        compiled = torch.compile(step, fullgraph=True, backend="eager")(meta, tasks)
        assert relative_error(compiled.grad, step(meta, tasks).grad) < 1e-12


@pytest.mark.skipif(not (which("g++") or which("clang++")), reason="inductor needs a C++ compiler")
def test_inductor() -> None:
    problem, meta, tasks = case("convolution")
    step = ms.over_tasks(ms.multi_step(problem, DYNAMICS["momentum"], 4, 2))
    compiled = torch.compile(step, fullgraph=True)(meta, tasks)
    assert relative_error(compiled.grad, step(meta, tasks).grad) < 1e-9


def test_dropout_says_that_it_cannot_be_compiled() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    _, _, tasks = case("regression")
    step = torch.compile(
        ms.over_tasks(ms.maml(ms.few_shot(net, F.mse_loss), ms.SGD(0.1), 2)), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match="draws random numbers"):
        step(ms.parameters(net), tasks)
