"""Find out whether a net is a chain, and the place of each parameter in one flat vector."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from metastep.core.modules import SamePad, ShiftNorm, parameters
from metastep.errors import MetastepError
from metastep.step.fingerprint import HOOKS


class NotAChainError(MetastepError):
    """Report how a net differs from a chain."""


class Slot(NamedTuple):
    """Place a parameter in the flat vector, with its shape there (not the module's: see `to_flat`)."""

    name: str
    start: int
    shape: tuple[int, ...]

    def of(self, flat: Tensor) -> Tensor:
        """Return this parameter of every task, (tasks, *shape), as a view of flat (tasks, size)."""
        end = self.start + torch.Size(self.shape).numel()
        return flat[:, self.start : end].view(-1, *self.shape)


class Block(NamedTuple):
    """Describe convolution, BatchNorm on batch statistics, ReLU and optional max-pooling, before or after ReLU."""

    inputs: int
    outputs: int
    size: int  # of the square input
    out_size: int  # after the convolution
    kernel: int
    stride: int
    padding: int  # before; after it as much as `out_size` needs
    eps: float
    weight: Slot  # (kernel · kernel · inputs, outputs): the rows in the order of a patch, channels last
    bias: Slot | None  # BatchNorm subtracts it: its gradient is 0
    scale: Slot | None  # None: 1
    shift: Slot
    pool: int = 1  # side of the max-pooling windows
    keeps_edge: bool = False  # whether the rest at the edge is a smaller window, or dropped

    @property
    def behind(self) -> int:
        """Return the rows and columns of zeros in the last patch."""
        return max(0, (self.out_size - 1) * self.stride + self.kernel - self.padding - self.size)

    @property
    def seen_size(self) -> int:
        """Return the size of the input of the next block."""
        return (self.out_size + (self.pool - 1 if self.keeps_edge else 0)) // self.pool


class Head(NamedTuple):
    features: int
    ways: int
    weight: Slot  # (positions · channels, ways)
    bias: Slot


class Chain(NamedTuple):
    """Describe a net as data."""

    blocks: tuple[Block, ...]
    head: Head
    length: int  # of the flat vector

    def slots(self) -> Iterator[Slot]:
        for block in self.blocks:
            yield from (slot for slot in (block.weight, block.bias, block.scale, block.shift) if slot)
        yield from (self.head.weight, self.head.bias)

    def to_flat(self, params: dict[str, Tensor]) -> Tensor:
        """Return θ as a vector (length,). Weights are permuted so that a kernel reads adjacent numbers."""
        flat = next(iter(params.values())).new_zeros(self.length)
        for slot in self.slots():
            value = params[slot.name]
            flat[slot.start : slot.start + value.numel()] = self._turned(slot, value).reshape(-1)
        return flat

    def from_flat(self, flat: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a vector (length,) by name, with the shapes of the module."""
        return {slot.name: self._turned_back(slot, slot.of(flat[None])[0], like[slot.name]) for slot in self.slots()}

    def _turned(self, slot: Slot, value: Tensor) -> Tensor:
        if slot is self.head.weight:
            channels = self.blocks[-1].outputs
            return value.view(value.shape[0], channels, -1).permute(2, 1, 0)
        return value.permute(2, 3, 1, 0) if value.dim() == 4 else value

    def _turned_back(self, slot: Slot, value: Tensor, like: Tensor) -> Tensor:
        if slot is self.head.weight:
            channels = self.blocks[-1].outputs
            return value.view(-1, channels, like.shape[0]).permute(2, 1, 0).reshape(like.shape)
        if like.dim() == 4:
            return value.view(*like.shape[2:], like.shape[1], like.shape[0]).permute(3, 2, 0, 1)
        return value


ALIGNED = 16  # floats: Triton reads several at once from addresses that are known multiples


class _Layout:
    """Assign places to parameters, one after the other."""

    def __init__(self) -> None:
        self.length = 0

    def slot(self, name: str, shape: tuple[int, ...]) -> Slot:
        start = self.length
        self.length += -(-torch.Size(shape).numel() // ALIGNED) * ALIGNED
        return Slot(name, start, shape)


def chain_of(module: nn.Module, size: int) -> Chain:
    """Return the chain that `module` is for square pictures of `size`, or raise NotAChainError with the difference."""
    steps, pictures = list(_steps(module)), size
    layout, blocks, head = _Layout(), [], None
    while steps:
        around, steps = _around(steps, size)
        if [type(part) for _, part in steps[2:4]] == [nn.MaxPool2d, nn.ReLU]:
            steps = [*steps[:2], steps[3], steps[2], *steps[4:]]
        kinds = [type(part) for _, part in steps[:3]]
        if kinds in ([nn.Conv2d, nn.BatchNorm2d, nn.ReLU], [nn.Conv2d, ShiftNorm, nn.ReLU]):
            block, steps = _block(layout, steps[:3], size, around), steps[3:]
            if steps and isinstance(steps[0][1], nn.MaxPool2d):
                block, steps = _pooled(block, *steps[0]), steps[1:]
            blocks.append(block)
            size = block.seen_size
        elif kinds == [nn.Flatten, nn.Linear] and blocks:
            head, steps = _head(layout, steps[1], blocks[-1], pictures), []
        else:
            raise NotAChainError(f"{' → '.join(kind.__name__ for kind in kinds)} is no block of a chain")
    if head is None:
        raise NotAChainError("it does not end with a linear head")
    chain = Chain(tuple(blocks), head, layout.length)
    names = [slot.name for slot in chain.slots()]
    if odd := parameters(module).keys() ^ set(names) or {name for name in names if names.count(name) > 1}:
        raise NotAChainError(f"'{min(odd)}' is frozen, tied, unused or used twice")
    return chain


Step = tuple[str, nn.Module]


def _steps(module: nn.Module) -> Iterator[Step]:
    """Return the layers by name in the order of the forward pass. Each must read only the output of the one before."""
    if any(getattr(part, kind) for part in module.modules() for kind in HOOKS) or any(
        getattr(torch.nn.modules.module, f"_global{kind}") for kind in HOOKS
    ):
        raise NotAChainError("it has hooks, which may do anything")
    if any("forward" in vars(part) for part in module.modules()):
        raise NotAChainError("the forward pass of one of its modules was replaced")
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # a user's forward may do anything with proxies
        raise NotAChainError(f"its forward pass depends on its values ({type(error).__name__})") from None
    before: fx.Node | None = None
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            if node.op == "placeholder" and before is not None:
                raise NotAChainError("it has several inputs")
            if node.op == "output" and node.args != (before,):
                raise NotAChainError("it returns something else than its last layer")
        else:
            if node.all_input_nodes != [before]:
                raise NotAChainError(f"'{node.name}' sees more than the layer before it")
            step = _step(module, node)
            if not isinstance(step[1], nn.Identity):
                yield step
        before = node


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (ShiftNorm, SamePad)) or super().is_leaf_module(m, module_qualified_name)


def _step(module: nn.Module, node: fx.Node) -> Step:
    if node.op == "call_module":
        return str(node.target), module.get_submodule(str(node.target))
    if node.target in (torch.flatten, "flatten") and node.args[1:] == (1,):
        return node.name, nn.Flatten()
    if node.target in (torch.relu, F.relu, "relu"):
        return node.name, nn.ReLU()
    raise NotAChainError(f"'{node.name}' is no layer that is known here")


def _around(steps: list[Step], size: int) -> tuple[tuple[int, int], list[Step]]:
    """Return the zeros that a padding layer in front of a convolution adds on both sides, and the later steps."""
    (name, pad), *rest = steps
    if not isinstance(pad, SamePad | nn.ZeroPad2d) or not rest or not isinstance(rest[0][1], nn.Conv2d):
        return (0, 0), steps
    if isinstance(pad, SamePad):
        return pad.around(size), rest
    left, right, top, bottom = pad.padding
    if (left, right) != (top, bottom) or min(left, right) < 0:
        raise NotAChainError(f"layer '{name}' pads rows and columns differently, or crops")
    return (left, right), rest


def _block(layout: _Layout, steps: list[Step], size: int, around: tuple[int, int]) -> Block:
    (conv_name, conv), (norm_name, norm), _ = steps
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d | ShiftNorm)
    kernel, stride, padding = (_square(conv, option) for option in ("kernel_size", "stride", "padding"))
    if conv.groups != 1 or conv.dilation != (1, 1) or conv.padding_mode != "zeros":
        raise NotAChainError(f"layer '{conv_name}' has groups, dilation or other padding than zeros")
    if isinstance(norm, nn.BatchNorm2d) and (not norm.affine or norm.running_mean is not None):
        raise NotAChainError(f"layer '{norm_name}' has no scale and shift, or keeps running statistics")
    inputs, outputs = conv.in_channels, conv.out_channels
    return Block(
        inputs,
        outputs,
        size,
        (size + sum(around) + 2 * padding - kernel) // stride + 1,
        kernel,
        stride,
        around[0] + padding,
        norm.eps,
        layout.slot(f"{conv_name}.weight", (kernel * kernel * inputs, outputs)),
        None if conv.bias is None else layout.slot(f"{conv_name}.bias", (outputs,)),
        None if isinstance(norm, ShiftNorm) else layout.slot(f"{norm_name}.weight", (outputs,)),
        layout.slot(f"{norm_name}.{'shift' if isinstance(norm, ShiftNorm) else 'bias'}", (outputs,)),
    )


def _pooled(block: Block, name: str, pool: nn.Module) -> Block:
    assert isinstance(pool, nn.MaxPool2d)
    side = pool.kernel_size
    if not isinstance(side, int) or (pool.stride, pool.padding, pool.dilation) != (side, 0, 1):
        raise NotAChainError(f"layer '{name}' is not a max-pooling of square windows side by side")
    return block._replace(pool=side, keeps_edge=pool.ceil_mode)


def _square(conv: nn.Conv2d, option: str) -> int:
    value: Any = getattr(conv, option)
    if not isinstance(value, tuple) or len(set(value)) != 1:
        raise NotAChainError(f"a convolution with {option} = {value}")
    return int(value[0])


def _head(layout: _Layout, step: Step, last: Block, pictures: int) -> Head:
    name, linear = step
    assert isinstance(linear, nn.Linear)
    features, ways = linear.in_features, linear.out_features
    if linear.bias is None:
        raise NotAChainError(f"layer '{name}' has no bias")
    if features != last.outputs * last.seen_size**2:
        raise MetastepError(
            f"size = {pictures}: such pictures leave {last.outputs} × {last.seen_size} × {last.seen_size} features for "
            f"layer '{name}', which takes {features}. Give the size that the net was built for."
        )
    return Head(features, ways, layout.slot(f"{name}.weight", (features, ways)), layout.slot(f"{name}.bias", (ways,)))
