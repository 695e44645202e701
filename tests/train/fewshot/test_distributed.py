import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from metastep.errors import MetastepError
from metastep.step.ranks import Ranks
from metastep.train import remembered
from metastep.train.config import FewShot, Validation
from metastep.train.fewshot.learner import Learner
from metastep.train.loop import resume, train
from metastep.train.record import read_metrics
from metastep.train.run import Run
from tests.train.fewshot.helpers import TINY, job, loading, same_state, start, stripes, tiny


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def two_ranks(config: FewShot, folder: Path, **more: Any) -> list[tuple[int, str]]:
    """(exit status, what it said) of each"""
    port = free_port()
    ranks = [start(job(config, folder, **more), rank, 2, port) for rank in range(2)]
    try:
        said = [process.communicate(timeout=60)[1] for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
    return [(process.returncode, text) for process, text in zip(ranks, said, strict=True)]


# Adam turns rounding into steps where a gradient is zero but for it (a bias before BatchNorm). In float32 the sums must
# be taken in the same order to agree: one chunk for each rank. In float64 any order will do.
SAME_ORDER = replace(TINY, chunk_size=2)
ANY_ORDER = replace(tiny(tasks=5), precision="float64")


@pytest.mark.parametrize(
    ("config", "as_unit"),
    [(SAME_ORDER, False), (ANY_ORDER, False), (ANY_ORDER, True)],
    ids=["float32", "float64, 5 tasks", "the same as one unit"],
)
def test_two_ranks_make_the_run_of_one(config: FewShot, as_unit: bool, tmp_path: Path) -> None:
    train(config, tmp_path / "one")
    done = two_ranks(config, tmp_path / "two", as_unit=as_unit)
    assert [status for status, _ in done] == [0, 0], done
    assert same_state(tmp_path / "one", tmp_path / "two", tolerance=1e-6)
    one, two = (read_metrics(Run(tmp_path / name).metrics_path) for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        assert a.pop("kind") == b.pop("kind")
        if "path" in a:
            assert b["path"].endswith("captured") == as_unit
        else:
            assert {**a, "seconds": 0} == pytest.approx({**b, "seconds": 0}, abs=1e-5)


@pytest.mark.parametrize(("log_every", "last"), [(1, 12), (100, 20)])
def test_as_one_unit_ranks_end_together_when_one_is_asked_to(log_every: int, last: int, tmp_path: Path) -> None:
    """Where all of them look: when they log, and every tenth iteration"""
    config = replace(tiny(iterations=30), log_every=log_every, validation=Validation(0))
    done = two_ranks(config, tmp_path / "run", as_unit=True, stopped_at=12, asked_rank="1")
    assert [status for status, _ in done] == [0, 0], done
    assert Run(tmp_path / "run").load()["trained"]["iterations"] == last


@pytest.mark.kills
def test_when_a_rank_dies_the_other_ends_and_the_run_can_go_on(tmp_path: Path) -> None:
    done = two_ranks(SAME_ORDER, tmp_path / "run", dies_at=7, dying_rank="1")
    assert done[1][0] == -signal.SIGKILL
    assert done[0][0] == 2
    assert "another rank has ended" in done[0][1]
    assert Run(tmp_path / "run").load()["trained"]["iterations"] in (6, 7)
    Learner.load(tmp_path / "run")

    resume(tmp_path / "run")  # by one process, for once
    train(SAME_ORDER, tmp_path / "one")
    assert same_state(tmp_path / "one", tmp_path / "run", tolerance=1e-6)


def test_tasks_are_shared_without_gap_or_overlap() -> None:
    for tasks in (4, 5, 32):
        shares = [Ranks(rank, 4).share(tasks) for rank in range(4)]
        assert [i for first, number in shares for i in range(first, first + number)] == list(range(tasks))
    with pytest.raises(MetastepError, match="3 tasks for 4 ranks"):
        Ranks(0, 4).share(3)


def test_an_error_of_the_first_rank_ends_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = two_ranks(TINY, tmp_path / "file" / "run")
    assert [status for status, _ in done] == [2, 2], done
    assert all("cannot be made" in text and "Traceback" not in text for _, text in done)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_all_reduce_on_a_gpu_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first of two ranks without the other: its share is then all that is summed"""
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")  # as in training
    monkeypatch.setattr(remembered, "load", loading(stripes))
    config = replace(ANY_ORDER, device="cuda")
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    try:
        train(config, tmp_path / "unit", ranks=Ranks(0, 2))
        monkeypatch.setattr("metastep.step.update.why_not_captured", lambda *of: "to compare with")
        train(config, tmp_path / "steps", ranks=Ranks(0, 2))
    finally:
        dist.destroy_process_group()
    paths = [row["path"] for row in read_metrics(Run(tmp_path / "unit").metrics_path) if row["kind"] == "engine"]
    assert paths[0].endswith("captured in a CUDA graph")
    assert same_state(tmp_path / "unit", tmp_path / "steps", tolerance=1e-6)
