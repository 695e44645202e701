"""Run tutorials, and write each as a page with what it prints and draws.

A tutorial is a Python file in jupytext's percent format: `# %% [markdown]` begins text, `# %%` begins code. A line like

    iterations = 300  # short: 20

has the first value for readers and the second one in tests.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer

from metastep.errors import MetastepError
from study import results

FOLDER = results.ROOT / "docs" / "tutorials"


class Cell(NamedTuple):
    is_text: bool
    body: str


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def cells(text: str) -> list[Cell]:
    """The cells of a file in the percent format"""
    parts = re.split(r"^# %%(.*)\n", text, flags=re.M)[1:]
    return [
        Cell(True, re.sub(r"^# ?", "", body, flags=re.M).strip()) if "[markdown]" in kind else Cell(False, body.strip())
        for kind, body in zip(parts[::2], parts[1::2], strict=True)
    ]


def shortened(text: str) -> str:
    """The tutorial with the values that tests take"""
    return re.sub(r"= .*?  # short: (.*)$", r"= \1", text, flags=re.M)


def without_outputs(page: str) -> str:
    """The page as its file alone would make it"""
    return re.sub(r"\n\n```text\n.*?\n```|\n\n!\[\]\(figures/\S+\)", "", page, flags=re.S)


def source_page(name: str) -> str:
    """The page of a tutorial before it is run"""
    return _joined(_shown(cell) for cell in cells((FOLDER / f"{name}.py").read_text()))


def run(name: str, short: bool = False, figures: Path = FOLDER / "figures") -> str:
    """Run a tutorial and return its page. Figures are written into a folder."""
    text = (FOLDER / f"{name}.py").read_text()
    return _joined(_executed(name, cells(shortened(text) if short else text), figures))


def _executed(name: str, found: list[Cell], figures: Path) -> Iterator[str]:
    import matplotlib

    matplotlib.use("agg")
    namespace: dict[str, Any] = {"__name__": name}
    for number, cell in enumerate(found):
        yield _shown(cell)
        if cell.is_text:
            continue
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(cell.body, f"{name}, cell {number}", "exec"), namespace)
        if printed.getvalue().strip():
            yield f"```text\n{printed.getvalue().rstrip()}\n```"
        yield from _drawn(f"{name}-{number}", figures)


def _drawn(name: str, figures: Path) -> Iterator[str]:
    """Save and close the figures that a cell has drawn"""
    import matplotlib.pyplot as plt

    for k in plt.get_fignums():
        figures.mkdir(exist_ok=True)
        file = figures / f"{name}-{k}.png"
        plt.figure(k).savefig(file, dpi=120, bbox_inches="tight")
        yield f"![](figures/{file.name})"
    plt.close("all")


def _shown(cell: Cell) -> str:
    return cell.body if cell.is_text else f"```python\n{cell.body}\n```"


def _joined(parts: Iterator[str]) -> str:
    return "\n\n".join(parts) + "\n"


def processor_seconds() -> float:
    """Return the time of the processor that this process and its children have taken."""
    return sum(used.ru_utime + used.ru_stime for used in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


def timed(name: str, short: bool, figures: Path) -> tuple[str, float]:
    """Return the page of a tutorial, run in a folder of its own, and the seconds of the processor that it took."""
    start = processor_seconds()
    with TemporaryDirectory() as folder, chdir(folder):
        page = run(name, short, figures)
    return page, round(processor_seconds() - start, 1)


def tutorials(name: Annotated[str | None, typer.Argument(help="A tutorial. Without it, all of them.")] = None) -> None:
    """Run tutorials with their long settings and write their pages; all of them: their times, too."""
    if name is not None and name not in names():
        raise MetastepError(f"there is no tutorial {name!r}. Choose one of {', '.join(names())}.")
    rows = []
    for each in [name] if name else names():
        page, seconds = timed(each, False, FOLDER / "figures")
        (FOLDER / f"{each}.md").write_text(page)
        with TemporaryDirectory() as folder:
            rows.append({"tutorial": each, "seconds": seconds, "in tests": timed(each, True, Path(folder))[1]})
        print(rows[-1], file=sys.stderr)
    if name is None:
        print(results.write("tutorials", "python -m study tutorials", rows))
