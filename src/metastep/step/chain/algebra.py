"""Compute loss, gradient and second-order product of a chain. Every array has a leading task axis.

A dot (ṗ, here `p_t`) is the derivative along one direction of the parameters. Without a direction, every `_t` is None
and the same lines give the gradient. With one they give its derivative, H·direction (forward over reverse).

    z = conv(a⁻, w)      ẑ = (z − μ)·r      n = γẑ + β      a = max(n, 0)          r = 1/√(σ² + ε)
    ż = conv(ȧ⁻, w) + conv(a⁻, ẇ)      ẑ˙ = r(ż − mean ż − ẑ·q)      q = mean ẑż      ṙ = −r²q
    dz = rγe       e = dn − mean dn − ẑ·mean(dn·ẑ)        dn = da·[n > 0]      dβ = Σdn      dγ = Σdn·ẑ
    dż = (ṙγ + rγ̇)e + rγė      ė = dṅ − mean dṅ − ẑ˙·mean(dn·ẑ) − ẑ·mean(dṅ·ẑ + dn·ẑ˙)

BatchNorm subtracts a bias before it together with the mean. Such a bias is not read, and its gradient is 0.
"""

from typing import Any, NamedTuple, Protocol, Self

from torch import Tensor

from metastep.step.chain.chain import Block, Chain, Head, Slot


class Layer(NamedTuple):
    """Hold the output of a block. The operators choose whether z is normalised here or by its readers."""

    block: Block
    z: Tensor
    z_t: Tensor | None
    norm: Any  # what the operators need to normalise z
    saved: Any = None  # what they need again in the backward


class Cotangent(NamedTuple):
    """Hold dn of a block, or the dz that the operators computed from it."""

    dn: Tensor
    dn_t: Tensor | None
    sums: Any  # what the operators need for the backward of BatchNorm


class Judged(NamedTuple):
    sums: Tensor  # (tasks, parts, 2): of losses and of hits; `means` adds them up
    pictures: int
    back: Cotangent

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """Return loss and accuracy of each task."""
        loss, accuracy = (self.sums.sum(1) / self.pictures).unbind(1)
        return loss, accuracy


class Parameters(NamedTuple):
    """Hold φ of all tasks, (tasks, length), and a direction. Kernels use the same offsets for both."""

    flat: Tensor
    flat_t: Tensor | None

    @classmethod
    def of(cls, flat: Tensor, flat_t: Tensor | None = None) -> Self:
        """Return parameters. `flat` may be one θ, expanded for all tasks; with a direction it is made contiguous."""
        return cls(flat, None) if flat_t is None else cls(flat.contiguous(), flat_t.contiguous())

    def pair(self, slot: Slot) -> tuple[Tensor, Tensor | None]:
        return slot.of(self.flat), None if self.flat_t is None else slot.of(self.flat_t)


class Operators(Protocol):
    """Compute layers. `out` (tasks, length) takes gradients, or their derivatives if there is a direction, by slot."""

    def room(self, flat: Tensor) -> Tensor:
        """Return `out`. It is 0 in places that nothing writes."""

    def forward(self, block: Block, before: Layer | Tensor, params: Parameters) -> Layer: ...

    def head(self, head: Head, last: Layer, params: Parameters, y: Tensor, out: Tensor) -> Judged: ...

    def weight_gradient(self, before: Layer | Tensor, layer: Layer, back: Cotangent, out: Tensor) -> Any:
        """Start the gradient. It may run concurrently: keep the returned object until `wait_for`."""

    def data_gradient(
        self, before: Layer, layer: Layer, back: Cotangent, params: Parameters, out: Tensor
    ) -> Cotangent: ...

    def wait_for(self, pending: list[Any]) -> None: ...


def judge(operators: Operators, chain: Chain, params: Parameters, x: Tensor, y: Tensor, out: Tensor) -> Judged:
    """Run the forward pass alone, and free each layer after its use. The head already writes into `out`."""
    layer: Layer | Tensor = x
    for block in chain.blocks:
        layer = operators.forward(block, layer, params)
    assert isinstance(layer, Layer)
    return operators.head(chain.head, layer, params, y, out)


def differentiate(
    operators: Operators, chain: Chain, flat: Tensor, x: Tensor, y: Tensor, flat_t: Tensor | None = None
) -> tuple[Judged, Tensor]:
    """Return the losses of all tasks, and ∂L/∂φ (tasks, length) or, with a direction flat_t, (∂²L/∂φ²)·flat_t.

    x is (tasks, pictures, height, width, channels), and y is (tasks, pictures).
    """
    params = Parameters.of(flat, flat_t)
    out, layers = operators.room(params.flat), list[Layer]()
    for block in chain.blocks:
        layers.append(operators.forward(block, layers[-1] if layers else x, params))
    judged = operators.head(chain.head, layers[-1], params, y, out)
    back, pending = judged.back, []
    while layers:  # each is freed after its use
        layer = layers.pop()
        before = layers[-1] if layers else x
        pending.append(operators.weight_gradient(before, layer, back, out))
        if isinstance(before, Layer):
            back = operators.data_gradient(before, layer, back, params, out)
    operators.wait_for(pending)
    return judged, out
