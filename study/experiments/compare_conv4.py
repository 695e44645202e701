"""Measure how far each method is from the exact meta-gradient, and what it costs, on Conv4.

5-way 1-shot on glyphs, 8 inner steps, two inner rates; for each rate at a random θ and at one that was meta-trained for
a while. All methods run by autograd, mapped over tasks, so that what they cost can be compared.
"""

from dataclasses import asdict
from typing import Any

import torch
from rich.progress import track

import metastep as ms
from metastep.core.compare import Comparison
from metastep.data.draw import draw
from metastep.data.episodes import Episodes
from metastep.data.registry import load
from metastep.nets.conv4 import Conv4
from study import results
from study.experiments import arguments
from study.experiments.plain import plain_cross_entropy

STEPS, TASKS = 8, 8
RATES = (0.01, 0.1)
EPISODES = Episodes(ways=5, shots=1, queries=15)
EVALUATION_SEED = 2**40


def momentum(lr: float) -> ms.SGD:
    return ms.SGD(lr, momentum=0.9, weight_decay=1e-4)


METHODS = {
    "MAML": ms.MAML(),
    **{f"Multi-step({n})": ms.MultiStep(window=n) for n in (2, 4, 8)},
    "truncated(2)": ms.methods.Truncated(depth=2),
    "FO-MAML": ms.FOMAML(),
    "Reptile": ms.Reptile(),
    "iMAML": ms.IMAML(),
    "HF-MAML": ms.methods.HFMAML(),
    "GGS-MAML(8)": ms.methods.GGSMAML(samples=8),
    "ES-MAML(8)": ms.methods.ESMAML(samples=8),
}


def described(problem: ms.Problem, name: str, lr: float) -> ms.MetaGradient:
    """Describe the method on all tasks at a time. An implicit gradient would know nothing of weight decay."""
    inner = ms.SGD(lr, momentum=0.9) if name == "iMAML" else momentum(lr)
    return ms.MetaGradient(problem, METHODS[name], inner, steps=STEPS, chunk_size=TASKS)


def train(problem: ms.Problem, meta: dict[str, torch.Tensor], images: torch.Tensor, lr: float, iterations: int) -> None:
    step = ms.MetaStep(described(problem, "Multi-step(4)", lr), meta, torch.optim.Adam(meta.values(), lr=1e-3))
    for k in track(range(iterations), description="meta-training"):
        step(draw(images, EPISODES, 0, k, TASKS))


def told(row: Comparison) -> dict[str, Any]:
    """As rows of results have it"""
    found = asdict(row)
    seconds, peak = found.pop("seconds"), found.pop("peak_bytes")
    return found | {"ms": round(1e3 * seconds, 1), "peak_mib": round(peak / 2**20, 1)}


def look(problem: ms.Problem, meta: Any, tasks: ms.Task, lr: float, iterations: int) -> list[dict[str, Any]]:
    change = float(ms.gradient_difference(problem, momentum(lr), STEPS)(meta, tasks).mean())
    rows = []
    for row in ms.compare({name: described(problem, name, lr) for name in METHODS}, meta, tasks):
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
    images, _ = load("glyphs").classes("train").rows()
    tasks = draw(images, EPISODES, EVALUATION_SEED, 0, TASKS)
    rows: list[dict[str, Any]] = []
    for lr in RATES:
        torch.manual_seed(0)
        net = Conv4(ways=5, head_init="zero")
        problem, meta = ms.few_shot(net, plain_cross_entropy), ms.parameters(net)
        for iterations in (0, options.iterations):
            train(problem, meta, images, lr, iterations)
            rows += look(problem, meta, tasks, lr, iterations)
    print(results.write("compare-conv4", arguments.command("compare_conv4", options), rows))
