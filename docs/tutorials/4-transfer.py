# %% [markdown]
# # Transfer from your own net
#
# **You have a net that knows much, and must train another one on few labels. Which layer should teach which?** Meta-networks learn it: λ says how
# much each pair of layers counts, while the target trains.
#
# First, a source of your own. It learns 100 characters from crops of them.

# %%
import torch
import torch.nn.functional as F
from torch import nn

import metastep as ms
from metastep.train.config import Source, Transfer, WhatAndWhere
from metastep.train.transfer.features import Tapped
from metastep.train.transfer.iteration import initial_state, iteration
from metastep.train.transfer.losses import guidance

source_steps, target_steps = 300, 150  # short: 30, 12
torch.manual_seed(0)


def block(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU())


class Net(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.one, self.two, self.three = block(1, width), block(width, 2 * width), block(2 * width, 2 * width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x):
        return self.head(self.three(self.two(self.one(x))).mean((-2, -1)))


def fit(net, x, y, steps, lr=0.05):
    sgd = torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=1e-4)
    for _ in range(steps):
        at = torch.randint(len(x), (64,))
        sgd.zero_grad()
        F.cross_entropy(net(x[at]), y[at]).backward()
        sgd.step()


glyphs = ms.data.load("glyphs").classes("train").only(range(100))
letters = F.interpolate(glyphs.images.float() / 255, size=20)[:, :, 2:-2, 2:-2]
teacher = Net(classes=100, width=16)
fit(teacher, letters, glyphs.labels, source_steps)

# %% [markdown]
# Then the target: five labelled digits of each class. Name the layers of both nets; `all-to-all` offers every pair.

# %%
digits = ms.data.load("digits").labelled()
few = digits.train.few(5, 0)
x, y = (F.interpolate(few.images.float() / 255, size=16), few.labels)
test_x, test_y = F.interpolate(digits.test.images.float() / 255, size=16), digits.test.labels

pupil = Net(classes=10, width=8)
source, target = Tapped(teacher.eval(), ("one", "two", "three")), Tapped(pupil, ("one", "two", "three"))
guide = guidance(source, target, "all-to-all", x)
method = WhatAndWhere(window=2, beta=0.5)
inner = ms.SGD(lr=0.02, momentum=0.9)
config = Transfer(source=Source(dataset="letters"), method=method, inner=inner, steps=2)
state, step = initial_state(config, target, guide), iteration(config, target, guide)

# %% [markdown]
# One iteration takes a real step on labels and imitation, then two virtual steps, and asks how θ should change so that the labels are learned
# better. With `window=2` the virtual steps share a gradient.

# %%
where = []
for _ in range(target_steps):
    at = torch.randint(len(x), (25,))
    state, metrics = step(state, (x[at], y[at]), 0.02)
    where.append(metrics["where"].detach())


def accuracy(net):
    with torch.no_grad():
        return 100 * float((net.eval()(test_x).argmax(1) == test_y).float().mean())


pupil.load_state_dict({**state.target.params["target"], **state.buffers})
guided = accuracy(pupil)
alone = Net(classes=10, width=8)
fit(alone, x, y, target_steps, lr=0.02)
print(f"five digits of each class: guided {guided:.1f} %, alone {accuracy(alone):.1f} %")

# %% [markdown]
# A pair that falls does not help; one that stays teaches. One run of 50 pictures decides nothing: on digits, seeds differ by more than guidance
# gains ([measured](../transfer-results.md)). On STL-10 it gains twelve points.

# %%
import matplotlib.pyplot as plt

figure, ax = plt.subplots(figsize=(8, 4))
names = [f"{m} → {n}" for m, n in guide.networks.pairs]
for name, curve in zip(names, torch.stack(where).T):
    ax.plot(curve, label=name)
ax.set(xlabel="iteration", ylabel="λ: how much the pair counts")
_ = ax.legend(title="source → target layer", frameon=False, ncols=2, fontsize=8, bbox_to_anchor=(1, 1))
