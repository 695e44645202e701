"""Judge a learner that comes with metastep on 600 test episodes, and keep the result: results/learners/NAME.json."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks import results
from metastep import Learner
from metastep.fewshot.evaluate import Request, evaluate
from metastep.fewshot.shipped import find_learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--data", type=Path, required=True, help="the data directory")
    options = parser.parse_args()
    learner = Learner.load(find_learner(options.name))
    found = asdict(evaluate(learner, Request(), options.data, "best"))
    found.pop("accuracies")
    path = results.ROOT / "results" / "learners" / f"{options.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = results.provenance(f"python -m benchmarks.learner {options.name} --data DATA") | {"evaluation": found}
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
