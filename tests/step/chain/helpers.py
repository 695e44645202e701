"""Small chains and tasks for them, in float64."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import metastep as ms
from metastep.nets.conv4 import SamePad, ShiftNorm


class Net(NamedTuple):
    """A chain to be built, and what it is shown"""

    ways: int = 3
    shots: int = 1
    channels: int = 1
    size: int = 8
    filters: tuple[int, ...] = (4, 5)
    kernel: int = 3
    stride: int = 2
    padding: int = 1
    eps: float = 1e-5
    bias: bool = True
    pool: int = 1
    edge: bool = False  # pooling keeps what is left over, and comes before ReLU
    shift_only: bool = False
    same: bool = False  # TensorFlow's padding, by a layer of its own
    behind: int = 0  # zeros by a layer of its own

    @property
    def sizes(self) -> list[int]:
        """Of the pictures and of what each block makes of them"""
        sizes = [self.size]
        for _ in self.filters:
            around = sum(SamePad.around(sizes[-1])) if self.same else self.behind
            made = (sizes[-1] + around + 2 * self.padding - self.kernel) // self.stride + 1
            sizes.append(-(-made // self.pool) if self.edge else made // self.pool)
        return sizes

    def build(self, seed: int = 0) -> nn.Sequential:
        torch.manual_seed(seed)
        blocks = [
            nn.Sequential(
                *([SamePad()] if self.same else []),
                *([nn.ZeroPad2d((0, self.behind, 0, self.behind))] if self.behind else []),
                nn.Conv2d(i, o, self.kernel, self.stride, self.padding, bias=self.bias),
                ShiftNorm(o, self.eps)
                if self.shift_only
                else nn.BatchNorm2d(o, eps=self.eps, track_running_stats=False),
                *([nn.MaxPool2d(self.pool, ceil_mode=True)] if self.edge else []),
                nn.ReLU(),
                *([nn.MaxPool2d(self.pool)] if self.pool > 1 and not self.edge else []),
            )
            for i, o in zip((self.channels, *self.filters), self.filters, strict=False)
        ]
        features = self.filters[-1] * self.sizes[-1] ** 2
        net = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(features, self.ways)).double()
        for p in net.parameters():  # γ and β that are not 1 and 0
            p.data += 0.1 * torch.randn_like(p)
        return net

    def tasks(self, number: int = 3, queries: int = 2, seed: int = 1) -> ms.Task:
        generator = torch.Generator().manual_seed(seed)

        def batch(n: int) -> tuple[Tensor, Tensor]:
            shape = (number, self.ways * n, self.channels, self.size, self.size)
            x = torch.rand(shape, generator=generator, dtype=torch.float64)
            return x, torch.arange(self.ways).repeat_interleave(n).repeat(number, 1)

        return ms.Task(batch(self.shots), batch(queries))


NETS: dict[str, Net] = {
    "standard": Net(),
    "colours, other sizes": Net(ways=5, shots=2, channels=3, size=9),
    "one block": Net(filters=(4,)),
    "four blocks": Net(size=28, filters=(4, 4, 4, 4)),
    "unpadded": Net(size=11, padding=0),
    "stride 1": Net(stride=1, size=5),
    "stride 3, kernel 5": Net(size=13, stride=3, kernel=5, padding=2),
    "kernel 2": Net(kernel=2, padding=0),
    "stride above kernel": Net(kernel=1, padding=0),
    "eps": Net(eps=1e-2),
    "no bias": Net(bias=False),
    "pooled": Net(stride=1, pool=2, size=9),
    "pooled by threes": Net(stride=1, pool=3, size=20),
    "shifted only": Net(shift_only=True, eps=1e-3),
    "same padding, even and odd": Net(size=10, padding=0, same=True),  # 10, 5, 3
    "same padding, Reptile's sizes": Net(size=28, padding=0, same=True, filters=(4, 4, 4, 4), eps=1e-3),
    "same padding beside a convolution's": Net(size=7, same=True),
    "zeros behind that are seen": Net(size=8, behind=1),
    "zeros behind, some not seen": Net(size=7, kernel=2, padding=0, behind=2),
    "zeros behind, pooled": Net(stride=1, pool=2, size=6, behind=2),
    "pooled with the edge": Net(stride=1, pool=2, size=9, edge=True),  # 9, 5, 3
    "pooled by threes with the edge": Net(stride=1, pool=3, size=11, edge=True),
    "as Finn's for miniImageNet": Net(stride=1, pool=2, size=10, channels=3, shift_only=True, eps=1e-3),
}


def close(a: Any, b: Any, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
