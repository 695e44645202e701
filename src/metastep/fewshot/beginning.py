"""Training that starts from a learner, in place of a new net: where a user's own classes are few, it knows more."""

from dataclasses import replace
from pathlib import Path

from metastep.fewshot.config import TrainConfig
from metastep.fewshot.learner import Learner
from metastep.fewshot.shipped import find_learner, shipped
from metastep.problems import params_of


def as_trained(start: str, net: str | None) -> TrainConfig:
    """The configuration that the learner was trained with, on whatever machine this is"""
    config, here = Learner.load(start, net=net).config, TrainConfig()
    return replace(
        config, start=None, precision=here.precision, device=here.device, threads=here.threads, chunk_size=None
    )


def remembered(config: TrainConfig) -> TrainConfig:
    """A learner that does not come with metastep is found from everywhere"""
    if config.start is None or config.start in shipped():
        return config
    return replace(config, start=str(find_learner(config.start).resolve()))


def begin(learner: Learner) -> None:
    """θ from the learner that its configuration names, if any; learned rates, and an optimizer's memory, begin anew"""
    config = learner.config
    if config.start is None:
        return
    net = config.net.name if config.net.is_users else None  # typed by whoever configured this run
    tree = Learner.load(config.start, net=net).changed(ways=config.data.ways).tree()
    theta = params_of(tree["meta"])
    tree["meta"] = theta if params_of(learner.meta) is learner.meta else learner.meta | {"params": theta}
    learner.restore(tree, Path(config.start))
