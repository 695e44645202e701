"""Measure how often the learners of `metastep play` name a drawing that is drawn stroke by stroke.

    python -m study run play_strokes --data DATA

Strokes are traced along real drawings of Omniglot's test classes, which no learner has seen. They pass the way of a
drawing on the page. Each episode has five classes with one example each; queries are judged one by one.
"""

from statistics import median
from typing import Any

import numpy as np
import torch

from metastep import Learner
from metastep.data.registry import load
from metastep.data.sets.omniglot import SIDE
from metastep.play.questions import drawn
from metastep.play.session import Session
from metastep.train.evaluate import mean
from study import results
from study.experiments import arguments
from study.tracing import traced

LEARNER = "omniglot-5w1s"
WAYS, QUERIES, SEED = 5, 2, 0


def main() -> None:
    parser = arguments.parser("play_strokes", __doc__)
    parser.add_argument("--episodes", type=int, default=200)
    arguments.add_data(parser)
    options = parser.parse_args()
    rows = measured(Session.of(Learner.load(LEARNER)), options)
    for row in rows:
        print(f"{row['method']}: {row['accuracy']:.1f} ± {row['interval']:.1f} %, adapts in {row['ms']:.0f} ms")
    print(results.write("play-strokes", arguments.command("play_strokes", options), rows))


def measured(session: Session, options: Any) -> list[dict[str, Any]]:
    pictures, _ = load("omniglot", options.data, SIDE).classes("test").rows()
    dice, size = np.random.default_rng(SEED), session.config.net.size
    right: dict[str, list[float]] = {player.name: [] for player in session.players}
    times: dict[str, list[float]] = {player.name: [] for player in session.players}
    for _ in range(options.episodes):
        classes = dice.choice(len(pictures), WAYS, replace=False)
        drawers = dice.choice(pictures.shape[1], 1 + QUERIES, replace=False)
        seen = [[drawn(traced(pictures[c, d, 0].numpy()), size) for d in drawers] for c in classes]
        answers = session.answer([[first] for first, *_ in seen], [query for _, *rest in seen for query in rest])
        for name, ms, probabilities in answers:
            named = np.argmax(probabilities or np.zeros((WAYS * QUERIES, WAYS)), 1)
            right[name].append(float(np.mean(named == np.arange(WAYS).repeat(QUERIES))))
            times[name].append(ms)
    about = {player.name: player.about for player in session.players}
    scores = {name: mean(100 * torch.tensor(found)) for name, found in right.items()}
    return [
        {
            "setting": f"omniglot-{WAYS}w1s", "method": name, "note": about[name], "episodes": options.episodes,
            "queries": QUERIES, "accuracy": score.mean, "interval": score.interval, "ms": median(times[name]),
        }
        for name, score in scores.items()
    ]  # fmt: skip
