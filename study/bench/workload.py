"""What every implementation works with: the net, the pictures on the device, the sampler and the outer Adam.

The timed unit is a whole meta-iteration: draw the episodes on the device, make the meta-gradient, step.
"""

from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam

from metastep.core.modules import parameters
from metastep.core.windows import Task
from metastep.data.registry import load
from metastep.nets.registry import load_net
from metastep.step.chain.chain import Chain, chain_of
from metastep.train.device import set_products
from metastep.train.fewshot.evaluate import Sampler
from metastep.train.schema import Precision
from study.bench.cases import SETTINGS, Case, FewShot

OUTER_RATE = 1e-3
Step = Callable[[], None]
Gradients = dict[str, Tensor]
PRECISIONS: dict[str, Precision] = {  # as training calls them
    "fp32": "float32",
    "tf32": "tf32",
    "bf16": "bf16",
    "fp64": "float64",
}


class Workload(NamedTuple):
    case: Case
    net: nn.Module
    meta: dict[str, Tensor]  # θ: the parameters of the net itself
    draw: Sampler

    def episodes(self, k: int) -> Task:
        return self.draw(k, self.case.tasks)


def workload(case: Case, device: torch.device) -> Workload:
    setting = SETTINGS[case.setting]
    set_products(PRECISIONS[case.precision])
    torch.manual_seed(0)
    net = net_of(setting).to(device, dtype=torch.float64 if case.precision == "fp64" else torch.float32)
    meta = parameters(net)
    sampler = Sampler(pictures(case, device), None, setting.episodes, 0, next(iter(meta.values())).dtype)
    return Workload(case, net, meta, sampler)


def net_of(setting: FewShot) -> nn.Module:
    shape = {"channels": setting.channels, "filters": setting.filters, "size": setting.size}
    return load_net(setting.net)(ways=setting.episodes.ways, **shape)


@cache
def shapes_of(setting: FewShot) -> Chain:
    """The net as data, without its numbers"""
    with torch.device("meta"):
        return chain_of(net_of(setting), setting.size)


def pictures(case: Case, device: torch.device) -> Tensor:
    """The setting's, or noise of that size, which costs the same; once for a process"""
    setting = SETTINGS[case.setting]
    return _real(*setting.pictures, case.data, device) if case.data else _noise(setting, device)


@cache
def _real(name: str, split: str, data: str, device: torch.device) -> Tensor:
    rows, _ = load(name, Path(data)).classes(split).rows()
    return rows.to(device, copy=True)  # not mapped from a file, page by page


@cache
def _noise(setting: FewShot, device: torch.device) -> Tensor:
    shape = (setting.classes, setting.per_class, setting.channels, setting.size, setting.size)
    noise = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return noise.to(device)


BatchGradient = Callable[[Task], Gradients]  # stacked tasks -> their mean meta-gradient


def by_gradient(meta_gradient: Callable[[Workload], BatchGradient]) -> Callable[[Case, torch.device], Step]:
    """Return a whole meta-iteration around a meta-gradient: it runs eagerly and ends in a step of Adam."""

    def build(case: Case, device: torch.device) -> Step:
        work = workload(case, device)
        gradient, optimizer, batches = meta_gradient(work), Adam(work.meta.values(), OUTER_RATE), count()

        def step() -> None:
            for name, grad in gradient(work.episodes(next(batches))).items():
                work.meta[name].grad = grad
            optimizer.step()

        return step

    return build
