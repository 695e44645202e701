"""What a transfer run works with, built of its configuration: pictures, nets, the source's weights, the iteration."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from metastep.core.modules import draws_noise, evaluation_mode, parameters
from metastep.core.optimizers import SGD
from metastep.data.draw import Batches
from metastep.data.episodes import PREFIX
from metastep.data.errors import Progress, printable, silent
from metastep.data.pictures import Labelled, Pictures
from metastep.data.registry import data_directory
from metastep.errors import MetastepError, first_line
from metastep.nets.registry import MisfitError, comes_with_metastep, load_net, load_weights, made, require_answers
from metastep.step.capture import Unit, unit
from metastep.step.compiler.program_cache import Kin
from metastep.train import remembered as data
from metastep.train.config import FineTuning, Scratch, Target, TargetData, Transfer, WhatAndWhere
from metastep.train.device import prepare_device
from metastep.train.io import replace_file
from metastep.train.run import Run
from metastep.train.transfer.features import Tapped, buffers_of, feature_shapes, tap_and_update
from metastep.train.transfer.iteration import LARGE, TransferState, initial_state, iteration
from metastep.train.transfer.losses import Guidance, Pair, guidance
from metastep.train.validated import to_plain

# ---- the net that teaches
# Its weights are from a file or an earlier run, or from a run of its own that comes first.


SOURCE = "source"  # in the folder of a run: the run that trains its source
EPOCHS, RATE, DECAY, BATCH = 30, 0.1, 1e-4, 64
OTHER_SOURCE = (
    "Name a source for such pictures: weights of a net, or an earlier run, in source.weights; or what to train one on "
    "in source.dataset."
)
EXPORT = "net.safetensors"  # in the folder of a run: what it has trained, as any PyTorch program can load it


def source_run(config: Transfer) -> Transfer:
    """Training the source is a run like any other, from scratch, with the source net in the target's place"""
    source = config.source
    assert source.dataset is not None
    return Transfer(
        data=TargetData(
            source.dataset, config.data.size, augment=source.augment or "none", fingerprint=source.fingerprint
        ),
        batch=BATCH,
        net=Target(source.net),
        method=Scratch(),
        inner=SGD(source.lr or RATE, 0.9, weight_decay=DECAY if source.weight_decay is None else source.weight_decay),
        epochs=source.epochs or EPOCHS,
        seed=config.seed,
        checkpoint_seconds=config.checkpoint_seconds,
        precision=config.precision,
        device=config.device,
        compile=config.compile,
        threads=config.threads,
    )


def export(folder: Path, tensors: dict[str, Tensor], classes: int) -> None:
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace_file(folder / EXPORT, save(content, {"classes": str(classes)}))


def is_exported(folder: Path) -> bool:
    """Whether the run there came to its end"""
    return (folder / EXPORT).is_file()


def find_weights(name: str, root: Path | None) -> Path:
    """Find weights where the path says, or else below the data directory; of a run's folder, what it has trained.

    What is not where it was found before may have come into the data directory since.
    """
    root, path = root or data_directory(), Path(name).expanduser()
    places = [path, *([root.expanduser() / (path.name if path.is_absolute() else path)] if root else [])]
    for place in places:
        if place.is_dir() and not is_exported(place):
            Run.open(place).config(Transfer)  # reports a file that is none, or of another kind
            raise MetastepError(f"source.weights = {name}: no net was trained there to its end. Resume that run first.")
        if place.exists():
            return place / EXPORT if place.is_dir() else place
    looked = " or ".join(repr(str(place)) for place in places)
    raise MetastepError(
        f"source.weights: there is no {looked}. Put it there, or give another .safetensors or .pth file, or the folder "
        "of a transfer run; or leave it out and name source.dataset, to have the source net trained first."
    )


def classes_of(path: Path) -> int:
    """Return the number of classes: our own files hold it, for others the user gives it."""
    try:
        with safe_open(path, "pt") as file:
            return int(file.metadata()["classes"])
    except (SafetensorError, TypeError, KeyError, ValueError):
        raise MetastepError(f"{str(path)!r}: how many classes does that net tell apart? Set source.classes.") from None


def load_source(net: nn.Module, config: Transfer, path: Path, leave_out: Sequence[str] = ()) -> nn.Module:
    """`net` with the source's weights; where they do not fit, it is said why"""
    try:
        return load_weights(net, path, leave_out)
    except MisfitError as misfit:
        raise MetastepError(f"source.weights = {path}: {_cause(net, config, misfit)}") from misfit


