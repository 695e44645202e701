"""Claims about time and memory of a whole meta-iteration of each few-shot method."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from study.bench.cases import PAPER_SETTINGS, STANDARD, STANDARD_STEPS
from study.bench.results import Row, case_of
from study.claims.claims import Finding, Presets, holds
from study.claims.costs import about, absent, gpu_first, read_rows, saving_verdict
from study.claims.evidence import Evidence

NEEDED = ("maml", "multi_step2", "multi_step4", "multi_step8", "first_order", "imaml")


def bench_files(folder: Path) -> list[Path]:
    return gpu_first(folder.glob("*-bench.json"))


def with_more_steps(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the file, and of DEVICE-steps.json next to it: other numbers of inner steps, measured by themselves"""
    rows, content = read_rows(path)
    more = more_steps(path)
    return (rows + read_rows(more)[0] if more else rows), content


def more_steps(path: Path) -> Path | None:
    more = path.with_name(path.name.replace("-bench", "-steps"))
    return more if more != path and more.is_file() else None


def few_shot_rows(evidence: Evidence) -> tuple[list[Row], Path, dict[str, Any]] | None:
    """Of the first file that has all of NEEDED at the standard number of steps"""
    for path in bench_files(evidence.bench):
        rows, content = with_more_steps(path)
        if at_standard_steps(rows, STANDARD).keys() >= set(NEEDED):
            return rows, path, content
    return None


def at_standard_steps(rows: Sequence[Row], setting: str) -> dict[str, Row]:
    """Method -> its row"""
    here = (row for row in rows if (row["setting"], row["steps"]) == (setting, STANDARD_STEPS))
    return {case_of(row).method_label: row for row in here}


def few_shot_saving(evidence: Evidence, presets: Presets) -> Finding:
    """X2: Multi-step(4) against MAML, 8 steps, in percent of the time"""
    found = few_shot_rows(evidence)
    if found is None:
        return absent(f"{', '.join(NEEDED)} of {STANDARD_STEPS} steps")
    rows, path, content = found
    at = {name: row["ms"] for name, row in at_standard_steps(rows, STANDARD).items()}
    savings = {name: 1 - ms / at["maml"] for name, ms in at.items() if name.startswith("multi_step")}
    shown = ", ".join(f"{name} {100 * saving:.0f} %" for name, saving in savings.items())
    note = f"{STANDARD}, {STANDARD_STEPS} inner steps, time of a meta-iteration saved: {shown}; Multi-step(4) is "
    note += f"{at['maml'] / at['multi_step4']:.2f} times as fast as MAML."
    saving = savings["multi_step4"]
    data = about(path, content, "episodes of Omniglot's size")
    return Finding(saving_verdict(saving, 0.5), round(100 * saving, 1), note=note, about=data)


def memory_order(evidence: Evidence, presets: Presets) -> Finding:
    """X4: three statements, each in every setting that was measured"""
    found = few_shot_rows(evidence)
    if found is None:
        return absent(f"{', '.join(NEEDED)} of {STANDARD_STEPS} steps")
    rows, path, content = found
    settings = [name for name in PAPER_SETTINGS if at_standard_steps(rows, name).keys() >= set(NEEDED)]
    of = {name: [row for row in rows if row["setting"] == name] for name in settings}
    said = {
        "memory falls as n grows": all(_falls(_memory(rows, name)) for name in of),
        "first order and iMAML need less than MAML, (2) and (4)": all(_less(_memory(rows, name)) for name in of),
        "iMAML is the slowest below 8 steps": all(map(_slow, of.values())),
    }
    verdict = holds(all(said.values()))
    shown = ", ".join(f"{name} {mib:,.0f}" for name, mib in _memory(rows, STANDARD).items())
    slow = ", ".join(f"{setting} {_slow_up_to(those)}" for setting, those in of.items())
    note = (
        f"MiB at {STANDARD}, {STANDARD_STEPS} steps: {shown}. The reverse sweep stores no graph, so that little is "
        f"left to fall. Below {STANDARD_STEPS} steps iMAML is the slowest up to: {slow}; it makes 6 second-order "
        "products whatever the steps, and MAML one for each."
    )
    data = about(path, content, "episodes of Omniglot's size", more_steps(path))
    return Finding(verdict, said, note=note, about=data)


def _memory(rows: Sequence[Row], setting: str) -> dict[str, float]:
    return {name: row["peak_mib"] for name, row in at_standard_steps(rows, setting).items()}


def _falls(at: dict[str, float]) -> bool:
    order = [at[name] for name in NEEDED[:4]]
    return all(later < earlier for earlier, later in pairwise(order))


def _less(at: dict[str, float]) -> bool:
    return max(at["first_order"], at["imaml"]) < min(at["maml"], at["multi_step2"], at["multi_step4"])


def _slow(rows: list[Row]) -> bool:
    return _slow_up_to(rows) == max(_implicit(rows), default=STANDARD_STEPS)  # of nothing measured, nothing is true


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
    return {row["steps"]: row["ms"] for row in rows if row["method"] == "imaml" and row["steps"] < STANDARD_STEPS}
