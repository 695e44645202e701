"""Measure an exact meta-gradient through modules that are not differentiated by hand.

Eight tasks of ten examples and eight inner steps: by the sweep with either curvature, by autograd mapped over tasks,
and by the loop over tasks that everybody writes; Multi-step and first order for comparison. Examples are noise. All
ways of a row run in one process, in turn, and the exact ones must agree.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import metastep as ms
from metastep.core.counting import peak_bytes
from metastep.core.modules import plain_recurrence
from metastep.train.device import device_for
from study import results
from study.experiments import arguments

WAYS, EXAMPLES, TASKS, STEPS, RATE = 5, 10, 8, 8, 0.01
LOOP, ALONE, EXACT = "loop over tasks", "exact, task by task", ("exact", "exact_forward", "autograd, mapped")
AGREE = 1e-2  # float32 through eight steps


class Last(nn.Module):
    """A classifier of sequences, by their last feature"""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, WAYS)

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x)
        logits: Tensor = self.head((found[0] if isinstance(found, tuple) else found)[:, -1])
        return logits


class Subject(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of an example


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, WAYS))


def convolutions() -> nn.Module:
    def block(channels: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(3), *block(32), nn.Flatten(), nn.Linear(32 * 49, WAYS))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return Last(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 64)


SUBJECTS = {
    "perceptron, 84 thousand parameters": Subject(perceptron, (64,)),
    "two convolutions with GroupNorm, 28x28": Subject(convolutions, (3, 28, 28)),
    "transformer of two layers, 16 tokens": Subject(transformer, (16, 64)),
    "LSTM, 16 tokens": Subject(lambda: Last(nn.LSTM(32, 64, batch_first=True), 64), (16, 32)),
}


def loop_over_tasks(net: nn.Module, meta: dict[str, Tensor], tasks: ms.Task) -> dict[str, Tensor]:
    """Return the meta-gradient as it is written by hand, with the switches that second derivatives need."""

    def error(phi: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, phi, (x,)), y)

    total = [torch.zeros_like(p) for p in meta.values()]
    recurrent = any(isinstance(part, nn.RNNBase) for part in net.modules())
    with sdpa_kernel(SDPBackend.MATH), plain_recurrence() if recurrent else nullcontext():
        for i in range(TASKS):
            phi = meta
            for _ in range(STEPS):
                loss = error(phi, *(x[i] for x in tasks.support))
                grads = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
                phi = {name: p - RATE * g for (name, p), g in zip(phi.items(), grads, strict=True)}
            found = torch.autograd.grad(error(phi, *(x[i] for x in tasks.query)), list(meta.values()))
            total = [a + b / TASKS for a, b in zip(total, found, strict=True)]
    return dict(zip(meta, total, strict=True))


def ways(net: nn.Module, meta: dict[str, Tensor], tasks: ms.Task) -> dict[str, Callable[[], dict[str, Tensor]]]:
    """Name -> what gives the mean meta-gradient; exact ones first"""
    problem, sgd = ms.few_shot(net, F.cross_entropy), ms.SGD(RATE)
    methods = {
        ALONE: ms.MAML(),
        "exact": ms.MAML(),
        "exact_forward": ms.MAML(curvature=ms.curvature.exact_forward),
        "autograd, mapped": ms.methods.Reference(),
        f"Multi-step({STEPS})": ms.MultiStep(window=STEPS),
        "first order": ms.FOMAML(),
    }
    gradients = {
        name: ms.MetaGradient(problem, method, sgd, steps=STEPS, chunk_size=1 if name == ALONE else TASKS)
        for name, method in methods.items()
    }
    return {
        LOOP: partial(loop_over_tasks, net, meta, tasks),
        **{name: partial(by_metastep, gradient, meta, tasks) for name, gradient in gradients.items()},
    }


def by_metastep(gradient: ms.MetaGradient, meta: dict[str, Tensor], tasks: ms.Task) -> dict[str, Tensor]:
    found: dict[str, Tensor] = gradient.unchecked(meta, tasks).grad
    return found


def measure(setting: str, repeats: int, device: torch.device) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    subject = SUBJECTS[setting]
    net = subject.make().to(device)
    labels = torch.arange(WAYS, device=device).repeat(TASKS, EXAMPLES // WAYS)
    parts = [(torch.randn(TASKS, EXAMPLES, *subject.shape, device=device), labels) for _ in range(2)]
    each = ways(net, ms.parameters(net), ms.Task(*parts))
    found = {name: call() for name, call in each.items()}
    for name in (ALONE, *EXACT):
        require_same(setting, name, found[name], found[LOOP])
    times: dict[str, list[float]] = {name: [] for name in each}
    for _ in range(repeats):  # in turn: whatever else the machine does is shared by all
        for name, call in each.items():
            times[name].append(seconds(call, device))
    memory = {name: peak_bytes(call, device)[1] / 2**20 for name, call in each.items()}
    return [row(setting, name, times[name], memory[name]) for name in each]


def require_same(setting: str, name: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    away = max(float((found[p] - expected[p]).norm()) for p in expected)
    size = max(float(tensor.norm()) for tensor in expected.values())
    if not away < AGREE * size:
        raise SystemExit(f"{setting}: {name} is {away / size:.1%} off the {LOOP}.")


def seconds(call: Callable[[], object], device: torch.device) -> float:
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    start = clock()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - start


def row(setting: str, name: str, times: list[float], memory: float) -> dict[str, Any]:
    return {
        "setting": setting, "implementation": "hand-loop" if name == LOOP else "metastep", "method": name,
        "steps": STEPS, "window": STEPS if name.startswith("Multi") else 1, "tasks": TASKS,
        "chunk": 1 if name in (LOOP, ALONE) else None, "precision": "float32",
        "ms": round(1e3 * statistics.median(times), 1),
        "ms_spread": round(1e3 * (max(times) - min(times)), 1), "peak_mib": round(memory, 1), "note": "",
    }  # fmt: skip


def main() -> None:
    parser = arguments.parser("other_modules", __doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)  # two on two shared cores are erratic
    rows = []
    for setting in SUBJECTS:
        rows += measure(setting, options.repeats, device_for("auto"))
        print(f"{setting}: " + ", ".join(f"{r['method']} {r['ms']} ms" for r in rows if r["setting"] == setting))
    print(results.write("other-modules", arguments.command("other_modules", options), rows))
