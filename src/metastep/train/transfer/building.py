"""What a transfer run works with, built of its configuration."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metastep.core.modules import draws_noise, evaluation_mode
from metastep.data.batches import Batches
from metastep.data.pictures import Labelled, Pictures
from metastep.errors import MetastepError, first_line
from metastep.nets.making import made, require_answers
from metastep.nets.registry import comes_with_metastep, load_net
from metastep.step.capture import Unit, unit
from metastep.step.compiler.program_cache import Kin
from metastep.train.config import WORTH_COMPILING, WORTH_TRACING, FineTuning, Transfer, WhatAndWhere
from metastep.train.device import prepare_device
from metastep.train.transfer.features import Tapped, buffers_of, feature_shapes, tap_and_update
from metastep.train.transfer.iteration import iteration
from metastep.train.transfer.method import Method, TransferState, initial_state
from metastep.train.transfer.networks import Guidance, Pair, guidance
from metastep.train.transfer.packing import LARGE
from metastep.train.transfer.source import classes_of, head_of, load_source
from metastep.train.validated import to_plain

JUDGED = 256  # pictures at a time


class Parts(NamedTuple):
    net: nn.Module  # the target
    initial: TransferState
    step: Unit
    looking: Unit | None  # the same, which also measures how the transfer gradient changes
    pairs: tuple[Pair, ...]
    layers: dict[str, str]  # source_0, …, target_0, …: what each is called, and the size of its feature
    train: Batches
    val: Batches
    test: Batches
    dtype: torch.dtype
    layout: torch.memory_format  # of pictures; all that is made of them follows


def prepare(config: Transfer, splits: Labelled, weights: Path | None) -> Parts:
    """`weights`: where the source's are, None where there is no source, or none that is trained yet"""
    device, dtype = choose_device(config)
    train = Batches(splits.train.to(device), config.batch, config.data.augment, config.seed)
    val, test = (
        Batches(part.to(device), JUDGED, config.data.augment, training=False) for part in (splits.val, splits.test)
    )
    target = Tapped(laid_out(target_net(config, splits.train, weights).to(device, dtype), layout_on(device)), ())
    require_last_batch(target.module, train, dtype)
    guide, layers = None, {}
    if isinstance(config.method, WhatAndWhere):
        target = target._replace(layers=layers_of(target.module, config.net.name, config.net.layers, "target"))
        source = source_net(config, splits.train, weights).to(device, dtype)
        source.to(memory_format=layout_on(device))  # type: ignore[call-overload] # PyTorch documents it
        tapped = Tapped(source, layers_of(source, config.source.net, config.source.layers, "source"))
        x = val.batch(0, 0)[0][:2].to(dtype)  # they tell the sizes
        layers = described("source", tapped, x) | described("target", target, x)
        with seeded(config.seed):
            guide = guidance(tapped, target, config.method.pairs, x, uniform=not config.method.learned)
    return _assembled(config, target, guide, layers, train, val, test, dtype)


def require_last_batch(net: nn.Module, train: Batches, dtype: torch.dtype) -> None:
    """A single picture has nothing to be normalised by where a map is one pixel: told now, and not an epoch later"""
    pictures = len(train.data.labels)
    if pictures % train.size != 1:
        return
    x, _ = train.batch(0, len(train) - 1)
    try:
        tap_and_update(net.train(), dict(net.named_parameters()), buffers_of(net), x.to(dtype), ())
    except ValueError as error:
        raise MetastepError(
            f"batch = {train.size}: the last batch of {pictures:,} pictures has a single one, and this net "
            f"normalises maps that are a single pixel by then. Choose another one. ({first_line(error)})"
        ) from error


def described(part: str, tapped: Tapped, x: Tensor) -> dict[str, str]:
    sizes = zip(tapped.layers, feature_shapes(tapped, x), strict=True)
    return {f"{part}_{i}": f"{layer} {c}×{h}×{w}" for i, (layer, (c, h, w)) in enumerate(sizes)}


def _assembled(
    config: Transfer, target: Tapped, guide: Guidance | None, layers: dict[str, str], train: Batches,
    val: Batches, test: Batches, dtype: torch.dtype,
) -> Parts:  # fmt: skip
    method, device, noisy = method_of(config), train.data.images.device, draws_noise(target.module)
    compile = is_compiled(config, device, config.epochs * len(train))
    looking = None
    if config.gradient_difference:
        looking = unit(iteration(method, target, guide, measure_difference=True), device, noisy)  # a few times only
    return Parts(
        target.module,
        initial_state(method, target, guide),
        unit(iteration(method, target, guide), device, noisy, compile, kin_of(config, guide)),
        looking,
        guide.networks.pairs if guide else (),
        layers,
        train,
        val,
        test,
        dtype,
        layout_on(device),
    )


