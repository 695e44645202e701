"""The same numbers for TensorBoard, if the `tensorboard` package is installed; a run does not need it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoard:
    """A thin cover over torch's SummaryWriter that leaves text out."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, step: int, values: Mapping[str, int | float | str]) -> None:
        for name, value in values.items():
            if not isinstance(value, str):
                self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def open_tensorboard(folder: Path, after: int | None) -> TensorBoard | None:
    """None without the package. TensorBoard is told to forget what an interrupted run wrote beyond step `after`."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # only here: it is optional, and slow to import
    except ImportError:
        return None
    return TensorBoard(SummaryWriter(folder, purge_step=0 if after is None else after + 1))
