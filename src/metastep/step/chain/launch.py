"""Launch the operators of a chain on a GPU: choose shapes and grids of the kernels."""

from contextlib import nullcontext
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from metastep.errors import MetastepError
from metastep.step.capture import aside, wait_for
from metastep.step.chain.adding import add, at_most
from metastep.step.chain.algebra import Cotangent, Judged, Layer, Parameters
from metastep.step.chain.chain import Block, Chain, Head, NotAChainError
from metastep.step.chain.kernels.backward import before_norm_kernel, data_kernel, patch_weight_kernel, weight_kernel
from metastep.step.chain.kernels.forward import forward_kernel, pool_kernel
from metastep.step.chain.kernels.head import head_kernel
from metastep.step.chain.kernels.statistics import FEW, join_kernel
from metastep.step.chain.kernels.tiles import NORM_ROWS

FEW_CHANNELS = 8  # with so few, a patch is read as a whole
SOME = 16  # channels per program that joins sums: more programs end sooner
ROWS = 2**22  # the limit of `tiles.position`
INDICES = 2**31  # the limit of 32 bits for the pictures of one task


def require_kernels(chain: Chain) -> None:
    """Require powers of two, which the kernels need."""
    for block in chain.blocks:
        if block.pool > 8:
            raise NotAChainError(f"max-pooling of {block.pool}×{block.pool} windows: the kernels are for up to 8×8")
        if block.outputs not in (16, 32, 64, 128):
            raise NotAChainError(f"{block.outputs} filters: the kernels are for 16, 32, 64 or 128")
        if block.inputs > FEW_CHANNELS and block.inputs not in (16, 32, 64, 128):
            raise NotAChainError(f"{block.inputs} input channels: the kernels are for up to 8, or 16, 32, 64 or 128")
    if chain.blocks[0].inputs > FEW_CHANNELS:
        raise NotAChainError(
            f"pictures of {chain.blocks[0].inputs} channels: the kernels are for at most {FEW_CHANNELS}"
        )
    if any(block.inputs <= FEW_CHANNELS for block in chain.blocks[1:]):
        raise NotAChainError(f"a block sees {FEW_CHANNELS} channels or fewer: the kernels are for 16, 32, 64 or 128")
    if chain.head.ways > 128:
        raise NotAChainError(f"{chain.head.ways} ways: the kernels are for at most 128")


class Tile(NamedTuple):
    """Give the rows, and the channels of the summed dimension, that a program reads at a time."""

    rows: int
    channels: int
    warps: int = 4
    stages: int = 3


class WeightTile(NamedTuple):
    """Give the same for a weight gradient, and how its sum over rows is split among programs."""

    rows: int
    channels: int
    warps: int = 4
    stages: int = 3
    taps: int = 1  # taps that share one read of dz
    part: int = 512  # rows times taps of one program, at least
    programs: int = 1024  # at most: each writes a partial gradient


class Tiles(NamedTuple):
    """Give the tiles of each kernel. If patches are read as a whole, channels do not matter."""

    forward: Tile
    patch_forward: Tile
    data: Tile
    weight: WeightTile
    patch_weight: WeightTile
    pool: Tile
    before_norm: Tile


# The fastest measured on an H200, for blocks of at most so many filters.
TILES = {
    32: Tiles(
        forward=Tile(64, 32, warps=2), patch_forward=Tile(128, 64), data=Tile(64, 32),
        weight=WeightTile(32, 32, warps=2, stages=1, taps=3, programs=512),
        patch_weight=WeightTile(16, 64, warps=2, part=128), pool=Tile(16, 64), before_norm=Tile(64, 64, warps=2),
    ),
    128: Tiles(
        forward=Tile(32, 64), patch_forward=Tile(32, 64), data=Tile(64, 32),
        weight=WeightTile(16, 32, taps=3, part=1024), patch_weight=WeightTile(16, 64, warps=2, part=128),
        pool=Tile(16, 64), before_norm=Tile(64, 64),
    ),
}  # fmt: skip


class Norm(NamedTuple):
    """Hold what readers of z compute A, B, … from, in the order of the kernels' arguments."""

    sums: Tensor  # (tasks, blocks, 4, channels)
    numbers: Tensor  # for `tiles.norm_of`; the first reader of z writes them for the backward
    scale: Tensor
    shift: Tensor
    scale_t: Tensor
    shift_t: Tensor
    rows: int
    per: int  # rows of a block
    eps: float
    scaled: bool


