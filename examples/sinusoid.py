"""Few-shot sinusoid regression: learn to fit a sine wave from ten points, with MAML, Multi-step and first order.

Meta-trains the same network three times, prints the error on new waves before and after adaptation, and draws one
picture: what each network says of a wave before it saw its points, and after eight inner steps on them.
"""

import argparse
import math
import time
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from matplotlib import pyplot as plt
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

import metastep as ms

SHOTS, QUERIES, TASKS, STEPS, WINDOW = 10, 20, 16, 8, 2
INNER = ms.SGD(0.01, momentum=0.5)
TEST_SEED = 10**6


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))


METHODS = {"MAML": ms.MAML(), f"Multi-step({WINDOW})": ms.MultiStep(window=WINDOW), "first order": ms.FOMAML()}


def gradient_of(net: nn.Module, name: str) -> ms.MetaGradient:
    return ms.MetaGradient(ms.few_shot(net, F.mse_loss), METHODS[name], INNER, steps=STEPS)


def waves(seed: int, tasks: int = TASKS) -> ms.Task:
    """Points on sine waves of amplitude 0.1 to 5 and any phase: some to adapt to, some to be judged by"""
    generator = torch.Generator().manual_seed(seed)
    amplitude, phase = torch.rand(2, tasks, 1, 1, generator=generator)
    x = 10 * torch.rand(tasks, SHOTS + QUERIES, 1, generator=generator) - 5
    y = (0.1 + 4.9 * amplitude) * torch.sin(x + math.pi * phase)
    return ms.Task((x[:, :SHOTS], y[:, :SHOTS]), (x[:, SHOTS:], y[:, SHOTS:]))


def train(net: nn.Module, gradient: ms.MetaGradient, iterations: int, name: str) -> float:
    """Meta-train in place. Return the seconds that it took."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, iterations)
    step = ms.MetaStep(gradient, net, optimizer, clip=1.0, scheduler=falling)
    start = time.perf_counter()
    for k in track(range(iterations), description=f"{name:14s}"):
        step(waves(k))
    return time.perf_counter() - start


def draw(axes: "matplotlib.axes.Axes", net: nn.Module, gradient: ms.MetaGradient, task: ms.Task) -> None:
    x = torch.linspace(-5, 5, 200)[:, None]
    with torch.no_grad():
        axes.plot(x, ms.apply(net, ms.parameters(net), x), ":", color="tab:gray", label="before adaptation")
        axes.plot(
            x,
            ms.apply(net, gradient.adapt(net, task), x),
            color="tab:blue",
            label=f"after {STEPS} steps",
        )
    (xs, ys), (xq, yq) = task
    order = xq.squeeze().argsort()
    axes.plot(xq[order], yq[order], ".", color="tab:green", markersize=4, label="the wave")
    axes.plot(xs, ys, "^", color="tab:red", label=f"the {SHOTS} points given")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=600)
    parser.add_argument("--out", type=Path, default=Path("demo/sinusoid.png"))
    options = parser.parse_args()

    console = Console()
    table = Table(title=f"Sine waves from {SHOTS} points, {STEPS} inner steps: squared error on 500 new waves")
    for column in ("method", "before", "after adaptation", "seconds"):
        table.add_column(column, justify="left" if column == "method" else "right")

    figure, rows = plt.subplots(2, 3, figsize=(12, 6), sharex=True, sharey="row", constrained_layout=True)
    for column, name in enumerate(METHODS):
        net = network()
        gradient = gradient_of(net, name)
        seconds = train(net, gradient, options.iterations, name)
        test = waves(TEST_SEED, 500)
        with torch.no_grad():
            before, after = F.mse_loss(net(test.query[0]), test.query[1]), gradient.loss(net, test)
        table.add_row(name, f"{before:.2f}", f"{after:.3f}", f"{seconds:.0f}")
        rows[0, column].set_title(f"{name}: error {float(after):.3f}")
        for row in (0, 1):
            new = ms.Task(*(tuple(t[row] for t in part) for part in waves(TEST_SEED + 1)))
            draw(rows[row, column], net, gradient, new)
    rows[0, 0].legend(fontsize="small")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=120)
    console.print(table)
    console.print(f"The picture is [bold]{options.out}[/]: two new waves, before and after adaptation.")


if __name__ == "__main__":
    matplotlib.use("Agg")
    main()
