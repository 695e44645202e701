"""What a transfer run is made of. `metastep.train.config` keeps it as JSON; `metastep.cli.flags` makes its flags.

An option that is None is left to the part that it belongs to; one that its part does not have is refused.
"""

# ruff: noqa: RUF009 - `told` is dataclasses.field with a help text
from dataclasses import dataclass, replace
from math import cos, pi
from pathlib import Path
from typing import Literal

from metastep.data.augmentations import Augmentation
from metastep.data.names import without_place
from metastep.errors import MetastepError
from metastep.train.fields import Device, all_options, refuse_unused, require, told

MethodName = Literal["transfer", "scratch", "fine_tuning"]
InnerOptimizer = Literal["sgd", "adam"]

METHOD_OPTIONS: dict[MethodName, set[str]] = {
    "transfer": {"steps", "window", "beta", "learned", "outer", "transfer_rate", "pairs"},
    "scratch": set(),
    "fine_tuning": set(),
}
INNER_OPTIONS: dict[InnerOptimizer, set[str]] = {"sgd": {"momentum"}, "adam": set()}
# Iterations: in fewer, what is done first takes as long as it saves.
WORTH_TRACING = 100  # on a CPU, of small nets
WORTH_COMPILING = 5_000  # on a GPU


@dataclass(frozen=True)
class DataConfig:
    """The target: a small labelled set."""

    name: str = told("digits", "Labelled pictures to learn from: a data set by name, or folder:PATH for your own.")
    size: int = told(32, "Pixels along the side of a stored picture; crop224 and resized_crop see 7/8 of it.")
    per_class: int | None = told(None, "Labelled pictures of each class to train on; all if left out.")
    augment: Augmentation = told("none", "How training pictures are varied: crops, mirrored but for crop_noflip.")
    batch: int = told(128, "Pictures in an iteration; the last ones of an epoch may be fewer.")
    fingerprint: str | None = told(
        None, "Fingerprint of the pictures in a folder of your own; training takes it from the data."
    )

    def __post_init__(self) -> None:
        require(self.size > 0, "data.size", self.size, "must be at least 1")
        require(self.batch > 1, "data.batch", self.batch, "must be at least 2, for batch statistics")
        require(self.per_class is None or self.per_class > 0, "data.per_class", self.per_class, "must be at least 1")


@dataclass(frozen=True)
class SourceConfig:
    """The net that teaches: from a file, from an earlier run, or trained here first."""

    net: str = told("resnet32", "A net that comes with metastep, or your own as package.module:Name.")
    weights: str | None = told(
        None, "Its weights: a .safetensors or .pth file, or the folder of an earlier run; trained here if left out."
    )
    classes: int | None = told(None, "Classes that it tells apart; taken from the data if it is trained here.")
    layers: tuple[str, ...] | None = told(
        None, "Layers that teach, such as layer1,layer2; the net's choice if left out."
    )
    dataset: str | None = told(None, "What it is trained on if it has no weights.")
    epochs: int | None = told(None, "How long it is trained if it has no weights.")
    lr: float | None = told(None, "Rate of that training, by SGD with momentum 0.9 and a cosine; 0.1 if left out.")
    weight_decay: float | None = told(None, "Weight decay in that training; 1e-4 if left out.")
    augment: Augmentation | None = told(None, "How its training pictures are varied; none if left out.")
    fingerprint: str | None = told(None, "Of the pictures in a folder of your own; training takes it from the data.")

    def __post_init__(self) -> None:
        training = {"dataset", "epochs", "lr", "weight_decay", "augment", "fingerprint"}
        if self.weights is not None:
            refuse_unused(self, "source", f"a net with weights ({self.weights})", {"weights"}, training)
        require(self.epochs is None or self.epochs > 0, "source.epochs", self.epochs, "must be at least 1")
        require(self.lr is None or self.lr > 0, "source.lr", self.lr, "must be above 0")

    @property
    def is_given(self) -> bool:
        return self.weights is not None or self.dataset is not None


@dataclass(frozen=True)
class TargetConfig:
    """The net that learns."""

    net: str = told("vgg9", "A net that comes with metastep, or your own as package.module:Name.")
    layers: tuple[str, ...] | None = told(
        None, "Layers that are taught, such as layer1,layer2; the net's choice if left out."
    )


