"""CIFAR-FS: CIFAR-100 for episodes, its classes split 64/16/20 by Bertinetto et al. (2019)."""

import json
from collections.abc import Sequence

from metastep.core.registry import register
from metastep.data.files import ASSETS
from metastep.data.pictures import Split, listed_classes
from metastep.data.sets.cifar100 import CIFAR100

LISTS = json.loads((ASSETS / "cifar100_splits.json").read_text())


@register("dataset", "cifar_fs")
class CIFARFS(CIFAR100):
    summary = "CIFAR-100 for episodes, 32x32; classes split 64/16/20"
    view = "episodes"

    def split_classes(self, names: Sequence[str], split: Split) -> list[int]:
        return listed_classes(LISTS["cifar_fs"], names, split)
