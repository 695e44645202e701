"""The paper's few-shot settings for studies: on Omniglot or, without it, on glyphs; smaller on a CPU."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from metastep.train.config import FewShot
from metastep.train.device import uses_gpu
from metastep.train.presets import few_shot
from study.claims import fewshot_runs


class Size(NamedTuple):
    """What is not as in the paper; None is as there"""

    filters: int | None = None
    tasks: int | None = None
    queries: int | None = None
    rate: float | None = None
    chunk: int | None = None


PAPER = Size()
SMALL = Size(filters=16, tasks=8, queries=5, rate=0.1, chunk=8)


def size_here() -> Size:
    return PAPER if uses_gpu("auto") else SMALL


def data_set(data: Path | None) -> str:
    """Omniglot, where it is available"""
    return "glyphs" if fewshot_runs.lacking(few_shot()["omniglot-5w1s-maml"], data) else "omniglot"


def configured(dataset: str, setting: str, method: str, size: Size, iterations: int) -> FewShot:
    """`setting`: such as 5w1s; `method`: such as multistep4"""
    config = few_shot()[f"omniglot-{setting}-{method}"]
    rotations = config.data.rotations if dataset == "omniglot" else "none"
    return replace(
        config,
        data=replace(config.data, name=dataset, rotations=rotations, queries=size.queries or config.data.queries),
        net=config.net.changed(filters=size.filters),
        inner=replace(config.inner, lr=size.rate or config.inner.lr),
        tasks=size.tasks or config.tasks,
        iterations=iterations,
        chunk_size=size.chunk,
    )