@dataclass(frozen=True)
class MethodConfig:
    name: MethodName = told("transfer", "transfer learns what and where; scratch and fine_tuning are to compare with.")
    steps: int | None = told(None, "T: virtual steps on the transfer loss, whose effect θ is judged by; 2 if left out.")
    window: int | None = told(None, "n: virtual steps that share one gradient; 1 if left out.")
    beta: float | None = told(None, "β: weight of the transfer loss; 0.5 if left out.")
    learned: bool | None = told(None, "Whether θ is learned; else it stays as it starts, with all layers alike.")
    outer: Literal["accuracy", "total"] | None = told(
        None, "What θ is judged by: the loss on labels, or first-order's surrogate, all of the loss."
    )
    transfer_rate: float | None = told(None, "Multiplies the rate of the virtual transfer steps; 1 if left out.")
    pairs: str | None = told(
        None, "Source and target layers: all-to-all (if left out), one-to-one, or a list such as 0-1,2-2."
    )

    def __post_init__(self) -> None:
        refuse_unused(self, "method", self.name, METHOD_OPTIONS[self.name], all_options(METHOD_OPTIONS))
        require(self.steps is None or self.steps >= 0, "method.steps", self.steps, "must not be negative")
        require(self.window is None or self.window > 0, "method.window", self.window, "must be at least 1")
        require(self.beta is None or self.beta >= 0, "method.beta", self.beta, "must not be negative")
        rate = self.transfer_rate
        require(rate is None or rate > 0, "method.transfer_rate", rate, "must be above 0")
        if self.outer == "total" and self.window not in (None, 1):
            # Its gradient runs through no virtual step, so that there is nothing to estimate.
            raise MetastepError(f"method.window = {self.window} with method.outer = total: leave the window out.")


@dataclass(frozen=True)
class InnerConfig:
    """What moves the target net, in real steps and in virtual ones."""

    optimizer: InnerOptimizer = told("sgd", "What moves the target net.")
    lr: float = told(0.1, "Its rate in the first epoch.")
    momentum: float | None = told(None, "Momentum of sgd; 0.9 if left out.")
    weight_decay: float = told(1e-4, "Pulls the parameters to 0 at every step.")
    schedule: Literal["cosine", "constant"] = told(
        "cosine", "How the rate changes over epochs; cosine falls towards 0."
    )

    def __post_init__(self) -> None:
        require(self.lr >= 0, "inner.lr", self.lr, "must not be negative")
        refuse_unused(self, "inner", self.optimizer, INNER_OPTIONS[self.optimizer], all_options(INNER_OPTIONS))

    def rate(self, epoch: int, epochs: int) -> float:
        """η_e = η₀ · ½(1 + cos(πe/E)), e = 0, …, E − 1"""
        return self.lr * 0.5 * (1 + cos(pi * epoch / epochs)) if self.schedule == "cosine" else self.lr


@dataclass(frozen=True)
class MetaConfig:
    """Adam, which moves θ."""

    lr: float = told(1e-3, "Its rate, the same in all epochs.")
    weight_decay: float = told(1e-4, "Pulls θ to 0.")

    def __post_init__(self) -> None:
        require(self.lr >= 0, "meta.lr", self.lr, "must not be negative")
        require(self.weight_decay >= 0, "meta.weight_decay", self.weight_decay, "must not be negative")


