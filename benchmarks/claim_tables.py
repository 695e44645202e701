"""docs/results.md: the claims of the paper and what was found, and figures where there is something to draw."""

from collections.abc import Iterator

from benchmarks import results
from metastep.reproduce import page
from metastep.reproduce.costs import bench_files
from metastep.reproduce.figures import draw_costs

CLAIMS, BENCH = results.ROOT / "results" / "claims", results.FOLDER
FIGURE = "figures/omniglot-costs.svg"


def summary(name: str) -> Iterator[str]:
    del name
    yield from page.summary(CLAIMS)


def claims(name: str) -> Iterator[str]:
    """`name` is claims/TABLE"""
    yield from page.rows(name.partition("/")[2], CLAIMS)


def costs(name: str) -> Iterator[str]:
    """A link to the figure of X2 and X4, once something was measured on a GPU"""
    del name
    if measured := [path for path in bench_files(BENCH) if not path.name.startswith("cpu")]:
        yield f"![memory and time against inner steps]({FIGURE})\n\nFrom `results/bench/{measured[0].name}`."


def draw() -> None:
    for path in bench_files(BENCH):
        if not path.name.startswith("cpu"):
            draw_costs(path, results.ROOT / "docs" / FIGURE)
            return


if __name__ == "__main__":
    draw()
