"""Judge a learner that comes with metastep on 600 test episodes, as it was trained and as it was not.

Keeps the result: results/learners/NAME.json.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import results
from metastep import Learner
from metastep.fewshot.config import TrainConfig
from metastep.fewshot.evaluate import Request, evaluate
from metastep.fewshot.shipped import find_learner

SHOTS, WAYS = (1, 5), (5, 10, 20)


def otherwise(config: TrainConfig, most_ways: int = max(WAYS)) -> list[Request]:
    """What it was not trained for: classes as they are, other shots, other ways"""
    turned = [Request(rotations="none")] if config.test.rotations != "none" else []
    shots = [Request(shots=shots) for shots in SHOTS if shots != config.test_episodes.shots]
    return turned + shots + [Request(ways=ways) for ways in WAYS if ways <= most_ways and ways != config.data.ways]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--data", type=Path, required=True, help="the data directory")
    parser.add_argument("--most-ways", type=int, default=max(WAYS), help="of photos, many ways take a CPU hours")
    options = parser.parse_args()
    learner = Learner.load(find_learner(options.name))
    path = results.ROOT / "results" / "learners" / f"{options.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = results.provenance(command(options)) | {
        "evaluation": judged(learner, Request(), options.data),
        "otherwise": [
            judged(learner, request, options.data) for request in otherwise(learner.config, options.most_ways)
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(path)


def command(options: argparse.Namespace) -> str:
    fewer = f" --most-ways {options.most_ways}" if options.most_ways < max(WAYS) else ""
    return f"python -m benchmarks.learner {options.name}{fewer} --data DATA"


def judged(learner: Learner, request: Request, data: Path) -> dict[str, Any]:
    found = asdict(evaluate(learner, request, data))
    return {key: value for key, value in found.items() if key != "accuracies"}


if __name__ == "__main__":
    main()
