"""How much work one meta-step is, on five problems, by metastep and by hand. The numbers are the same at every run.

Operations are calls of PyTorch's operators below autograd and vmap. Views and detached copies count; what an operator
calls inside itself does not. Gradients and second-order products are those of `metastep.core.counting`: under vmap one
call serves all tasks. Bytes are the peak of all tensors that are alive at once, above those from before. The walk
counts the files of the package that one meta-step of a user's own module passes through, and how often control changes
file.
"""

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

import metastep as ms
from metastep.core.counting import counting, peak_bytes
from metastep.train.device import PACKAGE
from metastep.train.io import replace_file
from study.problems import PROBLEMS, Step, by_hand, by_metastep, work_of

FILE = Path(__file__).resolve().parent.parent / "results" / "counts.json"
COMMAND = "python -m study counts --write"
WINDOWS = {"maml": 1, "multi_step4": 4}
COSTS = ("operations", "gradients", "products", "bytes")
OF_TORCH = ("operations", "bytes")  # another version of PyTorch may have other numbers
ADVICE = f"If that is worth its price, or if numbers fell, keep the new ones: {COMMAND}. Say why in docs/log.md."
Row = dict[str, Any]


# ---- one meta-step


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return function(*args, **(kwargs or {}))


def counted(step: Step) -> dict[str, int]:
    step()  # what only a first call does is left out
    with no_collection(), Operations() as operations, counting() as work:
        _, peak = peak_bytes(step, torch.device("cpu"))
    numbers = (operations.number, work.gradients, work.products, peak)
    return dict(zip(COSTS, numbers, strict=True))


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out: when it runs depends on all that the process did before."""
    gc.collect()
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def row_of(problem: str, method: str) -> Row:
    """Count one meta-step of metastep, and the same by hand."""
    work, window = work_of(problem), WINDOWS[method]
    loop = counted(by_hand(work, window))
    by_loop = {f"loop_{name}": loop[name] for name in OF_TORCH}
    return {"problem": problem, "method": method, **counted(by_metastep(work, window)), **by_loop}


def rows() -> Iterator[Row]:
    return (row_of(problem, method) for problem in PROBLEMS for method in WINDOWS)


# ---- the walk of one meta-step


def own_module() -> Callable[[], object]:
    """Return what the README shows first: one outer step of a module, a problem and a method."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5))
    problem = ms.few_shot(net, F.cross_entropy, {"accuracy": ms.accuracy})
    gradient = ms.MetaGradient(problem, ms.MultiStep(window=4), ms.SGD(lr=0.1, momentum=0.9), steps=8)
    meta = gradient.init(net)
    step = ms.MetaStep(gradient, meta, torch.optim.Adam(meta.values(), lr=1e-3))
    x, y = torch.randn(4, 20, 8, 8), torch.randint(5, (4, 20))
    return lambda: step(ms.Task(support=(x[:, :5], y[:, :5]), query=(x[:, 5:], y[:, 5:])))


def walk(call: Callable[[], object] | None = None, below: Path = PACKAGE) -> dict[str, int]:
    """Follow control through named functions below a folder; what only a first call does is left out."""
    call = call or own_module()
    call()
    files: list[str] = []

    def follow(frame: Any, event: str, argument: object) -> None:
        del argument
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<") and code.co_filename.startswith(f"{below}/"):
            files.append(code.co_filename)

    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(before)
    return {"files": len(set(files)), "changes": 1 + sum(a != b for a, b in pairwise(files))}


# ---- what is kept


def version() -> str:
    return torch.__version__.partition("+")[0]  # without the build


def measured() -> dict[str, Any]:
    return {"command": COMMAND, "torch": version(), "walk": walk(), "rows": list(rows())}


def kept() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text())
    return content


def changes(before: dict[str, Any], after: dict[str, Any], better: bool = False) -> list[str]:
    """Name every number that got worse, or better: that rose, or fell."""
    same_torch = before["torch"] == after["torch"]
    old, new = (named(content, same_torch) for content in (before, after))
    both = {name: (old[name], new[name]) for name in old if name in new}
    return [f"{name}: {a:,} -> {b:,}" for name, (a, b) in both.items() if (b < a if better else b > a)]


def named(content: dict[str, Any], of_torch: bool) -> dict[str, int]:
    """Return every number of metastep by what it is about; of_torch: those too that depend on PyTorch's version."""
    costs = [name for name in COSTS if of_torch or name not in OF_TORCH]
    found = {f"{name} of {row['problem']}, {row['method']}": row[name] for row in content["rows"] for name in costs}
    return found | {f"{name} of the walk": number for name, number in content["walk"].items()}


def table(content: dict[str, Any]) -> Table:
    shown = Table(title="One meta-step, and how it compares with the loop by hand", box=None, padding=(0, 1, 0, 0))
    for heading in ("problem", "method"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("operations", "× loop", "gradients", "products", "kB", "× loop"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in content["rows"]:
        operations, size = (f"{row[name] / row[f'loop_{name}']:.2f}" for name in OF_TORCH)
        numbers = (f"{row['operations']:,}", operations, str(row["gradients"]), str(row["products"]))
        shown.add_row(row["problem"], row["method"], *numbers, f"{row['bytes'] / 1e3:,.0f}", size)
    return shown


def counts(write: Annotated[bool, typer.Option("--write", help="Keep these numbers.")] = False) -> None:
    """Count what one meta-step does on five problems, and compare with the numbers that are kept."""
    found, console = measured(), Console()
    console.print(table(found))
    walked = found["walk"]
    console.print(f"An own module: {walked['files']} files, {walked['changes']} changes of file.", highlight=False)
    before = kept() if FILE.exists() else found
    worse, better = changes(before, found), changes(before, found, better=True)
    for line in (*(f"worse: {change}" for change in worse), *(f"better: {change}" for change in better)):
        console.print(line, highlight=False)
    if write:
        replace_file(FILE, (json.dumps(found, indent=1) + "\n").encode())
        console.print(f"Kept in {FILE}.", highlight=False, soft_wrap=True)
    elif worse or better:
        console.print(ADVICE, highlight=False, soft_wrap=True)
