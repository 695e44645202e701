"""Measure peak memory against the number of inner steps: the sweep, first order and plain autograd.

Omniglot's 20-way 5-shot setting: the flattened Conv4, 100 support and 300 query pictures, SGD with momentum. The
pictures are noise: they cost the same. On a GPU peak_mib is the peak of its allocator. On a CPU each row is a fresh
process, and peak_mib is its peak resident size minus the size before the work. tensors_mib is what live tensors take.
"""

import itertools
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

import metastep as ms
from metastep.core.counting import peak_bytes
from metastep.nets.conv4 import Conv4
from study import results
from study.bench.machines import peak_resident_mib
from study.experiments import arguments
from study.experiments.plain import plain_cross_entropy

WAYS, SHOTS, QUERIES = 20, 5, 15
STEPS = (1, 8, 32, 64)
DEVICE, TASKS = ("cuda", 16) if torch.cuda.is_available() else ("cpu", 1)
INNER = ms.SGD(0.1, momentum=0.9, weight_decay=1e-4)


METHODS = {
    "first_order": ms.FOMAML(),
    "maml": ms.MAML(),
    "maml_autograd": ms.methods.Reference(),
}


def episode(tasks: int, ways: int = WAYS, shots: int = SHOTS, queries: int = QUERIES) -> ms.Task:
    def part(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(ways, device=DEVICE).repeat_interleave(n).expand(tasks, -1)
        return torch.rand(tasks, ways * n, 1, 28, 28, device=DEVICE), labels

    return ms.Task(part(shots), part(queries))


def measure(method: str, steps: int, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    net = Conv4(WAYS).to(DEVICE)
    problem, meta, tasks = ms.few_shot(net, plain_cross_entropy), ms.parameters(net), episode(TASKS)
    step = ms.MetaGradient(problem, METHODS[method], INNER, steps=steps, chunk_size=TASKS).unchecked
    step(meta, episode(TASKS, ways=2, shots=1, queries=1))  # loads what PyTorch loads on first use
    before, times = peak_resident_mib(), []
    for _ in range(repeats):
        start = time.perf_counter()
        float(step(meta, tasks).loss)  # waits for a GPU
        times.append(1e3 * (time.perf_counter() - start))
    resident = peak_resident_mib() - before
    tensors = peak_bytes(lambda: step(meta, tasks), torch.device(DEVICE))[1] / 2**20
    peak = tensors if DEVICE == "cuda" else resident
    return row(method, steps, statistics.median(times), max(times) - min(times), peak, tensors)


def row(
    method: str,
    steps: int,
    ms: float | None,
    spread: float | None,
    peak: float | None,
    tensors: float | None,
    note: str = "",
) -> dict[str, Any]:
    def rounded(x: float | None) -> float | None:
        return None if x is None else round(x, 1)

    return {
        "setting": "omniglot-20w5s", "implementation": "torch autograd" if method == "maml_autograd" else "metastep",
        "method": method, "steps": steps, "window": 1, "tasks": TASKS, "chunk": None, "precision": "fp32",
        "ms": rounded(ms), "ms_spread": rounded(spread), "peak_mib": rounded(peak), "tensors_mib": rounded(tensors),
        "note": note,
    }  # fmt: skip


def in_fresh_process(method: str, steps: int, repeats: int) -> dict[str, Any]:
    # Not by `python -m study run`: the memory of what that imports could serve the work, and would not be counted.
    module = [sys.executable, "-m", "study.experiments.sweep_memory"]
    command = [*module, "--row", method, str(steps), "--repeats", str(repeats)]
    run = subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def on_gpu(method: str, steps: int, repeats: int) -> dict[str, Any]:
    try:
        return measure(method, steps, repeats)
    except torch.OutOfMemoryError:
        return row(method, steps, None, None, None, None, "out of memory")


def main() -> None:
    parser = arguments.parser("sweep_memory", __doc__)
    parser.add_argument("--row", nargs=2, metavar=("METHOD", "STEPS"), help="measure one row and print it as JSON")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)  # two on two shared cores are erratic
    if options.row:
        print(json.dumps(measure(options.row[0], int(options.row[1]), options.repeats)))
        return
    rows = []
    measured = on_gpu if DEVICE == "cuda" else in_fresh_process
    for steps, method in itertools.product(STEPS, METHODS):
        rows.append(measured(method, steps, options.repeats))
        print(f"{method:15s} {steps:3d} steps {rows[-1]['tensors_mib']} MiB {rows[-1]['ms']} ms", flush=True)
    print(results.write("sweep-memory", arguments.command("sweep_memory", options), rows))


if __name__ == "__main__":
    main()
