"""The table of learners on other data sets, with published figures of MAML with a net of four convolutions."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from study import results


class Published(NamedTuple):
    """What a paper reports of MAML."""

    trained_on: str
    dataset: str
    what: str
    one_shot: str
    five_shot: str


PUBLISHED = (
    Published("mini_imagenet", "cub", "MAML, Conv4 with 64 filters and augmentation (Patacchiola et al. 2020)",
              "34.01 ± 1.25", "48.83 ± 0.62"),
    Published("cifar_fs", "cifar_fs", "MAML, Conv4 with 32 filters (Bertinetto et al. 2019)",
              "58.9 ± 1.9", "71.5 ± 1.0"),
)  # fmt: skip
NAMES = {"mini_imagenet": "miniImageNet", "cub": "CUB", "cifar_fs": "CIFAR-FS"}


def other_data(name: str) -> Iterator[str]:
    """Rows: what was trained on what, ours first; columns: shots"""
    content = results.read(name)
    yield results.caption(content)
    yield "| trained on | tested on | what | 5-way 1-shot, % | 5-way 5-shot, % |"
    yield "|---|---|---|---:|---:|"
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in content["rows"]:
        key = row["trained_on"], row["dataset"], _described(row)
        found.setdefault(key, {})[row["shots"]] = f"{row['accuracy']:.2f} ± {row['interval']:.2f}"
    for trained, dataset in dict.fromkeys(key[:2] for key in found):
        for key, cells in found.items():
            if key[:2] == (trained, dataset):
                yield _line(trained, dataset, key[2], cells.get(1, ""), cells.get(5, ""))
        for each in PUBLISHED:
            if each[:2] == (trained, dataset):
                yield _line(*each)


def _described(row: dict[str, Any]) -> str:
    how = f"Conv4 with {row['filters']} filters, pictures of {row['side']}x{row['side']}"
    method = "shipped learner" if row["learner"].startswith("mini") else "Multi-step(4)"
    return f"{method}, {how}, {row['iterations']:,} iterations"


def _line(trained: str, dataset: str, what: str, *cells: str) -> str:
    return f"| {NAMES[trained]} | {NAMES[dataset]} | {what} | {' | '.join(cells)} |"
