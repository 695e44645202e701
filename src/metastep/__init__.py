"""metastep: gradient-based meta-learning made cheap."""

from metastep import quiet  # noqa: F401 - before torch
from metastep.accumulating import accumulated
from metastep.backprop import backprop
from metastep.carrying import room_for_memory, with_memory
from metastep.counting import Counts, counting
from metastep.curvature import Curvature, central_difference, exact, exact_forward, gaussian_smoothing, zeroth_order
from metastep.diagnostics import Comparison, compare, gradient_difference
from metastep.dynamics import SGD, Adam, AdamW, Dynamics, RMSprop, State, StepFunction
from metastep.errors import MetastepError, NonFiniteError
from metastep.estimators import (
    Estimate,
    Estimator,
    displacement,
    first_order,
    implicit,
    unrolled,
)
from metastep.fewshot.learner import Learner
from metastep.methods import (
    anil,
    es_maml,
    fo_maml,
    ggs_maml,
    hf_maml,
    imaml,
    maml,
    maml_pp,
    meta_sgd,
    multi_step,
    reference,
    reptile,
    truncated,
)
from metastep.modules import apply, parameters_of, use_batch_statistics
from metastep.optimizers import from_optimizer, into_optimizer
from metastep.paths import MetaGradient, meta_gradient
from metastep.problems import (
    accuracy,
    adapt_only,
    batch_by_batch,
    every_window,
    few_shot,
    in_batches,
    proximal,
    room_for_rates,
    with_rates,
)
from metastep.rates import Rate
from metastep.solvers import Solver, conjugate_gradient, neumann
from metastep.tasks import over_tasks, stack, write_grads
from metastep.trees import Tree, leaves
from metastep.windows import InnerLoop, Loss, Problem, Steps, Task, Window, inner_loop, window_lengths

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Comparison",
    "Counts",
    "Curvature",
    "Dynamics",
    "Estimate",
    "Estimator",
    "InnerLoop",
    "Learner",
    "Loss",
    "MetaGradient",
    "MetastepError",
    "NonFiniteError",
    "Problem",
    "RMSprop",
    "Rate",
    "Solver",
    "State",
    "StepFunction",
    "Steps",
    "Task",
    "Tree",
    "Window",
    "accumulated",
    "accuracy",
    "adapt_only",
    "anil",
    "apply",
    "backprop",
    "batch_by_batch",
    "central_difference",
    "compare",
    "conjugate_gradient",
    "counting",
    "displacement",
    "es_maml",
    "every_window",
    "exact",
    "exact_forward",
    "few_shot",
    "first_order",
    "fo_maml",
    "from_optimizer",
    "gaussian_smoothing",
    "ggs_maml",
    "gradient_difference",
    "hf_maml",
    "imaml",
    "implicit",
    "in_batches",
    "inner_loop",
    "into_optimizer",
    "leaves",
    "maml",
    "maml_pp",
    "meta_gradient",
    "meta_sgd",
    "multi_step",
    "neumann",
    "over_tasks",
    "parameters_of",
    "proximal",
    "reference",
    "reptile",
    "room_for_memory",
    "room_for_rates",
    "stack",
    "truncated",
    "unrolled",
    "use_batch_statistics",
    "window_lengths",
    "with_memory",
    "with_rates",
    "write_grads",
    "zeroth_order",
]  # fmt: skip

__version__ = "0.1.0"
