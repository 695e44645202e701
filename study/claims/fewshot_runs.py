"""Few-shot runs of a preset: trained to the end, then tested on 600 episodes, the same ones for all of one setting."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from metastep.core.windows import window_lengths
from metastep.data.episodes import Rotations
from metastep.data.errors import Progress
from metastep.data.registry import data_set
from metastep.train.config import FewShot
from metastep.train.device import device_for, set_products
from metastep.train.evaluate import OnEpisodes, digest, read_evaluations, save
from metastep.train.fewshot import evaluate as evaluating
from metastep.train.fewshot.evaluate import Request
from metastep.train.fewshot.learner import Learner
from metastep.train.io import RunError
from metastep.train.presets import few_shot
from metastep.train.run import Run, how_far
from metastep.train.schema import EVALUATION_SEED, Device
from study.claims.data_notes import data_root, files_note
from study.claims.outcomes import Outcome, read_beside, read_made

EPISODES = 600
CHECKPOINT: Literal["best"] = "best"  # in validation; the last, where a preset has none


def presets() -> dict[str, FewShot]:
    return few_shot()


def configured(preset: str, seed: int, iterations: int | None, changes: dict[str, Any]) -> FewShot:
    config = replace(few_shot()[preset], seed=seed, **changes)
    return replace(config, iterations=iterations) if iterations else config


def is_of(config: Any, preset: str) -> bool:
    """Whether a run with this configuration, which says how it was tested too, is one of the preset as it is now"""
    if not isinstance(config, FewShot):
        return False
    wanted = configured(preset, config.seed, config.iterations, {})
    return config.essential == wanted.essential and config.test == wanted.test


def trained_as(preset: str) -> str:
    return next(name for name, config in few_shot().items() if config.essential == few_shot()[preset].essential)


def read(folder: Path) -> FewShot:
    return Run.open(folder).config(FewShot)


def lacking(config: FewShot, data: Path | None) -> str | None:
    kind, root = data_set(config.data.name), data_root(data)
    return None if kind.embedded or (root and kind.find(root)) else config.data.name


def described(config: FewShot, data: Path | None) -> str:
    kind, root = data_set(config.data.name), data_root(data)
    classes = (
        "training and validation classes, none held out" if config.data.split == "trainval" else "training classes"
    )
    turns = {"none": "", "per_episode": ", quarter turns by episode", "as_classes": ", quarter turns as classes"}
    files = files_note(kind.find(root)) if root else ""
    return f"{config.data.name}, {classes}{turns[config.data.rotations]}{files}"


def judged(folder: Path) -> bool:
    learner = Learner.load(folder, CHECKPOINT)
    return all(_found(folder, *way) for way in _ways_to_test(learner))


def _ways_to_test(learner: Learner) -> Iterator[tuple[Learner, Rotations]]:
    """As every preset that is trained like it asks for"""
    made = learner.config
    for name, preset in few_shot().items():
        if configured(name, made.seed, made.iterations, {}).essential == made.essential:
            yield from ((tested_as(preset, learner), rotations) for rotations in _ways_to_turn(preset))


def tested_as(preset: FewShot, learner: Learner) -> Learner:
    return replace(learner, config=replace(learner.config, test=preset.test))


def _ways_to_turn(config: FewShot) -> tuple[Rotations, ...]:
    """What it is judged by comes first, then classes as they are, since papers differ in this"""
    return tuple(dict.fromkeys((config.test.rotations, "none")))


def _found(folder: Path, learner: Learner, rotations: Rotations) -> OnEpisodes | None:
    """The evaluation of what the run has become, by the episodes that all are judged by"""
    config, weights = learner.config, digest(learner.meta)
    episodes, windows = config.test_episodes, window_lengths(config.test_steps, config.window)
    asked = (episodes.ways, episodes.shots, episodes.queries, rotations, EPISODES, EVALUATION_SEED)
    for each in read_evaluations(folder):
        if not isinstance(each, OnEpisodes) or each.one_by_one:
            continue
        made = (each.ways, each.shots, each.queries, each.rotations, each.episodes, each.seed)
        pictures = each.dataset, each.split
        if (made, each.weights, pictures, each.windows) == (asked, weights, (config.data.name, "test"), windows):
            return each
    return None


def test(folder: Path, data: Path | None, device: Device, progress: Progress) -> None:
    """Test a run in full precision, whatever it was trained in."""
    set_products("float32")
    learner = Learner.load(folder, CHECKPOINT).to(device_for(device))
    for tested, rotations in _ways_to_test(learner):
        request = Request(rotations=rotations, episodes=EPISODES)
        save(folder, evaluating.evaluate(tested, request, data, progress))


def outcome(folder: Path, preset: str) -> Outcome:
    config, learner = read(folder), tested_as(few_shot()[preset], Learner.load(folder, CHECKPOINT))
    evaluation, *others = (_found(folder, learner, rotations) for rotations in _ways_to_turn(few_shot()[preset]))
    if evaluation is None:
        raise RunError(f"{str(folder)!r}: was not tested on {EPISODES} episodes. Call `python -m study claims` again.")
    return Outcome(
        preset,
        config.seed,
        evaluation.accuracy,
        config.iterations,
        few_shot()[preset].iterations,
        how_far(Run.open(folder)).seconds,
        config.precision,
        read_made(folder),
        learner.config.shared,
        {"best": "the best in validation", "last": "the last"}[learner.checkpoint],
        evaluation,
        read_beside(folder),
        others[0] if others else None,
    )
