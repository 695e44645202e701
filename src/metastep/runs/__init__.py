"""What a training run keeps on disk: configuration, metrics, checkpoints, a lock; and how it shows and stops."""

from metastep.runs.checkpoints import load, save
from metastep.runs.config import from_plain, read_config, to_plain, write_config
from metastep.runs.errors import CheckpointError, ConfigError, LockError, RunError
from metastep.runs.lock import locked
from metastep.runs.metrics import Metrics, read_metrics
from metastep.runs.progress import Progress
from metastep.runs.run import Run
from metastep.runs.states import optimizer_tree, restore_optimizer
from metastep.runs.stop import Stop, stop_on_signals

__all__ = [
    "CheckpointError",
    "ConfigError",
    "LockError",
    "Metrics",
    "Progress",
    "Run",
    "RunError",
    "Stop",
    "from_plain",
    "load",
    "locked",
    "optimizer_tree",
    "read_config",
    "read_metrics",
    "restore_optimizer",
    "save",
    "stop_on_signals",
    "to_plain",
    "write_config",
]
