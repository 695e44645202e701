"""From a configuration to a net and the description of its meta-gradient."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from metastep.core.modules import use_batch_statistics
from metastep.core.problems import accuracy, few_shot
from metastep.errors import MetastepError
from metastep.nets.making import made, require_answers
from metastep.nets.registry import comes_with_metastep, load_net
from metastep.step.gradient import MetaGradient
from metastep.train.config import FewShot


def gradient_of(config: FewShot, net: nn.Module) -> MetaGradient:
    """Return the meta-gradient that a configuration describes, through a net that was built before."""
    return MetaGradient(
        few_shot(net, cross_entropy, {"accuracy": accuracy}),
        config.method,
        config.inner,
        steps=config.steps,
        batch=config.batch,
        shuffled=config.shuffles_batches,
        chunk_size=config.chunk_size,
    )


def trusted(config: FewShot, net: str | None) -> FewShot:
    """A configuration that was read from a file, with the net that the user names now.

    A file must not decide what is imported: the path of a user's own module counts only when it is typed again.
    """
    if net is not None:
        return replace(config, net=replace(config.net, name=net))
    if config.net.is_users:
        raise MetastepError(
            f"this was trained with a net of its author's own, {config.net.name!r}, which would have to be imported "
            f"and run. If you trust it, name it again: --net={config.net.name}"
        )
    return config


def build_net(config: FewShot) -> nn.Module:
    """The net with its first parameters, which depend on nothing but the configuration"""
    builder, options = load_net(config.net.name), config.net.options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        given = {"ways": config.data.ways, "channels": config.net.channels, "size": config.net.size}
        net = use_batch_statistics(made(config.net.name, builder, **given, **options))
        if not comes_with_metastep(config.net.name):
            shape = config.net.channels, config.net.size, config.net.size
            require_answers(net, config.net.name, shape, config.data.ways)
    return net.double() if config.precision == "float64" else net
