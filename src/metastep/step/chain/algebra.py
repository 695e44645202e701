"""Loss, gradient and second-order product of a chain, written out; every array has a leading task axis.

A dot (ṗ, here `p_t`) is the derivative along one direction of the parameters. Without a direction, all that ends in
`_t` is None and the same lines give the gradient; with one they give its derivative, H·direction: forward over reverse.

    z = conv(a⁻, w)      ẑ = (z − μ)·r      n = γẑ + β      a = max(n, 0)          r = 1/√(σ² + ε)
    ż = conv(ȧ⁻, w) + conv(a⁻, ẇ)      ẑ˙ = r(ż − mean ż − ẑ·q)      q = mean ẑż      ṙ = −r²q
    dz = rγe       e = dn − mean dn − ẑ·mean(dn·ẑ)        dn = da·[n > 0]      dβ = Σdn      dγ = Σdn·ẑ
    dż = (ṙγ + rγ̇)e + rγė      ė = dṅ − mean dṅ − ẑ˙·mean(dn·ẑ) − ẑ·mean(dṅ·ẑ + dn·ẑ˙)

A bias before BatchNorm is taken away again with the mean: it is not read, and its gradient is 0.
"""

from typing import Any, NamedTuple, Protocol, Self

from torch import Tensor

from metastep.step.chain.chain import Block, Chain, Head, Slot


class Layer(NamedTuple):
    """What a block made; whether z is normalised here or wherever it is read is the operators' choice"""

    block: Block
    z: Tensor
    z_t: Tensor | None
    norm: Any  # whatever the operators normalise it with
    saved: Any = None  # what they want to see again


class Cotangent(NamedTuple):
    """dn of a block, or the dz that the operators have made of it"""

    dn: Tensor
    dn_t: Tensor | None
    sums: Any  # whatever the operators need to go through BatchNorm with


class Judged(NamedTuple):
    sums: Tensor  # (tasks, parts, 2): of losses and of hits; added up only where somebody asks
    pictures: int
    back: Cotangent

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of each task"""
        loss, accuracy = (self.sums.sum(1) / self.pictures).unbind(1)
        return loss, accuracy


class Parameters(NamedTuple):
    """φ of all tasks, (tasks, length), and a direction; a kernel finds a task alike in either"""

    flat: Tensor
    flat_t: Tensor | None

    @classmethod
    def of(cls, flat: Tensor, flat_t: Tensor | None = None) -> Self:
        """Where all tasks start from one θ, `flat` is that one, expanded: read as it is, unless beside a direction"""
        return cls(flat, None) if flat_t is None else cls(flat.contiguous(), flat_t.contiguous())

    def pair(self, slot: Slot) -> tuple[Tensor, Tensor | None]:
        return slot.of(self.flat), None if self.flat_t is None else slot.of(self.flat_t)


class Operators(Protocol):
    """`out` (tasks, length) takes gradients, or their derivatives where there is a direction, each in its slot."""

    def room(self, flat: Tensor) -> Tensor:
        """`out`; where nothing will be written, it is 0"""

    def forward(self, block: Block, before: Layer | Tensor, params: Parameters) -> Layer: ...

    def head(self, head: Head, last: Layer, params: Parameters, y: Tensor, out: Tensor) -> Judged: ...

    def weight_gradient(self, before: Layer | Tensor, layer: Layer, back: Cotangent, out: Tensor) -> Any:
        """May run beside what follows: what it returns must be kept until `wait_for`"""

    def data_gradient(
        self, before: Layer, layer: Layer, back: Cotangent, params: Parameters, out: Tensor
    ) -> Cotangent: ...

    def wait_for(self, pending: list[Any]) -> None: ...


def judge(operators: Operators, chain: Chain, params: Parameters, x: Tensor, y: Tensor, out: Tensor) -> Judged:
    """Forward alone, each layer let go of once it was seen; the head has begun to write into `out`"""
    layer: Layer | Tensor = x
    for block in chain.blocks:
        layer = operators.forward(block, layer, params)
    assert isinstance(layer, Layer)
    return operators.head(chain.head, layer, params, y, out)


def differentiate(
    operators: Operators, chain: Chain, flat: Tensor, x: Tensor, y: Tensor, flat_t: Tensor | None = None
) -> tuple[Judged, Tensor]:
    """The losses of all tasks and ∂L/∂φ (tasks, length); with a direction flat_t, (∂²L/∂φ²)·flat_t in its place

    x (tasks, pictures, height, width, channels), y (tasks, pictures)
    """
    params = Parameters.of(flat, flat_t)
    out, layers = operators.room(params.flat), list[Layer]()
    for block in chain.blocks:
        layers.append(operators.forward(block, layers[-1] if layers else x, params))
    judged = operators.head(chain.head, layers[-1], params, y, out)
    back, pending = judged.back, []
    while layers:  # each is let go of once it was used
        layer = layers.pop()
        before = layers[-1] if layers else x
        pending.append(operators.weight_gradient(before, layer, back, out))
        if isinstance(before, Layer):
            back = operators.data_gradient(before, layer, back, params, out)
    operators.wait_for(pending)
    return judged, out
