"""From a configuration to a net, a problem, an estimator, and the meta-parameters to begin with."""

from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from metastep.core import methods
from metastep.core.carrying import with_memory
from metastep.core.curvature import exact, exact_forward
from metastep.core.dynamics import SGD, Adam, AdamW, RMSprop
from metastep.core.estimators import Estimator
from metastep.core.modules import parameters_of, use_batch_statistics
from metastep.core.problems import accuracy, few_shot, in_batches, with_rates
from metastep.core.solvers import conjugate_gradient
from metastep.core.trees import Tree, map_tree
from metastep.core.windows import Problem, window_lengths
from metastep.errors import MetastepError
from metastep.nets.making import made, require_answers
from metastep.nets.registry import load_net
from metastep.step.paths import Asked
from metastep.train.fewshot.config import METHOD_OPTIONS, InnerConfig, MethodConfig, NetConfig, TrainConfig


class Built(NamedTuple):
    net: nn.Module
    problem: Problem
    estimator: Estimator


def build(config: TrainConfig, net: nn.Module | None = None) -> Built:
    """With a net that was built before, or a new one: then a user's own module is imported, see `trusted`."""
    net = build_net(config) if net is None else net
    problem = few_shot(net, cross_entropy, {"accuracy": accuracy})
    if config.inner.batch:
        problem = in_batches(problem, config.inner.batch, shuffled=config.shuffles_batches)
    return Built(net, problem, build_estimator(config, problem))


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
        if config.net.is_users:
            shape = config.net.channels, config.net.size, config.net.size
            require_answers(net, config.net.name, shape, config.data.ways)
    return net.double() if config.precision == "float64" else net


def net_options(net: NetConfig) -> dict[str, Any]:
    return {name: value for name in ("filters", "head_init") if (value := getattr(net, name)) is not None}


def build_dynamics(inner: InnerConfig) -> SGD | Adam | RMSprop:
    momentum, betas = inner.momentum or 0.0, inner.betas or (0.9, 0.999)
    if inner.optimizer == "sgd":
        return SGD(inner.lr, momentum, nesterov=bool(inner.nesterov), weight_decay=inner.weight_decay)
    if inner.optimizer == "rmsprop":
        return RMSprop(inner.lr, weight_decay=inner.weight_decay, momentum=momentum)
    return (Adam if inner.optimizer == "adam" else AdamW)(inner.lr, betas, weight_decay=inner.weight_decay)


def build_estimator(config: TrainConfig, problem: Problem) -> Estimator:
    method, options = getattr(methods, config.method.name), method_options(config.method)
    estimator: Estimator = method(problem, build_dynamics(config.inner), config.inner.steps, **options)
    return estimator


def asked_of(config: TrainConfig, net: nn.Module) -> Asked:
    """The same, for whoever looks for the fastest way"""
    method, options = getattr(methods, config.method.name), method_options(config.method)
    dynamics = build_dynamics(config.inner)
    batch, shuffled = config.inner.batch, config.shuffles_batches
    return Asked(net, method, dynamics, config.inner.steps, config.net.size, options, batch, shuffled)


def method_options(method: MethodConfig) -> dict[str, Any]:
    """What `metastep.core.methods` is called with: the options that are set, said in its own words"""
    options = {name: value for name, value in asdict(method).items() if name != "name" and value is not None}
    if "cg_steps" in options:
        options["solver"] = conjugate_gradient(options.pop("cg_steps"))
    if "curvature" in options:
        options["curvature"] = {"exact": exact, "exact_forward": exact_forward}[options["curvature"]]
    if "head" in METHOD_OPTIONS[method.name]:
        beginning = options.get("head", "head")
        options["head"] = lambda name: name.startswith(beginning)
    return options


def initial_meta(config: TrainConfig, net: nn.Module) -> Tree:
    """θ, the net's own parameters; beside them what else training moves: inner rates, an optimizer's memory"""
    params = parameters_of(net)
    if config.method.carried:
        meta = with_memory(params, build_dynamics(config.inner))
    elif config.method.name in ("meta_sgd", "maml_pp"):
        steps = sum(window_lengths(config.inner.steps, config.window)) if config.method.name == "maml_pp" else None
        meta = with_rates(params, config.inner.lr, steps)
    else:
        return params
    return map_tree(lambda leaf: leaf.requires_grad_(), meta)
