"""Differences between methods with their 95 % intervals, and what a claim may demand of them."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from metastep.train.evaluate import mean
from study.claims.cells import by_episode
from study.claims.evidence import Evidence
from study.claims.outcomes import Outcome


class Difference(NamedTuple):
    """Of two accuracies, in points"""

    of: str
    to: str
    mean: float
    interval: float | None
    """None where nobody knows how far it may be off"""
    outcomes: tuple[Outcome, ...]

    @property
    def low(self) -> float:
        return self.mean - (self.interval or 0)

    @property
    def high(self) -> float:
        return self.mean + (self.interval or 0)

    @property
    def is_above_zero(self) -> bool:
        return self.low > 0

    def about(self, size: float) -> bool:
        """Of its sign, and between half of it and twice as much as far as the interval tells"""
        return self.is_above_zero and self.high >= size / 2 and self.low <= 2 * size

    def __str__(self) -> str:
        known = "of one seed each" if self.interval is None else f"± {self.interval:.2f}"
        return f"{self.of} − {self.to} = {self.mean:+.2f} {known}"


def paired(evidence: Evidence, of: str, to: str) -> Difference:
    """Compare runs on the same episodes, one by one."""
    ours, theirs = evidence.outcomes(of), evidence.outcomes(to)
    by_episode(ours + theirs)  # refuses what was tested on other episodes
    return Difference(of, to, *mean(by_episode(ours) - by_episode(theirs)), ours + theirs)


def over_seeds(evidence: Evidence, of: str, to: str) -> Difference:
    """Compare two means over seeds. With one seed, nobody knows how far it may be off."""
    ours, theirs = evidence.outcomes(of), evidence.outcomes(to)
    known = min(len(ours), len(theirs)) > 1
    return Difference(of, to, _mean(ours) - _mean(theirs), _welch(ours, theirs) if known else None, ours + theirs)


def _welch(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> float:
    """Half the 95 % interval of a difference of means, by Student's t: of three seeds each, 1.96 would promise 87 %"""
    from scipy.stats import t  # only here: it takes a second to import, and few claims need it

    parts = [(_variance(each), len(each) - 1) for each in (ours, theirs)]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    return float(t.ppf(0.975, freedom)) * math.sqrt(variance)


def _mean(outcomes: Sequence[Outcome]) -> float:
    return statistics.fmean(outcome.accuracy for outcome in outcomes)


def _variance(outcomes: Sequence[Outcome]) -> float:
    """Return the variance of the mean."""
    tests = [outcome.accuracy for outcome in outcomes]
    return statistics.variance(tests) / len(tests)


def listed(differences: Sequence[Difference]) -> str:
    return "; ".join(map(str, differences)) + "."


def behind(differences: Sequence[Difference]) -> tuple[Outcome, ...]:
    """Every outcome once"""
    return tuple({(o.preset, o.seed): o for each in differences for o in each.outcomes}.values())