def is_compiled(config: Transfer, device: torch.device, iterations: int) -> bool:
    if config.compile is not None:
        return config.compile
    return config.learns_weights and iterations >= (WORTH_COMPILING if device.type == "cuda" else WORTH_TRACING)


def kin_of(config: Transfer, guide: Guidance | None) -> Kin | None:
    """Of its iteration: those of other seeds, which may have sources of their own

    A net of the user's own has none: its code may change while a program goes on, and its name stays.
    """
    if not all(map(comes_with_metastep, (config.source.net, config.net.name))):
        return None
    holds = guide.source.module.state_dict() if guide else {}
    name = json.dumps(to_plain(replace(config.essential, seed=0))), config.precision
    return Kin(name, tuple(holds.values()))


def layout_on(device: torch.device) -> torch.memory_format:
    """Of pictures and of weights: cuDNN would bring them to this one in every convolution"""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def laid_out(net: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Its large weights, and with them all that an optimizer makes of them; small ones go through a vector"""
    for weight in net.parameters():
        if weight.dim() == 4 and weight.numel() >= LARGE:
            weight.data = weight.data.contiguous(memory_format=layout)
    return net


def method_of(config: Transfer) -> Method:
    outer = {"optimizer": config.inner, "meta_lr": config.outer.lr, "meta_weight_decay": config.outer.weight_decay}
    chosen = config.method
    if not isinstance(chosen, WhatAndWhere):
        return Method(kind="scratch", **outer)
    return Method(
        kind="transfer",
        steps=config.steps,
        window=chosen.window,
        beta=chosen.beta,
        learned=chosen.learned,
        outer=chosen.outer,
        transfer_lr=chosen.transfer_rate,
        **outer,
    )


NETS = {"source": ("source", "net", "source.net"), "target": ("net", "name", "net")}  # table, field, as it is typed


def trusted(config: Transfer, **typed: str | None) -> Transfer:
    """A configuration that was read from a file, with the nets (source=, target=) that the user names now.

    A file must not decide what is imported: the path of a user's own module counts only when it is typed again.
    """
    for part, name in typed.items():
        table, field, key = NETS[part]
        known = getattr(getattr(config, table), field)
        if name is not None:
            config = replace(config, **{table: replace(getattr(config, table), **{field: name})})
        elif ":" in known:
            raise MetastepError(
                f"this was trained with a net of its author's own, {known!r}, which would have to be imported "
                f"and run. If you trust it, name it again: --{key}={known}"
            )
    return config


def target_net(config: Transfer, data: Pictures, weights: Path | None) -> nn.Module:
    net = network(config.net.name, data, len(data.names), config.seed)
    if isinstance(config.method, FineTuning) and weights:
        load_source(net, config, weights, leave_out=(head_of(net),))
    return net


def source_net(config: Transfer, data: Pictures, weights: Path | None) -> nn.Module:
    """With its weights, which stay as they are"""
    classes = config.source.classes or (classes_of(weights) if weights else len(data.names))
    net = network(config.source.net, data, classes, config.seed)
    return (load_source(net, config, weights) if weights else net).requires_grad_(False)


def network(name: str, data: Pictures, classes: int, seed: int) -> nn.Module:
    """Its first parameters depend on nothing but the seed"""
    channels, size = data.images.shape[1], data.images.shape[-1]
    with seeded(seed):
        net = made(name, load_net(name), ways=classes, channels=channels, size=size)
        if not comes_with_metastep(name):
            with evaluation_mode(net):  # running statistics stay as they are
                require_answers(net, name, (channels, size, size), classes)
    return net


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def layers_of(net: nn.Module, name: str, chosen: tuple[str, ...] | None, part: str) -> tuple[str, ...]:
    """Those that were named, or those that the net itself offers as `taps`"""
    offered: tuple[str, ...] | None = getattr(net, "taps", None)
    if layers := chosen or offered:
        return tuple(layers)
    children = ", ".join(child for child, _ in net.named_children())
    raise MetastepError(f"{part}.layers: {name!r} does not say which of its layers to use. Name some, of {children}.")


def choose_device(config: Transfer) -> tuple[torch.device, torch.dtype]:
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    return prepare_device(config.device, config.precision, config.threads), dtype
