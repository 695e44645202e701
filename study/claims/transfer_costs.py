"""Claims about time in transfer: Multi-step against the baseline, T = 2."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from study.bench.cases import TRANSFERS, transfer_setting
from study.bench.results import Row
from study.claims.claims import Finding, Presets, Verdict, holds
from study.claims.costs import about, absent, gpu_first, read_rows, saving_verdict
from study.claims.evidence import Evidence
from study.targets import SIZES, TARGETS

BIRD = transfer_setting("bird")
T = 2  # virtual steps
VARIANTS = ("no mixed part", "source run again")


def transfer_files(folder: Path) -> list[Path]:
    return gpu_first([*folder.glob("*-transfer*.json"), *folder.glob("*-bench.json")])


def transfer_pairs(evidence: Evidence) -> dict[str, tuple[Row, Row, Path, dict[str, Any]]]:
    """Setting -> (baseline, Multi-step, file), of the first file that has both"""
    found: dict[str, tuple[Row, Row, Path, dict[str, Any]]] = {}
    for path in transfer_files(evidence.bench):
        pairs, content = pairs_in(path)
        for setting, pair in pairs.items():
            found.setdefault(setting, (*pair, path, content))
    return found


def pairs_in(path: Path) -> tuple[dict[str, tuple[Row, Row]], dict[str, Any]]:
    """Setting -> baseline and Multi-step, where there are both"""
    rows, content = read_rows(path)
    by = {(row["setting"], row["method"]): row for row in rows if as_trained(row)}
    settings = dict.fromkeys(setting for setting, _ in by)
    pairs = {setting: (by.get((setting, "baseline")), by.get((setting, "multi_step"))) for setting in settings}
    return {setting: (b, m) for setting, (b, m) in pairs.items() if b and m}, content


def as_trained(row: Row) -> bool:
    return not is_variant(row) and row["steps"] == T


def is_variant(row: Row) -> bool:
    """study/experiments/transfer_time.py measures some too, and says so in their notes"""
    return any(variant in row["note"] for variant in VARIANTS)


def pictures_of(row: Row) -> int:
    """In a batch: some files count them as tasks, in others the setting says it"""
    return int(row["tasks"]) if row["tasks"] > 1 else TRANSFERS[row["setting"]].config.batch


class BySteps(NamedTuple):
    setting: str
    rows: dict[tuple[int, int], Row]  # by T and how many virtual steps share a gradient
    path: Path
    device: str

    @property
    def exact(self) -> tuple[float, ...]:
        """Milliseconds of an iteration with T = 1, 2, 3, each step by a gradient of its own"""
        return tuple(self.rows[steps, 1]["ms"] for steps in (1, 2, 3))

    def __str__(self) -> str:
        return f"{self.setting} on {self.device}, results/bench/{self.path.name}"


def time_by_steps(evidence: Evidence) -> BySteps | None:
    """Of the first setting that was measured with each T in one file"""
    for path in transfer_files(evidence.bench):
        rows, content = read_rows(path)
        transferred = [row for row in rows if row["method"] != "scratch" and not is_variant(row)]
        for setting in dict.fromkeys(row["setting"] for row in transferred if row["setting"] in TRANSFERS):
            at = {(row["steps"], row["window"]): row for row in transferred if row["setting"] == setting}
            if at.keys() >= {(1, 1), (2, 1), (3, 1)}:
                return BySteps(setting, at, path, content["device"])
    return None


def epoch_of_baseline(evidence: Evidence, presets: Presets) -> Finding:
    return _epoch(evidence, ours=False)


def epoch_of_multi_step(evidence: Evidence, presets: Presets) -> Finding:
    return _epoch(evidence, ours=True)


def _epoch(evidence: Evidence, ours: bool) -> Finding:
    """Seconds for an epoch of Bird's size; only the ratio can be compared with another card's"""
    pairs = transfer_pairs(evidence)
    if BIRD not in pairs:
        return absent(f"baseline and Multi-step of {BIRD}")
    baseline, multi_step, path, content = pairs[BIRD]
    row = multi_step if ours else baseline
    seconds = seconds_of_epoch(row, "bird")
    ratio = multi_step["ms"] / baseline["ms"] if ours else 1.0
    note = "The unit of the ratio: seconds of another card are not compared." if not ours else "Judged by the ratio."
    verdict: Verdict = saving_verdict(1 - ratio, 0.35) if ours else "measured"
    value = {"s/epoch": round(seconds, 1), "ratio": round(ratio, 3)}
    return Finding(verdict, value, note=note, about=about(path, content, synthetic(row)))


def seconds_of_epoch(row: Row, target: str) -> float:
    seconds: float = row["ms"] / 1000 * math.ceil(SIZES[target][0] / pictures_of(row))
    return seconds


def transfer_saving(evidence: Evidence, presets: Presets) -> Finding:
    """X1, in percent"""
    pairs = transfer_pairs(evidence)
    if BIRD not in pairs:
        return absent(f"baseline and Multi-step of {BIRD}")
    baseline, multi_step, path, content = pairs[BIRD]
    saving = 1 - multi_step["ms"] / baseline["ms"]
    data = about(path, content, synthetic(baseline))
    return Finding(saving_verdict(saving, 0.35), round(100 * saving, 1), about=data)


def synthetic(row: Row) -> str:
    return f"synthetic pictures of Bird's size and number, batches of {pictures_of(row)}"


class Epochs(NamedTuple):
    seconds: dict[str, tuple[float, float]]  # of each target by Adam: the baseline's and Multi-step's
    path: Path
    content: dict[str, Any]

    @property
    def savings(self) -> dict[str, float]:
        """Return the savings in percent."""
        return {target: round(100 * (1 - ours / exact), 1) for target, (exact, ours) in self.seconds.items()}


def epochs(evidence: Evidence) -> Epochs | None:
    """Return the rows of the first file that has all targets."""
    wanted = {target: transfer_setting(target, "adam") for target in TARGETS}
    for path in transfer_files(evidence.bench):
        pairs, content = pairs_in(path)
        if pairs.keys() >= set(wanted.values()):
            rows = {target: pairs[setting] for target, setting in wanted.items()}
            seconds = {t: (seconds_of_epoch(b, t), seconds_of_epoch(m, t)) for t, (b, m) in rows.items()}
            return Epochs(seconds, path, content)
    return None


def saving_everywhere(evidence: Evidence, presets: Presets) -> Finding:
    """X14"""
    found = epochs(evidence)
    if found is None:
        return absent("baseline and Multi-step of all six targets by Adam")
    each = "; ".join(f"{target} {exact:,.1f} and {ours:,.1f}" for target, (exact, ours) in found.seconds.items())
    note = f"Seconds of an epoch by Adam, baseline and Multi-step: {each}."
    data = about(found.path, found.content, "synthetic pictures of each data set's size and number")
    return Finding(holds(min(found.savings.values()) > 0), found.savings, note=note, about=data)
