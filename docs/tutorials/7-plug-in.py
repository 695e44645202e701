# %% [markdown]
# # An optimizer, a method and a data set of your own
#
# **How do you add what metastep does not have?** Write a class and register it. It then has a name in Python, in configurations and on the command
# line, and takes part in everything: exact meta-gradients, checkpoints, reports.
#
# First a data set. A class of it is a wave with its own direction and length.

# %%
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

import metastep as ms

updates = 120  # short: 12


@ms.register("dataset", "ripples")
class Ripples(ms.data.ClassSplit):
    summary = "60 ripples, 20 noisy pictures each, 16x16"
    licence, source, embedded = "free", "drawn here", True
    side, channels = 16, 1

    def read_classes(self, split):
        classes = ms.data.classes_by_share(60, split)
        pictures = np.concatenate([self.draw(label) for label in classes])
        return ms.data.Pictures.of(pictures, np.arange(len(classes)).repeat(20), [f"ripple {i}" for i in classes])

    def draw(self, label):
        random = np.random.default_rng(label)
        wave = np.sin(np.tensordot(2 * random.normal(size=2), np.mgrid[:16, :16] / 5, 1))
        noise = random.normal(0, 50, (20, 1, 16, 16))
        return np.uint8(np.clip(127.5 + 60 * wave + noise, 0, 255))


# %% [markdown]
# Then an optimizer. `advance` makes `steps` steps with one gradient. metastep differentiates it; you write no derivative. (A square root has no
# derivative at 0: add something small.)


# %%
@ms.register("optimizer", "normalised")
@dataclass(frozen=True)
class Normalised:
    """Move every tensor by nearly the same length.

    Args:
        lr: The length of a step.
        softness: Below this length of a gradient, steps become shorter.
    """

    lr: float = 0.1
    softness: float = 0.3

    def init(self, params):
        return ms.optimizers.State(params, {})

    def advance(self, state, grad, meta, steps):
        def moved(p, g):
            length = (g.square().sum() + 1e-12).sqrt()
            return p - steps * self.lr * g / (length + self.softness)

        return ms.optimizers.State(ms.trees.map_tree(moved, state.params, grad), {}, state.step + steps)


# %% [markdown]
# Last a method: windows that grow, 1, 1, 2, 4, …, because gradients change less towards the end.


# %%
@ms.register("method", "growing_windows")
@dataclass(frozen=True, repr=False)
class GrowingWindows(ms.methods.Method):
    """Let windows grow."""

    def loop(self, problem, inner, steps):
        lengths = [1]
        while sum(lengths) < steps:
            lengths.append(min(sum(lengths), steps - sum(lengths)))
        return super().loop(problem, inner, lengths)


# %% [markdown]
# Use all three. In a file `mine.py`, they are on the command line too: `metastep train data=ripples inner=normalised method=growing_windows --plugin mine`.

# %%
data = {split: ms.data.load("ripples").classes(split) for split in ("train", "test")}


def draw(seed, split="train", tasks=8, ways=5):
    pictures = data[split].images.float().reshape(-1, 20, 256) / 255
    generator = torch.Generator().manual_seed(seed)
    classes = torch.rand(tasks, len(pictures), generator=generator).topk(ways).indices
    which = torch.rand(tasks, ways, 20, generator=generator).topk(6).indices
    x, y = pictures[classes[..., None], which], torch.arange(ways)[None, :, None].expand(tasks, ways, 6)
    part = lambda at: (x[:, :, at].flatten(1, 2), y[:, :, at].flatten(1, 2))
    return ms.Task(support=part(slice(1)), query=part(slice(1, None)))


def learn(method, inner):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(256, 48), torch.nn.ReLU(), torch.nn.Linear(48, 5))
    problem = ms.few_shot(net, F.cross_entropy, {"accuracy": ms.accuracy})
    gradient = ms.MetaGradient(problem, method, inner, steps=8)
    step = ms.MetaStep(gradient, net, torch.optim.Adam(net.parameters(), lr=2e-3), clip=1.0)
    curve = []
    for k in range(updates):
        step(draw(k))
        if k % 4 == 3:
            curve.append(float(gradient.judge(net, draw(10**6, "test", 30)).metrics["accuracy"].mean()))
    return curve


curves = {
    "SGD, MAML": learn(ms.MAML(), ms.SGD(lr=0.1)),
    "normalised, MAML": learn(ms.MAML(), Normalised()),
    "normalised, growing windows": learn(GrowingWindows(), Normalised()),
}
for name, curve in curves.items():
    print(f"{name:27} accuracy {100 * curve[-1]:.0f} %")

# %% [markdown]
# Your optimizer learns by exact meta-gradients, and your method needs 4 gradients where MAML needs 8.

# %%
import matplotlib.pyplot as plt

figure, ax = plt.subplots(figsize=(7, 3.6))
for name, curve in curves.items():
    ax.plot(range(4, updates + 1, 4), [100 * a for a in curve], label=name)
ax.axhline(20, color="0.6", linestyle=":", label="chance")
ax.set(xlabel="update", ylabel="accuracy on 30 new tasks, %")
_ = ax.legend(frameon=False, fontsize=8)
