"""The operators of a chain on a GPU: shapes and grids for the kernels."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from metastep.errors import MetastepError
from metastep.fused.algebra import Cotangent, Judged, Layer, Parameters
from metastep.fused.chain import Block, Chain, Head, NotAChainError
from metastep.fused.kernels.backward import before_norm_kernel, data_kernel, patch_weight_kernel, weight_kernel
from metastep.fused.kernels.forward import forward_kernel, pool_kernel
from metastep.fused.kernels.head import head_kernel
from metastep.fused.kernels.statistics import cotangent_kernel, join_kernel, statistics_kernel
from metastep.fused.kernels.tiles import BACK_ROWS, NORM_ROWS
from metastep.streams import beside, join

FEW_CHANNELS = 8  # a patch of so few is read as a whole
MANY, FEW = 128, 16  # sums that are joined at a time
SOME = 16  # channels that one program joins sums of: more programs end sooner
ROWS = 2**22  # that kernels can count, see `tiles.position`
LONG = 4 * MANY  # sums that one program may join: reading more would take longer than another kernel does


def require_kernels(chain: Chain) -> None:
    """The kernels want powers of two"""
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
    """What a program takes at a time of the rows, and of the channels of which it does not take all"""

    rows: int
    channels: int
    warps: int = 4
    stages: int = 3


# The fastest of those that were measured on an H200
FORWARD, DATA, WEIGHT = Tile(32, 64), Tile(64, 32), Tile(16, 64, warps=2)


class Seen(NamedTuple):
    """z and ż that the next block reads, and which of their windows they were"""

    z: Tensor
    z_t: Tensor | None
    places: Tensor  # of bytes; of no meaning where nothing is pooled


@dataclass(frozen=True)
class TritonOperators:
    precision: str = "tf32"  # of the products: bf16, tf32, tf32x3 or ieee
    forward_tile: Tile = FORWARD
    data_tile: Tile = DATA
    weight_tile: Tile = WEIGHT
    pass_rows: int = 16
    pictures: int = 32
    features: int = 64
    part: int = 512  # rows that one program sums a weight gradient over, at least
    patch_part: int = 256  # where there are few channels, and so few programs
    programs: int = 1024  # for a weight gradient, at most: each writes one of its own, to be added up

    def room(self, flat: Tensor) -> Tensor:
        return torch.empty_like(flat)  # the kernels write all of it

    def forward(self, block: Block, before: Layer | Tensor, params: Parameters) -> Layer:
        (w, w_t), (src, src_t, norm) = params.pair(block.weight), _source(before)
        tasks, pictures, rows = *src.shape[:2], src.shape[1] * block.out_size**2
        if rows >= ROWS:
            raise MetastepError(f"{pictures} pictures of {block.size}×{block.size} at once: the kernels are for fewer.")
        z, z_t = _pair(src.new_empty(tasks, pictures, block.out_size, block.out_size, block.outputs), w_t)
        tile = self.forward_tile
        size = _tile(rows, tile.rows)
        blocks = triton.cdiv(rows, size)
        sums = z.new_empty(tasks, blocks, 4, block.outputs)
        forward_kernel[(blocks, tasks)](
            src, _or(src_t, src), norm, w, _or(w_t, w), z, _or(z_t, z), sums, rows, w.stride(0),
            *_geometry(block), w_t is not None, size, min(tile.channels, block.inputs), _columns(block), self.precision,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        norm = _statistics(block, sums, rows, size, params)
        return Layer(block, z, z_t, norm, self._seen(block, z, z_t, norm))

    def _seen(self, block: Block, z: Tensor, z_t: Tensor | None, norm: Tensor) -> Seen:
        if block.pool == 1:
            return Seen(z, z_t, z)
        tasks, pictures, side = *z.shape[:2], block.seen_size
        seen, seen_t = _pair(z.new_empty(tasks, pictures, side, side, block.outputs), z_t)
        places = torch.empty_like(seen, dtype=torch.uint8)
        rows = pictures * side**2
        size = _tile(rows, self.pass_rows)
        pool_kernel[(triton.cdiv(rows, size), tasks)](
            z, _or(z_t, z), norm, seen, _or(seen_t, seen), places, rows, block.out_size, side,
            block.outputs, block.pool, z_t is not None, size,
        )  # fmt: skip
        return Seen(seen, seen_t, places)

    def head(self, head: Head, last: Layer, params: Parameters, y: Tensor, out: Tensor) -> Judged:
        (w, w_t), (b, b_t) = params.pair(head.weight), params.pair(head.bias)
        (z, z_t, _), channels = last.saved, last.block.outputs
        tasks, pictures = z.shape[:2]
        size = _tile(pictures, self.pictures)
        blocks = triton.cdiv(pictures, size)
        # One block writes its gradient where it belongs; of several, the parts are added up afterwards.
        start, length = head.weight.start, out.shape[1] - head.weight.start
        parts = out[None, :, start:] if blocks == 1 else out.new_empty(blocks, tasks, length)
        judged, sums = z.new_empty(tasks, blocks, 2), z.new_empty(tasks, blocks, 4, channels)
        dn, dn_t = _pair(torch.empty_like(z), w_t)
        head_kernel[(blocks, tasks)](
            z, _or(z_t, z), last.norm, w, b, _or(w_t, w), _or(b_t, b), y, judged, parts,
            parts[..., head.bias.start - start :], dn, _or(dn_t, dn), sums, pictures, w.stride(0), parts.stride(1),
            parts.stride(0), out.shape[1] - head.bias.start, channels, head.features, head.ways,
            max(16, triton.next_power_of_2(head.ways)), size, max(channels, self.features), w_t is not None,
            self.precision,
        )  # fmt: skip
        if blocks > 1:
            torch.sum(parts, 0, out=out[:, start:])
        return Judged(judged, pictures, self._cotangent(last, dn, dn_t, sums, out))

    def weight_gradient(self, before: Layer | Tensor, layer: Layer, back: Cotangent, out: Tensor) -> Any:
        """Nothing waits for it, and small ones leave most of a GPU idle: it goes beside the gradient of the data"""
        block, slot, tasks = layer.block, layer.block.weight.of(out), len(out)
        rows, few = layer.z[0, ..., 0].numel(), _columns(block) > 0
        pieces = 1 if few else block.kernel**2 * triton.cdiv(block.inputs, self.weight_tile.channels)
        part = max(self.patch_part if few else self.part, triton.cdiv(rows * pieces * tasks, self.programs))
        parts = triton.cdiv(rows, part)
        with beside(out.device, "weights"):
            written = slot[None] if parts == 1 else slot.new_empty(parts, *slot.shape)
            sizes = rows, triton.cdiv(rows, parts), written.stride(1), written.stride(0), *_geometry(block)
            if isinstance(before, Layer):
                self._weights(before, back, written, (pieces, parts, tasks), sizes)
            else:
                self._patch_weights(before, layer, back, written, (parts, tasks), sizes)
            if parts > 1:
                torch.sum(written, 0, out=slot)
        return before, layer, back

    def _weights(
        self, before: Layer, back: Cotangent, written: Tensor, grid: tuple[int, ...], sizes: tuple[int, ...]
    ) -> None:
        (src, src_t, norm), (dz, dz_t, _), tile = _source(before), back, self.weight_tile
        weight_kernel[grid](
            src, _or(src_t, src), norm, dz, _or(dz_t, dz), written, *sizes, dz_t is not None, tile.rows,
            min(tile.channels, src.shape[-1]), self.precision, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _patch_weights(
        self, x: Tensor, layer: Layer, back: Cotangent, written: Tensor, grid: tuple[int, ...], sizes: tuple[int, ...]
    ) -> None:
        tile, block = self.weight_tile, layer.block
        patch_weight_kernel[grid](
            x, *_cotangent_inputs(layer, back), written, *sizes, block.pool, back.dn_t is not None, tile.rows,
            _columns(block), self.precision, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def join(self, pending: list[Any]) -> None:
        join(pending[0][-1].dn.device, "weights")
        pending.clear()  # only now may others have the memory

    def data_gradient(self, before: Layer, layer: Layer, back: Cotangent, params: Parameters, out: Tensor) -> Cotangent:
        block, (w, w_t), (below, below_t, norm) = layer.block, params.pair(layer.block.weight), _source(before)
        tasks, pictures = below.shape[:2]
        in_phase = pictures * triton.cdiv(block.size, block.stride) ** 2
        tile = self.data_tile
        size = _tile(in_phase, tile.rows)
        blocks = triton.cdiv(in_phase, size) * block.stride**2
        dn, dn_t = _pair(torch.empty_like(below), w_t)
        sums = below.new_empty(tasks, blocks, 4, block.inputs)
        data_kernel[(blocks, tasks)](
            back.dn, _or(back.dn_t, back.dn), w, _or(w_t, w), below, _or(below_t, below), norm, dn, _or(dn_t, dn), sums,
            pictures, w.stride(0), *_geometry(block), w_t is not None, size, min(tile.channels, block.outputs),
            self.precision, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return self._cotangent(before, dn, dn_t, sums, out)

    def _cotangent(self, layer: Layer, dn: Tensor, dn_t: Tensor | None, sums: Tensor, out: Tensor) -> Cotangent:
        """dz, where it is read more than once, else dn and the numbers to make it by.

        The gradients of BatchNorm's parameters are written on the way.
        """
        block, tasks = layer.block, len(sums)
        if sums.shape[1] > LONG:
            sums = sums.sum(1, keepdim=True)
        numbers, (scale, bias) = dn.new_empty(tasks, BACK_ROWS.value, block.outputs), (block.scale, block.bias)
        rows = layer.z[0, ..., 0].numel()
        cotangent_kernel[(tasks, block.outputs // SOME)](
            sums, layer.norm, block.shift.of(out), out if scale is None else scale.of(out),
            out if bias is None else bias.of(out), numbers, rows, out.stride(0), sums.shape[1],
            block.outputs, SOME, dn_t is not None, _many(sums.shape[1]), scale is not None, bias is not None,
        )  # fmt: skip
        back = Cotangent(dn, dn_t, numbers)
        if _columns(block):
            return back
        dz, dz_t = (dn, dn_t) if block.pool == 1 else _pair(torch.empty_like(layer.z), dn_t)
        size = _tile(rows, self.pass_rows)
        before_norm_kernel[(triton.cdiv(rows, size), tasks)](
            *_cotangent_inputs(layer, back), dz, _or(dz_t, dz), rows, block.out_size, block.outputs, block.pool,
            dn_t is not None, size,
        )  # fmt: skip
        return Cotangent(dz, dz_t, None)


def _statistics(block: Block, sums: Tensor, rows: int, size: int, params: Parameters) -> Tensor:
    """The numbers of BatchNorm for each channel, of sums over blocks of `size` rows"""
    (scale, scale_t), (shift, shift_t) = params.pair(block.scale or block.shift), params.pair(block.shift)
    (tasks, blocks, _, channels), dual = sums.shape, shift_t is not None
    while blocks > LONG:
        joined = sums.new_empty(tasks, triton.cdiv(blocks, MANY), 4, channels)
        join_kernel[(joined.shape[1], tasks, channels // SOME)](
            sums, joined, rows, blocks, channels, SOME, size, dual, MANY
        )
        sums, size, blocks = joined, size * MANY, joined.shape[1]
    norm = sums.new_empty(tasks, NORM_ROWS.value, channels)
    statistics_kernel[(tasks, channels // SOME)](
        sums, norm, scale, shift, _or(scale_t, scale), _or(shift_t, shift), rows, shift.stride(0), blocks,
        block.eps, channels, SOME, size, dual, _many(blocks), block.scale is not None,
    )  # fmt: skip
    return norm


def _cotangent_inputs(layer: Layer, back: Cotangent) -> tuple[Any, ...]:
    """What dz is made of"""
    z, dn = layer.z, back.dn
    return dn, _or(back.dn_t, dn), layer.saved.places, z, _or(layer.z_t, z), back.sums, layer.block.seen_size


def _source(before: Layer | Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """What a block reads, and the numbers to normalise it with; pictures are read as they are"""
    return (before.saved.z, before.saved.z_t, before.norm) if isinstance(before, Layer) else (before, None, before)


def _pair(room: Tensor, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Room for an array and, where there is a direction, for its derivative"""
    return room, None if direction is None else torch.empty_like(room)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel must be given something, even if it will not look at it"""
    return other if tensor is None else tensor


def _geometry(block: Block) -> tuple[int, ...]:
    return block.size, block.out_size, block.inputs, block.outputs, block.kernel, block.stride, block.padding


def _columns(block: Block) -> int:
    """Of a whole patch, where it is read as one; else 0"""
    few = block.inputs <= FEW_CHANNELS
    return max(16, triton.next_power_of_2(block.kernel**2 * block.inputs)) if few else 0


def _tile(number: int, most: int) -> int:
    return int(min(most, max(16, triton.next_power_of_2(number))))


def _many(blocks: int) -> int:
    return MANY if blocks > FEW else FEW  # a kernel is compiled for each
