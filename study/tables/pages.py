"""The tables and figures in docs that are made from results."""

import re
import sys
from collections.abc import Callable, Iterator
from itertools import product
from statistics import mean, stdev
from typing import Any

from metastep.train.io import replace_file
from metastep.train.presets import shipped
from study import results
from study.claims.register import TABLES as CLAIMED
from study.tables import (
    bench_tables,
    claim_tables,
    curves,
    goals,
    other_data,
    recipe_tables,
    run_tables,
    study_tables,
    transfer_tables,
)
from study.tables.curves import FEW_SHOT, TRANSFER

PAGES = (
    results.ROOT / "README.md",
    *sorted((results.ROOT / "docs").rglob("*.md")),
    results.ROOT / "study" / "README.md",
    *(path.with_suffix(".md") for path in shipped().values()),
)


def sweep_memory(name: str) -> Iterator[str]:
    """Rows: inner steps; columns: methods, with the ratio to first order"""
    content = results.read(name)
    rows = {(row["steps"], row["method"]): row for row in content["rows"]}
    methods = list(dict.fromkeys(method for _, method in rows))
    yield results.caption(content)
    yield "| inner steps | " + " | ".join(TITLES[m] for m in methods) + " |"
    yield "|---|" + "---:|" * len(methods)
    for steps in sorted({steps for steps, _ in rows}):
        least = rows[steps, "first_order"]["tensors_mib"]
        cells = [_memory_and_time(rows[steps, method], least) for method in methods]
        yield f"| {steps} | " + " | ".join(cells) + " |"


def _memory_and_time(row: dict[str, Any], least: float) -> str:
    if row["ms"] is None:
        return str(row["note"])
    resident = f", resident {row['peak_mib']:,.0f}" if row["peak_mib"] != row["tensors_mib"] else ""
    return f"{row['tensors_mib']:,.0f} MiB (×{row['tensors_mib'] / least:.2f}{resident}), {row['ms']:,.0f} ms"


TITLES = {
    "first_order": "first order",
    "maml": "exact, the sweep",
    "maml_recompute": "exact, the sweep with recomputed segments",
    "maml_autograd": "exact, plain autograd",
}


def other_modules(name: str) -> Iterator[str]:
    """Rows: modules; columns: ways, with the ratio to the first"""
    content = results.read(name)
    rows = {(row["setting"], row["method"]): row for row in content["rows"]}
    methods = list(dict.fromkeys(method for _, method in rows))
    yield results.caption(content)
    yield "| | " + " | ".join(methods) + " |"
    yield "|---|" + "---:|" * len(methods)
    for setting in dict.fromkeys(setting for setting, _ in rows):
        least = rows[setting, methods[0]]["ms"]
        cells = [
            f"{row['ms']:,.0f} ms (×{row['ms'] / least:.2f}), {row['peak_mib']:,.0f} MiB"
            for row in (rows[setting, method] for method in methods)
        ]
        yield f"| {setting} | " + " | ".join(cells) + " |"


def modules(name: str) -> Iterator[str]:
    """Rows: workloads and methods; columns: implementations, in times of the hand-written loop"""
    content = results.read(name)
    yield results.caption(content)
    of: dict[int, Found] = {}
    for row in content["rows"]:
        of.setdefault(row["threads"], {}).setdefault((row["about"], row["method"]), {})[row["implementation"]] = row
    first, *others = of
    yield from _ratios(of[first])
    yield from _memory(of[first])
    yield from _first_calls(of[first])
    for count in others:
        yield f"\n**{count} threads**, by the clock\n"
        yield from _ratios(of[count])


Found = dict[tuple[str, str], dict[str, Any]]  # by workload and method, and by implementation


def _ratios(rows: Found) -> Iterator[str]:
    ways = list(dict.fromkeys(way for found in rows.values() for way, row in found.items() if "ratio" in row))
    yield "| | | loop by hand, ms | " + " | ".join(ways) + " |"
    yield "|---|---|---:|" + "---:|" * len(ways)
    for (about, method), found in rows.items():
        hand = next((f"{row['hand_ms'][0]:,.1f}" for row in found.values() if "hand_ms" in row), "")
        cells = [times(found[way]["ratio"][0]) if "ratio" in found.get(way, {}) else "–" for way in ways]
        yield f"| {about} | {method} | {hand} | " + " | ".join(cells) + " |"


