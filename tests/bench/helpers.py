"""A setting that takes milliseconds."""

from dataclasses import replace
from typing import Any

import torch

from metastep.bench.cases import Case, FewShot
from metastep.data.episodes import Episodes

CPU = torch.device("cpu")
TINY = "tiny"
SETTING = FewShot(Episodes(ways=3, shots=2, queries=3), tasks=2, filters=4, size=12, classes=6, per_class=6)


def tiny_case(**changes: Any) -> Case:
    return replace(Case(TINY, "metastep", "maml", 5, 1, 2, None, "fp64"), **changes)
