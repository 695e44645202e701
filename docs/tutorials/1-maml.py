# %% [markdown]
# # MAML on your own module
#
# **How do you find an initialisation from which a few steps suffice?** You give metastep your module, your loss and a way to draw tasks.
#
# A task here is a sine wave of any amplitude and phase. The module sees ten points and must predict the rest.

# %%
import math

import torch
import torch.nn.functional as F
from torch import nn

import metastep as ms

updates = 500  # short: 40


class Mine(nn.Module):  # any module
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh())
        self.head = nn.Linear(40, 1)

    def forward(self, x):
        return self.head(self.hidden(x))


def waves(seed, tasks=16):
    draw = torch.Generator().manual_seed(seed)
    amplitude, phase = torch.rand(2, tasks, 1, 1, generator=draw)
    x = 10 * torch.rand(tasks, 20, 1, generator=draw) - 5
    y = (0.1 + 4.9 * amplitude) * torch.sin(x + math.pi * phase)
    return ms.Task(support=(x[:, :10], y[:, :10]), query=(x[:, 10:], y[:, 10:]))


# %% [markdown]
# `few_shot` says what a task is: adapt the module to the support, judge it by the query. `MetaGradient` adds how: the method, the inner
# optimizer and its steps. `MetaStep` updates the module in place.


# %%
def meta_train(method):
    torch.manual_seed(0)
    net = Mine()
    problem = ms.few_shot(net, F.mse_loss)
    gradient = ms.MetaGradient(problem, method, ms.SGD(lr=0.01, momentum=0.5), steps=8)
    step = ms.MetaStep(gradient, net, torch.optim.Adam(net.parameters(), lr=2e-3), clip=1.0)
    for k in range(updates):
        step(waves(k))
    return net


methods = {"MAML": ms.MAML(), "Multi-step(2)": ms.MultiStep(window=2), "first order": ms.FOMAML()}
torch.manual_seed(0)
nets = {"not meta-trained": Mine()} | {name: meta_train(method) for name, method in methods.items()}

# %% [markdown]
# Now adapt each net to new waves. `steps=` may differ from training.

# %%
tasks = 100  # short: 20
new, lengths, curves = waves(10**6, tasks), (0, 1, 2, 4, 8, 16), {}
for name, net in nets.items():
    problem, sgd = ms.few_shot(net, F.mse_loss), ms.SGD(lr=0.01, momentum=0.5)
    with torch.no_grad():
        before = F.mse_loss(net(new.query[0]), new.query[1])
        after = [ms.MetaGradient(problem, ms.MAML(), sgd, steps=k).loss(net, new) for k in lengths[1:]]
    curves[name] = [float(loss) for loss in (before, *after)]
    print(f"{name:17} error before {curves[name][0]:5.2f}, after 8 steps {curves[name][4]:5.2f}")

# %% [markdown]
# A net that was not meta-trained needs many steps. A meta-trained net is no better *before* adaptation: it is better to adapt.

# %%
import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
for name, curve in curves.items():
    left.plot(lengths, curve, "o-", markersize=3, label=name)
left.axvline(8, color="0.8", zorder=0)
left.set(xlabel="inner steps (trained for 8)", ylabel="squared error on new waves", yscale="log")
left.legend(frameon=False)

wave, x = ms.Task(*(tuple(t[3] for t in part) for part in new)), torch.linspace(-5, 5, 200)[:, None]
net = nets["MAML"]
gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.SGD(lr=0.01, momentum=0.5), steps=8)
adapted = ms.as_module(net, gradient.adapt(net, wave))
with torch.no_grad():
    right.plot(x, net(x), ":", color="0.5", label="MAML, before")
    right.plot(x, adapted(x), label="MAML, after 8 steps")
right.plot(*wave.query, "o", color="tab:green", markersize=4, label="the wave")
right.plot(*wave.support, "^", color="tab:red", label="the ten points given")
right.set(xlabel="x", ylabel="y", ylim=(-4.2, 6.2))
_ = right.legend(frameon=False, fontsize=8, ncol=2, loc="upper center")
