"""What is measured: settings, methods, numbers of inner steps. A case is one row of a result file, before it is run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, TypeVar

from metastep.core.optimizers import SGD
from metastep.data.episodes import Episodes
from metastep.errors import MetastepError, did_you_mean, how_many, require_positive
from metastep.train import config as schema
from study.targets import OPTIMIZERS, config_of

Precision = Literal["fp32", "tf32", "bf16", "fp64"]

STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)  # the paper's figures have 1 to 8
STANDARD_STEPS = 8

# All of the paper's tables, but for the rate: at 0.4 noise instead of pictures leaves the finite numbers, and a rate
# costs the same whatever it is.
INNER = SGD(0.01, momentum=0.9, weight_decay=1e-4)


@dataclass(frozen=True)
class FewShot:
    """Few-shot episodes, the net for them, and noise in the place of pictures; all but episodes as for Omniglot."""

    episodes: Episodes
    tasks: int
    filters: int = 64
    size: int = 28
    classes: int = 1_200  # to train on
    per_class: int = 20
    channels: int = 1
    net: str = "conv4"
    pictures: tuple[str, str] = ("omniglot", "trainval")  # the data set and split that `--data` is to have


@dataclass(frozen=True)
class Transfer:
    """Meta-transfer with the nets, pictures and rates of a training run; its steps are T, the virtual ones."""

    config: schema.Transfer
    classes: int  # of the target
    tasks: int = 1


def _omniglot(ways: int, shots: int, tasks: int, filters: int = 64) -> FewShot:
    return FewShot(Episodes(ways, shots, queries=15), tasks, filters)


def _mini_imagenet(shots: int) -> FewShot:
    """Finn's net: stride 1 and max-pooling. A tenth of the pictures, since drawing from more costs no more"""
    return FewShot(
        Episodes(5, shots, queries=15), tasks=4, filters=32, size=84, classes=64, per_class=60, channels=3,
        net="finn_mini", pictures=("mini_imagenet", "train"),
    )  # fmt: skip


STANDARD = "omniglot-5w1s"
SETTINGS: dict[str, FewShot] = {
    STANDARD: _omniglot(5, 1, 32),
    "omniglot-5w5s": _omniglot(5, 5, 32),
    "omniglot-20w1s": _omniglot(20, 1, 16),
    "omniglot-20w5s": _omniglot(20, 5, 16),
    # for how cost grows with parameters
    "omniglot-5w1s-32f": _omniglot(5, 1, 32, filters=32),
    "omniglot-5w1s-128f": _omniglot(5, 1, 32, filters=128),
    # another load: larger pictures, fewer filters and tasks
    "miniimagenet-5w1s": _mini_imagenet(shots=1),
    "miniimagenet-5w5s": _mini_imagenet(shots=5),
}
PAPER_SETTINGS = tuple(SETTINGS)[:4]
CLASSES = {
    "stl10": 10, "cifar100": 100,  # 32×32, batches of 128
    "bird": 200, "indoor": 67, "action": 40, "dog": 120,  # 224×224, batches of 64
}  # fmt: skip


def transfer_setting(target: str, optimizer: str = "sgd") -> str:
    return f"transfer-{target}" if optimizer == "sgd" else f"transfer-{target}-{optimizer}"


def target_of(setting: str) -> str:
    return setting.split("-")[1]


TRANSFERS: dict[str, Transfer] = {
    transfer_setting(target, optimizer): Transfer(config_of(target, optimizer), classes)
    for optimizer in OPTIMIZERS
    for target, classes in CLASSES.items()
}

METHODS: dict[str, tuple[str, int]] = {  # what a user types: the method, its window
    "maml": ("maml", 1),
    **{f"multi_step{n}": ("multi_step", n) for n in (2, 4, 8)},
    **{name: (name, 1) for name in ("first_order", "reptile", "imaml", "hf_maml", "ggs_maml", "es_maml")},
}
TRANSFER_METHODS: dict[str, tuple[str, int]] = {
    "scratch": ("scratch", 1),
    "baseline": ("baseline", 1),
    **{f"multi_step{n}": ("multi_step", n) for n in (2, 3)},
}


