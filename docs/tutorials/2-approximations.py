# %% [markdown]
# # Which approximation is safe?
#
# **Before you pay for exact meta-gradients: how much do you lose by a cheap one?** It depends on your net, your rate, and how far training has come.
# So measure it on your own problem. It takes one line.
#
# Five characters, one drawing each, a small convolutional net, eight steps:

# %%
import torch
import torch.nn.functional as F

import metastep as ms

updates = 150  # short: 4
tasks = 8  # short: 2
glyphs = ms.data.load("glyphs").classes("train")
drawings = (glyphs.images.float() / 255).reshape(len(glyphs.names), 20, 1, 28, 28)


def draw(seed, tasks=tasks, ways=5, shots=1, queries=5):
    generator = torch.Generator().manual_seed(seed)
    classes = torch.rand(tasks, len(drawings), generator=generator).topk(ways).indices
    which = torch.rand(tasks, ways, 20, generator=generator).topk(shots + queries).indices
    x = drawings[classes[..., None], which]
    y = torch.arange(ways)[None, :, None].expand(tasks, ways, shots + queries)
    part = lambda at: (x[:, :, at].flatten(1, 2), y[:, :, at].flatten(1, 2))
    return ms.Task(support=part(slice(shots)), query=part(slice(shots, None)))


net = ms.nets.build("conv4", ways=5, channels=1, size=28, filters=16)  # short: ms.nets.build("conv4", ways=5, channels=1, size=28, filters=8)
problem = ms.few_shot(net, F.cross_entropy, {"accuracy": ms.accuracy})

# %% [markdown]
# `ms.compare` takes several meta-gradients. The first is the reference.

# %%
methods = {"MAML": ms.MAML()}
methods |= {f"Multi-step({n})": ms.MultiStep(window=n) for n in (2, 4, 8)}
methods |= {"first order": ms.FOMAML()}


def compared(lr):
    sgd = ms.SGD(lr=lr, momentum=0.9)
    named = {name: ms.MetaGradient(problem, method, sgd, steps=8) for name, method in methods.items()}
    return ms.compare(named, net, draw(0), repeats=1)


rates = [0.002, 0.01, 0.05]
found = {"a new net": {lr: compared(lr) for lr in rates}}
print("a new net, inner rate 0.01")
for row in found["a new net"][0.01]:
    print(f"  {row.method:14} cosine {row.cosine:6.3f}, {row.gradients} gradients, {row.products} products, {row.seconds:.2f} s")

# %% [markdown]
# Train for a while with windows of 4, and look again.

# %%
gradient = ms.MetaGradient(problem, ms.MultiStep(window=4), ms.SGD(lr=0.02, momentum=0.9), steps=8)
step = ms.MetaStep(gradient, net, torch.optim.Adam(net.parameters(), lr=2e-3), clip=0.5)
for k in range(updates):
    estimate = step(draw(k))
found[f"after {updates} updates"] = {lr: compared(lr) for lr in rates}
print(f"accuracy on the last tasks: {estimate.metrics['accuracy'].mean():.2f}")

# %% [markdown]
# Read the picture from left to right: at small rates every approximation is good; at large ones none is. A method above the dotted line (0.8)
# is safe to use for MAML's gradient. Multi-step below it may still learn well, because it follows the exact gradient of its own inner loop; then
# judge it by validation accuracy, as above.

# %%
import matplotlib.pyplot as plt

figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
for ax, (title, rows) in zip(panels, found.items()):
    for i, name in enumerate(methods):
        ax.plot(rates, [rows[lr][i].cosine for lr in rates], "o-", label=name)
    ax.axhline(0.8, color="0.6", linestyle=":")
    ax.set(xscale="log", title=title, xlabel="inner rate")
    ax.set_xticks(rates, [f"{lr:g}" for lr in rates])
    ax.minorticks_off()
panels[0].set_ylabel("cosine with exact MAML")
_ = panels[1].legend(frameon=False, fontsize=8, loc="lower left")
