"""Claims about time and memory, from files of benchmarks: ratios within one file, which is one run on one device."""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from metastep.bench.cases import PAPER_SETTINGS, TRANSFERS, transfer_setting
from metastep.bench.results import Row
from metastep.errors import MetastepError
from metastep.reproduce.claims import Finding, Presets, Verdict, holds
from metastep.reproduce.evidence import Evidence
from metastep.reproduce.numeric import SIZES
from metastep.runs.files import read_file
from metastep.transfer.presets import TARGETS

OURS = "metastep"
MARGIN = 0.05  # of a ratio
BIRD = transfer_setting("bird")
T = 2  # virtual steps
VARIANTS = ("no mixed part", "source run again")
STANDARD, STEPS = "omniglot-5w1s", 8
NEEDED = ("maml", "multi_step2", "multi_step4", "multi_step8", "first_order", "imaml")


def transfer_files(folder: Path) -> Iterator[Path]:
    yield from _gpu_first([*folder.glob("*-transfer*.json"), *folder.glob("*-bench.json")])


def bench_files(folder: Path) -> Iterator[Path]:
    yield from _gpu_first(folder.glob("*-bench.json"))


def _gpu_first(paths: Any) -> list[Path]:
    return sorted(paths, key=lambda path: (path.name.startswith("cpu"), path.name))


