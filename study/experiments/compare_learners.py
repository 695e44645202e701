"""Measure how far each method is from the exact meta-gradient at trained learners, through their own inner loops.

python -m study run compare_learners runs/reproduce/omniglot-5w1s-* --data DATA
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

import metastep as ms
from metastep.data.draw import draw
from metastep.data.episodes import Episodes
from metastep.data.registry import load
from metastep.train.config import FewShot
from metastep.train.fewshot.learner import gradient_of
from study import results
from study.experiments import arguments
from study.experiments.compare_conv4 import EVALUATION_SEED, told

METHODS = {
    "MAML": ms.MAML(),
    **{f"Multi-step({n})": ms.MultiStep(window=n) for n in (2, 4, 8)},
    "FO-MAML": ms.FOMAML(),
    **{f"iMAML, λ = {λ:g}": ms.IMAML(strength=λ, free=True) for λ in (2.0, 24.0)},
}


def gradients(config: FewShot, net: nn.Module) -> dict[str, ms.MetaGradient]:
    """Return meta-gradients without weight decay, which an implicit one would not see."""
    config = replace(config, inner=replace(config.inner, weight_decay=0.0))
    return {name: gradient_of(replace(config, method=method), net) for name, method in METHODS.items()}


def look(folder: Path, data: Path | None, count: int) -> list[dict[str, Any]]:
    learner = ms.Learner.load(folder)
    config = learner.config
    images, _ = load(config.data.name, data).classes("test").rows()
    tasks = draw(images, Episodes(config.data.ways, config.data.shots, queries=15), EVALUATION_SEED, 0, count)
    rows = []
    for row in ms.compare(gradients(config, learner.net), learner.meta, tasks, repeats=1):
        rows.append({
            "run": folder.name, "setting": f"{config.data.name}-{config.data.ways}w{config.data.shots}s",
            "implementation": "metastep", "steps": config.steps, "tasks": count, "chunk": None,
            "precision": "fp32", "inner_rate": config.inner.lr, "momentum": config.inner.momentum, **told(row),
            "note": "",
        })  # fmt: skip
        print(f"{folder.name} {row.method:14s} cosine {row.cosine:6.3f} error {row.relative_error:.3g}", flush=True)
    return rows


def main() -> None:
    parser = arguments.parser("compare_learners", __doc__)
    arguments.add_runs(parser)
    parser.add_argument("--tasks", type=int, default=8)
    arguments.add_data(parser)
    options = parser.parse_args()
    rows = [row for folder in options.runs for row in look(folder, options.data, options.tasks)]
    print(results.write("compare-learners", arguments.command("compare_learners RUNS", options), rows))
