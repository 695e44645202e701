"""From a configuration to a net and the description of its meta-gradient."""

from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from metastep.core.method import Method
from metastep.core.modules import use_batch_statistics
from metastep.core.optimizers import SGD, Adam, AdamW, InnerOptimizer, RMSprop
from metastep.core.problems import accuracy, few_shot
from metastep.core.registry import named
from metastep.core.solvers import ConjugateGradient
from metastep.errors import MetastepError
from metastep.nets.making import made, require_answers
from metastep.nets.registry import comes_with_metastep, load_net
from metastep.step.gradient import MetaGradient
from metastep.train.fewshot.config import METHOD_OPTIONS, InnerConfig, MethodConfig, NetConfig, TrainConfig


def gradient_of(config: TrainConfig, net: nn.Module) -> MetaGradient:
    """Return the meta-gradient that a configuration describes, through a net that was built before."""
    return MetaGradient(
        few_shot(net, cross_entropy, {"accuracy": accuracy}),
        method_of(config.method),
        inner_of(config.inner),
        steps=config.inner.steps,
        batch=config.inner.batch,
        shuffled=config.shuffles_batches,
        chunk_size=config.chunk_size,
    )


def trusted(config: TrainConfig, net: str | None) -> TrainConfig:
    """A configuration that was read from a file, with the net that the user names now.

    A file must not decide what is imported: the path of a user's own module counts only when it is typed again.
    """
    if net is not None:
        return replace(config, net=replace(config.net, name=net))
    if config.net.is_users:
        raise MetastepError(
            f"this was trained with a net of its author's own, {config.net.name!r}, which would have to be imported "
            f"and run. If you trust it, name it again: --net {config.net.name}"
        )
    return config


def build_net(config: TrainConfig) -> nn.Module:
    """The net with its first parameters, which depend on nothing but the configuration"""
    builder, options = load_net(config.net.name), net_options(config.net)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        given = {"ways": config.data.ways, "channels": config.net.channels, "size": config.net.size}
        net = use_batch_statistics(made(config.net.name, builder, **given, **options))
        if not comes_with_metastep(config.net.name):
            shape = config.net.channels, config.net.size, config.net.size
            require_answers(net, config.net.name, shape, config.data.ways)
    return net.double() if config.precision == "float64" else net


def net_options(net: NetConfig) -> dict[str, Any]:
    return {name: value for name in ("filters", "head_init") if (value := getattr(net, name)) is not None}


def inner_of(inner: InnerConfig) -> InnerOptimizer:
    momentum, betas = inner.momentum or 0.0, inner.betas or (0.9, 0.999)
    if inner.optimizer == "sgd":
        return SGD(inner.lr, momentum, nesterov=bool(inner.nesterov), weight_decay=inner.weight_decay)
    if inner.optimizer == "rmsprop":
        return RMSprop(inner.lr, weight_decay=inner.weight_decay, momentum=momentum)
    return (Adam if inner.optimizer == "adam" else AdamW)(inner.lr, betas, weight_decay=inner.weight_decay)


def method_of(method: MethodConfig) -> Method:
    """Return the method with the options that are set. The others keep its own defaults."""
    options = {name: value for name, value in asdict(method).items() if name != "name" and value is not None}
    if "window" in METHOD_OPTIONS[method.name]:
        options.setdefault("window", 1)
    if "cg_steps" in options:
        options["solver"] = ConjugateGradient(options.pop("cg_steps"))
    if "carried" in options:
        options["keep_memory"] = options.pop("carried")
    if "curvature" in options:
        options["curvature"] = named("curvature", options["curvature"])
    found: Method = named("method", method.name)(**options)
    return found
