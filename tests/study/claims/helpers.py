"""Runs that take a second, and outcomes that need none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from metastep.train.fewshot.config import (
    DataConfig,
    InnerConfig,
    MethodConfig,
    NetConfig,
    OuterConfig,
    TrainConfig,
    ValidationConfig,
)
from metastep.train.fewshot.presets import PRESETS
from metastep.train.fewshot.scores import Evaluation, StepScore
from metastep.train.transfer import presets as transfer_presets
from study.claims.evidence import Evidence, MissingError
from study.claims.outcomes import Made, Outcome

TINY = TrainConfig(
    DataConfig("glyphs", ways=3, shots=1, queries=2),
    NetConfig(filters=4, head_init="zero"),
    InnerConfig(lr=0.1, steps=2, momentum=0.9),
    MethodConfig("multi_step", window=2),
    OuterConfig(tasks=2, iterations=2),
    validation=ValidationConfig(every=0),
    checkpoint_every=1,
    log_every=1,
    device="cpu",
)
MADE = Made("a device", "3.11", "2.11", "abc", "some pictures")


def tiny(iterations: int = 2, **changes: Any) -> TrainConfig:
    return replace(TINY, outer=replace(TINY.outer, iterations=iterations), **changes)


def few_shot(preset: str, accuracies: list[float], seed: int = 0, queries: int = 15) -> Outcome:
    evaluation = Evaluation(
        "omniglot", "test", 5, 1, queries, "none", (8,), len(accuracies), 600, "best", "w", 0.0, 0.0,
        (StepScore(8, 0.0, 0.0),), 0, 1.0, tuple(accuracies),
    )  # fmt: skip
    full = PRESETS[preset].outer.iterations if preset in PRESETS else 60_000
    config = PRESETS.get(preset, TINY)
    return Outcome(
        preset, seed, sum(accuracies) / len(accuracies), full, full, 1.0, "tf32", MADE, config, "the last", evaluation
    )


def transfer(preset: str, accuracy: float, seed: int = 0, seconds: float = 100.0) -> Outcome:
    config = replace(transfer_presets.PRESETS[preset], seed=seed)
    return Outcome(preset, seed, accuracy, 7_200, 7_200, seconds, "tf32", MADE, config)


class Known(Evidence):
    """Evidence of outcomes that are given"""

    given: dict[str, tuple[Outcome, ...]]

    def outcomes(self, preset: str) -> tuple[Outcome, ...]:
        if preset not in self.given:
            raise MissingError(f"{preset} was not run yet.")
        return self.given[preset]


def known(*outcomes: Outcome, bench: Path = Path("nowhere")) -> Known:
    evidence = Known(Path("nowhere"), bench)
    by: dict[str, tuple[Outcome, ...]] = {}
    for each in outcomes:
        by[each.preset] = (*by.get(each.preset, ()), each)
    object.__setattr__(evidence, "given", by)  # it is frozen
    return evidence