ALONE = "metastep, states alone"


def _memory(rows: Found) -> Iterator[str]:
    found = {about: ways for (about, _), ways in rows.items() if "ratio" in ways.get(ALONE, {})}
    if not found:
        return
    yield "\n**Peak memory**, exact: MiB; states alone with its ratio to the loop, and its time\n"
    yield "| | loop by hand | metastep | states alone | ratio | time |"
    yield "|---|---:|---:|---:|---:|---:|"
    for about, ways in found.items():
        alone, usual = ways[ALONE], ways["metastep"]
        sizes = f"{alone['hand_mib']:.2f} | {usual['peak_mib']:.2f} | {alone['peak_mib']:.2f}"
        yield f"| {about} | {sizes} | {alone['peak_mib'] / alone['hand_mib']:.2f} | {times(alone['ratio'][0])} |"


def _first_calls(rows: Found) -> Iterator[str]:
    """When compiling pays"""
    ways = ("metastep", "metastep compiled")
    found = {key: [each.get(way, {}) for way in ways] for key, each in rows.items()}
    both = {key: pair for key, pair in found.items() if all("first_seconds" in row for row in pair)}
    if not both:
        return
    yield "\n**When compiling pays**: seconds of the processor for the first call, and calls after which it has paid\n"
    yield "| | | first call, s | ms, eager | ms, compiled | pays after |"
    yield "|---|---|---:|---:|---:|---:|"
    for (about, method), (eager, compiled) in both.items():
        saved = (eager["ms"][0] - compiled["ms"][0]) / 1e3
        calls = f"{compiled['first_seconds'] / saved:,.0f}" if saved > 0 else "never"
        cells = f"{compiled['first_seconds']:.0f} | {eager['ms'][0]:,.1f} | {compiled['ms'][0]:,.1f} | {calls}"
        yield f"| {about} | {method} | {cells} |"


