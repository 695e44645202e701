"""FC100: CIFAR-100 for episodes, its 20 superclasses split 12/4/4 by Oreshkin et al. (2018).

No superclass is in two splits, so the classes of a test are unlike those of training.
"""

from collections.abc import Sequence

from metastep.core.registry import register
from metastep.data.pictures import PARTS, Split, listed_classes
from metastep.data.sets.cifar100 import CIFAR100
from metastep.data.sets.cifar_fs import LISTS


@register("dataset", "fc100")
class FC100(CIFAR100):
    summary = "CIFAR-100 for episodes, 32x32; superclasses split 12/4/4, classes 60/20/20"
    view = "episodes"

    def split_classes(self, names: Sequence[str], split: Split) -> list[int]:
        members = LISTS["superclasses"]
        lists = {part: [name for above in LISTS["fc100"][part] for name in members[above]] for part in PARTS}
        return listed_classes(lists, names, split)
