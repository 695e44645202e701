"""Flags of `metastep transfer run`, made of the fields of its configuration."""

from metastep.runs.flags import Flags
from metastep.transfer.config import INNER_OPTIONS, METHOD_OPTIONS, TransferConfig

# What a flag replaces: a preset's few labels are of its own data, its layers of its own nets, and a source either has
# weights or is trained.
_REPLACED = {
    "data.name": {"per_class"},
    "source.net": {"layers"},
    "target.net": {"layers"},
    "source.weights": {"dataset", "epochs", "lr", "weight_decay", "augment"},
    "source.dataset": {"weights", "classes"},
}
FLAGS = Flags(
    TransferConfig,
    short={"data.name": "target_data", "method.name": "method", "source.dataset": "source_data"},
    unprefixed=("data", "method"),
    hidden=("data.fingerprint", "source.fingerprint"),  # they come from the data
    choices={
        "method.name": METHOD_OPTIONS,
        "inner.optimizer": INNER_OPTIONS,
        **{path: {path: replaced} for path, replaced in _REPLACED.items()},
    },
)
