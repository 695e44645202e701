"""Settings that take milliseconds."""

from dataclasses import replace
from typing import Any

import torch

from metastep.data.episodes import Episodes
from study.bench.cases import Case, FewShot

CPU = torch.device("cpu")
TINY, POOLED = "tiny", "tiny-pooled"
SETTING = FewShot(Episodes(ways=3, shots=2, queries=3), tasks=2, filters=4, size=12, classes=6, per_class=6)
TINY_SETTINGS = {  # 20 → 10 → 5 → 2 → 1: pooling leaves an edge
    TINY: SETTING,
    POOLED: replace(SETTING, size=20, channels=3, net="finn_mini", pictures=("mini_imagenet", "train")),
}


def tiny_case(**changes: Any) -> Case:
    return replace(Case(TINY, "metastep", "maml", 5, 1, 2, None, "fp64"), **changes)
