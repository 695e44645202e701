"""Read what a page shows of a run: from its folder, and by asking its trained net."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from metastep.core.compare import gradient_difference
from metastep.core.counting import counting, peak_bytes
from metastep.core.problems import accuracy, params_of
from metastep.core.trees import map_tree, tree_leaves
from metastep.core.windows import window_lengths
from metastep.data.episodes import Episodes, without_place
from metastep.data.errors import printable
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError
from metastep.report.reported import COLOURS, Asked, Panel, Point, Prediction, Reported, ShownClass, again, number
from metastep.report.sheet import panels
from metastep.train.config import Config, Data, FewShot, Transfer
from metastep.train.evaluate import Evaluation, Mean, OnEpisodes, digest, read_evaluations
from metastep.train.fewshot.evaluate import Sampler
from metastep.train.fewshot.learner import Learner, gradient_of
from metastep.train.record import read_metrics
from metastep.train.remembered import data_of
from metastep.train.run import Run
from metastep.train.schema import EVALUATION_SEED
from metastep.train.transfer import evaluate as evaluating
from metastep.train.transfer.building import SOURCE

SPLIT: Literal["test"] = "test"
TASKS = 8  # whose inner gradients are followed
MOST = 6  # pictures of a class that are shown, to adapt to and to be named
CLASSES = 12  # of a transfer run that are shown

Opened = tuple[dict[str, str], Callable[[int], Asked]]
"""A digest of each checkpoint that there is, and what asks the best one and shows so many episodes"""


def learner_of(folder: Path, net: str | None, data: Path | None) -> Opened:
    """Open the learner of a few-shot run."""
    own = net if Run.open(folder).config(FewShot).net.is_users else None
    best = Learner.load(folder, "best", own)
    learners = [best] if best.checkpoint == "last" else [best, Learner.load(folder, "last", own)]
    return {each.checkpoint: digest(each.meta) for each in learners}, lambda number: ask_learner(best, number, data)


def ask_learner(learner: Learner, number: int, data: Path | None = None) -> Asked:
    """Ask for the costs of one task in training, how gradients change along its inner loop, and for episodes."""
    images = data_of(learner.config.data, data).classes(SPLIT)
    shown = _episodes(learner, images, number) if number else []
    estimator = gradient_of(learner.config, learner.net).estimator
    draw = _sampler(learner, images, learner.config.train_episodes)
    task = map_tree(lambda x: x[0], draw(0, 1))
    with counting() as counts:
        estimator(learner.meta, task)
    _, peak = peak_bytes(lambda: estimator(learner.meta, task), learner.device)  # without the first look at a module
    loop = estimator.loop
    along = gradient_difference(loop.problem, loop.inner, sum(loop.lengths))
    parts = [along(learner.meta, draw(0, 4, first)) for first in range(0, TASKS, 4)]
    parameters = sum(leaf.numel() for leaf in tree_leaves(params_of(learner.meta)))
    return Asked(parameters, counts.products, counts.gradients, peak, torch.cat(parts).double().cpu(), shown)


def _sampler(learner: Learner, images: Pictures, episodes: Episodes) -> Sampler:
    return Sampler.of(images, episodes, EVALUATION_SEED, learner.device, tree_leaves(learner.meta)[0].dtype)


@torch.no_grad()
def _episodes(learner: Learner, images: Pictures, number: int) -> list[Panel]:
    """The first ones that the learner is evaluated on"""
    episodes = learner.config.test_episodes
    draw, shown = _sampler(learner, images, episodes), []
    for first, panel in enumerate(panels(images, episodes, number, EVALUATION_SEED)):
        support, (x, y) = map_tree(lambda leaf: leaf[0], draw(0, 1, first))
        shares = learner.predict(learner.adapt(*support), x)
        rows = shares.view(episodes.ways, episodes.queries, episodes.ways)
        classes = [
            ShownClass(name, list(near[:MOST]), _predictions(far, row))
            for (name, _), near, far, row in zip(panel.labels, panel.support, panel.query, rows, strict=True)
        ]
        names = [each.name for each in classes]
        shown.append(Panel(f"Episode {first + 1}", 100 * float(accuracy(shares, y)), classes, names))
    return shown


def target_of(folder: Path, net: str | None, data: Path | None) -> Opened:
    """Open the target net of a transfer run."""
    taught = evaluating.load(folder, "best", data, net if ":" in Run.open(folder).config(Transfer).net.name else None)
    parameters = sum(value.numel() for value in taught.params.values())

    def ask(number: int) -> Asked:
        return Asked(parameters, taught.config.products, panels=[_pictures(taught)] if number else [])

    return {taught.checkpoint: digest(taught.params)}, ask


def _pictures(taught: evaluating.Taught) -> Panel:
    """The first test pictures of each class"""
    test = taught.splits.test
    rows = [(test.labels == label).nonzero().flatten()[:MOST].tolist() for label in range(len(test.names))]
    few = test.at([i for row in rows for i in row])
    shares = taught._replace(splits=taught.splits._replace(test=few)).logits(SPLIT).softmax(-1).cpu()
    right = 100 * float((shares.argmax(1) == few.labels).double().mean())
    lengths = list(map(len, rows))
    parts = zip(test.names, torch.split(few.images, lengths), torch.split(shares, lengths), strict=True)
    classes = [ShownClass(name, (), _predictions(pictures, part)) for name, pictures, part in parts]
    return Panel("Test pictures", right, classes[:CLASSES], test.names)


def _predictions(pictures: Tensor, shares: Tensor) -> list[Prediction]:
    """Return what is predicted for the first pictures of one class."""
    best = shares.max(1)
    return [Prediction(*each) for each in zip(pictures, best.indices.tolist(), best.values.tolist(), strict=True)][
        :MOST
    ]


# ---- what the folder says


def named(folders: Sequence[Path]) -> list[tuple[Path, str, str]]:
    """Return (folder, name, colour): the last part of the path where that tells all apart, else all of it."""
    short = [printable(folder.resolve().name) for folder in folders]
    names = short if len(set(short)) == len(short) else [printable(folder) for folder in folders]
    return list(zip(folders, names, cycle(COLOURS)))


def collect(folder: Path, name: str, colour: str, episodes: int, net: str | None, data: Path | None) -> list[Reported]:
    """Return a run; a transfer run with no epoch of its own is followed by the run that trains its source."""
    run = Run.open(folder)
    rows = read_metrics(run.metrics_path) if run.metrics_path.exists() else []
    found = [replace(each, dataset=without_place(each.dataset)) for each in read_evaluations(folder)]
    reported = _reported(run, name, colour, rows, found)
    config = reported.config
    if isinstance(config, Transfer) and config.trains_source and not reported.done:
        return _waiting(reported, folder / SOURCE, episodes, net, data)
    try:
        weights, asking = (learner_of if isinstance(config, FewShot) else target_of)(folder, net, data)
        reported = replace(reported, weights=weights)
        reported = replace(reported, asked=asking(episodes))
    except MetastepError as error:  # no checkpoint yet, a net that is not to be imported, data that is not here
        reported = replace(reported, note=printable(str(error)))
    return [_with_headline(reported)]


def _reported(run: Run, name: str, colour: str, rows: Sequence[dict[str, Any]], found: list[Any]) -> Reported:
    config = run.config(Config)
    assert isinstance(config, FewShot | Transfer)
    task, unit, data = printable(config.data.shared.name), config.unit, config.data
    if isinstance(data, Data):
        task, unit = f"{task}, {data.ways}-way {data.shots}-shot", "step"
    elif data.per_class:
        task = f"{task}, {data.per_class} of each class"
    best = _best(rows, unit)
    test = Mean(best[3], best[4]) if best and isinstance(config, Transfer) else None
    return Reported(
        name, colour, config.shared, rows, task, config.unit, _last(rows, unit), config.length,
        best and best[:3], found, None, test, again=again(config, name),
    )  # fmt: skip


def _last(rows: Sequence[dict[str, Any]], key: str) -> int:
    counted = (number(row.get(key)) for row in rows)
    return int(max((value for value in counted if value >= 0), default=0))  # no NaN is


def _best(rows: Sequence[dict[str, Any]], unit: str) -> Point | None:
    """When validation was best first: (when, accuracy, interval), and the test accuracy with its interval"""
    keys = "validation_accuracy", "validation_interval", "test_accuracy", "test_interval"
    judged = [
        (number(row.get(unit)), *(100 * number(row.get(key)) for key in keys))
        for row in rows
        if row.get("kind") == "validation"
    ]
    return max((point for point in judged if point[1] >= 0), key=lambda point: point[1], default=None)


def _with_headline(run: Reported) -> Reported:
    headline = min(run.evaluations, key=lambda e: _farness(run, e), default=None)
    return replace(run, headline=headline, test=Mean(headline.accuracy, headline.interval) if headline else run.test)


def _farness(run: Reported, e: Evaluation) -> tuple[object, ...]:
    """Return how far an evaluation is from a run's own: trained weights, test data, its own settings."""
    data = run.config.data.serving(e.split)
    far = e.checkpoint == "untrained", e.split != "test", e.pictures != (data.fingerprint or data.name)
    if not isinstance(e, OnEpisodes) or not isinstance(run.config, FewShot):
        return (*far, run.is_earlier(e), e.checkpoint != "best")
    ours, windows = run.config.test_episodes, window_lengths(run.config.test_steps, run.config.window)
    setting = (e.ways, e.shots) != (ours.ways, ours.shots)
    drawn = (e.queries, e.rotations, e.seed) != (ours.queries, ours.rotations, EVALUATION_SEED)
    return (*far[:2], setting, far[2], run.is_earlier(e), bool(e.one_by_one), e.windows != windows, drawn, -e.episodes)


def _waiting(run: Reported, folder: Path, *how: Any) -> list[Reported]:
    """A run whose source is trained first, and that run"""
    assert isinstance(run.config, Transfer)
    source = f"its source, {run.config.source.net} on {run.config.source.dataset}, is trained first"
    resume = "If it was stopped, `metastep resume RUN` continues it."
    if not Run.is_there(folder):
        return [replace(run, note=f"{source}, and has not begun. {resume}")]
    (first,) = collect(folder, f"{run.name}/{SOURCE}", run.colour, *how)
    return [replace(run, note=f"{source}: {first.done} of {first.total} epochs are done. {resume}"), first]
