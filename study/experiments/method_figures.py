"""Draw the figures of the page about the method: paths, cosine against window, and the largest stable rate."""

from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import mse_loss

import metastep as ms
from study import results
from study.bench.plot import STYLE
from study.bench.results import Row
from study.experiments import arguments

STEPS, WINDOWS, RATES = 8, (1, 2, 4, 8), (0.002, 0.005, 0.01)
MOMENTA = (0.0, 0.5, 0.9)
VALLEY = torch.tensor([3.0, 12.0], dtype=torch.float64)  # curvatures of the bowl that paths go down


# ---- measured


def cosines(lr: float) -> list[Row]:
    """Return the cosine of each window with exact MAML, at a sinusoid learner that was trained for a while."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1)).double()
    problem, sgd = ms.few_shot(net, mse_loss), ms.SGD(lr, momentum=0.9)
    methods = {f"{n}": ms.MetaGradient(problem, ms.MultiStep(window=n), sgd, steps=STEPS) for n in WINDOWS}
    methods["first order"] = ms.MetaGradient(problem, ms.FOMAML(), sgd, steps=STEPS)
    step = ms.MetaStep(methods["1"], net, torch.optim.Adam(net.parameters(), 1e-3), clip=1.0)
    for k in range(200):
        step(waves(k))
    found = ms.compare(methods, net, waves(10**6), repeats=1)
    return [{"rate": lr, "window": row.method, "cosine": round(row.cosine, 4)} for row in found]


def waves(seed: int, tasks: int = 16) -> ms.Task:
    """Return sine waves of random amplitude and phase, ten points to adapt to and ten to judge by."""
    generator = torch.Generator().manual_seed(seed)
    amplitude, phase = torch.rand(2, tasks, 1, 1, generator=generator, dtype=torch.float64)
    x = 10 * torch.rand(tasks, 20, 1, generator=generator, dtype=torch.float64) - 5
    y = (0.1 + 4.9 * amplitude) * torch.sin(x + torch.pi * phase)
    return ms.Task((x[:, :10], y[:, :10]), (x[:, 10:], y[:, 10:]))


def largest_stable(momentum: float, window: int) -> float:
    """Return the largest rate times curvature at which windows of SGD with momentum shrink a quadratic."""
    low, high = 0.0, 4.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _radius(middle, momentum, window) <= 1 + 1e-12 else (low, middle)
    return low


def _radius(rate: float, momentum: float, window: int) -> float:
    """Return the spectral radius of one window's map of (φ, velocity), with curvature 1."""

    def after(start: Tensor) -> Tensor:
        params, velocity = start
        gradient = params
        for _ in range(window):
            velocity = momentum * velocity + gradient
            params = params - rate * velocity
        return torch.stack([params, velocity])

    columns = [after(column) for column in torch.eye(2, dtype=torch.float64)]
    return float(torch.linalg.eigvals(torch.stack(columns, 1)).abs().max())


# ---- drawn


def draw_paths() -> None:
    """Draw the way of φ down a bowl, with a new gradient every step, every second and every fourth."""
    figure, axes = _figure(3)
    x, y = torch.meshgrid(torch.linspace(-0.4, 2.2, 80), torch.linspace(-1.1, 1.1, 80), indexing="ij")
    for ax, n in zip(axes, (1, 2, 4), strict=True):
        path, looked = _path(n)
        ax.contour(x, y, VALLEY[0] * x**2 + VALLEY[1] * y**2, 12, colors="#bbbbbb", linewidths=0.6)
        ax.plot(*path.T, "-o", color="#d62728", markersize=2.5, linewidth=1, label="inner steps")
        ax.plot(*path[looked].T, "o", color="#1f77b4", markersize=6, fillstyle="none", label="gradient evaluated")
        ax.set(xlabel="φ, flat direction", title=f"windows of {n}: {len(looked)} gradients")
    axes[0].set_ylabel("φ, steep direction")
    axes[0].legend(fontsize=6, frameon=False, loc="lower left")
    _save(figure, "paths")


def _path(window: int) -> tuple[Tensor, list[int]]:
    problem = ms.Problem(
        lambda meta, task: meta,
        ms.every_window(lambda params, meta, batch: 0.5 * (VALLEY * params.square()).sum()),
        lambda params, meta, task: params.square().sum(),
    )
    start, points = torch.tensor([2.0, 0.8], dtype=torch.float64), []
    for steps in range(1, STEPS + 1):
        lengths = [window] * (steps // window) + ([steps % window] if steps % window else [])
        loop = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.035), steps=lengths)
        points.append(loop.adapt(start, ms.Task(start, start)))
    return torch.stack([start, *points]).detach(), list(range(0, STEPS, window))


def draw_cosines(rows: list[Row]) -> None:
    figure, (ax,) = _figure(1)
    for lr in RATES:
        windows = [row for row in rows if row["rate"] == lr and row["window"] != "first order"]
        first = next(row["cosine"] for row in rows if row["rate"] == lr and row["window"] == "first order")
        places = [int(row["window"]) for row in windows]
        (line,) = ax.plot(places, [row["cosine"] for row in windows], "o-", markersize=3, label=f"inner rate {lr:g}")
        ax.axhline(first, color=line.get_color(), linestyle=":", linewidth=1)
    ax.set(xlabel="window: steps that share a gradient", ylabel="cosine with exact MAML")
    ax.set(xscale="log", ylim=(-0.05, 1.05))
    ax.set_xticks(WINDOWS, [str(n) for n in WINDOWS])
    ax.minorticks_off()
    ax.legend(fontsize=6, frameon=False, title="dotted: first order", title_fontsize=6)
    _save(figure, "cosine")


def draw_stability() -> None:
    figure, (ax,) = _figure(1)
    windows = range(1, 17)
    for momentum in MOMENTA:
        limits = [largest_stable(momentum, n) for n in windows]
        ax.plot(windows, limits, "o-", markersize=3, label=f"momentum {momentum:g}")
    ax.set(xlabel="window: steps that share a gradient", ylabel="largest stable rate × curvature", yscale="log")
    ax.legend(fontsize=6, frameon=False)
    _save(figure, "stability")


def _figure(columns: int) -> tuple[Figure, Any]:
    figure = Figure((2.4 * columns + (1.8 if columns == 1 else 0), 2.4), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _save(figure: Figure, name: str) -> None:
    figure.savefig(results.picture_of(f"method-{name}"), metadata={"Date": None})


def main() -> None:
    options = arguments.parser("method_figures", __doc__).parse_args()
    rows = [row for lr in RATES for row in cosines(lr)]
    print(results.write("method", arguments.command("method_figures", options), rows))
    with mpl.rc_context(STYLE | {"axes.titlesize": 8}):
        draw_paths()
        draw_cosines(rows)
        draw_stability()
