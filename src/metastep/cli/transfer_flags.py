"""Flags of `metastep transfer run`, made of the fields of its configuration."""

from metastep.cli.flags import Flags
from metastep.train.transfer.config import INNER_OPTIONS, METHOD_OPTIONS, TransferConfig

# What a flag replaces: few labels of a preset are of its own data, its layers of its own nets; the way it trains a
# source is for its own pictures, and a source either has weights or is trained.
_TRAINING = ("epochs", "lr", "weight_decay", "augment")
_REPLACED = {
    "data.name": {"per_class"},
    "source.net": {"layers"},
    "target.net": {"layers"},
    "source.weights": {"dataset", *_TRAINING},
    "source.dataset": {"weights", "classes", *_TRAINING},
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
