"""Flags of `metastep train`, made of the fields of its configuration."""

from collections.abc import Mapping
from typing import Any

from metastep.cli.flags import Flags
from metastep.train.fewshot.config import INNER_OPTIONS, METHOD_OPTIONS, TrainConfig

FLAGS = Flags(
    TrainConfig,
    short={
        "data.name": "dataset", "net.name": "net", "method.name": "method",
        "inner.steps": "steps", "outer.tasks": "tasks", "outer.iterations": "iterations",
    },
    unprefixed=("data", "net", "method"),
    hidden=("net.channels", "net.size", "data.fingerprint"),  # these come from the data
    choices={"method.name": METHOD_OPTIONS, "inner.optimizer": INNER_OPTIONS, "outer.optimizer": {"adam": {"eps"}}},
)  # fmt: skip


def with_flags(config: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    """`config` with the flags that were given, and what they imply"""
    implied: dict[str, Any] = {}
    if given.get("split") == "trainval":
        implied |= {"validation_every": 0}  # its classes are trained on
    if ":" in given.get("net", "") and given["net"] != config.net.name:
        implied |= {"filters": None, "head_init": None}  # of the preset's net: a user's own may not know them
    return FLAGS.applied(config, {**implied, **given})
