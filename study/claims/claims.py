"""What a claim is: what the paper says, which runs it needs, and how what they found is judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from study.claims.evidence import Evidence
from study.claims.outcomes import Outcome

Verdict = Literal["better", "reproduced", "short", "not reproduced", "measured", "not run"]


@dataclass(frozen=True)
class Finding:
    """What was found about a claim, and what it rests on."""

    verdict: Verdict
    value: Any = None
    interval: float | None = None
    note: str = ""
    outcomes: tuple[Outcome, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its file that the outcomes do not tell, such as those of a benchmark"""


Presets = tuple[str, ...]
Judge = Callable[[Evidence, Presets], Finding]


@dataclass(frozen=True)
class Claim:
    id: str
    claim: str
    paper: str
    """As printed"""
    judge: Judge
    presets: Presets = ()
    """The runs that it needs; none where it is computed, measured or quoted"""
    stand_in: Presets = ()
    """The same on other data, where the paper's are missing"""
    group: int | None = None
    """How many runs in a row are enough to judge it"""
    computed: bool = False
    """Whether it is worked out on the spot"""

    @property
    def table(self) -> str:
        return self.id.partition(".")[0] if self.id.startswith("T") else "X"


def holds(true: bool) -> Verdict:
    """Return the verdict on a statement, which is no number."""
    return "reproduced" if true else "not reproduced"


def quoted(evidence: Evidence, presets: Presets, reason: str) -> Finding:
    """Say why a number of the literature is only cited."""
    return Finding("not run", note=reason)
