"""What a run is made of: `FewShot` and `Transfer`, in Python, in TOML files, as presets and as key=value alike.

The inner optimizer and the method of few-shot learning are the registry's own dataclasses, chosen by name. Importing
this module loads no torch; making a configuration does.
"""

from collections.abc import Mapping
from dataclasses import field, fields, replace
from math import cos, pi
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from metastep.data.augmentations import Augmentation
from metastep.data.episodes import Episodes, Rotations
from metastep.data.names import without_place
from metastep.errors import MetastepError
from metastep.train.chosen import chosen, read
from metastep.train.fields import Device, Precision
from metastep.train.validated import (
    MOST,
    Count,
    CountOrNone,
    Flag,
    Number,
    Positive,
    Rate,
    RefusedError,
    Seed,
    Text,
    Whole,
    checked,
)

LONGEST = 100_000  # inner steps: a loop in Python makes each of them
WIDEST = 4096  # pixels
# Iterations: in fewer, what is done first takes as long as it saves.
WORTH_TRACING = 100  # on a CPU, of small nets
WORTH_COMPILING = 5_000  # on a GPU


def _steps(value: Any) -> int | tuple[int, ...] | None:
    lengths = list(value) if isinstance(value, list | tuple) else [value]
    whole = all(isinstance(length, int) and not isinstance(length, bool) for length in lengths)
    if not lengths or not whole:
        raise RefusedError("", f" = {value!r} must be a whole number, or the length of every window such as 4,2,1,1.")
    if min(lengths) < (0 if value == 0 else 1) or sum(lengths) > LONGEST:
        raise RefusedError("", f" = {value!r} must be at least 1 and at most {LONGEST:,} in all.")
    return tuple(lengths) if isinstance(value, list | tuple) else int(value)


def _steps_or_none(value: Any) -> int | tuple[int, ...] | None:
    return None if value is None else _steps(value)


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Steps = Annotated[int | tuple[int, ...], PlainValidator(_steps)]
StepsOrNone = Annotated[int | tuple[int, ...] | None, PlainValidator(_steps_or_none)]
Names = tuple[Text, ...]


@checked(frozen=True)
class Data:
    """Which pictures few-shot learning is about, and how an episode is drawn from them."""

    name: Text = "glyphs"
    """Data set: glyphs, omniglot, mini_imagenet, or folder:PATH for your own."""
    split: Literal["train", "trainval"] = "train"
    """Classes to train on; trainval leaves none for validation."""
    ways: Annotated[Whole, Field(ge=2, le=100_000)] = 5
    """Classes in an episode."""
    shots: Annotated[Whole, Field(ge=1, le=100_000)] = 1
    """Pictures of each class to adapt to."""
    queries: Annotated[Whole, Field(ge=1, le=100_000)] = 15
    """Pictures of each class to be judged by."""
    rotations: Rotations = "none"
    """Quarter turns: per_episode draws one for each class of an episode, as_classes makes four classes of each."""
    fingerprint: Text | None = None
    """Fingerprint of the pictures in a folder of your own; training takes it from the data."""

    @property
    def pictures(self) -> str:
        """Return what they are, wherever they are."""
        return self.fingerprint or self.name


@checked(frozen=True)
class TargetData:
    """The small labelled set that a transfer run learns."""

    name: Text = "digits"
    """Labelled pictures to learn from: a data set by name, or folder:PATH for your own."""
    size: Annotated[Whole, Field(ge=1, le=WIDEST)] = 32
    """Pixels along the side of a stored picture; crop224 and resized_crop see 7/8 of it."""
    per_class: Count | None = None
    """Labelled pictures of each class to train on; all if left out."""
    augment: Augmentation = "none"
    """How training pictures are varied: crops, mirrored but for crop_noflip."""
    fingerprint: Text | None = None
    """Fingerprint of the pictures in a folder of your own; training takes it from the data."""


