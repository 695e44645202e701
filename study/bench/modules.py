"""`python -m study bench modules`: meta-gradients of any module, beside the loop that everybody writes by hand."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from metastep.cli.common import refusals
from metastep.core.memory import peak_bytes
from metastep.errors import MetastepError, first_line
from study.bench.cases import chosen
from study.bench.module_cases import ABOUT, IMPLEMENTATIONS, METHODS, Subject, made
from study.bench.options import Threads, about, file_for, out_option, typed, words
from study.bench.pairs import LEAST_PAIRS, median
from study.bench.results import Row, write
from study.problems import Params, Step

LEAST_SECONDS = 0.03  # of a turn: short steps take turns in groups
AGREE = 1e-2  # float32 through all steps
QUICK_PAIRS = 6


def modules(
    only: Annotated[str | None, typer.Option(help=f"Some of {', '.join(ABOUT)}.", show_default="all")] = None,
    methods: Annotated[str | None, typer.Option(help=f"Some of {', '.join(METHODS)}.", show_default="all")] = None,
    implementations: Annotated[
        str | None, typer.Option(help=f"Some of {', '.join(IMPLEMENTATIONS)}.", show_default="all")
    ] = None,
    number: Annotated[int, typer.Option("--pairs", min=6, help="How often each has its turn.")] = LEAST_PAIRS,
    threads: Threads = 1,
    out: Annotated[Path | None, out_option("modules")] = None,
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK_PAIRS} pairs.")] = False,
) -> None:
    """Measure seconds of the processor and peak memory, turn about with the hand-written loop."""
    given = typed(locals())
    given["pairs"] = QUICK_PAIRS if given.pop("quick", None) else given["number"]
    del given["number"]
    with refusals():
        subjects, ways = listed(only, ABOUT, "subject"), listed(implementations, IMPLEMENTATIONS, "implementation")
        wanted = listed(methods, METHODS, "method")
        place = torch.device("cpu")
        path, above, rows = file_for("modules", given, place), about("bench modules", given, place), []
        torch.set_num_threads(threads)
        for name in subjects:
            for row in measured(name, wanted, ways, given["pairs"]):
                rows.append(row | {"threads": threads})
                write(path, above, rows)
        Console().print(table(rows))
        Console(stderr=True).print(f"Results: {path}", highlight=False, soft_wrap=True)


def listed(text: str | None, known: Iterable[str], what: str) -> list[str]:
    names = dict.fromkeys(known)
    for word in words(text or ""):
        chosen(word, names, what)
    return [name for name in names if text is None or name in words(text)]


def measured(name: str, methods: Iterable[str], implementations: Iterable[str], pairs: int) -> Iterable[Row]:
    subject = made(name)
    for method in [m for m in subject.methods if m in methods or m not in METHODS]:
        hand = subject.hand(method)
        expected = hand()[1]
        ways, failed = started(subject, method, implementations, expected)
        same = {"subject": name, "about": ABOUT[name], "method": method}
        times = interleaved([hand, *ways.values()], pairs)
        for i, way in enumerate(ways, 1):
            costs = numbers(times[0], times[i]) | memory(hand, ways[way])
            yield same | {"implementation": way} | costs | {"note": getattr(ways[way], "path", "")}
        for way, reason in failed.items():
            Console(stderr=True).print(f"{name}, {method}, {way}: {reason}", highlight=False, soft_wrap=True)
            yield same | {"implementation": way, "note": reason}


def started(
    subject: Subject, method: str, implementations: Iterable[str], expected: Params
) -> tuple[dict[str, Step], dict[str, str]]:
    """Return each implementation after its first step, which must agree with the loop; and why others fail."""
    ways: dict[str, Step] = {}
    failed: dict[str, str] = {}
    for name in implementations:
        try:
            step = IMPLEMENTATIONS[name](subject, method)
            require_same(step()[1], expected)
            ways[name] = step
        except Exception as error:  # one that fails, in whatever way, must not stop the others
            failed[name] = f"{type(error).__name__}: {first_line(error)}"
    return ways, failed


def require_same(found: Params, expected: Params) -> None:
    away = max(float((found[p] - expected[p]).norm()) for p in expected)
    size = max(float(tensor.norm()) for tensor in expected.values())
    if not away < AGREE * size:
        raise MetastepError(f"{away / size:.1%} off the loop by hand.")


def interleaved(steps: list[Step], pairs: int) -> list[list[float]]:
    """Return milliseconds of the processor for each step, turn about."""
    groups = [max(1, int(LEAST_SECONDS / max(seconds(step, 1), 1e-5))) for step in steps]
    rounds = [[1e3 * seconds(step, n) for step, n in zip(steps, groups, strict=True)] for _ in range(pairs)]
    return [list(each) for each in zip(*rounds, strict=True)]


def seconds(step: Callable[[], Any], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - start) / times


def numbers(hand: list[float], ours: list[float]) -> Row:
    ratios = [b / a for a, b in zip(hand, ours, strict=True)]
    found = {"ms": median(ours), "hand_ms": median(hand), "ratio": median(ratios)}
    return {"pairs": len(hand)} | {name: [round(x, 4) for x in each] for name, each in found.items()}


def memory(hand: Step, ours: Step) -> Row:
    cpu = torch.device("cpu")
    return {name: round(peak_bytes(step, cpu)[1] / 2**20, 4) for name, step in (("peak_mib", ours), ("hand_mib", hand))}


def table(rows: Iterable[Row]) -> Table:
    shown = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("subject", "method", "implementation"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("ms", "× loop", "95 %", "MiB", "loop's"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        first = (row["subject"], row["method"], row["implementation"])
        if "ratio" not in row:
            shown.add_row(*first, "failed")
            continue
        ratio, low, high = (f"{number:.2f}" for number in row["ratio"])
        sizes = (f"{row[key]:.1f}" for key in ("peak_mib", "hand_mib"))
        shown.add_row(*first, f"{row['ms'][0]:,.1f}", ratio, f"{low}-{high}", *sizes)
    return shown
