"""metrics.jsonl: one JSON object a line, each with its step; mirrored to TensorBoard where that is installed."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsFloat

from metastep.train.errors import RunError, problem
from metastep.train.io import explained, itself, read_file, replace_file
from metastep.train.progress import say
from metastep.train.tensorboard import TensorBoard, open_tensorboard

Row = dict[str, Any]
Value = SupportsFloat | str


class Metrics:
    """Appends rows. Write the rows of a step and `sync` before saving its checkpoint: a resume drops all later ones."""

    def __init__(self, path: Path, after: int | None = None, tensorboard: Path | None = None) -> None:
        """`after`: the step of the checkpoint to continue from; None if there is none, and the file starts anew."""
        drop_rows_beyond(path, after)
        self._path = path
        self._mirror: TensorBoard | None = None
        with explained(path, "opened"):
            self._file = open(path, "ab", buffering=0, opener=itself)  # noqa: SIM115 - kept open for the life of this object
        if tensorboard:
            with explained(tensorboard, "written"):
                self._mirror = open_tensorboard(tensorboard, after)

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """A row is with the system when this returns: `kill -9` cannot lose it."""
        if "step" in values:
            raise problem(RunError, self._path, "a metric is named 'step'", "Rename it: the step is given apart")
        plain = {name: value if isinstance(value, (int, str)) else float(value) for name, value in values.items()}
        line = json.dumps({"step": step} | {name: _as_json(value) for name, value in plain.items()}) + "\n"
        with explained(self._path, "written"):
            self._append(line.encode())
        self._to_mirror(lambda mirror: mirror.write(step, plain))

    def _append(self, line: bytes) -> None:
        size = os.fstat(self._file.fileno()).st_size
        try:
            while line:  # a disk that fills up takes a part first, and refuses the rest
                line = line[self._file.write(line) :]
        except BaseException:
            with suppress(OSError):
                self._file.truncate(size)
            raise

    def sync(self) -> None:
        """To the disk itself: a checkpoint that is saved next never has steps that the metrics lost."""
        with explained(self._path, "written"):
            os.fsync(self._file.fileno())
        self._to_mirror(lambda mirror: mirror.flush())

    def close(self) -> None:
        self._file.close()
        self._to_mirror(lambda mirror: mirror.close())

    def _to_mirror(self, do: Callable[[TensorBoard], None]) -> None:
        """A run does not need it: where it fails, it ends, and the run goes on"""
        if self._mirror:
            try:
                do(self._mirror)
            except OSError as error:
                self._mirror = None
                say(f"What TensorBoard shows of {str(self._path.parent)!r} ends here ({error.strerror or error}).")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(path: Path) -> list[Row]:
    """All rows; a last line that was cut by the end of its writer is passed over. null is NaN again."""
    return [{name: math.nan if x is None else x for name, x in row.items()} for _, row in _rows(path, read_file(path))]


def drop_rows_beyond(path: Path, step: int | None) -> None:
    """Keep the rows up to `step` (none if None), atomically: what is left is as if the run had stopped there."""
    if not os.path.exists(path):
        return
    data = read_file(path)
    kept = b"" if step is None else b"".join(line for line, row in _rows(path, data) if row["step"] <= step)
    if kept != data:
        replace_file(path, kept)


def _rows(path: Path, data: bytes) -> Iterator[tuple[bytes, Row]]:
    *lines, cut = data.split(b"\n")
    del cut  # what follows the last line end: nothing, or a row whose writer was killed
    for number, line in enumerate(lines, 1):
        yield line + b"\n", _row(path, number, line)


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        row: Row = json.loads(line)
        if not isinstance(row["step"], int):
            raise ValueError("its step is no whole number")
        if odd := [name for name, value in row.items() if isinstance(value, list | dict)]:
            raise ValueError(f"{odd[0]!r} is neither a number nor text")
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise problem(RunError, path, f"line {number} is no row of metrics ({cause})", "Delete that line") from cause
    return row


def _as_json(value: int | float | str) -> int | float | str | None:
    """JSON knows no NaN and no infinity: null is what every reader of the file understands."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
