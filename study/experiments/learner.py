"""Judge a shipped learner on 600 test episodes, as it was trained and as it was not.

Writes results/learners/NAME.json. With --kept, takes what `python -m study claims` found for these very weights from
results/claims/outcomes and measures nothing: on photos, that saves hours of CPU time.
"""

import argparse
import json
from dataclasses import asdict
from typing import Any

from metastep import Learner
from metastep.train.config import FewShot
from metastep.train.evaluate import OnEpisodes, digest
from metastep.train.fewshot.evaluate import Request, evaluate
from metastep.train.io import replace_file
from metastep.train.presets import find_learner
from study import results
from study.claims import keeping
from study.experiments import arguments
from study.tables.claim_tables import CLAIMS

SHOTS, WAYS = (1, 5), (5, 10, 20)


def otherwise(config: FewShot, most_ways: int = max(WAYS), one_by_one: bool = False) -> list[Request]:
    """What it was not trained for: classes as they are, pictures one by one, other shots, other ways"""
    turned = [Request(rotations="none")] if config.test.rotations != "none" else []
    alone = [Request(one_by_one=True)] if one_by_one else []
    shots = [Request(shots=shots) for shots in SHOTS if shots != config.test_episodes.shots]
    ways = [Request(ways=ways) for ways in WAYS if ways <= most_ways and ways != config.data.ways]
    return turned + alone + shots + ways


def main() -> None:
    parser = arguments.parser("learner", __doc__)
    parser.add_argument("name")
    parser.add_argument("--most-ways", type=int, default=max(WAYS), help="of photos, many ways take a CPU hours")
    parser.add_argument(
        "--one-by-one", action="store_true", help="pictures that come one at a time, too, which takes long"
    )
    parser.add_argument("--kept", action="store_true", help="take what its run found, and measure nothing")
    arguments.add_data(parser)
    options = parser.parse_args()
    learner = Learner.load(find_learner(options.name))
    path = results.ROOT / "results" / "learners" / f"{options.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text()) if path.is_file() else {}
    found = kept(learner, options, before) if options.kept else measured(learner, options)
    replace_file(path, (json.dumps(found, indent=1) + "\n").encode())
    print(path)


def measured(learner: Learner, options: argparse.Namespace) -> dict[str, Any]:
    asked = otherwise(learner.config, options.most_ways, options.one_by_one)
    return results.provenance(command(options)) | {
        "evaluation": told(evaluate(learner, Request(), options.data)),
        "otherwise": [told(evaluate(learner, request, options.data)) for request in asked],
    }


def kept(learner: Learner, options: argparse.Namespace, before: dict[str, Any]) -> dict[str, Any]:
    """Where and by what its run was made is where and by what this was measured"""
    if before.get("otherwise") and before["evaluation"]["weights"] == digest(learner.meta):
        raise SystemExit(
            f"results/learners/{options.name}.json has more of these weights. Leave --kept out, or remove it."
        )
    outcomes = map(keeping.read, sorted((CLAIMS / keeping.FOLDER).glob("*.json")))
    found = [(o.made, o.evaluation) for o in outcomes if o.evaluation and o.evaluation.weights == digest(learner.meta)]
    if not found:
        raise SystemExit(f"{CLAIMS / keeping.FOLDER} has no run with these weights. Leave --kept out, to measure.")
    made, evaluation = found[0]
    about = results.provenance_of_run(f"python -m study claims, and {command(options)}", made)
    return about | {"evaluation": told(evaluation), "otherwise": []}


def command(options: argparse.Namespace) -> str:
    untold = ("most_ways", "one_by_one", "data") if options.kept else ()
    return arguments.command(f"learner {options.name}", options, "name", *untold)


def told(found: OnEpisodes) -> dict[str, Any]:
    return {key: value for key, value in asdict(found).items() if key != "accuracies"}
