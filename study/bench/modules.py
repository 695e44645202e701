"""`python -m study bench modules`: meta-gradients of any module, compared with the loop by hand."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.table import Table

from metastep.cli.common import refusals
from metastep.core.counting import peak_bytes
from metastep.errors import MetastepError, first_line
from metastep.train.device import device_for
from study.bench.cases import chosen
from study.bench.module_cases import ABOUT, IMPLEMENTATIONS, METHODS, Subject, Way, made
from study.bench.options import DeviceChoice, about, file_for, out_option, typed, words
from study.bench.pairs import LEAST_PAIRS, median
from study.bench.results import Row, write
from study.problems import Params, Step

LEAST_SECONDS = 0.03  # of a turn: short steps take turns in groups
AGREE = 1e-2  # float32 through all steps
QUICK_PAIRS = 6
CACHE = "TORCHINDUCTOR_CACHE_DIR"
USUAL = [name for name, way in IMPLEMENTATIONS.items() if way.usual]
CALLS = 4  # before the first turn: compiled plans are captured in the third, and compared with autograd in the fourth


def modules(
    only: Annotated[str | None, typer.Option(help=f"Some of {', '.join(ABOUT)}.", show_default="all")] = None,
    methods: Annotated[str | None, typer.Option(help=f"Some of {', '.join(METHODS)}.", show_default="all")] = None,
    implementations: Annotated[
        str | None,
        typer.Option(
            help=f"Some of {', '.join(IMPLEMENTATIONS)}.",
            show_default=f"all that are installed for exact and the first number of threads; {', '.join(USUAL)} for "
            "either one of these",
        ),
    ] = None,
    number: Annotated[int, typer.Option("--pairs", min=6, help="How often each has its turn.")] = LEAST_PAIRS,
    device: DeviceChoice = None,
    threads: Annotated[str, typer.Option(help="Numbers of CPU threads, such as 1,2.")] = "1",
    out: Annotated[Path | None, out_option("modules")] = None,
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK_PAIRS} pairs.")] = False,
) -> None:
    """Measure time and peak memory, interleaved with the loop by hand.

    On a CPU the time is that of the processor; with several threads, and on a GPU, it is what the clock says.
    """
    given = typed(locals())
    given["pairs"] = QUICK_PAIRS if given.pop("quick", None) else given["number"]
    del given["number"]
    with refusals(), empty_cache():
        place = device_for(given.get("device", "auto"))
        known = [name for name, way in IMPLEMENTATIONS.items() if is_there(way, place)]
        subjects, ways = listed(only, ABOUT, "subject"), listed(implementations, known, "implementation")
        wanted, counts = listed(methods, METHODS, "method"), [int(count) for count in words(threads)]
        packages = [package for name in ways if (package := IMPLEMENTATIONS[name].package)]
        path, above, rows = file_for("modules", given, place), about("bench modules", given, place, packages), []
        torch.backends.cudnn.allow_tf32 = False  # convolutions must agree with the loop as matrix products do
        for row in rows_of(subjects, wanted, ways, counts, implementations is not None, given["pairs"], place):
            rows.append(row)
            write(path, above, rows)
        Console().print(table(rows))
        Console(stderr=True).print(f"Results: {path}", highlight=False, soft_wrap=True)


@contextmanager
def empty_cache() -> Iterator[None]:
    """Let the compiler find nothing on disk, so that a first call compiles."""
    before = os.environ.get(CACHE)
    with TemporaryDirectory() as folder:
        os.environ[CACHE] = folder
        try:
            yield
        finally:
            os.environ.pop(CACHE)
            os.environ |= {} if before is None else {CACHE: before}


def is_there(way: Way, device: torch.device) -> bool:
    """Return whether an implementation runs on a device, with what is installed."""
    return way.device in (None, device.type) and (way.package is None or find_spec(way.package) is not None)


def listed(text: str | None, known: Iterable[str], what: str) -> list[str]:
    names = dict.fromkeys(known)
    for word in words(text or ""):
        chosen(word, names, what)
    return [name for name in names if text is None or name in words(text)]


def rows_of(
    subjects: Iterable[str], methods: Iterable[str], ways: list[str], counts: list[int], all_of_all: bool, pairs: int,
    device: torch.device,
) -> Iterable[Row]:  # fmt: skip
    for count, name in product(counts, subjects):
        torch.set_num_threads(count)
        subject = made(name, device)
        first = next(iter(subject.methods))
        for method in [m for m in subject.methods if m in methods or m not in METHODS]:
            firsts = (count == counts[0]) + (method == first)
            if all_of_all or firsts:
                some = [way for way in ways if all_of_all or firsts == 2 or IMPLEMENTATIONS[way].usual]
                same = {"subject": name, "about": ABOUT[name], "method": method, "threads": count}
                yield from (same | row for row in measured(subject, method, some, pairs, device))


def measured(
    subject: Subject, method: str, implementations: Iterable[str], pairs: int, device: torch.device
) -> Iterable[Row]:
    hand = subject.hand(method)
    expected = hand()[1]
    ways, failed = started(subject, method, implementations, expected)
    times = interleaved([hand, *(way.step for way in ways.values())], pairs, device)
    for (name, way), ours in zip(ways.items(), times[1:], strict=True):
        costs = numbers(times[0], ours) | memory(hand, way.step, device) | {"first_seconds": round(way.first, 2)}
        yield {"implementation": name} | costs | {"note": getattr(way.step, "path", "")}
    for name, reason in failed.items():
        Console(stderr=True).print(f"{method}, {name}: {reason}", highlight=False, soft_wrap=True)
        yield {"implementation": name, "note": reason}


class Started(NamedTuple):
    """A step that agrees with the loop by hand, and the seconds of all processors until its first result."""

    step: Step
    first: float


def started(
    subject: Subject, method: str, implementations: Iterable[str], expected: Params
) -> tuple[dict[str, Started], dict[str, str]]:
    """Return each implementation after its first steps, which must agree with the loop; and why others fail."""
    ways: dict[str, Started] = {}
    failed: dict[str, str] = {}
    for name in implementations:
        try:
            began = processor_seconds()
            step = IMPLEMENTATIONS[name].make(subject, method)
            require_same(step()[1], expected)
            ways[name] = Started(step, processor_seconds() - began)
            for _ in range(CALLS - 1):
                require_same(step()[1], expected)
        except Exception as error:  # one that fails, in whatever way, must not stop the others
            ways.pop(name, None)
            failed[name] = f"{type(error).__name__}: {first_line(error)}"
    return ways, failed


def processor_seconds() -> float:
    """Return the seconds of this process and of the compilers that it has run."""
    return sum(os.times()[:4])


def require_same(found: Params, expected: Params) -> None:
    away = max(float((found[p] - expected[p]).norm()) for p in expected)
    size = max(float(tensor.norm()) for tensor in expected.values())
    if not away < AGREE * size:
        raise MetastepError(f"{away / size:.1%} off the loop by hand.")


def interleaved(steps: list[Step], pairs: int, device: torch.device) -> list[list[float]]:
    """Return milliseconds of each step, measured in turn."""
    groups = [max(1, int(LEAST_SECONDS / max(seconds(step, 1, device), 1e-5))) for step in steps]
    rounds = [[1e3 * seconds(step, n, device) for step, n in zip(steps, groups, strict=True)] for _ in range(pairs)]
    return [list(each) for each in zip(*rounds, strict=True)]


def seconds(step: Callable[[], Any], times: int, device: torch.device) -> float:
    start = now(device)
    for _ in range(times):
        step()
    return (now(device) - start) / times


def now(device: torch.device) -> float:
    """Return the seconds of the processor; with several threads, and on a GPU, of the clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.process_time() if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()


def numbers(hand: list[float], ours: list[float]) -> Row:
    ratios = [b / a for a, b in zip(hand, ours, strict=True)]
    found = {"ms": median(ours), "hand_ms": median(hand), "ratio": median(ratios)}
    return {"pairs": len(hand)} | {name: [round(x, 4) for x in each] for name, each in found.items()}


def memory(hand: Step, ours: Step, device: torch.device) -> Row:
    steps = {"peak_mib": ours, "hand_mib": hand}
    return {name: round(peak_bytes(step, device)[1] / 2**20, 4) for name, step in steps.items()}


def table(rows: Iterable[Row]) -> Table:
    shown = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("subject", "method", "threads", "implementation"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("ms", "× loop", "95 %", "MiB", "loop's"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        first = (row["subject"], row["method"], str(row["threads"]), row["implementation"])
        if "ratio" not in row:
            shown.add_row(*first, "failed")
            continue
        ratio, low, high = (f"{number:.2f}" for number in row["ratio"])
        sizes = (f"{row[key]:.1f}" for key in ("peak_mib", "hand_mib"))
        shown.add_row(*first, f"{row['ms'][0]:,.1f}", ratio, f"{low}-{high}", *sizes)
    return shown
