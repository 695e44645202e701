"""BatchNorm by hand against PyTorch's own: value, gradient, and the derivative of both along a direction."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vjp
from torch.nn.functional import batch_norm

from metastep.train.transfer.features import normalised

SHAPES = [(6, 3, 4, 5), (4, 2), (5, 3, 7), (3, 2, 2, 3, 2)]


def numbers(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 3 + 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    scale, shift = torch.randn(2, shape[1], generator=generator, dtype=torch.float64)
    return x, scale, shift


def by_pytorch(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return batch_norm(x, None, None, scale, shift, training=True, eps=1e-3)


def by_hand(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return normalised(x, scale, shift, 1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_value_and_gradient(shape: tuple[int, ...]) -> None:
    point, (weights, *_) = numbers(shape, 0), numbers(shape, 1)
    for one, other in zip(vjp(by_hand, *point)[1](weights), vjp(by_pytorch, *point)[1](weights), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(by_hand(*point), by_pytorch(*point))


@pytest.mark.parametrize("shape", SHAPES)
def test_derivative_of_the_value(shape: tuple[int, ...]) -> None:
    point, direction = numbers(shape, 0), numbers(shape, 2)
    torch.testing.assert_close(jvp(by_hand, point, direction), jvp(by_pytorch, point, direction))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("moving", [(0, 1, 2), (0,), (1,), (2,)])
def test_derivative_of_the_gradient(shape: tuple[int, ...], moving: tuple[int, ...]) -> None:
    """Two layers and a curved loss, so that dy moves as well"""
    point, direction = numbers(shape, 0), numbers(shape, 2)

    def gradient(norm: object) -> tuple[Tensor, ...]:
        def loss(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
            y = norm(torch.tanh(norm(x, scale, shift)), shift, scale)  # type: ignore[operator]
            return (y**3 + y.sin()).sum()

        still = [t if i in moving else torch.zeros_like(t) for i, t in enumerate(direction)]
        return jvp(grad(loss, argnums=(0, 1, 2)), point, tuple(still))[1]  # type: ignore[no-any-return]

    torch.testing.assert_close(gradient(by_hand), gradient(by_pytorch), rtol=1e-9, atol=1e-9)


def test_it_is_differentiated_forwards_only_and_says_so() -> None:
    point, direction = numbers((4, 2), 0), numbers((4, 2), 2)
    gradient = grad(lambda *p: by_hand(*p).sin().sum(), argnums=(0, 1, 2))
    with pytest.raises(RuntimeError, match="forwards only"):
        vjp(gradient, *point)[1](direction)
