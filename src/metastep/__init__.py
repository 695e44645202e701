"""metastep: gradient-based meta-learning made cheap.

The public names are imported when they are first used, so that `import metastep` loads no torch.
`__init__.pyi` lists the same names for type checkers and editors.
"""

from importlib import import_module

__version__ = "0.1.0"

_PUBLIC = {
    "core.accumulating": "accumulated",
    "core.backprop": "backprop",
    "core.carrying": "room_for_memory with_memory",
    "core.counting": "Counts counting",
    "core.curvature": "Curvature central_difference exact exact_forward gaussian_smoothing zeroth_order",
    "core.diagnostics": "Comparison compare gradient_difference",
    "core.dynamics": "SGD Adam AdamW Dynamics RMSprop State StepFunction",
    "core.estimators": "Estimate Estimator displacement first_order implicit unrolled",
    "core.methods": "anil es_maml fo_maml ggs_maml hf_maml imaml maml maml_pp meta_sgd multi_step "
    "reference reptile truncated",
    "core.modules": "apply parameters_of use_batch_statistics",
    "core.optimizers": "from_optimizer into_optimizer",
    "core.problems": "accuracy adapt_only batch_by_batch every_window few_shot in_batches proximal "
    "room_for_rates with_rates",
    "core.rates": "Rate",
    "core.registry": "register",
    "core.solvers": "Solver conjugate_gradient neumann",
    "core.tasks": "over_tasks stack write_grads",
    "core.trees": "Tree leaves",
    "core.windows": "InnerLoop Loss Problem Steps Task Window inner_loop window_lengths",
    "errors": "MetastepError NonFiniteError",
    "step.paths": "MetaGradient meta_gradient",
    "train.fewshot.learner": "Learner",
}
_PLACE = {name: f"metastep.{module}" for module, names in _PUBLIC.items() for name in names.split()}
__all__ = sorted(_PLACE)


def __getattr__(name: str) -> object:
    if name not in _PLACE:
        raise AttributeError(f"module 'metastep' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
