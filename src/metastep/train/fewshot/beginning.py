"""Training that starts from a learner, in place of a new net: where a user's own classes are few, it knows more."""

from dataclasses import replace
from pathlib import Path

from metastep.core.problems import params_of
from metastep.errors import MetastepError
from metastep.train.config import FewShot, Net
from metastep.train.fewshot.learner import Learner
from metastep.train.fewshot.shipped import find_learner, shipped

ITERATIONS = 1_000  # unless somebody says otherwise: what knows such pictures already needs few
KEPT = "start.safetensors"  # in the folder of a run: θ before its first iteration, where that came from a learner
LOOKS = 10  # validations on the way


def as_trained(start: str, net: str | None) -> FewShot:
    """The configuration that the learner was trained with, for other pictures, on whatever machine this is"""
    config, here = Learner.load(start, net=net).config, FewShot()
    every = ITERATIONS // LOOKS
    return replace(
        config,
        data=replace(config.data, fingerprint=None),
        iterations=ITERATIONS,
        validation=replace(config.validation, every=min(config.validation.every, every)),
        checkpoint_seconds=here.checkpoint_seconds,
        start=None,
        precision=here.precision,
        device=here.device,
        threads=here.threads,
        chunk_size=None,
    )


def remembered(config: FewShot) -> FewShot:
    """A learner that does not come with metastep is found from everywhere"""
    if config.start is None or config.start in shipped():
        return config
    return replace(config, start=str(find_learner(config.start).resolve()))


def begin(learner: Learner) -> None:
    """θ from the learner that its configuration names, if any; learned rates, and an optimizer's memory, begin anew"""
    config = learner.config
    if config.start is None:
        return
    start = Learner.load(config.start, net=_typed(config))
    require_fitting(config.start, start.config.net, config.net, config.data.name)
    tree = start.changed(ways=config.data.ways).tree()
    theta = params_of(tree["meta"])
    tree["meta"] = theta if params_of(learner.meta) is learner.meta else learner.meta | {"params": theta}
    learner.restore(tree, Path(config.start))


def keep(learner: Learner, folder: Path) -> None:
    """In the folder of its run: what it started from may be trained on later, or moved"""
    learner.save(folder / KEPT)


def begin_again(learner: Learner, folder: Path) -> None:
    """As the run in `folder` began"""
    if not (folder / KEPT).is_file():
        begin(learner)
        return
    learner.restore(Learner.load(folder / KEPT, net=_typed(learner.config)).tree(), folder / KEPT)


def _typed(config: FewShot) -> str | None:
    """A net of the user's own, which was typed for this run"""
    return config.net.name if config.net.is_users else None


def require_fitting(start: str, theirs: Net, ours: Net, data: str) -> None:
    if (theirs.channels, theirs.size) != (ours.channels, ours.size):
        raise MetastepError(
            f"start = {start}: takes pictures of {theirs.shape}, and those of {data!r} are {ours.shape}. Start from a "
            "learner of such pictures, or leave start out."
        )
    if (theirs.name, theirs.options.get("filters")) != (ours.name, ours.options.get("filters")):
        raise MetastepError(
            f"start = {start}: is a {theirs.described}, and this run is to train a {ours.described}. Leave net "
            "out, and begin with the learner instead of a preset: it brings its own."
        )
