"""What a few-shot run is made of. `metastep.train.config` keeps it as JSON; `metastep.cli.flags` makes its flags.

An option that is None is left to the part that it belongs to; one that its part does not have is refused.
"""

# ruff: noqa: RUF009 - `told` is dataclasses.field with a help text
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from metastep.data.episodes import Episodes, Rotations
from metastep.data.names import without_place
from metastep.errors import MetastepError
from metastep.nets.head_init import HeadInit
from metastep.train.fields import Device, Precision, all_options, refuse_unused, require, told

MethodName = Literal[
    "maml", "multi_step", "truncated", "fo_maml", "reptile", "imaml", "hf_maml", "es_maml", "ggs_maml", "anil",
    "meta_sgd", "maml_pp",
]  # fmt: skip
InnerOptimizer = Literal["sgd", "adam", "adamw", "rmsprop"]

METHOD_OPTIONS: dict[MethodName, set[str]] = {
    "maml": {"curvature"},
    "multi_step": {"window", "curvature"},
    "truncated": {"window", "depth", "curvature"},
    "fo_maml": {"window"},
    "reptile": {"window", "carried"},
    "imaml": {"window", "strength", "free", "cg_steps", "curvature"},
    "hf_maml": {"window", "delta"},
    "es_maml": {"window", "samples", "sigma"},
    "ggs_maml": {"window", "samples", "sigma"},
    "anil": {"window", "head", "curvature"},
    "meta_sgd": {"window", "curvature"},
    "maml_pp": {"window", "weights", "curvature"},
}
INNER_OPTIONS: dict[InnerOptimizer, set[str]] = {
    "sgd": {"momentum", "nesterov"},
    "adam": {"betas"},
    "adamw": {"betas"},
    "rmsprop": {"momentum"},
}


@dataclass(frozen=True)
class DataConfig:
    name: str = told("glyphs", "Data set: glyphs, omniglot, mini_imagenet, or folder:PATH for your own.")
    split: Literal["train", "trainval"] = told("train", "Classes to train on; trainval leaves none for validation.")
    ways: int = told(5, "Classes in an episode.")
    shots: int = told(1, "Pictures of each class to adapt to.")
    queries: int = told(15, "Pictures of each class to be judged by.")
    rotations: Rotations = told(
        "none",
        "Quarter turns: per_episode draws one for each class of an episode, as_classes makes four of each.",
    )
    fingerprint: str | None = told(
        None, "Fingerprint of the pictures in a folder of your own; training takes it from the data."
    )

    @property
    def pictures(self) -> str:
        """What they are, wherever they are"""
        return self.fingerprint or self.name


@dataclass(frozen=True)
class NetConfig:
    name: str = told("conv4", "A net that comes with metastep, or your own as package.module:Name.")
    filters: int | None = told(None, "Channels of its convolutions.")
    head_init: HeadInit | None = told(None, "How its last layer starts.")
    channels: int = told(1, "Channels of a picture; training takes it from the data.")
    size: int = told(28, "Pixels along the side of a picture; training takes it from the data.")

    @property
    def is_users(self) -> bool:
        """Whether building it would import a module that is not ours"""
        return ":" in self.name

    @property
    def shape(self) -> str:
        """Of a picture"""
        return f"{self.channels}×{self.size}×{self.size}"

    @property
    def described(self) -> str:
        return self.name if self.filters is None else f"{self.name} of {self.filters} filters"


@dataclass(frozen=True)
class InnerConfig:
    optimizer: InnerOptimizer = told("sgd", "What adapts to a task.")
    lr: float = told(0.4, "Its rate; where rates are learned, what they start from.")
    steps: int | tuple[int, ...] = told(8, "Steps; or the length of every window, such as 4,2,1,1.")
    momentum: float | None = told(None, "Momentum of sgd and rmsprop; 0 if left out.")
    nesterov: bool | None = told(None, "Nesterov's form of momentum, for sgd.")
    betas: tuple[float, float] | None = told(None, "Decay of the moments of adam and adamw; 0.9,0.999 if left out.")
    weight_decay: float = told(0.0, "Pulls the adapted parameters to 0 at every step.")
    batch: int | None = told(None, "Pictures in each window's mini-batch of the support; all if left out.")

    def __post_init__(self) -> None:
        require(self.lr >= 0, "inner.lr", self.lr, "must not be negative")
        require(self.batch is None or self.batch > 0, "inner.batch", self.batch, "must be at least 1")
        refuse_unused(self, "inner", self.optimizer, INNER_OPTIONS[self.optimizer], all_options(INNER_OPTIONS))