@dataclass(frozen=True)
class Case:
    """What one row is about; two rows with the same one are the same measurement."""

    setting: str
    implementation: str
    method: str
    steps: int
    window: int
    tasks: int
    chunk: int | None
    precision: Precision
    data: str | None = field(default=None, compare=False)  # a directory with its pictures; noise without

    def __post_init__(self) -> None:
        require_positive(steps=self.steps, window=self.window, tasks=self.tasks, chunk=self.chunk or 1)

    @property
    def label(self) -> str:
        return f"{self.setting}, {how_many(self.steps, 'step')}, {self.method_label}, {self.implementation}"

    @property
    def method_label(self) -> str:
        return f"{self.method}{self.window}" if self.window > 1 else self.method


@dataclass(frozen=True)
class Grid:
    """All combinations that a call asks for; alternatives are slow, and so run at fewer numbers of steps."""

    settings: Sequence[str] = (*PAPER_SETTINGS, "transfer-stl10")
    methods: Sequence[str] | None = None  # all that a setting has
    steps: Sequence[int] = STEPS
    transfer_steps: Sequence[int] = (2,)
    alternative_steps: Sequence[int] | None = None  # the standard number, if that is among `steps`, else the same
    tasks: Sequence[int] | None = None  # of the setting
    chunk: int | None = None
    precision: Precision = "fp32"
    data: str | None = None

    def cases(self, implementation: str) -> Iterator[Case]:
        """Return the cases in the order of a table. A window longer than the inner loop is another's row already."""
        for setting in self.settings:
            known = methods_of(setting)
            asked = [known[label] for label in self.methods or known if label in known]
            together = product(self._steps(setting, implementation), asked, self._tasks(setting))
            for number, (method, window), tasks in together:
                if window <= number:
                    chunk = None if self.chunk is None else min(self.chunk, tasks)
                    about = setting, implementation, method, number, window, tasks, chunk
                    yield Case(*about, self.precision, self.data)

    def _tasks(self, setting: str) -> Sequence[int]:
        return self.tasks if self.tasks and setting not in TRANSFERS else (setting_of(setting).tasks,)

    def _steps(self, setting: str, implementation: str) -> Sequence[int]:
        if setting in TRANSFERS:
            return self.transfer_steps
        return self.steps if implementation.startswith("metastep") else self._of_alternatives

    @property
    def _of_alternatives(self) -> Sequence[int]:
        if self.alternative_steps is not None:
            return self.alternative_steps
        return (STANDARD_STEPS,) if STANDARD_STEPS in self.steps else self.steps


# Two minutes on two cores
QUICK = Grid((STANDARD,), ("maml", "multi_step4", "first_order"), (STANDARD_STEPS,), tasks=(4,))


def setting_of(name: str) -> FewShot | Transfer:
    both: dict[str, FewShot | Transfer] = {**SETTINGS, **TRANSFERS}
    return chosen(name, both, "setting")


def methods_of(setting: str) -> dict[str, tuple[str, int]]:
    """Return the methods and windows by the names that a user types."""
    return TRANSFER_METHODS if isinstance(setting_of(setting), Transfer) else METHODS


Value = TypeVar("Value")


def chosen(name: str, among: Mapping[str, Value], what: str) -> Value:
    if name in among:
        return among[name]
    raise MetastepError(f"there is no {what} {name!r}.{did_you_mean(name, among)} Choose from {', '.join(among)}.")


def inner_of(case: Case) -> SGD:
    """iMAML's implicit gradient knows nothing of weight decay"""
    return replace(INNER, weight_decay=0.0) if case.method == "imaml" else INNER
