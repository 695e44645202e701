"""From nothing to the end of the first step: with empty caches of compiled kernels, and again with what that left.

`python -m study.bench.startup JSON` starts one case and prints how long that took.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from study.bench.cases import Case
from study.bench.measure import started
from study.bench.results import Row, about_case
from study.bench.running import Conditions, FailedError, answer, asked_for

CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def row(case: Case, conditions: Conditions) -> Row:
    """seconds: from building to the end of the first step; process_seconds: from the start of Python"""
    with TemporaryDirectory() as folder:
        caches = {name: str(Path(folder, name)) for name in CACHES}
        try:
            times = [in_fresh_process(case, conditions, caches) for _ in range(2)]
        except FailedError as error:
            return about_case(case) | {"note": str(error)}
    (cold, cold_process, note), (warm, warm_process, _) = times
    return about_case(case) | {
        "cold_seconds": cold, "cold_process_seconds": cold_process, "warm_seconds": warm,
        "warm_process_seconds": warm_process, "note": note,
    }  # fmt: skip


def in_fresh_process(case: Case, conditions: Conditions, caches: dict[str, str]) -> tuple[float, float, str]:
    begin = time.perf_counter()
    seconds, path = answer("study.bench.startup", [asdict(case), asdict(conditions)], caches)
    return round(seconds, 2), round(time.perf_counter() - begin, 2), path


def main() -> None:
    (case,), conditions = asked_for()
    begun = started(case, torch.device(conditions.device))
    print(json.dumps([begun.seconds, begun.path]))


if __name__ == "__main__":
    main()
