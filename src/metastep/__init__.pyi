from metastep.core.accumulating import accumulated as accumulated
from metastep.core.backprop import backprop as backprop
from metastep.core.carrying import room_for_memory as room_for_memory, with_memory as with_memory
from metastep.core.counting import Counts as Counts, counting as counting
from metastep.core.curvature import (
    Curvature as Curvature,
    central_difference as central_difference,
    exact as exact,
    exact_forward as exact_forward,
    gaussian_smoothing as gaussian_smoothing,
    zeroth_order as zeroth_order,
)
from metastep.core.diagnostics import (
    Comparison as Comparison,
    compare as compare,
    gradient_difference as gradient_difference,
)
from metastep.core.dynamics import (
    SGD as SGD,
    Adam as Adam,
    AdamW as AdamW,
    Dynamics as Dynamics,
    RMSprop as RMSprop,
    State as State,
    StepFunction as StepFunction,
)
from metastep.core.estimators import (
    Estimate as Estimate,
    Estimator as Estimator,
    displacement as displacement,
    first_order as first_order,
    implicit as implicit,
    unrolled as unrolled,
)
from metastep.core.methods import (
    anil as anil,
    es_maml as es_maml,
    fo_maml as fo_maml,
    ggs_maml as ggs_maml,
    hf_maml as hf_maml,
    imaml as imaml,
    maml as maml,
    maml_pp as maml_pp,
    meta_sgd as meta_sgd,
    multi_step as multi_step,
    reference as reference,
    reptile as reptile,
    truncated as truncated,
)
from metastep.core.modules import (
    apply as apply,
    parameters_of as parameters_of,
    use_batch_statistics as use_batch_statistics,
)
from metastep.core.optimizers import from_optimizer as from_optimizer, into_optimizer as into_optimizer
from metastep.core.problems import (
    accuracy as accuracy,
    adapt_only as adapt_only,
    batch_by_batch as batch_by_batch,
    every_window as every_window,
    few_shot as few_shot,
    in_batches as in_batches,
    proximal as proximal,
    room_for_rates as room_for_rates,
    with_rates as with_rates,
)
from metastep.core.rates import Rate as Rate
from metastep.core.registry import register as register
from metastep.core.solvers import Solver as Solver, conjugate_gradient as conjugate_gradient, neumann as neumann
from metastep.core.tasks import over_tasks as over_tasks, stack as stack, write_grads as write_grads
from metastep.core.trees import Tree as Tree, leaves as leaves
from metastep.core.windows import (
    InnerLoop as InnerLoop,
    Loss as Loss,
    Problem as Problem,
    Steps as Steps,
    Task as Task,
    Window as Window,
    inner_loop as inner_loop,
    window_lengths as window_lengths,
)
from metastep.errors import MetastepError as MetastepError, NonFiniteError as NonFiniteError
from metastep.step.paths import MetaGradient as MetaGradient, meta_gradient as meta_gradient
from metastep.train.fewshot.learner import Learner as Learner

__version__: str
__all__: list[str]
