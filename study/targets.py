"""The target tasks of the paper's transfer tables: what the data sets are called here, and how many pictures."""

from metastep.train import presets
from metastep.train.config import Transfer

# Of training, validation and test.
SIZES = {
    "cifar100": (45_000, 5_000, 10_000),
    "stl10": (4_500, 500, 8_000),
    "bird": (4_994, 1_000, 5_794),
    "indoor": (4_360, 1_000, 1_340),
    "action": (3_600, 400, 5_532),
    "dog": (10_800, 1_200, 8_580),
}
TARGETS = tuple(SIZES)
OPTIMIZERS = ("sgd", "adam")
METHODS = ("scratch", "baseline", "multistep")
ABLATIONS = (
    "t0", "t1", "t3", "3step-estimate", "1step-2lr", "1step-2.9lr", "first-order", "fixed-weights", "fine-tuning",
)  # fmt: skip
ABLATED = ("bird", "stl10")  # where the paper has them, and where pictures are small


def config_of(target: str, optimizer: str = "sgd", method: str = "baseline") -> Transfer:
    """Return the preset of a target, an optimizer and a method."""
    return presets.transfer()[f"{target}-{optimizer}-{method}"]
