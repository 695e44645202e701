"""Where multi-step estimation may fail, and how `compare` shows it before a long run.

The paper's reason to reuse gradients is that they hardly change inside the inner loop, which it sees for a network
that is already trained. Here φ is re-initialised for each task whatever θ is, so that its gradients change quickly: θ
(weights of training examples; some are mislabelled) is learned through the first steps of a random
network. The same problem is then looked at from a φ that has been trained, as in meta-transfer learning.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import metastep as ms

TASKS, EXAMPLES, STEPS = 8, 40, 8
INNER = ms.SGD(0.03, momentum=0.9)
NET = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


class Restart(NamedTuple):
    start: dict[str, Tensor]  # φ₁ of each task, whatever θ is
    support: tuple[Tensor, Tensor]
    query: tuple[Tensor, Tensor]


def weighted_loss(params: Any, meta: Any, batch: Any) -> Tensor:
    x, y = batch
    each = F.cross_entropy(ms.apply(NET, params, x), y, reduction="none")
    return (torch.sigmoid(meta["weights"]) * each).mean()


def clean_loss(params: Any, meta: Any, task: Any) -> Tensor:
    x, y = task.query
    return F.cross_entropy(ms.apply(NET, params, x), y)


PROBLEM = ms.Problem(lambda meta, task: task.start, ms.every_window(weighted_loss), clean_loss)


def spirals(tasks: int, wrong: float) -> tuple[Tensor, Tensor]:
    """Two noisy half circles; a part of the labels is wrong"""
    side = torch.arange(EXAMPLES).remainder(2).expand(tasks, -1)
    angle = torch.pi * torch.rand(tasks, EXAMPLES)
    sign = 1 - 2 * side
    x = torch.stack([angle.cos() * sign + side, (angle.sin() - 0.25) * sign], -1)
    flipped = torch.rand(tasks, EXAMPLES) < wrong
    return x + 0.1 * torch.randn_like(x), torch.where(flipped, 1 - side, side)


def restarted() -> Restart:
    start = {name: 0.7 * torch.randn(TASKS, *p.shape) for name, p in NET.named_parameters()}
    return Restart(start, spirals(TASKS, wrong=0.3), spirals(TASKS, wrong=0.0))


@torch.no_grad()
def trained(task: Restart, meta: Any, steps: int = 300) -> Restart:
    """The same tasks, with φ where an optimizer has already brought it"""
    gradient = ms.MetaGradient(PROBLEM, ms.MAML(), ms.SGD(0.1, momentum=0.9), steps=steps)
    return task._replace(start=torch.func.vmap(lambda one: gradient.adapt(meta, one))(task))


def main() -> None:
    torch.manual_seed(0)
    meta = {"weights": torch.zeros(EXAMPLES)}
    methods = {"exact": ms.MAML()} | {f"Multi-step({n})": ms.MultiStep(window=n) for n in (2, 4, 8)}
    methods |= {"HF": ms.methods.HFMAML(), "first order": ms.FOMAML()}
    gradients = {name: ms.MetaGradient(PROBLEM, method, INNER, steps=STEPS) for name, method in methods.items()}

    random = restarted()
    console = Console()
    for title, tasks in (("φ re-initialised for each task", random), ("φ already trained", trained(random, meta))):
        difference = ms.gradient_difference(PROBLEM, INNER, STEPS)(meta, tasks)
        table = Table(title=f"{title}: gradients change by {100 * float(difference.mean()):.2g} % per step")
        for column in ("method", "cosine", "relative error", "gradients", "products"):
            table.add_column(column, justify="left" if column == "method" else "right")
        for row in ms.compare(gradients, meta, tasks, repeats=1):
            cosine = f"{row.cosine:.3f}" if row.cosine == row.cosine else "no gradient"
            table.add_row(row.method, cosine, f"{row.relative_error:.3f}", str(row.gradients), str(row.products))
        console.print(table)


if __name__ == "__main__":
    main()