def _cause(net: nn.Module, config: Transfer, misfit: MisfitError) -> str:
    stored, own = misfit.stored, misfit.own
    if stored and own and misfit.name == next(iter(parameters(net))) and _differ_in(1, stored, own):
        seen = f"that net takes pictures that are {coloured(stored[1])}"
        return f"{seen}, and those of {config.data.name} are {coloured(own[1])}. {OTHER_SOURCE}"
    if stored and own and misfit.name.startswith(head_of(net)) and _differ_in(0, stored, own):
        return f"that net tells {stored[0]} classes apart, not {own[0]}. Set source.classes to {stored[0]}."
    return f"{misfit.reason}, so it is no {config.source.net}. Set source.net to the net that was saved there."


def _differ_in(dim: int, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and [i for i in range(len(a)) if a[i] != b[i]] == [dim]


def coloured(channels: int) -> str:
    return {1: "grey", 3: "in colour"}.get(channels, f"of {channels} channels")


def head_of(net: nn.Module) -> str:
    """Return how the names of its last layer begin, which fine-tuning starts anew."""
    return list(parameters(net))[-1].rpartition(".")[0] + "."


# ---- pictures, nets, the iteration


# Iterations: in fewer, what is done first takes as long as it saves.
WORTH_TRACING = 100  # on a CPU, of small nets
WORTH_COMPILING = 5_000  # on a GPU

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
    """Refuse a batch of one picture where a map is one pixel: nothing normalises it. Say so now, not an epoch later"""
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
    device, noisy = train.data.images.device, draws_noise(target.module)
    compile = is_compiled(config, device, config.epochs * len(train))
    looking = None
    if config.gradient_difference:
        looking = unit(iteration(config, target, guide, measure_difference=True), device, noisy)  # a few times only
    return Parts(
        target.module,
        initial_state(config, target, guide),
        unit(iteration(config, target, guide), device, noisy, compile, kin_of(config, guide)),
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

    A net of the user's own has none: its code may change while a program runs, and its name stays.
    """
    if not all(map(comes_with_metastep, (config.source.net, config.net.name))):
        return None
    holds = guide.source.module.state_dict() if guide else {}
    name = json.dumps(to_plain(replace(config.essential, seed=0))), config.precision
    return Kin(name, tuple(holds.values()))


def layout_on(device: torch.device) -> torch.memory_format:
    """Return the memory format of pictures and weights. cuDNN would convert to it in every convolution."""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def laid_out(net: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Its large weights, and with them all that an optimizer makes of them; small ones go through a vector"""
    for weight in net.parameters():
        if weight.dim() == 4 and weight.numel() >= LARGE:
            weight.data = weight.data.contiguous(memory_format=layout)
    return net


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
    """Return the layers that were named, or those that the net offers as `taps`."""
    offered: tuple[str, ...] | None = getattr(net, "taps", None)
    if layers := chosen or offered:
        return tuple(layers)
    children = ", ".join(child for child, _ in net.named_children())
    raise MetastepError(f"{part}.layers: {name!r} does not say which of its layers to use. Name some, of {children}.")


def choose_device(config: Transfer) -> tuple[torch.device, torch.dtype]:
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    return prepare_device(config.device, config.precision, config.threads), dtype


def read_data(config: Transfer, root: Path | None, progress: Progress = silent, field: str = "data.name") -> Labelled:
    """field: what chose its name, for messages"""
    return data.data_of(config.data, root, progress, field).labelled(per_class=config.data.per_class)


def require_alike(config: Transfer, source: Labelled, target: Labelled) -> None:
    """Before the source is trained, and not after it: it has to see the target's pictures"""
    theirs, ours = (splits.train.images.shape[1] for splits in (source, target))
    if theirs != ours:
        known, name = config.source.dataset or "", config.data.name
        reason = f"its pictures are {_seen(known, theirs)}, and those of {printable(name)} are {_seen(name, ours)}"
        raise MetastepError(f"source.dataset = {printable(known)}: {reason}. {OTHER_SOURCE}")


def _seen(name: str, channels: int) -> str:
    """Say how pictures are seen: those of a folder are always read in colour."""
    return f"{'read ' if name.startswith(PREFIX) else ''}{coloured(channels)}"


def remembered(config: Transfer, root: Path | None) -> Transfer:
    """`config` with the places of the user's own folders and files, and what the folders hold now.

    Weights that are named below the data directory keep that name: for others, the directory may be elsewhere.
    """
    source = config.source
    if config.trains_source:
        source = data.remembered(source, root, "source.dataset")
    if source.weights is not None and (file := Path(source.weights).expanduser()).exists():
        source = replace(source, weights=str(file.resolve()))
    return replace(config, data=data.remembered(config.data, root), source=source)
