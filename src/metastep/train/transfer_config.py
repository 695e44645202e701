"""What a transfer run is made of."""

from dataclasses import field, fields, replace
from math import cos, pi
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from metastep.data.episodes import Augmentation, without_place
from metastep.data.errors import printable
from metastep.errors import MetastepError, how_many
from metastep.train.schema import LONGEST, AnyData, Config, Names, Outer, Side, chosen, name_of_part, named_part, read
from metastep.train.validated import MOST, Count, CountOrNone, Flag, Positive, Rate, Text, Whole, checked

USUAL = {"name": "sgd", "lr": 0.1}  # the inner optimizer


@checked(frozen=True)
class TargetData(AnyData):
    """The small labelled set that a transfer run learns."""

    name: Text = "digits"
    size: Side = 32
    """Pixels along the side of a stored picture; crop224 and resized_crop see 7/8 of it."""
    test: Text | None = None
    """A second data set with the same classes, whose pictures are validated and tested on instead."""
    per_class: Count | None = None
    """Labelled pictures of each class to train on; all if left out."""
    augment: Augmentation = "none"
    """How training pictures are varied: crops, mirrored but for crop_noflip."""


@checked(frozen=True)
class Target:
    """The net that a transfer run trains."""

    name: Text = "vgg9"
    """A net that comes with metastep, or your own as package.module:Name."""
    layers: Names | None = None
    """Layers that are taught, such as layer1,layer2; the net's choice if left out."""


@checked(frozen=True)
class Source:
    """The net that teaches: from a file, from an earlier run, or trained here first."""

    net: Text = "resnet32"
    """A net that comes with metastep, or your own as package.module:Name."""
    weights: Text | None = None
    """Its weights: a .safetensors or .pth file, or the folder of an earlier run; trained here if left out."""
    classes: Count | None = None
    """Classes that it tells apart; taken from the data if it is trained here."""
    layers: Names | None = None
    """Layers that teach, such as layer1,layer2; the net's choice if left out."""
    dataset: Text | None = None
    """What it is trained on if it has no weights."""
    epochs: Count | None = None
    """How long it is trained if it has no weights; 30 if left out."""
    lr: Positive | None = None
    """Rate of that training, by SGD with momentum 0.9 and a cosine; 0.1 if left out."""
    weight_decay: Rate | None = None
    """Weight decay in that training; 1e-4 if left out."""
    augment: Augmentation | None = None
    """How its training pictures are varied; none if left out."""
    fingerprint: Text | None = None
    """Fingerprint of the pictures in a folder of your own; training takes it from the data."""

    def __post_init__(self) -> None:
        training = ("dataset", "epochs", "lr", "weight_decay", "augment", "fingerprint")
        given = [name for name in training if getattr(self, name) is not None]
        if self.weights is not None and given:
            raise MetastepError(
                f"source.{given[0]} = {getattr(self, given[0])!r}: the source has weights ({self.weights}) and is not "
                "trained. Leave one of the two out."
            )


@checked(frozen=True)
class WhatAndWhere:
    """Learn what and where to transfer: channels and layers of the source, weighed by θ."""

    name: Literal["transfer"] = "transfer"
    """The method."""
    window: Count = 1
    """n: virtual steps that share one gradient."""
    beta: Rate = 0.5
    """β: weight of the transfer loss."""
    learned: Flag = True
    """Whether θ is learned; else it stays as it starts, with all layers alike."""
    outer: Literal["accuracy", "total"] = "accuracy"
    """What θ is judged by: the loss on labels, or first order's surrogate, all of the loss."""
    transfer_rate: Positive = 1.0
    """Multiplies the rate of the virtual transfer steps."""
    pairs: Text = "all-to-all"
    """Source and target layers: all-to-all, one-to-one, or a list such as 0-1,2-2."""

    def __post_init__(self) -> None:
        if self.outer == "total" and self.window != 1:
            # Its gradient runs through no virtual step, so that there is nothing to estimate.
            raise MetastepError(f"method.window = {self.window} with method.outer = total: leave the window out.")


@checked(frozen=True)
class Scratch:
    """Train the target alone, to compare with."""

    name: Literal["scratch"] = "scratch"
    """The method."""


@checked(frozen=True)
class FineTuning:
    """Continue with the source net itself and a new head, to compare with."""

    name: Literal["fine_tuning"] = "fine_tuning"
    """The method."""


TransferMethod = Annotated[
    Annotated[WhatAndWhere | Scratch | FineTuning, Field(discriminator="name")], BeforeValidator(named_part)
]


