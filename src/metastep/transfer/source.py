"""The net that teaches: its weights from a file or an earlier run, or from a run of its own that comes first."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from metastep.data.catalog import data_directory
from metastep.errors import MetastepError
from metastep.modules import parameters_of
from metastep.runs.files import replace_file
from metastep.transfer.config import DataConfig, InnerConfig, MethodConfig, TargetConfig, TransferConfig

EPOCHS, RATE, DECAY, BATCH = 30, 0.1, 1e-4, 64
EXPORT = "net.safetensors"  # in the folder of a run: what it has trained, as any PyTorch program can load it


def source_run(config: TransferConfig) -> TransferConfig:
    """Training the source is a run like any other, from scratch, with the source net in the target's place"""
    source = config.source
    assert source.dataset is not None
    return TransferConfig(
        DataConfig(source.dataset, config.data.size, augment=source.augment or "none", batch=BATCH),
        target=TargetConfig(source.net),
        method=MethodConfig("scratch"),
        inner=InnerConfig("sgd", source.lr or RATE, momentum=0.9, weight_decay=_first(source.weight_decay, DECAY)),
        epochs=source.epochs or EPOCHS,
        seed=config.seed,
        checkpoint_every=5,
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


def find_weights(name: str, root: Path | None) -> Path:
    """Where the path says, or else below the data directory; of a run's folder, what it has trained

    What is not where it was found before may have come into the data directory since.
    """
    root, path = root or data_directory(), Path(name).expanduser()
    places = [path, *([root.expanduser() / (path.name if path.is_absolute() else path)] if root else [])]
    for place in places:
        if place.is_dir() and not (place / EXPORT).is_file():
            raise MetastepError(f"source.weights = {name}: no net was trained there to its end. Resume that run first.")
        if place.exists():
            return place / EXPORT if place.is_dir() else place
    looked = " or ".join(repr(str(place)) for place in places)
    raise MetastepError(
        f"source.weights: there is no {looked}. Give a .safetensors or .pth file, or the folder of a transfer run; "
        "or leave it out and name source.dataset, to have the source net trained first."
    )


def classes_of(path: Path) -> int:
    """What we export knows how many classes it tells apart; of other files, one has to say it"""
    try:
        with safe_open(path, "pt") as file:
            return int(file.metadata()["classes"])
    except (SafetensorError, TypeError, KeyError, ValueError):
        raise MetastepError(f"{str(path)!r}: how many classes does that net tell apart? Set source.classes.") from None


def head_of(net: nn.Module) -> str:
    """How the names of its last layer begin: the one that fine-tuning starts anew"""
    return list(parameters_of(net))[-1].rpartition(".")[0] + "."
