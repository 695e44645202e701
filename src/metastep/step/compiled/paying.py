"""Whether compiling pays for a training: what it saves in all updates, against what it takes."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from metastep.core.modules import tree_of
from metastep.core.random import generators, set_generators
from metastep.core.trees import tree_leaves
from metastep.errors import MetastepError, first_line
from metastep.step.compiled.engine import COLD
from metastep.step.gradient import MetaGradient


class Decision(NamedTuple):
    """Say whether to compile, and why; nothing where there was nothing to weigh."""

    compile: bool
    why: str = ""


FEW = 100  # updates, in which compiling hardly ever pays


def decided(gradient: MetaGradient, meta: Any, draw: Callable[[], Any], updates: int) -> Decision:
    """Measure whether compiling pays. Two runs may decide otherwise, so keep the decision with the run.

    Args:
        gradient: The meta-gradient, not compiled.
        meta: θ: a tree of tensors or a module.
        draw: Gives tasks like those of an update.
        updates: How many updates the training has.

    Returns:
        A `Decision`. Make the meta-gradient with `dataclasses.replace(gradient, compile=decision.compile)`.
    """
    meta = tree_of(meta)
    if updates < FEW or tree_leaves(meta)[0].device.type != "cpu":  # where updates are captured
        return Decision(False)
    tasks = draw()
    if not gradient.engine(meta, tasks).path.startswith("autograd"):  # derivatives by hand are faster
        return Decision(False)
    before = generators()
    try:
        if updates * _seconds(gradient, meta, tasks) < 3 * COLD:
            return Decision(False)  # tracing alone would take much of that
        cost = gradient.compile_cost(meta, tasks)
    except MetastepError as error:
        return Decision(False, f"Not compiled: {first_line(error)}")
    finally:
        set_generators(before)
    saved = updates * max(0.0, cost.eager - cost.compiled)
    told = f"compiling takes some {cost.compiling:.0f} s and saves at least {saved:.0f} s in {updates:,} updates."
    return Decision(True, told.capitalize()) if saved > cost.compiling else Decision(False, f"Not compiled: {told}")


def _seconds(gradient: MetaGradient, meta: Any, tasks: Any) -> float:
    """Return the time of the faster of two calls: the first looks at the loss in full."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        gradient(meta, tasks).loss.item()
        times.append(time.perf_counter() - began)
    return min(times)