@checked(frozen=True, kw_only=True)
class Transfer(Config):
    """Train a small net on few labels, taught by another net."""

    job, words, unit = "transfer", "a transfer run", "epoch"
    may_change = ("net.name", "source.net", "data.name", "source.dataset", "data.test")

    data: TargetData = TargetData()
    """The labelled pictures to learn."""
    net: Annotated[Target, BeforeValidator(named_part)] = Target()
    """The net that learns."""
    source: Source = Source()
    """The net that teaches."""
    method: TransferMethod = WhatAndWhere()
    """How it is taught: transfer, scratch or fine_tuning."""
    inner: Annotated[Any, chosen("optimizer")] = field(default_factory=lambda: read("optimizer", USUAL))
    """What moves the net, in real steps and in virtual ones: sgd, adam, …, with options such as inner.lr."""
    inner_schedule: Literal["cosine", "constant"] = "cosine"
    """How the rate of the inner optimizer changes over epochs; cosine falls towards 0."""
    steps: Annotated[Whole, Field(ge=0, le=LONGEST)] = 2
    """T: virtual steps on the transfer loss, whose effect θ is judged by."""
    batch: Annotated[Whole, Field(ge=2, le=MOST)] = 128
    """Pictures in an iteration, at least 2 for batch statistics; the last ones of an epoch may be fewer."""
    outer: Outer = Outer(weight_decay=1e-4)
    """What moves θ: adam, with its rate and weight decay."""
    epochs: Count = 200
    """Passes over the training pictures."""
    gradient_difference: CountOrNone = 0
    """Iterations between two looks at how the transfer gradient changes in a virtual step; 0 for none."""
    precision: Literal["float32", "tf32", "float64"] = "float32"
    """Precision of the arithmetic; tf32 is a GPU's faster one."""
    compile: Flag | None = None
    """Compile an iteration, which takes minutes at first on a GPU and seconds on a CPU; if left out, where it pays."""
    threads: Annotated[Whole, Field(ge=1, le=1024)] = 2
    """CPU threads."""

    def __post_init__(self) -> None:
        own = Outer(lr=self.outer.lr, weight_decay=self.outer.weight_decay)
        for each in fields(own):
            if (value := getattr(self.outer, each.name)) != getattr(own, each.name):
                raise MetastepError(
                    f"outer.{each.name} = {value!r}: in a transfer run adam moves θ, at a constant rate and without "
                    "clipping. Leave it out."
                )
        if getattr(self.inner, "lr", None) is None:
            raise MetastepError(
                f"inner = {name_of_part(self.inner)} has no rate lr, which the schedule of a transfer run moves."
            )
        if self.gradient_difference and not self.learns_weights:
            raise MetastepError("gradient_difference is measured in virtual steps, and there are none here. Use 0.")
        if isinstance(self.method, FineTuning) and self.net.name != self.source.net:
            raise MetastepError(
                f"net.name = {self.net.name}: fine_tuning continues with the source net itself, {self.source.net}. "
                "Set net.name to it."
            )
        if self.needs_source and self.source.weights is None and self.source.dataset is None:
            raise MetastepError(
                f"method.name = {self.method.name} needs a net to learn from: name its file in source.weights, "
                "or what to train it on in source.dataset."
            )

    @property
    def method_name(self) -> str:
        """Return the name of the method."""
        return self.method.name

    @property
    def inner_name(self) -> str:
        """Return the name of the inner optimizer."""
        return name_of_part(self.inner)

    @property
    def length(self) -> int:
        return self.epochs

    @property
    def nets(self) -> tuple[str, ...]:
        return ("net.name", "source.net") if self.needs_source else ("net.name",)

    @property
    def in_short(self) -> str:
        return f"{self.net.name} on {printable(self.data.name)}, {how_many(self.epochs, 'epoch')}"

    def rate(self, epoch: int) -> float:
        """Return η_e = η₀ · ½(1 + cos(πe/E)), e = 0, …, E − 1, or η₀ where the schedule is constant."""
        lr = float(self.inner.lr)
        return lr * 0.5 * (1 + cos(pi * epoch / self.epochs)) if self.inner_schedule == "cosine" else lr

    @property
    def needs_source(self) -> bool:
        """Return whether there is a net that teaches."""
        return not isinstance(self.method, Scratch)

    @property
    def trains_source(self) -> bool:
        """Return whether a run of its own comes first."""
        return self.needs_source and self.source.weights is None

    @property
    def window(self) -> int:
        """Return how many virtual steps share a gradient."""
        return self.method.window if isinstance(self.method, WhatAndWhere) else 1

    @property
    def learns_weights(self) -> bool:
        """Return whether θ is updated: with no virtual step it has no gradient, and stays as it is."""
        return isinstance(self.method, WhatAndWhere) and self.method.learned and self.steps > 0

    @property
    def products(self) -> int:
        """Return second-order products in an iteration: one for each window, one for the step on the labels."""
        if not isinstance(self.method, WhatAndWhere) or not self.learns_weights or self.method.outer == "total":
            return 0
        return -(-self.steps // self.window) + 1

    @property
    def essential(self) -> "Transfer":
        """For scratch it leaves out the source, too, which is not used."""
        shared = self.shared
        return replace(
            shared, source=shared.source if self.needs_source else Source(), checkpoint_seconds=0.0,
            gradient_difference=0, threads=1, device="auto", precision="float32", compile=None,
        )  # fmt: skip

    @property
    def shared(self) -> "Transfer":
        source = self.source
        dataset, weights = (
            source.dataset and without_place(source.dataset),
            source.weights and Path(source.weights).name,
        )
        return replace(self, data=self.data.shared, source=replace(source, dataset=dataset, weights=weights))
