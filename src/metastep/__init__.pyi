from metastep.core.accumulating import accumulated as accumulated
from metastep.core.backprop import backprop as backprop
from metastep.core.carrying import room_for_memory as room_for_memory
from metastep.core.carrying import with_memory as with_memory
from metastep.core.counting import Counts as Counts
from metastep.core.counting import counting as counting
from metastep.core.curvature import (
    Curvature as Curvature,
)
from metastep.core.curvature import (
    central_difference as central_difference,
)
from metastep.core.curvature import (
    exact as exact,
)
from metastep.core.curvature import (
    exact_forward as exact_forward,
)
from metastep.core.curvature import (
    gaussian_smoothing as gaussian_smoothing,
)
from metastep.core.curvature import (
    zeroth_order as zeroth_order,
)
from metastep.core.diagnostics import (
    Comparison as Comparison,
)
from metastep.core.diagnostics import (
    compare as compare,
)
from metastep.core.diagnostics import (
    gradient_difference as gradient_difference,
)
from metastep.core.dynamics import (
    SGD as SGD,
)
from metastep.core.dynamics import (
    Adam as Adam,
)
from metastep.core.dynamics import (
    AdamW as AdamW,
)
from metastep.core.dynamics import (
    Dynamics as Dynamics,
)
from metastep.core.dynamics import (
    RMSprop as RMSprop,
)
from metastep.core.dynamics import (
    State as State,
)
from metastep.core.dynamics import (
    StepFunction as StepFunction,
)
from metastep.core.estimators import (
    Estimate as Estimate,
)
from metastep.core.estimators import (
    Estimator as Estimator,
)
from metastep.core.estimators import (
    displacement as displacement,
)
from metastep.core.estimators import (
    first_order as first_order,
)
from metastep.core.estimators import (
    implicit as implicit,
)
from metastep.core.estimators import (
    unrolled as unrolled,
)
from metastep.core.methods import (
    anil as anil,
)
from metastep.core.methods import (
    es_maml as es_maml,
)
from metastep.core.methods import (
    fo_maml as fo_maml,
)
from metastep.core.methods import (
    ggs_maml as ggs_maml,
)
from metastep.core.methods import (
    hf_maml as hf_maml,
)
from metastep.core.methods import (
    imaml as imaml,
)
from metastep.core.methods import (
    maml as maml,
)
from metastep.core.methods import (
    maml_pp as maml_pp,
)
from metastep.core.methods import (
    meta_sgd as meta_sgd,
)
from metastep.core.methods import (
    multi_step as multi_step,
)
from metastep.core.methods import (
    reference as reference,
)
from metastep.core.methods import (
    reptile as reptile,
)
from metastep.core.methods import (
    truncated as truncated,
)
from metastep.core.modules import (
    apply as apply,
)
from metastep.core.modules import (
    parameters_of as parameters_of,
)
from metastep.core.modules import (
    use_batch_statistics as use_batch_statistics,
)
from metastep.core.optimizers import from_optimizer as from_optimizer
from metastep.core.optimizers import into_optimizer as into_optimizer
from metastep.core.problems import (
    accuracy as accuracy,
)
from metastep.core.problems import (
    adapt_only as adapt_only,
)
from metastep.core.problems import (
    batch_by_batch as batch_by_batch,
)
from metastep.core.problems import (
    every_window as every_window,
)
from metastep.core.problems import (
    few_shot as few_shot,
)
from metastep.core.problems import (
    in_batches as in_batches,
)
from metastep.core.problems import (
    proximal as proximal,
)
from metastep.core.problems import (
    room_for_rates as room_for_rates,
)
from metastep.core.problems import (
    with_rates as with_rates,
)
from metastep.core.rates import Rate as Rate
from metastep.core.solvers import Solver as Solver
from metastep.core.solvers import conjugate_gradient as conjugate_gradient
from metastep.core.solvers import neumann as neumann
from metastep.core.tasks import over_tasks as over_tasks
from metastep.core.tasks import stack as stack
from metastep.core.tasks import write_grads as write_grads
from metastep.core.trees import Tree as Tree
from metastep.core.trees import leaves as leaves
from metastep.core.windows import (
    InnerLoop as InnerLoop,
)
from metastep.core.windows import (
    Loss as Loss,
)
from metastep.core.windows import (
    Problem as Problem,
)
from metastep.core.windows import (
    Steps as Steps,
)
from metastep.core.windows import (
    Task as Task,
)
from metastep.core.windows import (
    Window as Window,
)
from metastep.core.windows import (
    inner_loop as inner_loop,
)
from metastep.core.windows import (
    window_lengths as window_lengths,
)
from metastep.errors import MetastepError as MetastepError
from metastep.errors import NonFiniteError as NonFiniteError
from metastep.step.paths import MetaGradient as MetaGradient
from metastep.step.paths import meta_gradient as meta_gradient
from metastep.train.fewshot.learner import Learner as Learner

__version__: str
__all__: list[str]