@dataclass(frozen=True)
class MethodConfig:
    name: MethodName = told("multi_step", "How the meta-gradient is made.")
    window: int | None = told(None, "Inner steps that share one gradient; 1 if left out.")
    depth: int | None = told(None, "truncated: how many windows the sweep goes back.")
    carried: bool | None = told(
        None, "reptile: the inner optimizer's memory goes on from task to task, as in the original."
    )
    strength: float | None = told(None, "imaml: how strongly the inner loop is held to its start; 2 if left out.")
    free: bool | None = told(None, "imaml: do not hold the inner loop, only damp its solution by strength.")
    cg_steps: int | None = told(None, "imaml: steps of conjugate gradients; 5 if left out.")
    delta: float | None = told(None, "hf_maml: length of the finite difference; 0.1 if left out.")
    samples: int | None = told(None, "es_maml, ggs_maml: random directions for each product; 8 if left out.")
    sigma: float | None = told(None, "es_maml, ggs_maml: how far they go; 0.1 and 0.01 if left out.")
    head: str | None = told(None, "anil: how the names of the adapted parameters begin; 'head' if left out.")
    weights: tuple[float, ...] | None = told(
        None, "maml_pp: weights of the outer loss after each window; equal if left out."
    )
    curvature: Literal["exact", "exact_forward"] | None = told(
        None, "Second-order products by reverse over reverse, or by forward over reverse."
    )

    def __post_init__(self) -> None:
        refuse_unused(self, "method", self.name, METHOD_OPTIONS[self.name], all_options(METHOD_OPTIONS))
        if self.name == "truncated" and self.depth is None:
            raise MetastepError("method.depth is missing: truncated must know how many windows to go back.")


@dataclass(frozen=True)
class OuterConfig:
    optimizer: Literal["adam", "sgd"] = told("adam", "What moves the meta-parameters.")
    lr: float = told(1e-3, "Its rate.")
    eps: float | None = told(None, "What adam adds to its denominator; 1e-8 if left out.")
    schedule: Literal["constant", "linear"] = told("constant", "How the rate changes; linear goes to zero at the end.")
    tasks: int = told(32, "Tasks in each iteration.")
    iterations: int = told(60_000, "Updates of the meta-parameters.")
    clip: float | None = told(None, "Bound on the size of every element of the meta-gradient.")

    def __post_init__(self) -> None:
        require(self.lr >= 0, "outer.lr", self.lr, "must not be negative")
        require(self.tasks > 0, "outer.tasks", self.tasks, "must be at least 1")
        require(self.iterations > 0, "outer.iterations", self.iterations, "must be at least 1")
        require(self.clip is None or self.clip > 0, "outer.clip", self.clip, "must be above 0")
        refuse_unused(self, "outer", self.optimizer, {"eps"} if self.optimizer == "adam" else set(), {"eps"})


@dataclass(frozen=True)
class TestConfig:
    """How a learner is judged and used, where that differs from how it is trained."""

    __test__ = False  # pytest takes it for a test otherwise

    shots: int | None = told(None, "Pictures of each class to adapt to; as in training if left out.")
    queries: int | None = told(None, "Pictures of each class to be judged by; as in training if left out.")
    steps: int | tuple[int, ...] | None = told(None, "Inner steps; as in training if left out.")
    batch: int | None = told(None, "Pictures in a mini-batch; as in training if left out.")
    rotations: Rotations = told("none", "Quarter turns of the classes.")


@dataclass(frozen=True)
class ValidationConfig:
    every: int = told(500, "Iterations between two validations; 0 for none.")
    episodes: int = told(100, "Episodes of validation classes, always the same ones.")

    def __post_init__(self) -> None:
        require(self.every >= 0, "validation.every", self.every, "must not be negative")
        require(self.episodes > 1, "validation.episodes", self.episodes, "must be at least 2, to have an interval")


