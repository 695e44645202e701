"""metastep: gradient-based meta-learning made cheap.

The public names are imported when they are first used, so that `import metastep` loads no torch.
`__init__.pyi` lists the same names for type checkers and editors.
"""

import sys
from importlib import import_module

__version__ = "0.1.0"

_PUBLIC = {
    "step.gradient": "MetaGradient",
    "step.update": "MetaStep",
    "core.estimators": "Estimate",
    "core.windows": "Problem Task Window",
    "core.problems": "accuracy every_window few_shot",
    "core.methods": "FOMAML IMAML MAML MetaSGD MultiStep Reptile",
    "core.optimizers": "SGD Adam AdamW RMSprop StepFunction",
    "core.modules": "apply as_module parameters use_batch_statistics",
    "core.compare": "compare gradient_difference",
    "core.suggest": "suggest",
    "core.registry": "register",
    "train.fewshot.learner": "Learner",
    "errors": "MetastepError NonFiniteError",
}
_MODULES = {
    "curvature": "core.curvature",
    "data": "data",
    "estimators": "core.estimators",
    "methods": "core.methods",
    "nets": "nets",
    "optimizers": "core.optimizers",
    "problems": "core.problems",
    "solvers": "core.solvers",
    "trees": "core.trees",
}
_PLACE = {name: f"metastep.{module}" for module, names in _PUBLIC.items() for name in names.split()}
__all__ = sorted([*_PLACE, *_MODULES])


def __getattr__(name: str) -> object:
    if name in _MODULES:
        value: object = import_module(f"metastep.{_MODULES[name]}")
    elif name in _PLACE:
        value = getattr(import_module(_PLACE[name]), name)
    else:
        where = "" if name.startswith("_") else _second_level(name)
        raise AttributeError(
            f"module 'metastep' has no attribute {name!r}{where}", name=name, obj=sys.modules[__name__]
        )
    globals()[name] = value
    return value


def _second_level(name: str) -> str:
    """Say where a name is that was looked for at the top."""
    rooms = {room: import_module(f"metastep.{place}") for room, place in _MODULES.items()}
    return next((f". It is ms.{room}.{name}" for room, at in rooms.items() if name in getattr(at, "__all__", ())), "")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
