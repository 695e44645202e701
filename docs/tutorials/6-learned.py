# %% [markdown]
# # Learned rates, regularisers, losses
#
# **Which of your hyperparameters can you learn instead of tune?** Every one that the inner loss or the inner optimizer reads from `meta`. You need
# no new method: write the number as a tensor.
#
# A classifier of digits has ten labelled pictures of each class. We learn four things, one more each time: a rate, a rate for each step, a weight
# decay for each parameter, and how much to smooth the labels.

# %%
import torch
import torch.nn.functional as F
from torch import nn

import metastep as ms

updates = 150  # short: 15
steps = 12
digits = ms.data.load("digits").labelled()


def flat(pictures):
    return F.avg_pool2d(pictures.images.float() / 255, 2).flatten(1), pictures.labels


train, validation, test = flat(digits.train.few(10, 0)), flat(digits.val), flat(digits.test)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(196, 32), nn.Tanh(), nn.Linear(32, 10))
start = {name: p.detach() for name, p in net.named_parameters()}

# %% [markdown]
# θ holds logarithms, so that rates and decays stay positive. Where a part is missing, a usual value stands in.


# %%
def inner(params, meta, batch):
    x, y = batch
    logp = F.log_softmax(ms.apply(net, params, x), dim=1)
    smooth = meta["smoothing"].sigmoid() if "smoothing" in meta else 0.0
    loss = (1 - smooth) * F.nll_loss(logp, y) - smooth * logp.mean()
    if "decay" in meta:
        loss = loss + sum(meta["decay"][name].exp() * p.square().sum() for name, p in params.items())
    return loss


def outer(params, meta, task):
    x, y = task.query
    return F.cross_entropy(ms.apply(net, params, x), y)


def rate(meta, step):
    return meta["rate"].exp() if meta["rate"].ndim == 0 else meta["rate"][step].exp()


problem = ms.Problem(lambda meta, task: start, ms.every_window(inner), outer)
gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=rate, momentum=0.5), steps=steps)
task = ms.Task(support=train, query=validation)

# %%
usual = torch.tensor(0.1).log()
decay = {name: torch.tensor(-8.0) for name in start}
choices = {
    "one rate": {"rate": usual.clone()},
    "a rate for each step": {"rate": usual.repeat(steps)},
    "and decays": {"rate": usual.repeat(steps), "decay": dict(decay)},
    "and smoothing": {"rate": usual.repeat(steps), "decay": dict(decay), "smoothing": torch.tensor(-3.0)},
}


def judge(meta):
    params = gradient.adapt(meta, task)
    with torch.no_grad():
        return 100 * float((ms.apply(net, params, test[0]).argmax(1) == test[1]).float().mean())


curves, learned = {}, {}
for name, given in choices.items():
    meta = gradient.init(ms.trees.map_tree(torch.clone, given))
    before = judge(meta)
    step = ms.MetaStep(gradient, meta, torch.optim.Adam(ms.trees.leaves(meta), lr=0.05), clip=1.0)
    curves[name] = [float(step([task]).loss) for _ in range(updates)]
    learned[name] = meta
    print(f"{name:21} validation loss {curves[name][0]:.3f} → {curves[name][-1]:.3f}, test {before:.1f} → {judge(meta):.1f} %")

# %% [markdown]
# Left: a rate for each step lowers the validation loss below what one rate can. Decays and smoothing add nothing here, and the test accuracy
# above says so too: what you learn on 200 validation pictures can be overfitted like anything else. Right: the rates that twelve steps want.

# %%
import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
for name, curve in curves.items():
    left.plot(curve, label=name)
left.set(xlabel="update of the hyperparameters", ylabel="validation loss after training")
left.legend(frameon=False, fontsize=8)
for name in list(choices)[1:]:
    right.plot(range(1, steps + 1), learned[name]["rate"].detach().exp(), "o-", label=name)
right.axhline(0.1, color="0.6", linestyle=":", label="where it began")
right.set(xlabel="inner step", ylabel="learned rate")
_ = right.legend(frameon=False, fontsize=8)