def read_rows(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Rows of ours that were measured, and what is said about all of them"""
    try:
        content = json.loads(read_file(path))
        rows = content.pop("rows")
        return [row for row in rows if row.get("implementation") == OURS and row.get("ms") is not None], content
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise MetastepError(
            f"{str(path)!r}: is no file of a benchmark ({error!r}). Measure again, or move it."
        ) from error


def with_more_steps(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """The same, and rows of DEVICE-steps.json: other numbers of inner steps, measured by themselves"""
    rows, content = read_rows(path)
    more = more_steps(path)
    return (rows + read_rows(more)[0] if more else rows), content


def more_steps(path: Path) -> Path | None:
    more = path.with_name(path.name.replace("-bench", "-steps"))
    return more if more != path and more.is_file() else None


def about(path: Path, content: dict[str, Any], data: str, more: Path | None = None) -> dict[str, Any]:
    """The fields of a claim that a benchmark answers, which is in one file, or in `more` too"""
    kept = {name: content[name] for name in ("command", "commit", "device", "versions")}
    return kept | {"data": f"{data}; results/bench/{path.name}" + (f", {more.name}" if more else "")}


def absent(what: str) -> Finding:
    return Finding("not run", note=f"no file of results/bench has {what} yet.")


# ---- transfer: Multi-step beside the baseline, T = 2


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
    """benchmarks/transfer_time.py measures some too, and says so in their notes"""
    return any(variant in row["note"] for variant in VARIANTS)


def pictures_of(row: Row) -> int:
    """In a batch: some files count them as tasks, in others the setting says it"""
    return int(row["tasks"]) if row["tasks"] > 1 else TRANSFERS[row["setting"]].config.data.batch


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


def saving_verdict(saving: float, paper: float) -> Verdict:
    if saving < paper - MARGIN:
        return "short"
    return "better" if saving > paper + MARGIN else "reproduced"


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
        """In percent"""
        return {target: round(100 * (1 - ours / exact), 1) for target, (exact, ours) in self.seconds.items()}


def epochs(evidence: Evidence) -> Epochs | None:
    """Of the first file that has all targets"""
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


# ---- few-shot: a whole meta-iteration of each method


def few_shot_rows(evidence: Evidence) -> tuple[list[Row], Path, dict[str, Any]] | None:
    """Of the first file that has all of NEEDED at the standard number of steps"""
    for path in bench_files(evidence.bench):
        rows, content = with_more_steps(path)
        there = {label(row) for row in rows if (row["setting"], row["steps"]) == (STANDARD, STEPS)}
        if there >= set(NEEDED):
            return rows, path, content
    return None


def label(row: Row) -> str:
    return f"{row['method']}{row['window']}" if row["window"] > 1 else str(row["method"])


def few_shot_saving(evidence: Evidence, presets: Presets) -> Finding:
    """X2: Multi-step(4) beside MAML, 8 steps, in percent of the time"""
    found = few_shot_rows(evidence)
    if found is None:
        return absent(f"{', '.join(NEEDED)} of {STEPS} steps")
    rows, path, content = found
    at = {label(row): row["ms"] for row in rows if (row["setting"], row["steps"]) == (STANDARD, STEPS)}
    savings = {name: 1 - ms / at["maml"] for name, ms in at.items() if name.startswith("multi_step")}
    shown = ", ".join(f"{name} {100 * saving:.0f} %" for name, saving in savings.items())
    note = f"{STANDARD}, {STEPS} inner steps, time of a meta-iteration saved: {shown}; Multi-step(4) is "
    note += f"{at['maml'] / at['multi_step4']:.2f} times as fast as MAML."
    saving = savings["multi_step4"]
    data = about(path, content, "episodes of Omniglot's size")
    return Finding(saving_verdict(saving, 0.5), round(100 * saving, 1), note=note, about=data)


def memory_order(evidence: Evidence, presets: Presets) -> Finding:
    """X4: three statements, each in every setting that was measured"""
    found = few_shot_rows(evidence)
    if found is None:
        return absent(f"{', '.join(NEEDED)} of {STEPS} steps")
    rows, path, content = found
    there = {s: {label(row) for row in rows if (row["setting"], row["steps"]) == (s, STEPS)} for s in PAPER_SETTINGS}
    of = {s: [row for row in rows if row["setting"] == s] for s, labels in there.items() if labels >= set(NEEDED)}
    said = {
        "memory falls as n grows": all(map(_falls, of.values())),
        "first order and iMAML need the least": all(map(_least, of.values())),
        "iMAML is the slowest below 8 steps": all(map(_slow, of.values())),
    }
    verdict = holds(all(said.values()))
    at = {label(row): row["peak_mib"] for row in rows if (row["setting"], row["steps"]) == (STANDARD, STEPS)}
    shown = ", ".join(f"{name} {mib:,.0f}" for name, mib in at.items())
    slow = ", ".join(f"{setting} {_slow_up_to(those)}" for setting, those in of.items())
    note = (
        f"MiB at {STANDARD}, {STEPS} steps: {shown}. The reverse sweep stores no graph, so that little is left to fall."
        f" Below {STEPS} steps iMAML is the slowest up to: {slow}; it makes 6 second-order products whatever the steps,"
        " and MAML one for each."
    )
    data = about(path, content, "episodes of Omniglot's size", more_steps(path))
    return Finding(verdict, said, note=note, about=data)


def _memory(rows: Sequence[Row]) -> dict[str, float]:
    return {label(row): row["peak_mib"] for row in rows if row["steps"] == STEPS}


def _falls(rows: list[Row]) -> bool:
    at = _memory(rows)
    order = [at[name] for name in NEEDED[:4]]
    return all(later < earlier for earlier, later in pairwise(order))


def _least(rows: list[Row]) -> bool:
    at = _memory(rows)
    return max(at["first_order"], at["imaml"]) < min(at["maml"], at["multi_step2"], at["multi_step4"])


def _slow(rows: list[Row]) -> bool:
    return _slow_up_to(rows) == max(_implicit(rows), default=STEPS)  # of nothing measured, nothing is true


def _slow_up_to(rows: list[Row]) -> int:
    """Inner steps below 8 up to which iMAML is the slowest of those that the paper's figure has; 0 if it never is"""
    shown, up_to = ("maml", "multi_step", "first_order", "reptile"), 0
    for steps, ms in sorted(_implicit(rows).items()):
        if ms <= max(row["ms"] for row in rows if row["steps"] == steps and row["method"] in shown):
            break
        up_to = steps
    return up_to


def _implicit(rows: list[Row]) -> dict[int, float]:
    """iMAML's milliseconds, by its steps below 8"""
    return {row["steps"]: row["ms"] for row in rows if row["method"] == "imaml" and row["steps"] < STEPS}
