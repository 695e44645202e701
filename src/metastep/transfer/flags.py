"""Flags of `metastep transfer run`, made of the fields of its configuration."""

from metastep.runs.flags import Flags
from metastep.transfer.config import INNER_OPTIONS, METHOD_OPTIONS, TransferConfig

FLAGS = Flags(
    TransferConfig,
    short={"data.name": "target_data", "method.name": "method", "source.dataset": "source_data"},
    unprefixed=("data", "method"),
    choices={"method.name": METHOD_OPTIONS, "inner.optimizer": INNER_OPTIONS},
)
