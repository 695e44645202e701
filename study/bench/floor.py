"""The least that a meta-iteration takes: operations and bytes, layer by layer, from the shapes of the net.

Operations are those of convolutions and of the head; all else is small. Bytes are those of a device that keeps nothing
between layers but computes each layer in one go: a pass reads what it needs from memory once, and writes what
it makes once, with BatchNorm and ReLU on the way. Tasks do not share weights, since each adapts its own.

Max-pooling is on the way too. BatchNorm goes up or down with z, channel by channel, so that the largest of a window can
be found before the batch's statistics are known: the next layer reads z of those places only, and their cotangents are
what comes back. But BatchNorm's own backward pass takes something from every position, so that z is also written at
full size wherever there is a way back, and read there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from metastep.core.windows import window_lengths
from metastep.step.chain.chain import Block, Slot
from study.bench.cases import SETTINGS, FewShot
from study.bench.workload import shapes_of

NUMBER = 4  # bytes of one in float32 and tf32
SAMPLES, CG_STEPS = 8, 5  # defaults of ES- and GGS-MAML, and of iMAML


@dataclass(frozen=True)
class Peaks:
    """What a device can do in a second"""

    operations: float
    bytes: float


# NVIDIA's data sheet of the H200 SXM: 989 TFLOPS in TF32 with sparsity, half of it without; 4.8 TB/s.
H200 = Peaks(operations=494.5e12, bytes=4.8e12)


@dataclass(frozen=True)
class Work:
    operations: float
    bytes: float

    def __add__(self, other: "Work") -> "Work":
        return Work(self.operations + other.operations, self.bytes + other.bytes)

    def __mul__(self, times: float) -> "Work":
        return Work(times * self.operations, times * self.bytes)

    def milliseconds(self, peaks: Peaks) -> tuple[float, float]:
        """Return the time of arithmetic and of traffic. If they overlap perfectly, the larger one is the floor."""
        return 1e3 * self.operations / peaks.operations, 1e3 * self.bytes / peaks.bytes


NOTHING = Work(0, 0)


@dataclass(frozen=True)
class Layer:
    """A convolution with what follows it, or the head; numbers of one picture, weights of one task"""

    inputs: int
    outputs: int
    seen: int  # of the outputs, by the next layer: fewer where they are pooled
    weights: int
    products: int  # multiply-and-add, in one pass over one picture
    first: bool = False

    def forward(self, pictures: int, way_back: bool = True) -> Work:
        """y = w ∗ x"""
        return self._work(pictures, 1, self.inputs + (self._written if way_back else self.seen), 1)

    def backward(self, pictures: int) -> Work:
        """dw = dy ∗ x and, unless x are the pictures, dx = w ∗ dy, which read x, y, w and dy"""
        passed_on = 0 if self.first else self.inputs
        return self._work(pictures, 1 if self.first else 2, self.inputs + self.outputs + self.seen + passed_on, 2)

    def forward_of_product(self, pictures: int) -> Work:
        """y and ẏ = ẇ ∗ x + w ∗ ẋ; the first layer has no ẋ"""
        return self._work(pictures, 2 if self.first else 3, self._moved + 2 * self._written, 2)

    def backward_of_product(self, pictures: int) -> Work:
        """dx, its tangent (two terms), and that of dw (two terms); in the first layer only dẏ ∗ x"""
        passed_on = 0 if self.first else 2 * self.inputs  # dx and its tangent
        of_each = self._moved + 2 * (self.outputs + self.seen) + passed_on
        return self._work(pictures, 1 if self.first else 5, of_each, 3)

    @property
    def _moved(self) -> int:
        """x, and ẋ"""
        return self.inputs if self.first else 2 * self.inputs

    @property
    def _written(self) -> int:
        """y, and what the next layer sees, where that is less"""
        return self.outputs + (self.seen if self.seen < self.outputs else 0)

    def _work(self, pictures: int, passes: int, numbers: int, weights: int) -> Work:
        """`numbers` are read or written for each picture, all weights `weights` times"""
        return Work(2 * passes * pictures * self.products, NUMBER * (pictures * numbers + weights * self.weights))


def layers(setting: FewShot) -> Iterator[Layer]:
    """Return the layers of the setting's net: its blocks, and the head."""
    blocks, head, _ = shapes_of(setting)
    for block in blocks:
        yield _convolution(block, first=block is blocks[0])
    yield Layer(head.features, head.ways, head.ways, _numbers(head.weight, head.bias), _numbers(head.weight))


