"""A learner: what training makes, and what is then evaluated, saved, and used on new classes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import cross_entropy

from metastep.core.checks import require_data, require_pictures
from metastep.core.modules import apply, parameters, use_batch_statistics
from metastep.core.problems import accuracy, few_shot, params_of
from metastep.core.trees import Tree, difference, map_tree, tree_leaves, zeros_like
from metastep.core.windows import InnerLoop, Task, task_gradient
from metastep.errors import MetastepError
from metastep.nets.registry import comes_with_metastep, load_net, made, require_answers
from metastep.step.gradient import MetaGradient
from metastep.train import checkpoints
from metastep.train.config import FewShot
from metastep.train.io import CheckpointError
from metastep.train.presets import find_learner
from metastep.train.remembered import trusted
from metastep.train.run import Run, Which
from metastep.train.validated import from_plain, to_plain

if TYPE_CHECKING:
    from metastep.train.fewshot.classify import Classified
    from metastep.train.schema import Ink


def gradient_of(config: FewShot, net: nn.Module) -> MetaGradient:
    """Return the meta-gradient that a configuration describes, through a net that was built before."""
    return MetaGradient(
        few_shot(net, cross_entropy, {"accuracy": accuracy}),
        config.method,
        config.inner,
        steps=config.steps,
        batch=config.batch,
        shuffled=config.shuffles_batches,
        chunk_size=config.chunk_size,
    )


def build_net(config: FewShot) -> nn.Module:
    """The net with its first parameters, which depend on nothing but the configuration"""
    builder, options = load_net(config.net.name), config.net.options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        given = {"ways": config.data.ways, "channels": config.net.channels, "size": config.net.size}
        net = use_batch_statistics(made(config.net.name, builder, **given, **options))
        if not comes_with_metastep(config.net.name):
            shape = config.net.channels, config.net.size, config.net.size
            require_answers(net, config.net.name, shape, config.data.ways)
    return net.double() if config.precision == "float64" else net


KIND = "learner"
ONE_BY_ONE = 16  # pictures judged apart at a time, each with the support

Support = tuple[Tensor, Tensor]  # pictures (n, channels, size, size) in [0, 1], and their classes 0, …, ways − 1


@dataclass(frozen=True)
class Learner:
    """Hold a trained few-shot learner: a net, its θ, and the configuration that it was trained with.

    `Learner.load` opens one.

    Args:
        config: The configuration of the training.
        net: The module that θ belongs to.
        meta: θ by name; {"params": θ, "rates": …} if inner rates are learned, and {"params": θ, "memory": …} if the
            inner optimizer's memory continues from task to task.
        checkpoint: The checkpoint of a run that was loaded: best or last.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> learner = ms.Learner.load("omniglot-5w1s").changed(ways=2)
        >>> x, y = torch.rand(2, 1, 28, 28), torch.arange(2)  # one labelled picture of each class
        >>> params = learner.adapt(x, y)
        >>> learner.predict(params, torch.rand(3, 1, 28, 28)).shape
        torch.Size([3, 2])
    """

    config: FewShot
    net: nn.Module
    meta: Tree
    checkpoint: str = ""

    @classmethod
    def fresh(cls, config: FewShot) -> Self:
        """Return a learner that is not trained yet.

        Args:
            config: The configuration of a training.

        Returns:
            The learner.
        """
        net = build_net(config)
        return cls(config, net, gradient_of(config, net).init(net))

    @classmethod
    def load(cls, path: str | Path, which: Which = "best", net: str | None = None) -> Self:
        """Open a run, a saved learner, or one that comes with metastep.

        Args:
            path: The folder of a run, a file that `save` wrote, or the name of a learner that comes with metastep.
            which: The checkpoint of a run: the best one, or the last. Without validation, the best is the last.
            net: The path of the net, again, if it is one of your own. It is not imported otherwise.

        Returns:
            The learner, in evaluation mode.

        Raises:
            MetastepError: There is no such learner, or it cannot be read.
        """
        path = find_learner(str(path))
        config, tree, taken = _read_run(path, which) if path.is_dir() else _read_file(path)
        learner = replace(cls.fresh(trusted(config, {"net.name": net})), checkpoint=taken)
        learner.restore(tree, path)
        learner.net.eval()  # no dropout in use; BatchNorm uses the batch, since it has no other statistics
        return learner

    def save(self, path: str | Path) -> None:
        """Write everything into one file, except the code of a net of your own and the place of the training.

        Args:
            path: The file.
        """
        checkpoints.save(Path(path), {"config": to_plain(self.config.shared)} | self.tree(), KIND)

    def tree(self) -> dict[str, Any]:
        """Return what a checkpoint keeps; `held` is what the net has besides θ (buffers, frozen parameters)."""
        return {"meta": self.meta, "held": self._held()}

    @torch.no_grad()
    def restore(self, tree: dict[str, Any], path: Path) -> None:
        """Take the values of `tree`, in place; an error names `path`, where it came from."""
        for own, saved in ((self.meta, tree.get("meta")), (self._held(), tree.get("held"))):
            try:
                odd = difference(own, saved, "the net", "the file")
            except AttributeError:  # of a number in the place of a tensor
                odd = "the file has other values than tensors"
            if odd:
                raise CheckpointError(f"{str(path)!r}: does not fit the net {self.config.net.name!r}: {odd}.")
            map_tree(lambda mine, theirs: mine.copy_(theirs), own, saved)

    def _held(self) -> dict[str, Tensor]:
        learned = parameters(self.net)
        return {name: value for name, value in self.net.state_dict().items() if name not in learned}

    def to(self, device: torch.device | str) -> Self:
        """Return the learner on a device. Its net is moved in place.

        Args:
            device: As for `torch.nn.Module.to`.

        Returns:
            The learner.
        """
        net = self.net.to(device)  # in place; the parameters among `meta` with it
        with torch.no_grad():
            return replace(self, net=net, meta=map_tree(lambda x: x.to(device), self.meta))

    def changed(self, ways: int | None) -> Self:
        """Return the learner for another number of classes.

        Parameters whose shape depends on that number (the head) start from zero. Training drew the classes of a task in
        random order, so the rows of the head differ by chance alone, and for softmax equal rows are the same as zeros.
        Learned rates and optimizer memory of such parameters become their mean. Buffers of such a shape are a new
        net's.

        Args:
            ways: The number of classes. With None, the learner stays as it is.

        Returns:
            The learner.
        """
        if ways in (None, self.config.data.ways):
            return self
        config = replace(self.config, data=replace(self.config.data, ways=ways))
        other = Learner.fresh(config).to(self.device)
        other.net.train(self.net.training)
        with torch.no_grad():
            map_tree(lambda new, own: new.copy_(_kept(own, new)), other._held(), self._held())
            return replace(self, config=config, net=other.net, meta=_fitted(self.meta, other.meta))

    @property
    def device(self) -> torch.device:
        """Return where θ is."""
        device: torch.device = tree_leaves(self.meta)[0].device
        return device

    def adapt(self, x: Tensor, y: Tensor) -> Tree:
        """Return the parameters after the inner loop on a support set.

        Steps and windows are those of the training, or of `config.test`.

        Args:
            x: Pictures (n, channels, size, size) in [0, 1], as floating-point numbers.
            y: Their classes (n,), from 0 to ways − 1.

        Returns:
            All parameters by name, for `predict`.

        Raises:
            MetastepError: Pictures or classes do not fit the learner.
        """
        self._require_support(x, y)
        order = y.argsort(stable=True)  # by class, as episodes are
        with torch.no_grad():
            return self.adapted((x[order], y[order]))

    def adapted(self, support: Support) -> Tree:
        """Return the same without a check of the support: inside vmap values cannot be read."""
        return self._whole(self.loop.adapt(self._meta_for_test, Task(support, None)).params)

    def trajectory(self, support: Support) -> Iterator[Tree]:
        """Yield the parameters after 0, 1, 2, … inner steps; for many tasks at once too."""
        task, meta = Task(support, None), self._meta_for_test
        state = self.loop.begin(meta, task)
        yield self._whole(state.params)
        for window in self.loop.windows(task):
            gradient = task_gradient(window, state.params, meta)
            before = state
            for steps in range(1, window.steps + 1):
                state = self.loop.inner.advance(before, gradient, meta, steps)
                yield self._whole(state.params)

    def _whole(self, params: Tree) -> Tree:
        """Return them with those that were not adapted."""
        return {**params_of(self.meta), **params}

    @torch.no_grad()
    def predict(self, params: Tree, x: Tensor, support: Tensor | None = None) -> Tensor:
        """Return the probabilities of all classes for each picture.

        The nets normalise by the current batch, so pictures judged together help each other. Give the support to judge
        each picture apart, in a batch with the support alone.

        Args:
            params: What `adapt` returned.
            x: Pictures (n, channels, size, size) in [0, 1].
            support: The pictures that were adapted to.

        Returns:
            Probabilities (n, ways).

        Raises:
            MetastepError: The pictures have another precision than the parameters.
        """
        require_pictures(x, tree_leaves(params)[0])
        logits = self.logits(params, x) if support is None else self.logits_one_by_one(params, x, support)
        return logits.softmax(-1)

    def logits_one_by_one(self, params: Tree, x: Tensor, support: Tensor) -> Tensor:
        """Return the logits of each picture in a batch with the support alone."""

        def last(picture: Tensor) -> Tensor:
            return self.logits(params, torch.cat([support, picture[None]]))[-1]

        return vmap(last, randomness="different", chunk_size=ONE_BY_ONE)(x)

    def logits(self, params: Tree, x: Tensor) -> Tensor:
        """Return the logits of pictures in one batch."""
        logits: Tensor = apply(self.net, params, x)
        return logits

    def classify(
        self, support: str | Path, query: str | Path, ink: "Ink" = "auto", together: bool = False
    ) -> "Classified":
        """Adapt to the classes in one folder, and predict the pictures in another.

        `metastep.train.fewshot.classify.classify` does it.

        Args:
            support: A folder with one sub-folder for each class.
            query: A picture, a folder of them, or one with sub-folders. Sub-folders named like a class give an
                accuracy.
            ink: For learners of drawings: whether ink is "dark" or "light", compared with the paper. "auto" looks at
                every picture.
            together: Normalise over all queries at once, which helps if all classes are equally frequent among them.
                Otherwise each query is judged in a batch with the support alone.

        Returns:
            Probabilities with the names of pictures and classes.

        Raises:
            MetastepError: A folder does not have what is needed.
        """
        from metastep.train.fewshot.classify import classify  # only here: it is made of learners

        return classify(self, support, query, ink, together)

    @cached_property
    def loop(self) -> InnerLoop:
        """Return the inner loop that the learner is judged and used with."""
        return gradient_of(self.config.as_tested(), self.net).loop

    @property
    def _meta_for_test(self) -> Tree:
        """Return θ with enough rates: MAML++ has one for each step of training, and the last serves all later ones."""
        if self.config.method_name != "maml_pp":
            return self.meta
        steps = sum(self.loop.lengths)
        return self.meta | {"rates": map_tree(lambda r: _lengthened(r, steps), self.meta["rates"])}

    def _require_support(self, x: Tensor, y: Tensor) -> None:
        require_pictures(x, tree_leaves(self.meta)[0])
        require_data(y, "classes")
        shape = (self.config.net.channels, self.config.net.size, self.config.net.size)
        if x.shape[1:] != shape or y.shape != x.shape[:1] or not len(y):
            raise MetastepError(
                f"a support of pictures {tuple(x.shape)} and classes {tuple(y.shape)}: this learner needs "
                f"(n, {', '.join(map(str, shape))}) and (n,), with n at least 1."
            )
        ways = self.config.data.ways
        if y.min() < 0 or y.max() >= ways:
            raise MetastepError(
                f"classes {int(y.min())} to {int(y.max())} in the support: this learner tells {ways} apart, counted "
                f"from 0. For another number of classes, make it with .changed(ways={int(y.max()) + 1})."
            )


def _read_run(folder: Path, which: Which) -> tuple[FewShot, dict[str, Any], str]:
    run = Run.open(folder)
    config = run.config(FewShot)
    taken = run.taken(which)
    return config, run.load(taken), taken


def _read_file(path: Path) -> tuple[FewShot, dict[str, Any], str]:
    tree = checkpoints.load(path, KIND)
    try:
        return from_plain(FewShot, tree.get("config")), tree, ""
    except MetastepError as error:
        raise CheckpointError(f"{str(path)!r}: {error}") from error


def _fitted(meta: Tree, other: Tree) -> Tree:
    """Return the values of `meta` in the shapes of `other`."""
    if params_of(meta) is meta:
        return map_tree(_kept, meta, zeros_like(other))
    mean = map_tree(lambda x, to: x.mean().expand_as(to), meta, other)
    return map_tree(_kept, meta, mean) | {"params": _fitted(meta["params"], other["params"])}


def _kept(value: Tensor, otherwise: Tensor) -> Tensor:
    return value if value.shape == otherwise.shape else otherwise


def _lengthened(rates: Tensor, steps: int) -> Tensor:
    return torch.cat([rates, rates[-1:].expand(max(0, steps - len(rates)))])[:steps]
