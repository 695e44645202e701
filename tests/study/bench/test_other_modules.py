"""Modules that are not differentiated by hand: each way does the same work, or nothing is measured."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from study import results
from study.experiments import other_modules
from study.tables.pages import TABLES

CPU = torch.device("cpu")
SMALL = other_modules.Subject(lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, other_modules.WAYS)), (2,))


def test_a_row_for_each_way(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(other_modules.SUBJECTS, "small", SMALL)
    rows = other_modules.measure("small", 1, CPU)
    assert [row["method"] for row in rows] == [
        "loop over tasks", "exact, task by task", "exact", "exact_forward", "autograd, mapped", "Multi-step(8)",
        "first order",
    ]  # fmt: skip
    assert all(row["ms"] > 0 for row in rows)
    name = "bench/cpu-other-modules"
    about = {"command": "this", "commit": "0123456789", "device": "CPU", "versions": {"torch": "2"}}
    results.file_of(name).write_text(json.dumps({**about, "rows": rows}))
    *_, last = TABLES[name](name)
    assert last.startswith("| small | ")
    assert last.count("MiB") == len(rows)


def test_other_work_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(other_modules.SUBJECTS, "small", SMALL)
    honest = other_modules.loop_over_tasks
    monkeypatch.setattr(
        other_modules, "loop_over_tasks", lambda *of: {name: 1.1 * grad for name, grad in honest(*of).items()}
    )
    with pytest.raises(SystemExit, match=r"small: exact, task by task is .*% off the loop over tasks"):
        other_modules.measure("small", 1, CPU)
