"""metrics.jsonl: every row whole, a cut last line tolerated, and a resume that leaves no trace."""

import errno
import json
import math
import os
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from metastep.train.io import RunError
from metastep.train.record import Metrics, open_tensorboard, read_metrics


def write(path: Path, steps: range, after: int | None = None) -> None:
    with Metrics(path, after) as metrics:
        for step in steps:
            metrics.write(step, {"loss": 1 / (step + 3), "split": "train"})


def test_rows_come_back(tmp_path: Path) -> None:
    with Metrics(tmp_path / "m.jsonl") as metrics:
        metrics.write(1, {"loss": 0.1, "count": 3, "split": "é\n\r"})
        metrics.write(2, {"loss": torch.tensor(0.5), "x": np.float32(0.25)})
        assert len(read_metrics(tmp_path / "m.jsonl")) == 2  # while the writer is at work
    assert read_metrics(tmp_path / "m.jsonl") == [
        {"step": 1, "loss": 0.1, "count": 3, "split": "é\n\r"},
        {"step": 2, "loss": 0.5, "x": 0.25},
    ]


def test_numbers_that_are_not_finite_are_null_in_the_file_and_nan_again(tmp_path: Path) -> None:
    with Metrics(tmp_path / "m") as metrics:
        metrics.write(1, {"a": math.nan, "b": torch.tensor(math.inf)})
    assert json.loads((tmp_path / "m").read_text()) == {"step": 1, "a": None, "b": None}
    assert all(math.isnan(read_metrics(tmp_path / "m")[0][name]) for name in "ab")


@pytest.mark.parametrize("after", [0, 4, 9, 12])
def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path: Path, after: int) -> None:
    write(tmp_path / "whole", range(20))
    write(tmp_path / "m", range(13))
    write(tmp_path / "m", range(after + 1, 20), after=after)
    assert (tmp_path / "m").read_bytes() == (tmp_path / "whole").read_bytes()


def test_without_a_checkpoint_the_file_starts_anew(tmp_path: Path) -> None:
    write(tmp_path / "m", range(5))
    write(tmp_path / "m", range(2))
    assert [row["step"] for row in read_metrics(tmp_path / "m")] == [0, 1]


def test_a_file_cut_at_any_byte_is_read_and_resumed(tmp_path: Path) -> None:
    write(tmp_path / "whole", range(2))
    data = (tmp_path / "whole").read_bytes()
    for length in range(len(data)):
        (tmp_path / "m").write_bytes(data[:length])
        done = len(read_metrics(tmp_path / "m"))
        assert done == data[:length].count(b"\n")
        write(tmp_path / "m", range(done, 2), after=done - 1)
        assert (tmp_path / "m").read_bytes() == data


@pytest.mark.parametrize("line", [b"{", b"", b"[]", b'{"loss": 1}', b'{"step": "1"}', b"\xff", b"[" * 100_000])
def test_a_damaged_line_that_is_not_the_last_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "m").write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    for use in (read_metrics, lambda path: Metrics(path, after=1)):
        with pytest.raises(RunError, match="line 2 is no row of metrics"):
            use(tmp_path / "m")


def test_a_failing_resume_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write(tmp_path / "m", range(5))
    data = (tmp_path / "m").read_bytes()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left"):
        Metrics(tmp_path / "m", after=2)
    assert (tmp_path / "m").read_bytes() == data
    assert os.listdir(tmp_path) == ["m"]


def test_a_row_that_does_not_fit_leaves_no_part_of_itself(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Metrics(tmp_path / "m") as metrics:
        metrics.write(1, {"note": "short"})
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
            with pytest.raises(RunError, match="cannot be written"):
                metrics.write(2, {"note": "long" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        metrics.write(3, {"note": "short"})
    assert [row["step"] for row in read_metrics(tmp_path / "m")] == [1, 3]


def test_folders_that_refuse_and_metrics_named_step(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be opened"):
        Metrics(tmp_path / "missing" / "m")
    with pytest.raises(RunError, match="cannot be read"):
        read_metrics(tmp_path / "missing")
    with Metrics(tmp_path / "m") as metrics, pytest.raises(RunError, match="named 'step'"):
        metrics.write(1, {"step": 2})


def shown_by_tensorboard(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("loss")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_tensorboard_shows_the_same_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "tensorboard"
    with Metrics(tmp_path / "m", tensorboard=folder) as metrics:
        for step in range(5):
            metrics.write(step, {"loss": step / 4, "split": "train"})
        metrics.sync()
        assert len(shown_by_tensorboard(folder)) == 5  # synced, not closed
    with Metrics(tmp_path / "m", after=2, tensorboard=folder) as metrics:
        metrics.write(3, {"loss": 7.0})
    assert shown_by_tensorboard(folder) == [(0, 0.0), (1, 0.25), (2, 0.5), (3, 7.0)]


def test_tensorboard_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert open_tensorboard(tmp_path / "tensorboard", None) is None
    with Metrics(tmp_path / "m", tensorboard=tmp_path / "tensorboard") as metrics:
        metrics.write(1, {"loss": 1.0})
        metrics.sync()
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize("fails", ["write", "flush", "close"])
def test_a_run_goes_on_without_tensorboard(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            self._act("write")

        def flush(self) -> None:
            self._act("flush")

        def close(self) -> None:
            self._act("close")

        def _act(self, what: str) -> None:
            if what == fails:
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("metastep.train.record.open_tensorboard", lambda folder, after: Full())
    with Metrics(tmp_path / "m", tensorboard=tmp_path / "tensorboard") as metrics:
        for step in range(3):
            metrics.write(step, {"loss": 1.0})
            metrics.sync()
    assert len(read_metrics(tmp_path / "m")) == 3
    assert capsys.readouterr().err.count("ends here (No space left on device)") == 1


def test_tensorboard_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "tensorboard").symlink_to(tmp_path / "victim")
    with pytest.raises(RunError, match=r"tensorboard': is a symbolic link.*Remove the link"):
        Metrics(tmp_path / "m", tensorboard=tmp_path / "tensorboard")
    assert list((tmp_path / "victim").iterdir()) == []