@checked(frozen=True)
class Net:
    """The net of a few-shot learner."""

    name: Text = "conv4"
    """A net that comes with metastep, or your own as package.module:Name."""
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"spread": True})
    """Options of the net, such as filters and head_init; each is written as a field of its own."""
    channels: Annotated[Whole, Field(ge=1, le=WIDEST)] = 1
    """Channels of a picture; training takes it from the data."""
    size: Annotated[Whole, Field(ge=1, le=WIDEST)] = 28
    """Pixels along the side of a picture; training takes it from the data."""

    def __post_init__(self) -> None:
        for option, value in self.options.items():
            if not isinstance(value, bool | int | float | str):
                raise MetastepError(f"net.{option} = {value!r} must be a number, text, true or false.")
        object.__setattr__(self, "options", dict(self.options))

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.options.items())), self.channels, self.size))

    @property
    def is_users(self) -> bool:
        """Return whether building it would import a module that is not ours."""
        return ":" in self.name

    @property
    def shape(self) -> str:
        """Return the shape of a picture, in words."""
        return f"{self.channels}×{self.size}×{self.size}"

    @property
    def described(self) -> str:
        """Return its name and its width."""
        filters = self.options.get("filters")
        return self.name if filters is None else f"{self.name} of {filters} filters"

    def changed(self, **options: Any) -> "Net":
        """Return the net with other options. One that is None is left to the net."""
        merged = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        return replace(self, options=merged)


def _net(value: Any) -> Any:
    """Options beside the fields become options"""
    value = _named(value)
    if not isinstance(value, Mapping) or "options" in value:
        return value
    own = {f.name for f in fields(Net)}
    options = {name: each for name, each in value.items() if name not in own and each is not None}
    return {name: each for name, each in value.items() if name in own} | {"options": options}


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

    @property
    def is_given(self) -> bool:
        """Return whether there is anything to learn from."""
        return self.weights is not None or self.dataset is not None


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
    """Go on with the source net itself and a new head, to compare with."""

    name: Literal["fine_tuning"] = "fine_tuning"
    """The method."""


TransferMethod = Annotated[
    Annotated[WhatAndWhere | Scratch | FineTuning, Field(discriminator="name")], BeforeValidator(_named)
]


@checked(frozen=True)
class Outer:
    """What moves the meta-parameters θ."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """The optimizer of θ."""
    lr: Rate = 1e-3
    """Its learning rate."""
    weight_decay: Rate = 0.0
    """Pulls θ to 0 at every update."""
    eps: Rate | None = None
    """What adam and adamw add to their denominator; 1e-8 if left out."""
    clip: Positive | None = None
    """The largest norm of the meta-gradient; a longer one is scaled down."""
    clip_value: Positive | None = None
    """The largest size of each element of the meta-gradient."""
    schedule: Literal["constant", "linear"] = "constant"
    """How the rate changes; linear falls to 0 at the end."""

    def __post_init__(self) -> None:
        if self.optimizer == "sgd" and self.eps is not None:
            raise MetastepError(f"outer.eps = {self.eps} is no option of sgd. Leave it out.")
        if self.clip is not None and self.clip_value is not None:
            raise MetastepError(f"outer.clip = {self.clip} and outer.clip_value = {self.clip_value}: give one of them.")


@checked(frozen=True)
class Test:
    """How a learner is judged and used, where that differs from how it is trained."""

    __test__ = False  # pytest takes it for a test otherwise

    shots: Count | None = None
    """Pictures of each class to adapt to; as in training if left out."""
    queries: Count | None = None
    """Pictures of each class to be judged by; as in training if left out."""
    steps: StepsOrNone = None
    """Inner steps; as in training if left out."""
    batch: Count | None = None
    """Pictures in a mini-batch; as in training if left out."""
    rotations: Rotations = "none"
    """Quarter turns of the classes."""


@checked(frozen=True)
class Validation:
    """When a few-shot run is judged on classes that it is not trained on."""

    every: CountOrNone = 500
    """Iterations between two validations; 0 for none."""
    episodes: Annotated[Whole, Field(ge=2, le=10**7)] = 100
    """Episodes of validation classes, always the same ones."""


@checked(frozen=True, kw_only=True)
class Config:
    """What both jobs have."""

    outer: Outer = Outer()
    """What moves the meta-parameters."""
    seed: Seed = 0
    """Seed of the first parameters, and of everything that is drawn."""
    checkpoint_seconds: Annotated[Number, Field(ge=0, le=MOST)] = 30.0
    """Seconds between two checkpoints; 0 for one at every look."""
    device: Device = "auto"
    """auto takes a GPU where there is one."""

    job: ClassVar[str]
    words: ClassVar[str]
    """What a run of it is called"""

    @property
    def shared(self) -> "Config":
        """Return it without the places of users' folders and files, for others to see."""
        raise NotImplementedError

    @property
    def essential(self) -> "Config":
        """Return it without what makes no other run: where it is computed, how precisely, and how often looked at."""
        raise NotImplementedError