@dataclass(frozen=True)
class TrainConfig:
    data: DataConfig = DataConfig()
    net: NetConfig = NetConfig()
    inner: InnerConfig = InnerConfig()
    method: MethodConfig = MethodConfig()
    outer: OuterConfig = OuterConfig()
    test: TestConfig = TestConfig()
    validation: ValidationConfig = ValidationConfig()
    start: str | None = told(
        None, "A learner or run to start from, in place of a new net; without --preset, as it was trained itself."
    )
    seed: int = told(0, "Seed of the first parameters and of all episodes.")
    checkpoint_every: int = told(500, "Iterations between two checkpoints.")
    log_every: int = told(10, "Iterations between two rows of metrics.")
    precision: Precision = told(
        "float32", "Precision of the arithmetic; tf32 is a GPU's faster one, bf16 that of our kernels."
    )
    device: Device = told("auto", "auto takes a GPU where there is one.")
    threads: int = told(1, "CPU threads of each process; small nets gain more from processes, by torchrun.")
    chunk_size: int | None = told(
        None, "Tasks computed together; on a GPU all, on a CPU what its cache holds, if left out."
    )

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, "seed", self.seed, "must be from 0 to 2**63 − 1")
        require(self.checkpoint_every > 0, "checkpoint_every", self.checkpoint_every, "must be at least 1")
        require(self.log_every > 0, "log_every", self.log_every, "must be at least 1")
        require(self.threads > 0, "threads", self.threads, "must be at least 1")
        require(self.chunk_size is None or self.chunk_size > 0, "chunk_size", self.chunk_size, "must be at least 1")
        if self.data.split == "trainval" and self.validation.every:
            raise MetastepError(
                "data.split = trainval trains on the validation classes too: set validation.every to 0, or use train."
            )
        if self.method.carried:
            inner, outer = self.inner, self.outer
            require(inner.optimizer != "sgd", "inner.optimizer", "sgd", "has no memory that method.carried could carry")
            moved = "as method.carried moves an optimizer's memory by it"
            require(outer.optimizer == "sgd", "outer.optimizer", outer.optimizer, f"must be sgd, {moved}")
            require(outer.lr <= 1, "outer.lr", outer.lr, f"must be at most 1, {moved}")
        require(self.data.ways > 1, "data.ways", self.data.ways, "must be at least 2: of one class there is no other")
        # These say at once what is wrong with them.
        _ = self.train_episodes, self.test_episodes
        self._require_windows()

    def _require_windows(self) -> None:
        # Only here: the core loads torch, and the command line makes its flags of this class without it.
        from metastep.core.checks import require_one_each
        from metastep.core.windows import window_lengths

        for steps in (self.inner.steps, self.test_steps):
            window_lengths(steps, self.window)
        if self.method.weights:
            require_one_each(self.method.weights, window_lengths(self.inner.steps, self.window))

    @property
    def window(self) -> int:
        return self.method.window or 1

    @property
    def train_episodes(self) -> Episodes:
        return Episodes(self.data.ways, self.data.shots, self.data.queries, self.data.rotations)

    @property
    def test_episodes(self) -> Episodes:
        shots, queries = self.test.shots or self.data.shots, self.test.queries or self.data.queries
        return Episodes(self.data.ways, shots, queries, self.test.rotations)

    @property
    def shuffles_batches(self) -> bool:
        """Where none can have each class equally often, as 10 of 20: in order, the same ones would have the same few.

        Balanced ones stay as they are: runs with them were published.
        """
        return bool(self.inner.batch and self.inner.batch % self.data.ways)

    @property
    def test_steps(self) -> int | tuple[int, ...]:
        return self.inner.steps if self.test.steps is None else self.test.steps

    @property
    def essential(self) -> "TrainConfig":
        """Without what makes no other run of it: where its data are, where and how precisely it is computed, how often
        it is looked at.

        How a run is tested makes it another one only where validation, which is like it, chooses the checkpoint.
        """
        return replace(
            self.shared, device="auto", precision="float32", threads=1, chunk_size=None, checkpoint_every=1,
            log_every=1, test=self.test if self.validation.every else TestConfig(),
        )  # fmt: skip

    @property
    def shared(self) -> "TrainConfig":
        """For others to see: a user's folders without their places"""
        start = self.start and Path(self.start).name
        return replace(self, data=replace(self.data, name=without_place(self.data.name)), start=start)

    def as_tested(self) -> "TrainConfig":
        """The same, with the inner loop that the learner is judged and used with"""
        batch = self.inner.batch if self.test.batch is None else self.test.batch
        return replace(self, inner=replace(self.inner, steps=self.test_steps, batch=batch))
