"""The net that teaches: its weights from a file or an earlier run, or from a run of its own that comes first."""

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from metastep.data.catalog import data_directory
from metastep.errors import MetastepError
from metastep.runs import Run
from metastep.transfer.config import DataConfig, InnerConfig, MethodConfig, SourceConfig, TargetConfig, TransferConfig

EPOCHS, RATE, BATCH = 30, 0.1, 128

StateDict = dict[str, Tensor]


def source_run(config: TransferConfig) -> TransferConfig:
    """Training the source is a run like any other, from scratch, with the source net in the target's place"""
    source = config.source
    assert source.dataset is not None
    return TransferConfig(
        DataConfig(source.dataset, config.data.size, batch=BATCH),
        target=TargetConfig(source.net),
        method=MethodConfig("scratch"),
        inner=InnerConfig("sgd", source.lr or RATE, momentum=0.9, weight_decay=1e-4),
        epochs=source.epochs or EPOCHS,
        seed=config.seed,
        checkpoint_every=5,
        precision=config.precision,
        device=config.device,
        threads=config.threads,
    )


def find_weights(name: str, root: Path | None) -> Path:
    """Where the path says, or else below the data directory"""
    root = root or data_directory()
    places = [Path(name).expanduser(), *([root.expanduser() / name] if root else [])]
    for place in places:
        if place.exists():
            return place
    looked = " or ".join(repr(str(place)) for place in places)
    raise MetastepError(
        f"source.weights: there is no {looked}. Give a .safetensors or .pth file, or the folder of a transfer run; "
        "or leave it out and name source.dataset, to have the source net trained first."
    )


def read_weights(path: Path) -> StateDict:
    """Parameters and buffers by name, from a file or from the best checkpoint of a run"""
    if path.is_dir():
        return weights_of_run(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)  # tensors and plain values, never a program
    except (OSError, SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise MetastepError(
            f"{str(path)!r}: cannot be read as weights ({error}). Give a state_dict saved as .safetensors or .pth."
        ) from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise MetastepError(f"{str(path)!r}: holds no state_dict. Save module.state_dict(), nothing around it.")
    return {name.removeprefix("module."): value for name, value in found.items()}


def weights_of_run(folder: Path) -> StateDict:
    """What a transfer run has trained, as its target net"""
    run = Run.open(folder)
    run.config(TransferConfig)  # says so if it is a run of another kind
    state = run.load("best" if run.best.is_file() else "last")["state"]
    return {**state["target"]["params"]["target"], **state["buffers"]}


def fill(net: nn.Module, weights: StateDict, source: SourceConfig, path: Path) -> None:
    """All weights into `net`; what does not fit is named"""
    own = net.state_dict()
    wrong = [f"{name} is missing" for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    wrong += [f"{name} is unknown to it" for name in weights if name not in own]
    wrong += [
        f"{name} is {tuple(weights[name].shape)} there and {tuple(own[name].shape)} in the net"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    if wrong:
        raise MetastepError(
            f"{str(path)!r} does not fit the net {source.net!r}: {'; '.join(wrong[:3])}{' …' if wrong[3:] else ''}. "
            "Choose the net that these weights are of with source.net, and its number of classes with source.classes."
        )
    net.load_state_dict({**own, **weights})


def fill_all_but_head(net: nn.Module, weights: StateDict, path: Path) -> None:
    """For fine-tuning: the head, whose shape follows the classes, keeps its start"""
    own = net.state_dict()
    fitting = {name: value for name, value in weights.items() if name in own and value.shape == own[name].shape}
    left = {name for name in own if name not in fitting and not name.endswith("num_batches_tracked")}
    if len({name.rpartition(".")[0] for name in left}) > 1 or not fitting:
        raise MetastepError(
            f"fine_tuning: {str(path)!r} does not fit the target net, {', '.join(sorted(left)[:3])} … differ. "
            "It goes on with the source net itself: set target.net to source.net."
        )
    net.load_state_dict({**own, **fitting})