@dataclass
class Seen:
    """Hold z and ż for the next block, and their places in the pooling windows."""

    z: Tensor
    z_t: Tensor | None
    places: Tensor  # bytes; unused without pooling
    ready: tuple[Tensor, Tensor | None] | None = None  # a and ȧ, if the kernel that wrote z computed them too

    def take(self) -> tuple[Tensor, Tensor | None] | None:
        """Return a and ȧ once. Only the next convolution reads them; the backward may reuse their memory."""
        ready, self.ready = self.ready, None
        return ready


@dataclass(frozen=True)
class TritonOperators:
    precision: str = "tf32"  # of the products: bf16, tf32, tf32x3 or ieee
    tiles: Tiles | None = None  # for all blocks; None chooses by their filters
    pictures: int = 16
    features: int = 64

    def room(self, flat: Tensor) -> Tensor:
        return torch.empty_like(flat)  # the kernels write all of it

    def tiles_for(self, block: Block) -> Tiles:
        return self.tiles or TILES[min(filters for filters in TILES if filters >= block.outputs)]

    def forward(self, block: Block, before: Layer | Tensor, params: Parameters) -> Layer:
        (w, w_t), (src, src_t, norm, ready) = params.pair(block.weight), _ready_source(before)
        tasks, pictures, rows = *src.shape[:2], src.shape[1] * block.out_size**2
        if rows >= ROWS or src[0].numel() >= INDICES:
            raise MetastepError(f"{pictures} pictures of {block.size}×{block.size} at once: the kernels are for fewer.")
        z, z_t = _pair(src.new_empty(tasks, pictures, block.out_size, block.out_size, block.outputs), w_t)
        tile = self.tiles_for(block).patch_forward if _columns(block) else self.tiles_for(block).forward
        size = _tile(rows, tile.rows)
        blocks = triton.cdiv(rows, size)
        sums = z.new_empty(tasks, blocks, 4, block.outputs)
        forward_kernel[(blocks, tasks)](
            src, _or(src_t, src), *norm, w, _or(w_t, w), z, _or(z_t, z), sums, rows, w.stride(0),
            *_geometry(block), ready, w_t is not None, size, min(tile.channels, block.inputs), _columns(block),
            self.precision, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        norm = _norm(block, sums, rows, size, params)
        return Layer(block, z, z_t, norm, self._seen(block, z, z_t, norm))

    def _seen(self, block: Block, z: Tensor, z_t: Tensor | None, norm: Norm) -> Seen:
        if block.pool == 1:
            return Seen(z, z_t, z)
        tasks, pictures, side = *z.shape[:2], block.seen_size
        seen, seen_t = _pair(z.new_empty(tasks, pictures, side, side, block.outputs), z_t)
        ready, ready_t = _pair(torch.empty_like(seen), z_t)
        places = torch.empty_like(seen, dtype=torch.uint8)
        rows, tile = pictures * side**2, self.tiles_for(block).pool
        size = _tile(rows, tile.rows)
        pool_kernel[(triton.cdiv(rows, size), tasks)](
            z, _or(z_t, z), *norm, seen, _or(seen_t, seen), ready, _or(ready_t, ready), places, rows,
            norm.shift.stride(0), block.out_size, side, block.outputs, block.pool, z_t is not None, size,
            num_warps=tile.warps,
        )  # fmt: skip
        return Seen(seen, seen_t, places, (ready, ready_t))

    def head(self, head: Head, last: Layer, params: Parameters, y: Tensor, out: Tensor) -> Judged:
        (w, w_t), (b, b_t) = params.pair(head.weight), params.pair(head.bias)
        z, z_t, channels = last.saved.z, last.saved.z_t, last.block.outputs
        tasks, pictures = z.shape[:2]
        size = _tile(pictures, self.pictures)
        blocks = triton.cdiv(pictures, size)
        # A single part is written to its place in `out`. Several parts are added up afterwards.
        start, length = head.weight.start, out.shape[1] - head.weight.start
        parts = out[None, :, start:] if blocks == 1 else out.new_empty(blocks, tasks, length)
        judged, sums = z.new_empty(tasks, blocks, 2), z.new_empty(tasks, blocks, 4, channels)
        dn, dn_t = _pair(torch.empty_like(z), w_t)
        head_kernel[(blocks, tasks)](
            z, _or(z_t, z), *last.norm, w, b, _or(w_t, w), _or(b_t, b), y, judged, parts,
            parts[..., head.bias.start - start :], dn, _or(dn_t, dn), sums, pictures, w.stride(0), parts.stride(1),
            parts.stride(0), out.shape[1] - head.bias.start, channels, head.features, head.ways,
            max(16, triton.next_power_of_2(head.ways)), size, max(channels, self.features), w_t is not None,
            self.precision,
        )  # fmt: skip
        if blocks > 1:
            add(parts, out[None, :, start:])
        return Judged(judged, pictures, self._cotangent(last, dn, dn_t, sums, out))

    def weight_gradient(self, before: Layer | Tensor, layer: Layer, back: Cotangent, out: Tensor) -> Any:
        """Run concurrently with the gradient of the data. Nothing waits for it, and it may leave a GPU mostly idle.

        In the first block there is no gradient of the data, so it runs at once.
        """
        block, slot, tasks = layer.block, layer.block.weight.of(out), len(out)
        rows, few = layer.z[0, ..., 0].numel(), _columns(block) > 0
        tile = self.tiles_for(block).patch_weight if few else self.tiles_for(block).weight
        taps = 1 if few else _shared_taps(tile, block)
        pieces = 1 if few else block.kernel**2 // taps * triton.cdiv(block.inputs, tile.channels)
        parts = triton.cdiv(rows, max(tile.part // taps, triton.cdiv(rows * pieces * tasks, tile.programs)))
        with aside(out.device, "weights") if isinstance(before, Layer) else nullcontext():
            written = slot[None] if parts == 1 else slot.new_empty(parts, *slot.shape)
            sizes = rows, triton.cdiv(rows, parts), written.stride(1), written.stride(0), *_geometry(block)
            if isinstance(before, Layer):
                self._weights(before, block, back, written, (pieces, parts, tasks), sizes)
            else:
                self._patch_weights(before, block, back, written, (parts, tasks), sizes)
            if parts > 1:
                add(written.flatten(2), slot[None].flatten(2))
        return before, layer, back

    def _weights(
        self, before: Layer, block: Block, back: Cotangent, written: Tensor, grid: tuple[int, ...],
        sizes: tuple[int, ...],
    ) -> None:  # fmt: skip
        (src, src_t, norm), (dz, dz_t, _), tile = _source(before), back, self.tiles_for(block).weight
        weight_kernel[grid](
            src, _or(src_t, src), norm.numbers, dz, _or(dz_t, dz), written, *sizes, dz_t is not None, tile.rows,
            min(tile.channels, src.shape[-1]), _shared_taps(tile, block), self.precision, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip

    def _patch_weights(
        self, x: Tensor, block: Block, back: Cotangent, written: Tensor, grid: tuple[int, ...], sizes: tuple[int, ...]
    ) -> None:
        tile = self.tiles_for(block).patch_weight
        patch_weight_kernel[grid](
            x, *back.sums, written, *sizes, block.pool, back.dn_t is not None, tile.rows, _columns(block),
            self.precision, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def wait_for(self, pending: list[Any]) -> None:
        if len(pending) > 1:  # the last one did not run concurrently
            wait_for(pending[0][-1].dn.device, "weights")
        pending.clear()  # only now may the memory be reused

    def data_gradient(self, before: Layer, layer: Layer, back: Cotangent, params: Parameters, out: Tensor) -> Cotangent:
        block, (w, w_t), (below, below_t, norm) = layer.block, params.pair(layer.block.weight), _source(before)
        tasks, pictures = below.shape[:2]
        in_phase = pictures * triton.cdiv(block.size, block.stride) ** 2
        tile = self.tiles_for(block).data
        size = _tile(in_phase, tile.rows)
        blocks = triton.cdiv(in_phase, size) * block.stride**2
        dn, dn_t = _pair(torch.empty_like(below), w_t)
        sums = below.new_empty(tasks, blocks, 4, block.inputs)
        data_kernel[(blocks, tasks)](
            back.dn, _or(back.dn_t, back.dn), w, _or(w_t, w), below, _or(below_t, below), norm.numbers, dn,
            _or(dn_t, dn), sums, pictures, w.stride(0), *_geometry(block), w_t is not None, size,
            min(tile.channels, block.outputs), self.precision, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return self._cotangent(before, dn, dn_t, sums, out)

    def _cotangent(self, layer: Layer, dn: Tensor, dn_t: Tensor | None, sums: Tensor, out: Tensor) -> Cotangent:
        """Return dz if it is read more than once, otherwise dn and what its reader computes dz from.

        The kernel that computes dz also writes the gradients of BatchNorm's parameters.
        """
        block, rows, sums = layer.block, layer.z[0, ..., 0].numel(), at_most(FEW.value, sums)
        inputs = _cotangent_inputs(layer, dn, dn_t, sums, out)
        if _columns(block):
            return Cotangent(dn, dn_t, inputs)
        dz, dz_t = (dn, dn_t) if block.pool == 1 else _pair(torch.empty_like(layer.z), dn_t)
        tile = self.tiles_for(block).before_norm
        size = _tile(rows, tile.rows)
        before_norm_kernel[(triton.cdiv(rows, size), len(sums))](
            *inputs, dz, _or(dz_t, dz), rows, block.out_size, block.outputs, block.pool, dn_t is not None, size,
            num_warps=tile.warps,
        )  # fmt: skip
        return Cotangent(dz, dz_t, None)


def _norm(block: Block, sums: Tensor, rows: int, per: int, params: Parameters) -> Norm:
    """Join sums over blocks of `per` rows until few are left."""
    (scale, scale_t), (shift, shift_t) = params.pair(block.scale or block.shift), params.pair(block.shift)
    (tasks, blocks, _, channels), dual = sums.shape, shift_t is not None
    while blocks > FEW.value:
        fewer = sums.new_empty(tasks, triton.cdiv(blocks, FEW.value), 4, channels)
        join_kernel[(fewer.shape[1], tasks, channels // SOME)](sums, fewer, rows, per, channels, SOME, dual)
        sums, per, blocks = fewer, per * FEW.value, fewer.shape[1]
    numbers, dots = sums.new_empty(tasks, NORM_ROWS.value, channels), (_or(scale_t, scale), _or(shift_t, shift))
    return Norm(sums, numbers, scale, shift, *dots, rows, per, block.eps, scaled=block.scale is not None)


def _cotangent_inputs(layer: Layer, dn: Tensor, dn_t: Tensor | None, sums: Tensor, out: Tensor) -> tuple[Any, ...]:
    """Return the inputs of dz, and the outputs for the gradients of BatchNorm's parameters."""
    (block, z, z_t, norm, saved), shift = layer, layer.block.shift
    slots = shift.of(out), (block.scale or shift).of(out), (block.bias or shift).of(out)
    sizes = sums.shape[1], out.stride(0), block.scale is not None, block.bias is not None
    return dn, _or(dn_t, dn), saved.places, z, _or(z_t, z), block.seen_size, sums, norm.numbers, *slots, *sizes


def _ready_source(before: Layer | Tensor) -> tuple[Tensor, Tensor | None, Norm, bool]:
    """Return the source as it is convolved, and whether it is already normalised."""
    src, src_t, norm = _source(before)
    ready = before.saved.take() if isinstance(before, Layer) else None
    return (*ready, norm, True) if ready else (src, src_t, norm, False)


def _source(before: Layer | Tensor) -> tuple[Tensor, Tensor | None, Norm]:
    """Return the input of a block, and what normalises it. Pictures are not normalised."""
    if isinstance(before, Layer):
        return before.saved.z, before.saved.z_t, before.norm
    return before, None, Norm(*6 * (before,), rows=1, per=1, eps=0.0, scaled=False)


def _pair(room: Tensor, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Allocate an array and, if there is a direction, its derivative."""
    return room, None if direction is None else torch.empty_like(room)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """Return a tensor or its substitute: a kernel needs every argument, even if it does not read it."""
    return other if tensor is None else tensor


def _geometry(block: Block) -> tuple[int, ...]:
    return block.size, block.out_size, block.inputs, block.outputs, block.kernel, block.stride, block.padding


def _shared_taps(tile: WeightTile, block: Block) -> int:
    return gcd(tile.taps, block.kernel**2)


def _columns(block: Block) -> int:
    """Return the columns of a patch that is read as a whole, else 0."""
    few = block.inputs <= FEW_CHANNELS
    return max(16, triton.next_power_of_2(block.kernel**2 * block.inputs)) if few else 0


def _tile(number: int, most: int) -> int:
    return int(min(most, max(16, triton.next_power_of_2(number))))
