"""Triton's kernels compile for a GPU, which takes none: its interpreter also runs what its compiler refuses."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from metastep.fused import chain_of
from metastep.fused.algebra import differentiate
from tests.fused.helpers import Net

KERNELS = ("forward", "pool", "join", "statistics", "head", "cotangent", "data", "weight")
POINTERS = {torch.float32: "*fp32", torch.int64: "*i64", torch.uint8: "*u8"}


class Compiled:
    """Takes the place of a kernel; nothing is run"""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.times = kernel, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.compile

    def compile(self, *given: Any, **options: int) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        names, self.times = self.kernel.arg_names, self.times + 1
        # as at a launch: an integer that is 1 is known to the compiler, and so are multiples of 16
        known = [p.is_constexpr or (type(x) is int and x == 1) for p, x in zip(self.kernel.params, given, strict=True)]
        types = {n: "constexpr" if k else type_of(x) for n, x, k in zip(names, given, known, strict=True)}
        constants = {n: x for n, x, k in zip(names, given, known, strict=True) if k}
        aligned = {(i,): [["tt.divisibility", 16]] for i, x in enumerate(given) if not known[i] and is_aligned(x)}
        source = ASTSource(self.kernel, types, constants, aligned)
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def type_of(x: Any) -> str:
    return POINTERS[x.dtype] if isinstance(x, torch.Tensor) else "fp32" if isinstance(x, float) else "i32"


def is_aligned(x: Any) -> bool:
    return isinstance(x, torch.Tensor) or (isinstance(x, int) and x % 16 == 0)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="Triton interprets its kernels in this process")
def test_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    from metastep.fused import launch

    compiled = {name: Compiled(getattr(launch, f"{name}_kernel")) for name in KERNELS}
    for name, kernel in compiled.items():
        monkeypatch.setattr(launch, f"{name}_kernel", kernel)
    monkeypatch.setattr(launch, "LONG", 1)
    compile_all(Net(size=7, channels=3, filters=(16, 16), stride=1, pool=2, shift_only=True), "bf16", dual=True)
    compile_all(Net(size=2, filters=(16,)), "tf32", dual=False)  # to a map of one position
    assert all(kernel.times for kernel in compiled.values())


def compile_all(net: Net, precision: str, dual: bool) -> None:
    from metastep.fused.launch import TritonOperators

    chain, (x, y) = chain_of(net.build(), net.size), net.tasks().support
    flat = torch.zeros(len(x), chain.length)
    seen = x.float().permute(0, 1, 3, 4, 2).contiguous()
    differentiate(TritonOperators(precision), chain, flat, seen, y, flat if dual else None)