@checked(frozen=True, kw_only=True)
class FewShot(Config):
    """Meta-train a few-shot learner."""

    job = "few_shot"
    words = "a few-shot run"

    data: Data = Data()
    """Pictures and episodes."""
    net: Annotated[Net, BeforeValidator(_net)] = Net()
    """The net, with options such as net.filters and net.head_init."""
    inner: Annotated[Any, chosen("optimizer")] = field(default_factory=lambda: read("optimizer", _SGD))
    """What adapts to a task: a registered optimizer such as sgd or adam, with options such as inner.lr."""
    steps: Steps = 8
    """Inner steps; or the length of every window, such as 4,2,1,1."""
    batch: Count | None = None
    """Pictures in each window's mini-batch of the support; all if left out."""
    method: Annotated[Any, chosen("method")] = field(default_factory=lambda: read("method", "maml"))
    """How the meta-gradient is estimated: maml, multi_step, fo_maml, …, with options such as method.window."""
    tasks: Annotated[Whole, Field(ge=1, le=100_000)] = 32
    """Tasks in each iteration."""
    iterations: Count = 60_000
    """Updates of the meta-parameters."""
    test: Test = Test()
    """How the learner is judged and used."""
    validation: Validation = Validation()
    """When it is validated."""
    start: Text | None = None
    """A learner or run to start from, in place of a new net."""
    log_every: Count = 10
    """Iterations between two rows of metrics."""
    precision: Precision = "float32"
    """Precision of the arithmetic; tf32 is a GPU's faster one, bf16 that of our kernels."""
    threads: Annotated[Whole, Field(ge=1, le=1024)] = 1
    """CPU threads of each process; small nets gain more from processes, by torchrun."""
    chunk_size: Count | None = None
    """Tasks computed together; on a GPU all, on a CPU what its cache holds, if left out."""

    def __post_init__(self) -> None:
        if self.data.split == "trainval" and self.validation.every:
            raise MetastepError(
                "data.split = trainval trains on the validation classes too: set validation.every to 0, or use train."
            )
        if getattr(self.method, "keep_memory", False):
            self._require_memory_to_keep()
        self._require_windows()

    def _require_memory_to_keep(self) -> None:
        from metastep.core.optimizers import SGD

        if type(self.inner) is SGD:
            raise MetastepError("inner = sgd has no memory that method.keep_memory could keep. Choose adam.")
        if self.outer.optimizer != "sgd" or self.outer.lr > 1:
            raise MetastepError(
                f"outer.optimizer = {self.outer.optimizer} at outer.lr = {self.outer.lr:g}: with method.keep_memory it "
                "must be sgd at a rate of at most 1, since it moves an optimizer's memory."
            )

    def _require_windows(self) -> None:
        from metastep.core.checks import require_one_each
        from metastep.core.windows import window_lengths

        for steps in (self.steps, self.test_steps):
            window_lengths(steps, self.window)
        if weights := getattr(self.method, "weights", None):
            require_one_each(weights, window_lengths(self.steps, self.window))

    @property
    def method_name(self) -> str:
        """Return the name of the method."""
        return _name_of(self.method)

    @property
    def inner_name(self) -> str:
        """Return the name of the inner optimizer."""
        return _name_of(self.inner)

    @property
    def window(self) -> int | tuple[int, ...]:
        """Return how many inner steps share a gradient."""
        window: int | tuple[int, ...] = getattr(self.method, "window", 1)
        return window

    @property
    def train_episodes(self) -> Episodes:
        """Return the episodes of training."""
        return Episodes(self.data.ways, self.data.shots, self.data.queries, self.data.rotations)

    @property
    def test_episodes(self) -> Episodes:
        """Return the episodes that the learner is judged by."""
        shots, queries = self.test.shots or self.data.shots, self.test.queries or self.data.queries
        return Episodes(self.data.ways, shots, queries, self.test.rotations)

    @property
    def shuffles_batches(self) -> bool:
        """Return whether mini-batches are shuffled.

        Where none can have each class equally often, as 10 of 20, the same ones would have the same few in order.
        Balanced ones stay as they are: runs with them were published.
        """
        return bool(self.batch and self.batch % self.data.ways)

    @property
    def test_steps(self) -> int | tuple[int, ...]:
        """Return the inner steps that the learner is judged and used with."""
        return self.steps if self.test.steps is None else self.test.steps

    def as_tested(self) -> "FewShot":
        """Return it with the inner loop that the learner is judged and used with."""
        batch = self.batch if self.test.batch is None else self.test.batch
        return replace(self, steps=self.test_steps, batch=batch)

    @property
    def essential(self) -> "FewShot":
        """How a run is tested makes it another one only where validation, which is like it, chooses the checkpoint."""
        return replace(
            self.shared, device="auto", precision="float32", threads=1, chunk_size=None, checkpoint_seconds=0.0,
            log_every=1, test=self.test if self.validation.every else Test(),
        )  # fmt: skip

    @property
    def shared(self) -> "FewShot":
        start = self.start and Path(self.start).name
        return replace(self, data=replace(self.data, name=without_place(self.data.name)), start=start)


