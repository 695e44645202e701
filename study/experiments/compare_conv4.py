"""Measure how far each method is from the exact meta-gradient, and what it costs, on Conv4.

5-way 1-shot on glyphs, 8 inner steps, two inner rates; for each rate at a random θ and at one that was meta-trained for
a while.
"""

from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import track

import metastep as ms
from metastep.data.catalog import load
from metastep.data.draw import draw
from metastep.data.episodes import Episodes
from metastep.nets.conv4 import Conv4
from study import results
from study.experiments import arguments

STEPS, TASKS = 8, 8
RATES = (0.01, 0.1)
EPISODES = Episodes(ways=5, shots=1, queries=15)
EVALUATION_SEED = 2**40


def momentum(lr: float) -> ms.SGD:
    return ms.SGD(lr, momentum=0.9, weight_decay=1e-4)


def methods(problem: ms.Problem, lr: float) -> dict[str, ms.Estimator]:
    inner = momentum(lr)
    return {
        "MAML": ms.maml(problem, inner, STEPS),
        **{f"Multi-step({n})": ms.multi_step(problem, inner, STEPS, n) for n in (2, 4, 8)},
        "truncated(2)": ms.truncated(problem, inner, STEPS, depth=2),
        "FO-MAML": ms.fo_maml(problem, inner, STEPS),
        "Reptile": ms.reptile(problem, inner, STEPS),
        "iMAML": ms.imaml(problem, ms.SGD(lr, momentum=0.9), STEPS),
        "HF-MAML": ms.hf_maml(problem, inner, STEPS),
        "GGS-MAML(8)": ms.ggs_maml(problem, inner, STEPS, samples=8),
        "ES-MAML(8)": ms.es_maml(problem, inner, STEPS, samples=8),
    }


def train(problem: ms.Problem, meta: dict[str, torch.Tensor], images: torch.Tensor, lr: float, iterations: int) -> None:
    step = ms.over_tasks(ms.multi_step(problem, momentum(lr), STEPS, 4))
    optimizer = torch.optim.Adam(meta.values(), lr=1e-3)
    for k in track(range(iterations), description="meta-training"):
        ms.write_grads(meta, step(meta, draw(images, EPISODES, 0, k, TASKS)).grad)
        optimizer.step()


def told(row: ms.Comparison) -> dict[str, Any]:
    """As rows of results have it"""
    found = asdict(row)
    seconds, peak = found.pop("seconds"), found.pop("peak_bytes")
    return found | {"ms": round(1e3 * seconds, 1), "peak_mib": round(peak / 2**20, 1)}


def look(problem: ms.Problem, meta: Any, tasks: ms.Task, lr: float, iterations: int) -> list[dict[str, Any]]:
    change = float(ms.gradient_difference(problem, momentum(lr), STEPS)(meta, tasks).mean())
    rows = []
    for row in ms.compare(methods(problem, lr), meta, tasks):
        rows.append({
            "setting": "glyphs-5w1s", "implementation": "metastep", "steps": STEPS, "tasks": TASKS, "chunk": None,
            "precision": "fp32", "inner_rate": lr, "iterations": iterations, "gradient_change": change, **told(row),
            "note": "ms is the fastest of three; peak_mib counts live tensors",
        })  # fmt: skip
        print(
            f"{lr} {iterations:4d} {row.method:14s} cosine {row.cosine:6.3f} error {row.relative_error:.3g}", flush=True
        )
    return rows


def main() -> None:
    parser = arguments.parser("compare_conv4", __doc__)
    parser.add_argument("--iterations", type=int, default=200, help="of meta-training before the second look")
    options = parser.parse_args()
    torch.set_num_threads(1)  # two on two shared cores are erratic
    images = load("glyphs", None, "train").images
    tasks = draw(images, EPISODES, EVALUATION_SEED, 0, TASKS)
    rows: list[dict[str, Any]] = []
    for lr in RATES:
        torch.manual_seed(0)
        net = Conv4(ways=5, head_init="zero")
        problem, meta = ms.few_shot(net, F.cross_entropy), ms.parameters_of(net)
        for iterations in (0, options.iterations):
            train(problem, meta, images, lr, iterations)
            rows += look(problem, meta, tasks, lr, iterations)
    print(results.write("compare-conv4", arguments.command("compare_conv4", options), rows))
