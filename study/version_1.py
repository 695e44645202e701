"""Configurations as they were written before version 2, in the shape of today's; `results/` has many of them.

python -m study convert-learners src/metastep/learners/*.safetensors
"""

from typing import Any

from metastep.train.config import FewShot, Transfer
from metastep.train.validated import from_plain

Plain = dict[str, Any]

_METHOD = {"carried": "keep_memory"}  # options that have another name now


def few_shot(old: Plain) -> FewShot:
    """Return the configuration of a few-shot run."""
    inner, outer, method = dict(old["inner"]), dict(old["outer"]), dict(old["method"])
    plain = {
        **{name: old[name] for name in ("data", "net", "test", "validation", "seed", "log_every", "precision")},
        **{name: old[name] for name in ("device", "threads", "chunk_size")},
        "start": old.get("start"),
        "steps": inner.pop("steps"),
        "batch": inner.pop("batch", None),
        "tasks": outer.pop("tasks"),
        "iterations": outer.pop("iterations"),
        "inner": _inner(inner, momentum=0.0),
        "outer": _given({"clip_value": outer.pop("clip", None), **outer}),
        "method": _method(method),
    }
    return from_plain(FewShot, plain)


def transfer(old: Plain) -> Transfer:
    """Return the configuration of a transfer run."""
    data, inner, method = dict(old["data"]), dict(old["inner"]), _given(old["method"])
    plain = {
        **{name: old[name] for name in ("source", "epochs", "seed", "gradient_difference", "precision", "device")},
        **{name: old[name] for name in ("compile", "threads")},
        "batch": data.pop("batch"),
        "data": data,
        "net": {"name": old["target"]["net"], "layers": old["target"]["layers"]},
        "steps": method.pop("steps", 2),
        "method": method,
        "inner_schedule": inner.pop("schedule"),
        "inner": _inner(inner, momentum=0.9),
        "outer": old["meta"],
    }
    return from_plain(Transfer, plain)


def read(old: Plain) -> FewShot | Transfer:
    """Return either, whichever it is."""
    return transfer(old) if "epochs" in old else few_shot(old)


def is_old(plain: Plain) -> bool:
    """Return whether a configuration is of version 1."""
    return "optimizer" in plain["inner"]


def _given(options: Plain) -> Plain:
    return {name: value for name, value in options.items() if value is not None}


def _inner(old: Plain, momentum: float) -> Plain:
    given = _given(old)
    name = given.pop("optimizer")
    return {"name": name, **({"momentum": momentum} if name == "sgd" else {}), **given}


def _method(old: Plain) -> Plain:
    given = {_METHOD.get(name, name): value for name, value in _given(old).items()}
    if "cg_steps" in given:
        given["solver"] = {"name": "conjugate_gradient", "steps": given.pop("cg_steps")}
    return {"window": 1, **given} if given["name"] == "multi_step" else given
