"""Tables and the picture of transfer that are made from results."""

import json
from collections.abc import Iterator
from typing import Any

from study import results
from study.claims.register import REGISTER
from study.tables.weights_picture import save_weights_picture

SHOWN = ("T2.2", "T2.8", "T2.14", "T3.8", "T3.14")
RATIOS = {
    "": "as it is here",
    "no mixed part": "first product in full",
    "source run again": "source run by every loss",
    "source run again, no mixed part": "both: as published",
}


def claims(name: str) -> Iterator[str]:
    """Show what was run of the paper's tables 2 and 3."""
    yield "| claim | what | paper | here | after the last epoch | seeds | verdict |"
    yield "|---|---|---:|---:|---:|---|---|"
    shown: dict[str, dict[str, Any]] = {id: results.read(f"{name}/{id}") for id in SHOWN}
    for id, found in shown.items():
        seeds = ", ".join(map(str, found["seeds"]))
        spread = "" if found["interval"] is None else f" ± {found['interval']}"
        value = f"{found['value']:.2f}{spread}"
        (preset,) = REGISTER[id].presets
        last = ", ".join(f"{100 * last_test(preset, seed):.2f}" for seed in found["seeds"])
        cells = (id, found["claim"], found["paper"], value, last, seeds, found["verdict"])
        yield "| " + " | ".join(cells) + " |"
    devices = (f"{found['device']}, torch {found['versions']['torch']}" for found in shown.values())
    commits = (commit for found in shown.values() for commit in found["commit"].split(", "))
    yield f"\n{'; '.join(dict.fromkeys(devices))}; commits {', '.join(dict.fromkeys(commits))}."


def last_test(preset: str, seed: int) -> float:
    accuracy: float = [row for row in kept(preset, seed) if row["kind"] == "validation"][-1]["test_accuracy"]
    return accuracy


def kept(preset: str, seed: int) -> list[dict[str, Any]]:
    """Rows of the metrics that a run left behind"""
    lines = (results.ROOT / "results" / "runs" / f"{preset}-seed{seed}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def times(name: str) -> Iterator[str]:
    """Time of Multi-step / baseline at T = 2, and what the others cost; of a file that was stopped, what it has"""
    content = results.read(name)
    compiled = {(r["setting"], r["method"]): r for r in content["rows"] if r["implementation"] == "metastep, compiled"}
    rows = {
        (row["setting"], row["method"], row["note"]): row
        for row in content["rows"]
        if row["implementation"] == "metastep"
    }
    settings = list(dict.fromkeys(setting for setting, _, _ in rows))
    yield results.caption(content)
    yield "| | " + " | ".join(f"{s}, batch {rows[s, 'baseline', '']['tasks']}" for s in settings) + " |"
    yield "|---|" + "---:|" * len(settings)
    measured = {note for _, method, note in rows if method == "multi_step"}
    for note, title in RATIOS.items():
        if note in measured:
            cells = [_ratio(rows[s, "multi_step", note], rows[s, "baseline", note]) for s in settings]
            yield f"| Multi-step / baseline, {title} | " + " | ".join(cells) + " |"
    if compiled:
        cells = [_ratio(compiled[s, "multi_step"], compiled[s, "baseline"]) for s in settings]
        yield "| Multi-step / baseline, compiled | " + " | ".join(cells) + " |"
    for method in ("scratch", "t0", "t1", "t3", "3-step estimate"):
        yield f"| {method}, ms | " + " | ".join(f"{rows[s, method, '']['ms']:,.0f}" for s in settings) + " |"


def _ratio(ours: dict[str, Any], baseline: dict[str, Any]) -> str:
    return f"{ours['ms']:,.0f} / {baseline['ms']:,.0f} ms = {ours['ms'] / baseline['ms']:.2f}"


def draw_weights() -> None:
    """Draw docs/figures/stl10-weights.png, from the metrics that were kept."""
    runs = [(method, kept(f"stl10-sgd-{method}", 0)) for method in ("baseline", "multistep")]
    save_weights_picture(runs, results.ROOT / "docs" / "figures" / "stl10-weights.png")
