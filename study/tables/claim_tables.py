"""docs/results.md: the claims of the paper and what was found, and figures where there is something to draw."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from study import results, targets
from study.claims import files, keeping, page
from study.claims.cells import OMNIGLOT, Printed, few_shot_verdict
from study.claims.evidence import Evidence
from study.claims.fewshot_costs import bench_files, more_steps
from study.claims.figures import ABLATIONS, draw_ablations, draw_costs, draw_epochs, draw_gradient_differences
from study.claims.outcomes import Outcome
from study.claims.register import REGISTER
from study.claims.transfer_costs import Epochs, epochs, time_by_steps
from study.experiments import training

CLAIMS, DOCS = results.ROOT / "results" / "claims", results.ROOT / "docs"
COSTS, EPOCHS, CHANGES, ABLATED = (
    f"figures/{name}.svg" for name in ("omniglot-costs", "epochs", "gradient-difference", "ablations")
)
TRAINING = {"T4": "omniglot", "T5": "miniimagenet"}  # the table of what was trained on it


def summary(name: str) -> Iterator[str]:
    del name
    yield from page.summary(CLAIMS)


def few_shot(name: str) -> Iterator[str]:
    del name
    yield from page.few_shot_accuracies(CLAIMS)


def claims(name: str) -> Iterator[str]:
    """`name` is claims/TABLE"""
    yield from page.rows(name.partition("/")[2], CLAIMS)


def unturned(name: str) -> Iterator[str]:
    """Say what the verdicts on Omniglot would be with test classes as they are."""
    del name
    turned, alone = Counter[str](), Counter[str]()
    for claim in (each for each in REGISTER.values() if each.table == "T4"):
        content = files.read(CLAIMS, claim.id)
        if content and (seen := re.search(r"as they are: (\d+\.\d+)±(\d+\.\d+)", content["note"])):
            printed = Printed.read(claim.paper)
            turned[content["verdict"]] += 1
            alone[few_shot_verdict(float(seen[1]), float(seen[2]), printed, OMNIGLOT)] += 1
    first, second = (", ".join(f"{of[v]} {v}" for v in ("better", "reproduced", "short")) for of in (turned, alone))
    yield f"Of {turned.total()} cells with turned test classes: {first}."
    yield f"The same learners on classes as they are: {second}."


def figures(name: str) -> Iterator[str]:
    """Links to those that there is something to draw of"""
    del name
    kept = training.settings()
    for table, data in TRAINING.items():
        if data in kept:
            yield f"{table}: how the learners were trained, from `results/runs`.\n\n![training]({trained(data)})\n"
    if path := measured():
        named = " and ".join(f"`results/bench/{each.name}`" for each in (path, more_steps(path)) if each)
        yield f"X2, X4: memory and time against inner steps, from {named}.\n\n![costs]({COSTS})\n"
    if found := timed():
        yield f"X14: time of an epoch, from `results/bench/{found.path.name}`.\n\n![epochs]({EPOCHS})\n"
    if found_runs := ablated():
        target, _ = found_runs
        yield f"X10 to X13: ways to take virtual steps, {target} by Adam, from `results/claims`.\n"
        yield f"![ablations]({ABLATED})\n"
    if run := looked():
        yield f"X15: how the transfer gradient changes in a virtual step of {run.preset}, from `results/claims`.\n"
        yield f"![gradient difference over training]({CHANGES})\n"


def trained(data: str) -> str:
    return f"figures/training-{data}.svg"


def measured() -> Path | None:
    """On a GPU, as the paper's"""
    return next((path for path in bench_files(results.FOLDER) if not path.name.startswith("cpu")), None)


def timed() -> Epochs | None:
    return epochs(Evidence(results.FOLDER, results.FOLDER))


def ablated() -> tuple[str, dict[str, tuple[Outcome, ...]]] | None:
    """Where the paper has its ablations, or on the stand-in where there is more of them"""
    found = {target: _ablations_on(target) for target in targets.ABLATED}
    most = max(found, key=lambda target: len(found[target]))  # the first, of as many
    return (most, found[most]) if found[most] else None


def _ablations_on(target: str) -> dict[str, tuple[Outcome, ...]]:
    kept = {name: keeping.kept(CLAIMS / keeping.FOLDER, f"{target}-adam-{name}") for name in ABLATIONS}
    return {name: tuple(each.values()) for name, each in kept.items() if each}


def looked() -> Outcome | None:
    """The first run for X15 that looked at its gradients"""
    claim = REGISTER["X15"]
    kept = (keeping.kept(CLAIMS / keeping.FOLDER, preset) for preset in (*claim.presets, *claim.stand_in))
    return next((each for runs in kept for each in runs.values() if each.gradient_differences), None)


def draw() -> None:
    """Draw the figures of docs/results.md that there is something to draw of."""
    for data, panels in training.settings().items():
        training.draw(panels, DOCS / trained(data))
    if path := measured():
        draw_costs(path, DOCS / COSTS)
    if found := timed():
        draw_epochs(found, DOCS / EPOCHS)
    if found_runs := ablated():
        _, runs = found_runs
        draw_ablations(runs, time_by_steps(Evidence(results.FOLDER, results.FOLDER)), DOCS / ABLATED)
    if run := looked():
        draw_gradient_differences(run, DOCS / CHANGES)
