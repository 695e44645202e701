"""Train Multi-step(4) at the paper's inner rate of 0.4 on Omniglot for a minute of one core, with five seeds.

The aim is 85 % in each. The outer rate is chosen first, by the validation of shorter runs with a seed of their own.
"""

from dataclasses import replace

from study import results
from study.experiments import arguments
from study.experiments.recipe_subjects import SUBJECTS
from study.experiments.recipes import FALLING, Trial, quality, run, trial_of

SECONDS, SHORTER = 60.0, 15.0
KNOWN = Trial("omniglot-5w", "multistep4", 0.4, **FALLING)
TRIED = [replace(KNOWN, outer=outer, seed=5) for outer in (3e-3, 1e-2, 2e-2, 3e-2)]
SEEDS = range(5)


def main() -> None:
    parser = arguments.parser("in_a_minute", __doc__)
    arguments.add_data(parser)
    options = parser.parse_args()
    command = arguments.command("in_a_minute", options)
    rows = results.kept("in-a-minute", command)

    def add(trials: list[Trial], seconds: float) -> None:
        done = set(map(trial_of, rows))
        more = (
            run((trial, seconds / SUBJECTS[trial.subject].share, options.data)) for trial in trials if trial not in done
        )
        results.write_each("in-a-minute", command, rows, more)

    add(TRIED, SHORTER)
    best = trial_of(max((row for row in rows if trial_of(row) in TRIED), key=quality))
    add([replace(best, seed=seed) for seed in SEEDS], SECONDS)
