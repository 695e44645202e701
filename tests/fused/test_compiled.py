"""The kernels compile for a GPU, and fit it: Triton needs none to compile for, and its interpreter forgives much."""

from math import log
from typing import Any

import pytest

pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compiled

from metastep.fused import adam, dynamics
from metastep.fused.kernels.backward import data_kernel, weight_kernel
from metastep.fused.kernels.forward import forward_kernel
from metastep.fused.launch import DATA, DUAL_DATA, FORWARD, WEIGHT, Tile

HOPPER = GPUTarget("cuda", 90, 32)
SHARED = 227 * 1024  # bytes that one program may have there
NUMBERS = {"lr": "fp32", "kept": "fp32", "eps": "fp32", "steps": "*fp64", "labels": "*i64", "places": "*u8"}
CONV = {"C": 64, "O": 64, "K": 3, "S": 2, "PAD": 1}


def require_fits(kernel: Any, tile: Tile = Tile(0, 0), **constants: Any) -> None:  # noqa: B008
    signature = {name: "constexpr" if name in constants else kind_of(name) for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places)
    found = compiled(source, target=HOPPER, options={"num_warps": tile.warps, "num_stages": tile.stages})
    assert found.metadata.shared <= SHARED


def kind_of(name: str) -> str:
    whole = ("rows", "size", "width", "length", "pictures", "blocks", "filled", "stride", "part")
    if name in NUMBERS or name.startswith(("c0", "c1", "c2")):
        return NUMBERS.get(name, "fp32")
    return "i32" if name.endswith(whole) else "*fp32"


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("dual", [False, True])
def test_convolutions(dual: bool, precision: str) -> None:
    how = CONV | {"DUAL": dual, "PRECISION": precision}
    data = DUAL_DATA if dual else DATA
    require_fits(forward_kernel, FORWARD, **how, BLOCK_R=FORWARD.rows, BLOCK_K=FORWARD.channels, COLUMNS=0)
    require_fits(data_kernel, data, **how, POOL=1, BLOCK_R=data.rows, BLOCK_K=data.channels)
    require_fits(weight_kernel, WEIGHT, **how, POOL=1, BLOCK_R=WEIGHT.rows, BLOCK_C=WEIGHT.channels, COLUMNS=0)


def test_optimizers() -> None:
    betas = {"B1": 0.9, "B2": 0.999, "P1": log(0.9), "P2": log(0.999)}
    for kernel in (adam.adam_kernel, adam.pullback_kernel):
        require_fits(kernel, **betas, N=4, BLOCK=adam.BLOCK)
    require_fits(dynamics.combination_kernel, INPUTS=3, OUTPUTS=2, BLOCK=dynamics.BLOCK)