@dataclass(frozen=True)
class TransferConfig:
    data: DataConfig = DataConfig()
    source: SourceConfig = SourceConfig()
    target: TargetConfig = TargetConfig()
    method: MethodConfig = MethodConfig()
    inner: InnerConfig = InnerConfig()
    meta: MetaConfig = MetaConfig()
    epochs: int = told(200, "Passes over the training pictures.")
    seed: int = told(0, "Seed of the first parameters, the order of pictures and their augmentation.")
    checkpoint_every: float = told(30.0, "Seconds between two checkpoints; 0 for one after every epoch.")
    gradient_difference: int = told(
        0, "Iterations between two looks at how the transfer gradient changes in a virtual step; 0 for none."
    )
    precision: Literal["float32", "tf32", "float64"] = told(
        "float32", "Precision of the arithmetic; tf32 is a GPU's faster one."
    )
    device: Device = told("auto", "auto takes a GPU where there is one.")
    compile: bool | None = told(
        None,
        "On a GPU, fuse the operators of an iteration, which takes minutes at first; on a CPU, do nothing twice, which "
        f"takes seconds. If not said: where θ is learned in {WORTH_COMPILING:,} iterations or more, on a CPU "
        f"{WORTH_TRACING}.",
    )
    threads: int = told(2, "CPU threads.")

    def __post_init__(self) -> None:
        require(self.epochs > 0, "epochs", self.epochs, "must be at least 1")
        require(0 <= self.seed < 2**63, "seed", self.seed, "must be from 0 to 2**63 − 1")
        require(self.checkpoint_every >= 0, "checkpoint_every", self.checkpoint_every, "must not be negative")
        require(self.gradient_difference >= 0, "gradient_difference", self.gradient_difference, "must not be negative")
        require(self.threads > 0, "threads", self.threads, "must be at least 1")
        if self.gradient_difference and not self.learns_weights:
            raise MetastepError("gradient_difference is measured in virtual steps, and there are none here. Use 0.")
        if self.method.name == "fine_tuning" and self.target.net != self.source.net:
            raise MetastepError(
                f"target.net = {self.target.net}: fine_tuning goes on with the source net itself, {self.source.net}. "
                "Set target.net to it."
            )
        if self.needs_source and not self.source.is_given:
            raise MetastepError(
                f"method.name = {self.method.name} needs a net to learn from: name its file in source.weights, "
                "or what to train it on in source.dataset."
            )

    @property
    def needs_source(self) -> bool:
        return self.method.name != "scratch"

    @property
    def trains_source(self) -> bool:
        """Whether a run of its own comes first"""
        return self.needs_source and self.source.weights is None

    @property
    def steps(self) -> int:
        return 2 if self.method.steps is None else self.method.steps

    @property
    def window(self) -> int:
        return self.method.window or 1

    @property
    def beta(self) -> float:
        return 0.5 if self.method.beta is None else self.method.beta

    @property
    def learns_weights(self) -> bool:
        """Whether θ is updated: with no virtual step it has no gradient, and stays as it is"""
        return self.method.name == "transfer" and self.method.learned is not False and self.steps > 0

    @property
    def products(self) -> int:
        """Second-order products in an iteration: one for each window, one for the step on the labels"""
        if not self.learns_weights or self.method.outer == "total":
            return 0
        return -(-self.steps // self.window) + 1

    @property
    def essential(self) -> "TransferConfig":
        """Without what does not make it another run.

        That is where and how precisely it is computed, how often it is looked at, and where the data and the file of
        weights lie; for scratch, also its source, which it does not use.
        """
        shared = self.shared
        defaults = TransferConfig(method=MethodConfig("scratch"))
        names = ("checkpoint_every", "gradient_difference", "threads", "device", "precision", "compile")
        usual = {name: getattr(defaults, name) for name in names}
        return replace(shared, source=shared.source if self.needs_source else defaults.source, **usual)

    @property
    def shared(self) -> "TransferConfig":
        """For others to see: users' folders and files without their places"""
        data, source = self.data, self.source
        dataset, weights = (
            source.dataset and without_place(source.dataset),
            source.weights and Path(source.weights).name,
        )
        return replace(
            self,
            data=replace(data, name=without_place(data.name)),
            source=replace(source, dataset=dataset, weights=weights),
        )


def trusted(config: TransferConfig, **typed: str | None) -> TransferConfig:
    """A configuration that was read from a file, with the nets (source=, target=) that the user names now.

    A file must not decide what is imported: the path of a user's own module counts only when it is typed again.
    """
    for part, name in typed.items():
        known = getattr(config, part).net
        if name is not None:
            config = replace(config, **{part: replace(getattr(config, part), net=name)})
        elif ":" in known:
            raise MetastepError(
                f"this was trained with a net of its author's own, {known!r}, which would have to be imported "
                f"and run. If you trust it, name it again: --{part}-net {known}"
            )
    return config