def _convolution(block: Block, first: bool) -> Layer:
    positions = block.out_size**2
    return Layer(
        block.inputs * block.size**2,
        block.outputs * positions,
        block.outputs * block.seen_size**2,
        _numbers(block.weight, block.bias, block.scale, block.shift),
        _numbers(block.weight) * positions,
        first,
    )


def _numbers(*slots: Slot | None) -> int:
    return sum(prod(slot.shape) for slot in slots if slot)


def parameters(setting: FewShot) -> int:
    return sum(layer.weights for layer in layers(setting))


@dataclass(frozen=True)
class Passes:
    """How often a task's inner loop goes over the support"""

    gradients: int
    products: int = 0
    forwards: int = 0
    pulled: int = 0  # windows that the sweep goes back through
    outer_gradient: bool = True


def passes(method: str, steps: int, window: int) -> Passes:
    n = len(window_lengths(steps, window))
    return {
        "maml": Passes(n, products=n, pulled=n),
        "multi_step": Passes(n, products=n, pulled=n),
        "first_order": Passes(n),
        "reptile": Passes(n, outer_gradient=False),
        "imaml": Passes(n, products=CG_STEPS + 1),
        "hf_maml": Passes(n + 2 * n, pulled=n),
        "ggs_maml": Passes(n + 2 * SAMPLES * n, pulled=n),
        "es_maml": Passes(n, forwards=(2 * SAMPLES + 1) * n, pulled=n),
    }[method]


def floor(name: str, method: str, steps: int, window: int, tasks: int) -> Work:
    """One meta-iteration: episodes drawn, every task adapted and pulled back, the mean, and Adam"""
    return total(floor_parts(name, method, steps, window, tasks).values())


def floor_parts(name: str, method: str, steps: int, window: int, tasks: int) -> dict[str, Work]:
    """The same by what it is for"""
    setting, going = SETTINGS[name], passes(method, steps, window)
    *blocks, head = layers(setting)
    size = parameters(setting)
    # an update reads φ, v, g and writes φ, v; its pullback reads Λ of φ and v and the product, and writes Λ and d_grad
    elementwise = 5 * len(window_lengths(steps, window)) + 6 * going.pulled + 1
    adam = Work(0, NUMBER * size * 7)  # reads θ, g, m, v and writes θ, m, v
    return {
        "forward": total(ahead(block, setting, going) for block in blocks) * tasks,
        "backward": total(back(block, setting, going) for block in blocks) * tasks,
        "head": (ahead(head, setting, going) + back(head, setting, going)) * tasks,
        "updates": Work(0, NUMBER * size * elementwise) * tasks,
        "episodes, Adam": drawn(setting) * tasks + adam,
    }


def ahead(layer: Layer, setting: FewShot, going: Passes) -> Work:
    """All passes forward of a task"""
    support, query = pictures(setting)
    alone = layer.forward(support, way_back=False) * going.forwards + layer.forward(query, going.outer_gradient)
    return layer.forward(support) * going.gradients + layer.forward_of_product(support) * going.products + alone


def back(layer: Layer, setting: FewShot, going: Passes) -> Work:
    """All passes backward of a task"""
    support, query = pictures(setting)
    work = layer.backward(support) * going.gradients + layer.backward_of_product(support) * going.products
    return work + layer.backward(query) if going.outer_gradient else work


def pictures(setting: FewShot) -> tuple[int, int]:
    """Return how many pictures an episode has: support, query."""
    episodes = setting.episodes
    return episodes.ways * episodes.shots, episodes.ways * episodes.queries


def total(works: Iterable[Work]) -> Work:
    return sum(works, NOTHING)


def drawn(setting: FewShot) -> Work:
    """Bytes become floats"""
    pixels = setting.episodes.ways * setting.episodes.images * setting.channels * setting.size**2
    return Work(0, pixels * (1 + NUMBER))
