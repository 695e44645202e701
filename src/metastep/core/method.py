"""The base of every method: four small parts. A method overrides those that it changes."""

from collections.abc import Sequence
from dataclasses import fields
from typing import ClassVar

from torch import Tensor

from metastep.core.checks import require_lengths
from metastep.core.curvature import exact
from metastep.core.estimators import Estimator, unrolled
from metastep.core.optimizers import InnerOptimizer
from metastep.core.options import Described
from metastep.core.trees import Tree
from metastep.core.windows import InnerLoop, Problem, Steps, inner_loop


class Method(Described):
    """Describe how the meta-gradient is estimated. A method is a frozen dataclass: equal, printable, picklable.

    A subclass overrides what it changes of the four parts below. Its field `window`, if it has one, says how many inner
    steps share a gradient. Its field `curvature`, if it has one, gives the second-order products.

    Example:
        >>> from dataclasses import dataclass
        >>> import metastep as ms
        >>> @dataclass(frozen=True, repr=False)
        ... class LastWindows(ms.methods.Method):
        ...     depth: int = 2
        ...     def estimator(self, loop):
        ...         return ms.estimators.unrolled(loop, depth=self.depth)
        >>> LastWindows(depth=3)
        LastWindows(depth=3)
    """

    is_exact: ClassVar[bool] = True
    """Whether it gives the derivative of the outer loss through its own inner loop, and not an estimate of it."""
    needs_start: ClassVar[bool] = False
    """Whether θ must be where φ starts. A θ that acts through the losses is then refused."""
    entrywise: ClassVar[bool] = False
    """Whether the parameters of many tasks may be one tensor: the method reads neither their names nor their sums."""

    def __post_init__(self) -> None:
        require_lengths(window=getattr(self, "window", 1))
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, list | Tensor):  # so that equal methods are equal, and have one hash
                object.__setattr__(self, field.name, tuple(value.tolist() if isinstance(value, Tensor) else value))
        super().__post_init__()

    def problem(self, problem: Problem) -> Problem:
        """Return the problem that the inner loop solves."""
        return problem

    def inner(self, inner: InnerOptimizer) -> InnerOptimizer:
        """Return the inner optimizer that the loop uses."""
        return inner

    def init(self, params: Tree, inner: InnerOptimizer, lengths: Sequence[int]) -> Tree:
        """Return θ for these parameters, with the rates or the memory that the method learns."""
        return params

    def loop(self, problem: Problem, inner: InnerOptimizer, steps: Steps) -> InnerLoop:
        """Return the inner loop that the estimator is made of."""
        return inner_loop(self.problem(problem), self.inner(inner), steps, getattr(self, "window", 1))

    def estimator(self, loop: InnerLoop) -> Estimator:
        """Return the function (meta, task) -> Estimate."""
        return unrolled(loop, getattr(self, "curvature", exact))
