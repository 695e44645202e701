"""Calls of an estimator: the first of a kind is looked at in full, and all are watched for what costs little."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from metastep.core.derivatives import followable
from metastep.core.first_look import Reads, first_look
from metastep.core.guards import Session, is_alone, opened, require_unwritten, session, versions
from metastep.core.random import other_generators, others_drawn_since
from metastep.core.torch_errors import remedy
from metastep.core.trees import Tree, tree_leaves
from metastep.core.windows import InnerLoop
from metastep.errors import MetastepError


class Looks:
    """The kinds of calls that were looked at: shapes, precisions, and the modes of the modules that they apply."""

    def __init__(self) -> None:
        self.again = False
        """Whether a module runs again in its backward, as torch.utils.checkpoint does."""
        self._others: dict[Any, bool] = {}
        self._modules: list[nn.Module] = []

    @contextmanager
    def watched(self, loop: InnerLoop, reads: Reads, meta: Tree, task: Any, mapped: bool = False) -> Iterator[None]:
        """Look first, if this kind is new. Then the call inside is watched for what costs little.

        Args:
            loop: The inner loop.
            reads: What of its problem is differentiated.
            meta: θ.
            task: One task.
            mapped: Whether several tasks run at once by vmap.
        """
        before = versions(task)
        if not is_alone():
            with session(rest="constant"):
                yield
            return require_unwritten(task, before)
        meta, looked_at = followable((meta, task))
        others = self._look(loop, reads, meta, looked_at, mapped)
        drawn = None if others else other_generators()
        with opened(Session(others, rest="constant")):
            yield
        require_unwritten(task, before)
        if drawn is not None and others_drawn_since(drawn):
            raise MetastepError(
                "a function of the problem drew random numbers by Python's or numpy's generators, and did not at its "
                "first call. Where the sweep returned to a window, it drew others. Draw by torch, or draw before the "
                "call and put the numbers into the task."
            )

    def _look(self, loop: InnerLoop, reads: Reads, meta: Tree, task: Any, mapped: bool) -> bool:
        kind = self._kind(meta, task, mapped)
        if kind not in self._others:
            try:
                others, again, modules = first_look(loop, reads, meta, task, mapped)
            except MetastepError:
                raise
            except Exception as error:  # the call itself says what does not work
                if not isinstance(error, Warning):
                    return False
                if text := remedy(str(error)):
                    raise MetastepError(text) from error
                raise  # a warning that the user has made an error
            self.again |= again
            self._modules += [module for module in modules if all(module is not known for known in self._modules)]
            self._others[self._kind(meta, task, mapped)] = others
            return others
        return self._others[kind]

    def _kind(self, meta: Tree, task: Any, mapped: bool) -> Any:
        shapes = tuple((x.shape, x.dtype) for x in tree_leaves((meta, task)) if isinstance(x, Tensor))
        return mapped, shapes, tuple(part.training for module in self._modules for part in module.modules())
