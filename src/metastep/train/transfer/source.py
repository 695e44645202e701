"""The net that teaches: its weights from a file or an earlier run, or from a run of its own that comes first."""

from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from metastep.core.modules import parameters
from metastep.core.optimizers import SGD
from metastep.data.registry import data_directory
from metastep.errors import MetastepError
from metastep.nets.weights import MisfitError, load_weights
from metastep.train.config import Scratch, Target, TargetData, Transfer
from metastep.train.io import replace_file
from metastep.train.run import Run

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
        inner=SGD(source.lr or RATE, 0.9, weight_decay=_first(source.weight_decay, DECAY)),
        epochs=source.epochs or EPOCHS,
        seed=config.seed,
        checkpoint_seconds=config.checkpoint_seconds,
        precision=config.precision,
        device=config.device,
        compile=config.compile,
        threads=config.threads,
    )


def _first(value: float | None, default: float) -> float:
    return default if value is None else value


def export(folder: Path, tensors: dict[str, Tensor], classes: int) -> None:
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace_file(folder / EXPORT, save(content, {"classes": str(classes)}))


def is_exported(folder: Path) -> bool:
    """Whether the run there came to its end"""
    return (folder / EXPORT).is_file()


def find_weights(name: str, root: Path | None) -> Path:
    """Where the path says, or else below the data directory; of a run's folder, what it has trained

    What is not where it was found before may have come into the data directory since.
    """
    root, path = root or data_directory(), Path(name).expanduser()
    places = [path, *([root.expanduser() / (path.name if path.is_absolute() else path)] if root else [])]
    for place in places:
        if place.is_dir() and not is_exported(place):
            Run.open(place).config(Transfer)  # says so where it is none, or one of another kind
            raise MetastepError(f"source.weights = {name}: no net was trained there to its end. Resume that run first.")
        if place.exists():
            return place / EXPORT if place.is_dir() else place
    looked = " or ".join(repr(str(place)) for place in places)
    raise MetastepError(
        f"source.weights: there is no {looked}. Put it there, or give another .safetensors or .pth file, or the folder "
        "of a transfer run; or leave it out and name source.dataset, to have the source net trained first."
    )


def classes_of(path: Path) -> int:
    """What we export knows how many classes it tells apart; of other files, one has to say it"""
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
    """How the names of its last layer begin: the one that fine-tuning starts anew"""
    return list(parameters(net))[-1].rpartition(".")[0] + "."
