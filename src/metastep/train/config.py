"""What a run is made of: `FewShot` and `Transfer`, in Python, in TOML files, as presets and as key=value alike.

The inner optimizer and the method of few-shot learning are the registry's own dataclasses, chosen by name. Importing
this module loads no torch; making a configuration does.
"""

from metastep.train.fewshot_config import Data, FewShot, Net, Test, Validation
from metastep.train.schema import AnyData, Config, Outer
from metastep.train.transfer_config import (
    FineTuning,
    Scratch,
    Source,
    Target,
    TargetData,
    Transfer,
    TransferMethod,
    WhatAndWhere,
)

__all__ = [
    "JOBS", "AnyData", "Config", "Data", "FewShot", "FineTuning", "Net", "Outer", "Scratch", "Source", "Target",
    "TargetData", "Test", "Transfer", "TransferMethod", "Validation", "WhatAndWhere",
]  # fmt: skip

JOBS: dict[str, type[FewShot] | type[Transfer]] = {"few_shot": FewShot, "transfer": Transfer}
