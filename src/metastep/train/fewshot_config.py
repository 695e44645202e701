"""What a few-shot run is made of."""

from collections.abc import Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from metastep.data.episodes import Episodes, Rotations
from metastep.data.errors import printable
from metastep.errors import MetastepError, how_many
from metastep.train.schema import (
    AnyData,
    Config,
    Precision,
    Side,
    Steps,
    StepsOrNone,
    chosen,
    name_of_part,
    named_part,
    read,
)
from metastep.train.validated import Count, CountOrNone, Flag, Text, Whole, checked

USUAL = {"name": "sgd", "lr": 0.4}  # the inner optimizer


@checked(frozen=True)
class Data(AnyData):
    """Which pictures few-shot learning is about, and how an episode is drawn from them."""

    name: Text = "glyphs"
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


@checked(frozen=True)
class Net:
    """The net of a few-shot learner."""

    name: Text = "conv4"
    """A net that comes with metastep, or your own as package.module:Name."""
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"spread": True})
    """Options of the net, such as filters and head_init; each is written as a field of its own."""
    channels: Side = 1
    """Channels of a picture; training takes it from the data."""
    size: Side = 28
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
    """Options next to the fields become options"""
    value = named_part(value)
    if not isinstance(value, Mapping) or "options" in value:
        return value
    own = {f.name for f in fields(Net)}
    options = {name: each for name, each in value.items() if name not in own and each is not None}
    return {name: each for name, each in value.items() if name in own} | {"options": options}


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
class FewShot(Config):
    """Meta-train a few-shot learner."""

    job, words, unit = "few_shot", "a few-shot run", "iteration"
    may_change = ("net.name", "iterations", "data.name", "data.test")

    data: Data = Data()
    """Pictures and episodes."""
    net: Annotated[Net, BeforeValidator(_net)] = Net()
    """The net, with options such as net.filters and net.head_init."""
    inner: Annotated[Any, chosen("optimizer")] = field(default_factory=lambda: read("optimizer", USUAL))
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
    compile: Flag | None = None
    """Compile the meta-gradient; if left out, where that pays, which a new run measures on a CPU."""

    def __post_init__(self) -> None:
        if self.data.split == "trainval" and self.validation.every and self.data.test is None:
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
        return name_of_part(self.method)

    @property
    def inner_name(self) -> str:
        """Return the name of the inner optimizer."""
        return name_of_part(self.inner)

    @property
    def window(self) -> int | tuple[int, ...]:
        """Return how many inner steps share a gradient."""
        window: int | tuple[int, ...] = getattr(self.method, "window", 1)
        return window

    @property
    def length(self) -> int:
        return self.iterations

    @property
    def in_short(self) -> str:
        return f"{self.net.name} on {printable(self.data.name)}, {how_many(self.iterations, 'iteration')}"

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
            self.shared, device="auto", precision="float32", threads=1, chunk_size=None, compile=None,
            checkpoint_seconds=0.0,
            log_every=1, test=self.test if self.validation.every else Test(),
        )  # fmt: skip

    @property
    def shared(self) -> "FewShot":
        start = self.start and Path(self.start).name
        return replace(self, data=self.data.shared, start=start)
