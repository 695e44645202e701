"""From a case to a row: here, or in a process of its own, which a CPU's peak memory and JAX's need.

`python -m study.bench.running JSON` measures one case and prints its cost.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from metastep.errors import first_line
from study.bench.cases import Case
from study.bench.implementations import IMPLEMENTATIONS
from study.bench.measure import Cost, measure
from study.bench.results import Row, row_of


@dataclass(frozen=True)
class Conditions:
    device: str
    threads: int
    repeats: int

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"


class FailedError(Exception):
    """A case could not be measured; the message is for the row's note."""


def measured(case: Case, conditions: Conditions) -> Row:
    implementation = IMPLEMENTATIONS[case.implementation]
    alone = implementation.alone or not conditions.on_gpu
    try:
        cost = in_fresh_process(case, conditions) if alone else in_this_process(case, conditions)
    except FailedError as error:
        return row_of(case, None, str(error))
    return row_of(case, cost, implementation.note)


def in_this_process(case: Case, conditions: Conditions) -> Cost:
    try:
        return measure(case, torch.device(conditions.device), conditions.repeats)
    except torch.OutOfMemoryError:
        raise FailedError("out of memory") from None
    except Exception as error:  # one that fails, in whatever way, must not stop the others
        raise FailedError(f"{type(error).__name__}: {first_line(error)}") from error
    finally:
        gc.collect()
        if conditions.on_gpu:
            torch._C._cuda_clearCublasWorkspaces()  # some MiB that would count for the first row only
            torch.cuda.empty_cache()


def in_fresh_process(case: Case, conditions: Conditions) -> Cost:
    return Cost(**answer("study.bench.running", [asdict(case), asdict(conditions)]))


def answer(module: str, asked: Any, environment: Mapping[str, str] | None = None) -> Any:
    """What `python -m module JSON` prints in its last line, as JSON too"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        # JAX would take most of a GPU at once
        env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | dict(environment or {}),
    )
    if run.returncode < 0:
        raise FailedError(f"ended by signal {-run.returncode}, perhaps for want of memory")
    if run.returncode:
        raise FailedError((run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1])
    return json.loads(run.stdout.splitlines()[-1])


def hold_to(threads: int) -> None:
    """As many threads, on as many cores: some libraries know nothing of PyTorch's setting"""
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def asked_for() -> tuple[list[Case], Conditions]:
    """What the one argument of this process says, which is held to it"""
    *cases, conditions = json.loads(sys.argv[1])
    asked = Conditions(**conditions)
    if not asked.on_gpu:
        hold_to(asked.threads)
    return [Case(**case) for case in cases], asked


def main() -> None:
    (case,), conditions = asked_for()
    try:
        cost = in_this_process(case, conditions)
    except FailedError as error:
        sys.exit(str(error))
    print(json.dumps(asdict(cost)))


if __name__ == "__main__":
    main()
