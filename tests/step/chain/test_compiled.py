"""The kernels compile for a GPU, and fit it: Triton needs none to compile for, and its interpreter forgives much."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import metastep as ms
from metastep.core.optimizers import State
from metastep.core.trees import hollow_like
from metastep.step.chain.algebra import differentiate
from metastep.step.chain.chain import chain_of
from metastep.step.chain.serving import in_one_pass
from tests.step.chain.helpers import Net

pytest.importorskip("triton")
if "TRITON_INTERPRET" in os.environ:
    pytest.skip("Triton interprets its kernels in this process", allow_module_level=True)
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile as compiled
from triton.language import constexpr

from metastep.step.chain import adam, adding, launch, sgd

pytestmark = pytest.mark.compiled

HOPPER = GPUTarget("cuda", 90, 32)
SHARED = 227 * 1024  # bytes that one program may have there
POINTERS = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int64: "*i64", torch.uint8: "*u8"}


class Compiled:
    """Takes the place of a kernel: compiles what would be launched, for just these arguments"""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.times = kernel.compiled, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.launched

    def launched(self, *given: Any, **options: int) -> None:
        given, options["launch_pdl"] = (*given, True), True  # all of them can be chained
        by_name = dict(zip(self.kernel.arg_names, given, strict=True))
        types = {p.name: "constexpr" if p.is_constexpr else type_of(by_name[p.name], p) for p in self.kernel.params}
        constants = {name: by_name[name] for name, kind in types.items() if kind == "constexpr"}
        aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(types) if is_aligned(types[name], given[i])}
        found = compiled(ASTSource(self.kernel, types, constants, aligned), target=HOPPER, options=options)
        assert found.metadata.shared <= SHARED
        self.times += 1


def type_of(value: Any, parameter: Any) -> str:
    """As Triton sees it at a launch, where a 1 is known to its compiler, and so are multiples of 16"""
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    known = value == 1 and not parameter.do_not_specialize
    return "fp32" if isinstance(value, float) else "constexpr" if known else "i32"


def is_aligned(kind: str, value: Any) -> bool:
    return kind.startswith("*") or (kind == "i32" and value % 16 == 0)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, Compiled]:
    """All of them, by name"""
    found = {}
    for module in (launch, adding, adam, sgd):
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            found[name] = Compiled(getattr(module, name))
            monkeypatch.setattr(module, name, found[name])
    return found


STRIDED = Net(size=16, filters=(64, 64))
POOLED = Net(channels=3, filters=(32, 32), stride=1, pool=2, shift_only=True)
SHORT = Net(size=2, filters=(16,))  # ends with one position; too few rows to join sums of
BETWEEN = {"data_kernel", "weight_kernel", "before_norm_kernel"}  # of blocks that see another block
CHAINS: dict[str, tuple[Net, str, bool, set[str]]] = {  # the net, precision, whether with a direction, kernels not used
    "strided": (STRIDED, "tf32", True, {"pool_kernel"}),
    "strided, bf16": (STRIDED, "bf16", True, {"pool_kernel"}),
    "pooled": (POOLED._replace(shots=2), "tf32", True, set()),
    "short": (SHORT, "tf32", False, {"pool_kernel", "join_kernel", "add_kernel"} | BETWEEN),
}


@pytest.mark.parametrize(("net", "precision", "dual", "unused"), CHAINS.values(), ids=CHAINS)
def test_chains(
    kernels: dict[str, Compiled],
    net: Net,
    precision: str,
    dual: bool,
    unused: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "FEW", constexpr(2))
    chain, (x, y) = chain_of(net.build(), net.size), net.tasks().support
    flat, seen = torch.zeros(len(x), chain.length), x.float().permute(0, 1, 3, 4, 2).contiguous()
    differentiate(launch.TritonOperators(precision), chain, flat, seen, y, flat if dual else None)
    chained = {name for module in (launch, adding) for name in vars(module) if name.endswith("_kernel")}
    assert {name for name in chained if not kernels[name].times} == unused


@pytest.mark.parametrize("optimizer", [ms.SGD(0.1, 0.9), ms.AdamW(0.1)], ids=["sgd", "adam"])
def test_optimizers(kernels: dict[str, Compiled], optimizer: ms.SGD | ms.Adam) -> None:
    p = torch.randn(2, 40)
    fused = in_one_pass(optimizer)

    def moved(p: Tensor, g: Tensor) -> Tensor:
        return fused.advance(State(p, fused.init(p).memory, torch.tensor(2.0, dtype=torch.float64)), g, (), 4).params

    for start, cotangent in ((p, p), (p[0].expand(2, -1), hollow_like(p))):
        torch.func.vjp(moved, start, p)[1](cotangent)
    expected = {"combination_kernel"} if isinstance(optimizer, ms.SGD) else {"adam_kernel", "pullback_kernel"}
    assert {name for name, kernel in kernels.items() if kernel.times} == expected
