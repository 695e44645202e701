"""Claims that are one cell of a table: an accuracy, of a few-shot learner or of a target net over seeds."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from metastep.errors import MetastepError, how_many
from metastep.train.evaluate import mean
from study.claims.claims import Finding, Presets, Verdict
from study.claims.evidence import Evidence
from study.claims.outcomes import Outcome


class Rule(NamedTuple):
    """How a few-shot accuracy is held against the paper's"""

    below: float
    """Points that it may lie below"""
    intervals: bool
    """Whether those that the paper prints are such as its episodes can give"""


OMNIGLOT, MINI_IMAGENET = Rule(0.5, intervals=False), Rule(1.0, intervals=True)
RULES = {"omniglot": OMNIGLOT, "mini_imagenet": MINI_IMAGENET}
LEAST = 1.0  # the same for a mean of seeds; the paper's own deviation, where that is larger


class Printed(NamedTuple):
    """A number of the paper, in percent"""

    accuracy: float
    deviation: float

    @classmethod
    def read(cls, text: str) -> "Printed":
        """Read a cell of a table, such as 99.10±0.77."""
        return cls(*map(float, text.split("±")))


def few_shot(evidence: Evidence, presets: Presets, paper: str, rule: str) -> Finding:
    """Judge the accuracy of a few-shot learner by one of RULES."""
    (preset,) = presets
    outcomes = evidence.outcomes(preset)
    found = mean(by_episode(outcomes))
    verdict = few_shot_verdict(*found, Printed.read(paper), RULES[rule])
    note = " ".join(filter(None, (_lost(outcomes), _unturned(outcomes))))
    return Finding(verdict, round(found.mean, 2), round(found.interval, 2), note, outcomes)


def few_shot_verdict(value: float, interval: float, printed: Printed, rule: Rule) -> Verdict:
    gain = value - printed.accuracy
    if gain > math.hypot(interval, printed.deviation if rule.intervals else 0.0):
        return "better"
    return "short" if gain < -rule.below else "reproduced"


def by_episode(outcomes: Sequence[Outcome]) -> Tensor:
    """The accuracy of each episode, over seeds; every seed meets the same episodes"""
    evaluations = [outcome.evaluation for outcome in outcomes if outcome.evaluation]
    if len({evaluation.task for evaluation in evaluations}) != 1:
        names = ", ".join(dict.fromkeys(outcome.preset for outcome in outcomes))
        raise MetastepError(f"{names}: were tested on different episodes, and cannot be compared one by one.")
    return torch.tensor([evaluation.accuracies for evaluation in evaluations], dtype=torch.float64).mean(0)


def _lost(outcomes: Sequence[Outcome]) -> str:
    lost = sum(outcome.evaluation.not_finite for outcome in outcomes if outcome.evaluation)
    return f"{how_many(lost, 'episode')} left the finite numbers: counted as wrong." if lost else ""


def _unturned(outcomes: Sequence[Outcome]) -> str:
    others = [outcome.unturned.accuracies for outcome in outcomes if outcome.unturned]
    if not others:
        return ""
    accuracy, interval = mean(torch.tensor(others, dtype=torch.float64).mean(0))
    return f"Test classes are turned as those of training are; as they are: {accuracy:.2f}±{interval:.2f}."


def transfer(evidence: Evidence, presets: Presets, paper: str) -> Finding:
    """Judge the mean test accuracy of a target net over seeds."""
    (preset,) = presets
    outcomes = evidence.outcomes(preset)
    tests = [outcome.accuracy for outcome in outcomes]
    value, spread = statistics.fmean(tests), statistics.stdev(tests) if len(tests) > 1 else None
    note = "Test accuracy at the first best validation; interval is the deviation over seeds, the paper has 3."
    interval = None if spread is None else round(spread, 2)
    return Finding(transfer_verdict(value, Printed.read(paper)), round(value, 2), interval, note, outcomes)


def transfer_verdict(value: float, printed: Printed) -> Verdict:
    margin = max(LEAST, printed.deviation)
    if value < printed.accuracy - margin:
        return "short"
    return "better" if value > printed.accuracy + margin else "reproduced"
