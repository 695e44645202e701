# %% [markdown]
# # Your own few pictures
#
# **You have one picture of each kind and new ones to name. How sure can you be?** You need no training: four learners come with metastep.
#
# We write a folder as you would have it: dark ink on white paper, one sub-folder per class. Here it holds characters of scripts that the
# learner has never seen.

# %%
from pathlib import Path

import torch
from PIL import Image

import metastep as ms

ways, queries = 6, 4
glyphs = ms.data.load("glyphs").classes("test")
generator = torch.Generator().manual_seed(11)
chosen = torch.randperm(len(glyphs.names), generator=generator)[:ways].tolist()


def save(number, picture):
    for kind, which in (("known", slice(1)), ("new", slice(1, 1 + queries))):
        for k, drawing in enumerate(glyphs.only([number]).images[which]):
            path = Path("drawings") / kind / picture / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(255 - drawing[0].numpy()).save(path)


for i, number in enumerate(chosen):
    save(number, f"class {i}")

# %% [markdown]
# One call adapts to `drawings/known` and names `drawings/new`. The command `metastep classify omniglot-5w1s --support drawings/known --query
# drawings/new` does the same.

# %%
learner = ms.Learner.load("omniglot-5w1s")
result = learner.classify("drawings/known", "drawings/new")
print(f"{result.accuracy:.0f} % of {len(result.predictions)} are right; a guess would be {100 / ways:.0f} %")
for prediction in result.predictions[:3]:
    print(prediction.path, "→", prediction.name, f"{prediction.probability:.2f}")

# %% [markdown]
# What does meta-training bring? Compare with the same net, untrained:

# %%
from dataclasses import replace

untrained = replace(learner, meta=ms.Learner.fresh(learner.config).meta)
before = untrained.classify("drawings/known", "drawings/new")
print(f"untrained: {before.accuracy:.0f} %")

# %% [markdown]
# Each row is a new picture, each column a class, shown by its one known picture. A dark cell is a probability near 1; a dot marks the truth.
# A row without a dark cell is a picture to look at yourself.

# %%
import matplotlib.pyplot as plt

figure, panels = plt.subplots(1, 2, figsize=(9, 7.6), layout="constrained")
for ax, found, title in zip(panels, (before, result), ("untrained", "meta-trained")):
    table = [[p.probabilities[name] for name in found.classes] for p in found.predictions]
    ax.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    truth = [found.classes.index(p.truth) for p in found.predictions]
    ax.plot(truth, range(len(truth)), ".", color="tab:red", markersize=5)
    ax.set(title=f"{title}: {found.accuracy:.0f} %", xlabel="class (its known picture)", ylabel="new picture")
    ax.set_xticks(range(ways), [""] * ways)
    ax.set_yticks([])
    for i, picture in enumerate(found.support):
        box = ax.inset_axes([i / ways + 0.02, -0.1, 1 / ways - 0.04, 0.08])
        box.imshow(255 - picture[0].numpy(), cmap="gray")
        box.axis("off")
    ax.xaxis.labelpad = 45
