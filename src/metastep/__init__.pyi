from metastep import data as data, nets as nets
from metastep.core import (
    curvature as curvature,
    estimators as estimators,
    methods as methods,
    optimizers as optimizers,
    problems as problems,
    solvers as solvers,
    trees as trees,
)
from metastep.core.compare import compare as compare, gradient_difference as gradient_difference
from metastep.core.estimators import Estimate as Estimate
from metastep.core.methods import (
    FOMAML as FOMAML,
    IMAML as IMAML,
    MAML as MAML,
    MetaSGD as MetaSGD,
    MultiStep as MultiStep,
    Reptile as Reptile,
)
from metastep.core.modules import (
    apply as apply,
    as_module as as_module,
    parameters as parameters,
    use_batch_statistics as use_batch_statistics,
)
from metastep.core.optimizers import (
    SGD as SGD,
    Adam as Adam,
    AdamW as AdamW,
    RMSprop as RMSprop,
    StepFunction as StepFunction,
)
from metastep.core.problems import accuracy as accuracy, every_window as every_window, few_shot as few_shot
from metastep.core.registry import register as register
from metastep.core.suggest import suggest as suggest
from metastep.core.windows import Problem as Problem, Task as Task, Window as Window
from metastep.errors import MetastepError as MetastepError, NonFiniteError as NonFiniteError
from metastep.step.gradient import MetaGradient as MetaGradient
from metastep.step.update import MetaStep as MetaStep
from metastep.train.fewshot.learner import Learner as Learner

__version__: str
__all__: list[str]
