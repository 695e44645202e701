"""Triton's kernels equal the plain operators: in Triton's interpreter, which needs no GPU.

The interpreter is chosen when Triton is imported, so that it runs in a process of its own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
TOLERANCE = 2e-5  # float32 sums of some hundred terms
PART = 64  # rows: several of these are a small net's


def interpreter_is_broken() -> str | None:
    if find_spec("triton") is None:
        return "Triton is not installed"
    import numpy

    # Triton 3.6 and before make a number of an array with one entry, which NumPy refuses since 2.4
    return f"Triton's interpreter fails with NumPy {numpy.__version__}" if numpy.__version__ >= "2.4" else None


@pytest.mark.compiled
@pytest.mark.skipif(bool(interpreter_is_broken()), reason=interpreter_is_broken() or "")
def test_kernels_equal_plain_operators() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.step.chain.test_kernels"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


def main() -> None:
    from metastep import IMAML, MAML, SGD, Adam, MultiStep, Reptile
    from metastep.core.solvers import ConjugateGradient
    from tests.step.chain.helpers import Net

    torch.set_num_threads(1)
    require_added()
    standard, pooled = Net(ways=3, size=6, filters=(16, 16)), Net(ways=2, shots=2, filters=(16,), stride=1, pool=2)
    # one part and one tile of everything; then several; other strides, kernels and paddings
    require_same(standard)
    require_same(Net(ways=5, shots=4, size=5, filters=(16,)), tiles_of(16, part=PART))
    with sums_joined_by(2):  # forth and back
        require_same(Net(ways=2, shots=2, size=5, filters=(32, 16), stride=1, padding=0), tiles_of(16, 16))
    require_same(Net(ways=2, shots=2, size=9, filters=(16, 16), stride=3, kernel=2), tiles_of(128, taps=3))
    # other zeros behind than before: TensorFlow's, of an even and of an odd size
    same = Net(ways=2, shots=2, size=6, filters=(16, 16), padding=0, same=True)
    require_same(same)
    # as Finn's for miniImageNet, with an odd edge; other windows and a scale; windows of which several are the largest
    finn = pooled._replace(channels=3, size=7, filters=(16, 32), shift_only=True, eps=1e-3)
    require_same(finn)
    require_same(finn, tiles_of(16, 16, taps=3, part=PART))
    require_same(pooled._replace(size=6, filters=(16, 16), behind=1, edge=True))  # 7, 4, 5, 3
    with sums_joined_by(2):
        require_same(pooled._replace(size=7, pool=3, bias=False), tiles_of(16, part=PART))
    require_same(pooled, flat_patches=4)
    require_fused_sgd()
    require_fused_adam()
    momentum = SGD(0.05, 0.9, weight_decay=1e-4)
    require_same_sweep(standard, MAML(), momentum, 2)
    require_same_sweep(finn._replace(size=5, filters=(16, 16)), MultiStep(window=2), momentum, 4)
    require_same_sweep(same, IMAML(strength=2.0, solver=ConjugateGradient(2)), SGD(0.1), 2)
    require_same_sweep(same, Reptile(), Adam(1e-3, betas=(0.0, 0.999), eps=1e-3), 2)
    require_same_sweep(same, Reptile(keep_memory=True), Adam(1e-3, betas=(0.0, 0.999), eps=1e-3), 2)


def require_same(net: "Net", tiles: "Tiles | None" = None, flat_patches: int = 1) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Values, gradients and products; pictures may be made of flat patches of a side"""
    from metastep.step.chain import plain
    from metastep.step.chain.algebra import differentiate
    from metastep.step.chain.chain import chain_of
    from metastep.step.chain.launch import TritonOperators, require_kernels
    from metastep.step.chain.problem import value

    operators = TritonOperators("ieee", tiles or tiles_of(128))

    module = net.build().float()
    chain, (x, y) = chain_of(module, net.size), net.tasks(number=2).support
    require_kernels(chain)
    flat = chain.to_flat({name: p.detach() for name, p in module.named_parameters()})
    flat = flat.expand(2, -1) + 0.05 * torch.randn(2, chain.length)
    at = torch.arange(net.size) // flat_patches
    x = x[..., at, :][..., at].permute(0, 1, 3, 4, 2).contiguous()
    for direction in (None, torch.randn_like(flat)):
        wide = None if direction is None else direction.double()
        expected, g = differentiate(plain, chain, flat.double(), x, y, wide)
        judged, found = differentiate(operators, chain, flat, x.float(), y, direction)
        (loss, accuracy), (expected_loss, expected_accuracy) = judged.means, expected.means
        torch.testing.assert_close(loss.double(), expected_loss, rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(accuracy.double(), expected_accuracy)
        if direction is None:
            torch.testing.assert_close(value(operators, chain, flat, x.float(), y), judged.means)
        for slot in chain.slots():
            size = slot.of(g).norm() + 1e-3
            assert (slot.of(found) - slot.of(g)).norm() / size < TOLERANCE, (net, slot.name, direction is not None)


def tiles_of(rows: int, channels: int = 64, taps: int = 1, part: int = 512) -> "Tiles":  # type: ignore[name-defined]  # noqa: F821
    """The interpreter takes as long for a small tile as for a large one: where it does not matter, they are large"""
    from metastep.step.chain.launch import Tile, Tiles, WeightTile

    tile, weight = Tile(rows, channels), WeightTile(rows, channels, taps=taps, part=part)
    return Tiles(**{name: weight if "weight" in name else tile for name in Tiles._fields})


@contextmanager
def sums_joined_by(number: int) -> Iterator[None]:
    """Then few rows are enough for several steps of joining, with fewer sums at the end of each"""
    from triton.language import constexpr

    from metastep.step.chain import launch
    from metastep.step.chain.kernels import statistics

    few = launch.FEW
    launch.FEW = statistics.FEW = constexpr(number)
    yield
    launch.FEW = statistics.FEW = few


def require_same_sweep(net: "Net", method: "Method", inner: "InnerOptimizer", steps: int) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Whole meta-gradients: the first window starts from one θ for all tasks, the others from φ of each"""
    import metastep as ms
    from metastep.core.trees import map_tree, norm, subtract
    from metastep.step.chain import plain
    from metastep.step.chain.algebra import Operators
    from metastep.step.chain.chain import chain_of
    from metastep.step.chain.launch import TritonOperators
    from metastep.step.chain.serving import Served

    module, tasks = net.build(), net.tasks(number=2)
    problem = ms.few_shot(module, torch.nn.functional.cross_entropy)
    gradient, chain = ms.MetaGradient(problem, method, inner, steps=steps), chain_of(module, net.size)
    meta = map_tree(torch.Tensor.detach, gradient.init({n: p.detach() for n, p in ms.parameters(module).items()}))

    def meta_gradient(operators: Operators, meta: object, tasks: object) -> object:
        return Served(gradient, chain, operators, "").estimate(meta, tasks).grad

    # labels that lie otherwise in memory than kernels read them
    single = map_tree(lambda p: p.float(), meta), ms.Task(*((x.float(), y.t().contiguous().t()) for x, y in tasks))
    expected = meta_gradient(plain, meta, tasks)  # type: ignore[arg-type]
    found = meta_gradient(TritonOperators("ieee", tiles_of(128)), *single)
    assert norm(subtract(found, expected)) < TOLERANCE * norm(expected), method


def require_added() -> None:
    from metastep.step.chain.adding import add, at_most

    parts = torch.randn(37, 2, 150)
    out = torch.full((3, 2, 200), torch.nan)
    add(parts[:, :, :130], out[:1, :, 20:150])  # more than are asked for at once
    torch.testing.assert_close(out[0, :, 20:150], parts[:, :, :130].sum(0))
    assert out.isnan().sum() == out.numel() - 2 * 130
    few = at_most(5, parts.transpose(0, 1).unflatten(2, (3, 50)).contiguous())
    assert few.shape == (2, 5, 3, 50)
    torch.testing.assert_close(few.flatten(2), torch.stack([p.sum(0) for p in parts.split(8)], 1))


def require_fused_sgd() -> None:
    from metastep import SGD
    from metastep.core.optimizers import State
    from metastep.step.chain.sgd import FusedSGD

    for options in ({}, {"nesterov": True}, {"weight_decay": 0.1}):
        plain, fused = SGD(0.1, 0.9, **options), FusedSGD(0.1, 0.9, **options)
        p, v, g = torch.randn(3, 2, 1500)
        for state in (State(p), State(p, (v,), 1)):

            def moved(dynamics: SGD, p: torch.Tensor, g: torch.Tensor, state: State = state) -> torch.Tensor:
                after = dynamics.advance(State(p, state.memory, state.step), g, (), 3)
                return torch.stack([after.params, *after.memory])

            torch.testing.assert_close(moved(fused, p, g), moved(plain, p, g))
            torch.testing.assert_close(moved(fused, p[0].expand(2, -1), g), moved(plain, p[0].expand(2, -1), g))
            pull = [torch.func.vjp(lambda p, g, d=d: moved(d, p, g), p, g)[1] for d in (fused, plain)]
            torch.testing.assert_close(*(one(torch.ones(2, 2, 1500)) for one in pull))
    torch.testing.assert_close(*(pulled_through_hollow(dynamics, p, v) for dynamics in (fused, plain)))


def pulled_through_hollow(dynamics: "SGD", p: torch.Tensor, cotangent: torch.Tensor) -> object:  # type: ignore[name-defined]  # noqa: F821
    """Where only the pullback is wanted, and nothing was asked of the last velocity"""
    from metastep.core.optimizers import State
    from metastep.core.trees import hollow_like

    def moved(p: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        after = dynamics.advance(State(p, (v,), 1), g, (), 3)
        return after.params, after.memory[0]  # type: ignore[no-any-return]

    return torch.func.vjp(moved, p, hollow_like(p), hollow_like(p))[1]((cotangent, hollow_like(p)))


def require_fused_adam() -> None:
    from metastep import Adam, AdamW
    from metastep.core.optimizers import State
    from metastep.step.chain.serving import in_one_pass

    torch.manual_seed(0)
    p, m, g = torch.randn(3, 2, 700, dtype=torch.float64)
    v, cotangents = torch.rand_like(g), torch.randn(3, 2, 700, dtype=torch.float64)
    g[0, :5] = v[0, :5] = m[0, :5] = 0  # √ at 0
    for plain in (Adam(0.1), AdamW(0.05, weight_decay=0.1), Adam(0.1, betas=(0.0, 0.99))):
        for before, steps in ((0, 1), (3, 1), (torch.tensor(2.0, dtype=torch.float64), 3)):

            def moved(dynamics: Adam, dtype: torch.dtype, *inputs: torch.Tensor) -> torch.Tensor:
                p, m, v, g = (x.to(dtype) for x in inputs)
                after = dynamics.advance(State(p, (m, v), before), g, (), steps)  # noqa: B023
                return torch.stack([after.params, *after.memory]).double()

            runs = [partial(moved, plain, torch.float64), partial(moved, in_one_pass(plain), torch.float32)]
            (expected, pull), (found, fused_pull) = (torch.func.vjp(run, p, m, v, g) for run in runs)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(fused_pull(cotangents), pull(cotangents), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main()