def times(ratio: float) -> str:
    """Return 1.21, 0.41, 0.026: two digits at least."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


SHORT = {  # modules of the table in README, and what they are called there
    "MLP 1-40-40-1, 10 tasks": "MLP 1-40-40-1",
    "weights of 500 examples, linear 784-10, 100 steps": "weights of 500 examples, 100 steps",
    "transformer of two layers, 32 tokens, 4 tasks": "transformer",
    "Conv4 with 16 filters, 28x28, 8 tasks": "Conv4",
    "LSTM, 16 tokens, 8 tasks": "LSTM",
}


def few_modules(name: str) -> Iterator[str]:
    """Rows: some modules; columns: exact and windows of 4, eager and compiled, in times of the hand-written loop"""
    content = results.read(name)
    ratios = {
        (row["about"], row["method"], row["implementation"]): row["ratio"][0]
        for row in content["rows"]
        if "ratio" in row and row["threads"] == content["rows"][0]["threads"]
    }
    ways = list(product(("exact", "window 4"), ("metastep", "metastep compiled")))
    yield f"Time of one meta-gradient relative to the loop by hand, on {content['device']}:\n"
    yield "| | exact | exact, compiled | windows of 4 | windows of 4, compiled |"
    yield "|---|---:|---:|---:|---:|"
    for about, short in SHORT.items():
        found = [ratios.get((about, *way)) for way in ways]
        yield f"| {short} | " + " | ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in found) + " |"


def tutorials(name: str) -> Iterator[str]:
    content = results.read(name)
    yield results.caption(content)
    yield "| tutorial | for readers | in tests |"
    yield "|---|---:|---:|"
    for row in content["rows"]:
        yield f"| {row['tutorial']} | {row['seconds']:.0f} | {row['in tests']:.0f} |"


def clips(name: str) -> Iterator[str]:
    """Rows: methods, rates and clips; columns: seeds, and seconds of training"""
    content = results.read(name)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in content["rows"]:
        groups.setdefault((row["ways"], row["lr"], row["method"], row["clip"]), []).append(row)
    yield results.caption(content)
    yield "| ways | rate | method | clip | seeds | iterations | test accuracy, % | lowest | highest |"
    yield "|---:|---:|---|---:|---:|---:|---:|---:|---:|"
    for (ways, lr, method, clip), rows in sorted(groups.items(), key=lambda each: (*each[0][:3], each[0][3] or 0)):
        found = [row["accuracy"] for row in rows]
        cells = [ways, lr, method, clip or "none", len(rows), f"{mean(row['iterations'] for row in rows):,.0f}"]
        yield f"| {' | '.join(map(str, cells))} | {mean(found):.1f} | {min(found):.1f} | {max(found):.1f} |"


def compare_conv4(name: str) -> Iterator[str]:
    content = results.read(name)
    yield results.caption(content)
    looks = dict.fromkeys((row["inner_rate"], row["iterations"]) for row in content["rows"])
    for lr, iterations in looks:
        rows = [row for row in content["rows"] if (row["inner_rate"], row["iterations"]) == (lr, iterations)]
        when = f"after {iterations} meta-iterations" if iterations else "at a random θ"
        yield f"\nInner rate {lr}, {when}: gradients change by {100 * rows[0]['gradient_change']:.0f} % per step.\n"
        yield "| method | cosine | relative error | gradients | products | ms | MiB |"
        yield "|---|---:|---:|---:|---:|---:|---:|"
        for row in rows:
            error = row["relative_error"]
            yield (
                f"| {row['method']} | {row['cosine']:.3f} | {f'{error:.3f}' if error < 1e3 else f'{error:.0e}'} "
                f"| {row['gradients']} | {row['products']} | {row['ms']:,.0f} | {row['peak_mib']:,.0f} |"
            )


def short_runs(name: str) -> Iterator[str]:
    content = results.read(name)
    yield results.caption(content)
    yield "| data | method | iterations | seconds | accuracy, % | 95 % interval |"
    yield "|---|---|---:|---:|---:|---:|"
    for row in content["rows"]:
        yield (
            f"| {row['setting']} | {row['method']} | {row['iterations']} | {row['seconds']:.0f} "
            f"| {row['accuracy']:.1f} | ± {row['interval']:.1f} |"
        )


def transfer_digits(name: str) -> Iterator[str]:
    """A row for each method: its test accuracy for each seed, their mean and deviation"""
    content = results.read(name)
    rows = content["rows"]
    seeds = sorted({row["seed"] for row in rows})
    yield results.caption(content)
    yield "| | products an iteration | rate | seconds | " + " | ".join(f"seed {n}" for n in seeds) + " | mean, % | ± |"
    yield "|---|---:|---:|---:|" + "---:|" * (len(seeds) + 2)
    for method in dict.fromkeys(row["method"] for row in rows):
        of = {row["seed"]: row for row in rows if row["method"] == method}
        seconds, accuracy = ([row[key] for row in of.values()] for key in ("seconds", "accuracy"))
        each = [f"{of[seed]['accuracy']:.1f}" if seed in of else "" for seed in seeds]
        cells = [*each, f"{mean(accuracy):.1f}", f"{stdev(accuracy):.1f}" if len(accuracy) > 1 else ""]
        first = next(iter(of.values()))
        cost = f"{first['products']} | {first['inner_rate']:g} | {mean(seconds):.0f}"
        yield f"| {method} | {cost} | " + " | ".join(cells) + " |"


def learner(name: str) -> Iterator[str]:
    content = results.read(name)
    found = content["evaluation"]
    yield results.caption(content)
    yield f"{found['episodes']} episodes of {found['dataset']}'s {found['split']} classes:\n"
    yield "| task | inner steps | accuracy, % | 95 % interval |"
    yield "|---|---|---:|---:|"
    trained = [(found, step) for step in found["by_step"]]
    for asked, row in [*trained, *((other, other["by_step"][-1]) for other in content["otherwise"])]:
        turned = "" if asked["rotations"] == found["rotations"] else ", not turned"
        alone = ", one by one" if asked.get("one_by_one") else ""
        task = f"{asked['ways']}-way {asked['shots']}-shot{turned}{alone}"
        yield f"| {task} | {row['step']} | {row['accuracy']:.2f} | ± {row['interval']:.2f} |"


def play_strokes(name: str) -> Iterator[str]:
    content = results.read(name)
    yield results.caption(content)
    yield "| | accuracy, % | 95 % interval | adapts in, ms |"
    yield "|---|---:|---:|---:|"
    for row in content["rows"]:
        yield f"| {row['method']} | {row['accuracy']:.1f} | ± {row['interval']:.1f} | {row['ms']:.0f} |"


TABLES: dict[str, Callable[[str], Iterator[str]]] = {
    "bench/cpu-sweep-memory": sweep_memory,
    "bench/gpu-sweep-memory": sweep_memory,
    "bench/cpu-other-modules": other_modules,
    "bench/cpu-modules": modules,
    "bench/h200-modules": modules,
    "few-modules": lambda _: few_modules("bench/cpu-modules"),
    "peers": lambda _: bench_tables.peers("bench/cpu-bench"),
    "bench/cpu-tutorials": tutorials,
    "bench/xeon-clips": clips,
    "bench/xeon-recipes": recipe_tables.recipes,
    "bench/cpu-recipes": recipe_tables.best_recipes,
    "outer-rates": lambda _: recipe_tables.outer_rates("bench/cpu-recipes"),
    "clip-values": lambda _: recipe_tables.clip_values("bench/cpu-recipes"),
    "bench/cpu-in-a-minute": recipe_tables.in_a_minute,
    "bench/cpu-stable-windows": recipe_tables.stable_windows,
    "bench/cpu-inner-optimizers": bench_tables.inner_optimizers,
    "bench/cpu-compare-conv4": compare_conv4,
    "bench/cpu-play-strokes": play_strokes,
    "bench/cpu-short-runs": short_runs,
    "bench/cpu-other-data": other_data.other_data,
    "bench/cpu-kills": run_tables.kills,
    "bench/cpu-records": run_tables.records,
    "floor": bench_tables.floors,
    "goals": goals.goals,
    "headline": lambda _: bench_tables.headline("bench/h200-bench"),
    "bench/h200-bench": bench_tables.bench,
    "bench/h200-steps": bench_tables.bench,
    "bench/h200-growth": bench_tables.growth,
    "bench/cpu-bench": bench_tables.bench,
    "bench/h200-others": bench_tables.bench,
    "bench/h200-mini": bench_tables.bench,
    "bench/h200-mini-profile": study_tables.profile,
    "bench/h200-transfer": bench_tables.bench,
    "bench/cpu-transfer": bench_tables.bench,
    "bench/h200-transfer-profile": study_tables.profile,
    **{
        f"bench/{device}-{what}": getattr(study_tables, what)
        for device in ("h200", "cpu")
        for what in ("startup", "profile", "precision")
    },
    **{f"bench/{name}": run_tables.same_path for name in ("gpu-same-path", "gpu-same-path-gentle", "cpu-same-path")},
    **{f"bench/{device}-same-transfer": run_tables.same_transfer for device in ("gpu", "cpu")},
    **{f"bench/{device}-starts": run_tables.starts for device in ("gpu", "cpu")},
    "bench/cpu-heads": run_tables.heads,
    "bench/cpu-compare-learners": run_tables.compared_learners,
    **{f"bench/{device}-{name}": run_tables.variations for device in ("gpu", "cpu") for name in FEW_SHOT},
    f"bench/gpu-{TRANSFER}": run_tables.transfer_choices,
    "bench/cpu-transfer-digits": transfer_digits,
    "bench/cpu-transfer-stl10": transfer_tables.times,
    **{f"bench/{device}-transfer-bird": transfer_tables.times for device in ("gpu", "cpu")},
    "claims": transfer_tables.claims,
    "claims/summary": claim_tables.summary,
    "claims/few-shot": claim_tables.few_shot,
    "claims/figures": claim_tables.figures,
    "claims/unturned": claim_tables.unturned,
    **{f"claims/{table}": claim_tables.claims for table in CLAIMED},
    **{f"learners/{name}": learner for name in shipped()},
}


def filled(text: str) -> str:
    """`text` with what stands between <!-- table: NAME --> and <!-- end --> made anew"""

    def table(found: re.Match[str]) -> str:
        return "\n".join([found[1], *TABLES[found[2]](found[2]), "<!-- end -->"])

    return re.sub(r"(<!-- table: ([\w/-]+) -->).*?<!-- end -->", table, text, flags=re.S)


def write(check: bool = False) -> None:
    """Bring every page in step with results; with `check`, only say whether they are"""
    for page in PAGES:
        before = page.read_text()
        after = filled(before)
        if before == after:
            continue
        if check:
            sys.exit(f"{page} is not in step with results: run python -m study tables")
        replace_file(page, after.encode())


def draw() -> None:
    """Draw the figures in docs anew, from results alone."""
    curves.main()
    claim_tables.draw()
    transfer_tables.draw_weights()
