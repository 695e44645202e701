"""Transfer as a job of the training loop: an iteration is Algorithm 1 on a batch, and every epoch is judged.

Metrics are added up on the device, and read when the epoch is over.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from metastep.core.modules import draws_noise
from metastep.core.random import seed_noise
from metastep.core.trees import map_tree, tree_leaves
from metastep.data.errors import Progress, silent
from metastep.data.pictures import Labelled
from metastep.errors import MetastepError, NonFiniteError
from metastep.step.ranks import Ranks
from metastep.train.config import Transfer
from metastep.train.io import require_no_link
from metastep.train.loop import Plan, Row
from metastep.train.remembered import moved_to, trusted
from metastep.train.run import Run
from metastep.train.transfer import building
from metastep.train.transfer.building import Parts, prepare
from metastep.train.transfer.evaluate import judge
from metastep.train.transfer.iteration import from_tree, to_tree

QUEUED = 10  # iterations that the device is given before anybody waits for it

Sums = dict[str, Tensor]


def plan(
    config: Transfer,
    folder: Path,
    root: Path | None,
    ranks: Ranks,
    progress: Progress = silent,
    nets: Mapping[str, str] | None = None,
) -> Plan:
    """Find all that a run needs. `nets` are those that a user names again for a resumed run."""
    if ranks.count > 1:
        raise MetastepError(f"a transfer run is made by one process, and there are {ranks.count}. Start it without.")
    runs = config if nets is None else trusted(config, nets)
    pictures = building.read_data(runs, root, progress)
    if nets is None:
        runs = config = building.remembered(config, root)
    source = _source_plan(runs, pictures, folder / building.SOURCE, root, ranks, progress)
    if source is None:
        ready = TransferJob(runs, prepare(runs, pictures, _weights(runs, folder, root)))
        return Plan(folder, config, lambda: ready, nets is None)
    prepare(runs, pictures, None)  # only to see whether it can be: its turn comes after that of the source

    def job() -> TransferJob:
        return TransferJob(runs, prepare(runs, pictures, _weights(runs, folder, root)))

    return Plan(folder, config, job, nets is None, source)


def _source_plan(
    config: Transfer, pictures: Labelled, place: Path, root: Path | None, ranks: Ranks, progress: Progress
) -> Plan | None:
    """The run that trains the source, where there is one that has not come to its end"""
    if not config.trains_source:
        return None
    require_no_link(place)
    first = building.source_run(config)
    if not Run.is_there(place):
        building.require_alike(config, building.read_data(first, root, progress, "source.dataset"), pictures)
        return plan(first, place, root, ranks, progress)
    own = Run.open(place).config(Transfer)
    if first.data.name != own.data.name:
        own = replace(own, data=moved_to(own.data, root, name=first.data.name))
    elif building.is_exported(place):
        return None
    return plan(own, place, root, ranks, progress, {"net.name": config.source.net})


def _weights(config: Transfer, folder: Path, root: Path | None) -> Path | None:
    """Of the source, if there is any"""
    if not config.needs_source:
        return None
    given = config.source.weights
    return building.find_weights(given, root) if given else building.find_weights(str(folder / building.SOURCE), None)


class TransferJob:
    """An iteration moves the target by a batch, and θ by what virtual steps say about it."""

    validate_every: int
    queued = QUEUED

    def __init__(self, config: Transfer, parts: Parts) -> None:
        self.config, self.parts = config, parts
        self.epoch = self.log_every = self.validate_every = len(parts.train)
        self.total = config.epochs * self.epoch
        self.device = parts.train.data.images.device
        self.notes: Mapping[str, dict[str, str]] = {"layers": parts.layers}
        self.notice = f"The iteration is first {parts.step.notice}." if parts.step.notice else ""
        self._state, self._sums, self._looks = parts.initial, Sums(), list[tuple[int, Tensor]]()
        self._noisy = draws_noise(parts.net)

    @property
    def path(self) -> str:
        return self.parts.step.path

    def restore(self, tree: dict[str, Any], path: Path) -> None:
        self._state, sums = from_tree(tree, self.parts.initial, path)
        self._sums = {name: value.to(self.device) for name, value in sums.items()}

    def begin(self, done: int, folder: Path | None = None) -> None:
        self._set_rate(done)

    def _set_rate(self, k: int) -> None:
        rate = self.config.rate(k // self.epoch)
        self._rate = torch.tensor(rate, dtype=self.parts.dtype, device=self.device)

    def advance(self, k: int) -> None:
        config, parts = self.config, self.parts
        if k % self.epoch == 0:
            self._set_rate(k)
        if self._noisy:
            seed_noise(config.seed, k)
        x, y = parts.train.batch(*divmod(k, self.epoch))
        looking = parts.looking if parts.looking and k % config.gradient_difference == 0 else None
        batch = x.to(parts.dtype, memory_format=parts.layout), y
        self._state, metrics = (looking or parts.step)(self._state, batch, self._rate)
        if looking:
            self._looks.append((k + 1, metrics.pop("gradient_difference").clone()))
        self._sums = added(self._sums, metrics, len(y))

    def look(self, done: int) -> None:
        if is_finite(self._sums) and (done % self.epoch or is_finite(self._state)):
            return
        bad = [name for name, value in self._sums.items() if not is_finite(value)]
        raise self._not_finite(done, ", ".join(sorted(bad)) or "the state of the optimizers")

    def _not_finite(self, done: int, what: str) -> NonFiniteError:
        epoch, batch = divmod(done - 1, self.epoch)
        advice = f"Lower the rate of the target net (inner.lr, now {self.config.inner.lr:g})"
        if self.config.learns_weights:
            advice += f" or that of the meta-networks (outer.lr, now {self.config.outer.lr:g})"
        place = f"epoch {epoch + 1}, by batch {batch + 1} of {self.epoch}"
        return NonFiniteError(f"{place}: {what} left the finite numbers. {advice}.")

    def shown(self) -> Mapping[str, SupportsFloat]:
        return {"loss": self._sums["loss"] / self._sums["pictures"]} if self._sums else {}

    def measured(self, done: int) -> Iterator[Row]:
        for step, difference in self._looks:
            yield Row(
                step, "gradient_difference", {"epoch": step / self.epoch, "gradient_difference": float(difference)}
            )
        self._looks.clear()
        if done % self.epoch:
            return
        epoch = done // self.epoch
        means: dict[str, Any] = {n: (value / self._sums["pictures"]).tolist() for n, value in self._sums.items()}
        self._sums = {}
        others = {ours: means[theirs] for theirs, ours in OTHER_METRICS.items() if theirs in means}
        shown = {"epoch": epoch, "loss": means["loss"], "accuracy": means["correct"]}
        yield Row(done, "train", {**shown, **others, "lr": self.config.rate(epoch - 1)})
        if "where" in means:
            yield Row(done, "weights", {"epoch": epoch, **weight_row(self.parts, means)})

    def judged(self, done: int) -> dict[str, float]:
        parts, state = self.parts, self._state
        found: dict[str, float] = {"epoch": done // self.epoch}
        for name, pictures in (("validation", parts.val), ("test", parts.test)):
            found |= judge(parts.net, state.target.params["target"], state.buffers, pictures, parts.dtype).row(name)
        return found

    def state(self, done: int) -> dict[str, Any]:
        if not is_finite(self._state):
            raise self._not_finite(done, "the state of the optimizers")
        return to_tree(self._state, self._sums)

    def finish(self, run: Run) -> None:
        """Export what was trained, for other programs and for other runs to learn from."""
        state = run.load("best")["state"]
        tensors = {**self.parts.net.state_dict(), **state["buffers"], **state["target"]["params"]["target"]}
        building.export(run.folder, tensors, len(self.parts.train.data.names))


OTHER_METRICS = {"cross_entropy": "cross_entropy", "transfer": "transfer_loss", "outer": "outer_loss"}


def added(sums: Sums, metrics: dict[str, Tensor], pictures: int) -> Sums:
    """Means over batches become sums over pictures; `correct` is one already"""
    new = {name: value.double() * (1 if name == "correct" else pictures) for name, value in metrics.items()}
    new["pictures"] = torch.full_like(new["loss"], pictures)
    return map_tree(torch.add, sums, new) if sums else new


def weight_row(parts: Parts, means: dict[str, Any]) -> dict[str, float]:
    """λ and the sharpness of w for each pair, by name"""
    return {
        f"{which}_{m}_{n}": value
        for which in ("where", "what")
        for (m, n), value in zip(parts.pairs, means[which], strict=True)
    }


def is_finite(tree: Any) -> bool:
    """One answer for all of it, so that a GPU is waited for once"""
    leaves = tree_leaves(tree)
    return bool(torch.stack([leaf.isfinite().all() for leaf in leaves]).all()) if leaves else True