@checked(frozen=True, kw_only=True)
class Transfer(Config):
    """Train a small net on few labels, taught by another net."""

    job = "transfer"
    words = "a transfer run"

    data: TargetData = TargetData()
    """The labelled pictures to learn."""
    net: Annotated[Target, BeforeValidator(_named)] = Target()
    """The net that learns."""
    source: Source = Source()
    """The net that teaches."""
    method: TransferMethod = WhatAndWhere()
    """How it is taught: transfer, scratch or fine_tuning."""
    inner: Annotated[Any, chosen("optimizer")] = field(default_factory=lambda: read("optimizer", _SGD | {"lr": 0.1}))
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
                f"inner = {_name_of(self.inner)} has no rate lr, which the schedule of a transfer run moves."
            )
        if self.gradient_difference and not self.learns_weights:
            raise MetastepError("gradient_difference is measured in virtual steps, and there are none here. Use 0.")
        if isinstance(self.method, FineTuning) and self.net.name != self.source.net:
            raise MetastepError(
                f"net.name = {self.net.name}: fine_tuning goes on with the source net itself, {self.source.net}. "
                "Set net.name to it."
            )
        if self.needs_source and not self.source.is_given:
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
        return _name_of(self.inner)

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
        return replace(
            self,
            data=replace(self.data, name=without_place(self.data.name)),
            source=replace(source, dataset=dataset, weights=weights),
        )


_SGD: dict[str, Any] = {"name": "sgd", "lr": 0.4}
JOBS: dict[str, type[FewShot] | type[Transfer]] = {"few_shot": FewShot, "transfer": Transfer}


def _name_of(value: Any) -> str:
    from metastep.core.registry import name_of

    return name_of(value) or type(value).__name__
