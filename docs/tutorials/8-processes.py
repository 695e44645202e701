# %% [markdown]
# # From one process to many, and to a GPU
#
# **What must change when one process is not enough?** Nothing in the step. Start the script with `torchrun`; each process draws its own tasks, and
# `MetaStep` connects the processes and averages the meta-gradient over all of them.
#
# This script has 8 tasks for each update, shared among the processes. `.to(device)` is all that a GPU needs.

# %%
from pathlib import Path

updates = 60  # short: 4
script = """
import json, os, time
import torch
import torch.nn.functional as F
import metastep as ms

torch.set_num_threads(1)
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else "cpu"

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(1, 200), torch.nn.Tanh(), torch.nn.Linear(200, 200), torch.nn.Tanh(),
                          torch.nn.Linear(200, 1)).to(device)

def waves(k):                                     # all tasks of update k, then those of this process
    draw = torch.Generator().manual_seed(k)
    phase = 3 * torch.rand(8, 1, 1, generator=draw)
    x = 10 * torch.rand(8, 60, 1, generator=draw) - 5
    x, y = (t[rank::ranks].to(device) for t in (x, 3 * torch.sin(x + phase)))
    return ms.Task((x[:, :30], y[:, :30]), (x[:, 30:], y[:, 30:]))

gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MultiStep(window=2), ms.SGD(lr=0.003), steps=8)
step = ms.MetaStep(gradient, net, torch.optim.Adam(net.parameters(), lr=1e-3), clip=1.0)
losses, step_of = [], step(waves(0))
start = time.perf_counter()
for k in range(1, UPDATES + 1):
    estimate = step(waves(k))                     # the same line everywhere
    losses.append(float(estimate.loss))
seconds = time.perf_counter() - start
if rank == 0:
    print(json.dumps({"losses": losses, "seconds": seconds, "path": step.path}))
"""
_ = Path("sine.py").write_text(script.replace("UPDATES", str(updates)))

# %% [markdown]
# Run it alone, then with two processes. `estimate.loss` is the mean over all tasks of all processes.

# %%
import json
import subprocess
import sys

found = {}
for processes in (1, 2):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    done = subprocess.run([sys.executable, *launch, "sine.py"], stdout=subprocess.PIPE, text=True, check=True)
    found[processes] = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{processes} process(es): {updates / found[processes]['seconds']:.0f} updates a second; {found[processes]['path']}")
apart = max(abs(a - b) for a, b in zip(found[1]["losses"], found[2]["losses"]))
print(f"the losses differ by {apart:.1e} at most")

# %% [markdown]
# Both runs see the same tasks, so their curves are one curve. On a GPU, raise the number of tasks until it is busy; with few tasks, a step waits for
# launches. Few-shot classification by chains of convolution is captured in a CUDA graph there; `step.path` says so.
#
# With Lightning, accelerate or DDP, wrap a module that returns `gradient.loss` instead: see
# [several processes](../how-to/train.md#run-on-several-processes).

# %%
import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), width_ratios=(2, 1))
left.plot(found[1]["losses"], linewidth=5, color="0.8", label="one process, 8 tasks")
left.plot(found[2]["losses"], color="tab:red", linewidth=1, label="two processes, 4 tasks each")
left.set(xlabel="update", ylabel="outer loss, mean over 8 tasks")
left.legend(frameon=False)
right.bar(["one", "two"], [updates / found[n]["seconds"] for n in (1, 2)], color=["0.8", "tab:red"])
_ = right.set(xlabel="processes on this computer", ylabel="updates a second")
