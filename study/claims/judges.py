"""The judges by name: a row of claims.toml names one of them and gives its arguments."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

from metastep.errors import MetastepError, did_you_mean
from study.claims import cells, claims, comparing, fewshot_costs, numeric, transfer_comparing, transfer_costs
from study.claims.claims import Finding, Judge

_ALL: tuple[Callable[..., Finding], ...] = (
    claims.quoted,
    cells.few_shot,
    cells.transfer,
    comparing.drop_at_most,
    comparing.drop_about,
    comparing.margins,
    comparing.gains_of_at_least,
    comparing.keeps_up,
    comparing.momentum_is_needed,
    transfer_comparing.surrogate_fails,
    transfer_comparing.is_better,
    transfer_comparing.two_steps_are_best,
    transfer_comparing.estimates_match,
    transfer_comparing.works_with_adam,
    transfer_comparing.gradients_settle,
    fewshot_costs.few_shot_saving,
    fewshot_costs.memory_order,
    transfer_costs.epoch_of_baseline,
    transfer_costs.epoch_of_multi_step,
    transfer_costs.transfer_saving,
    transfer_costs.saving_everywhere,
    numeric.proposition_1,
    numeric.naive_sgd,
    numeric.products,
    numeric.split_sizes,
)
JUDGES = {judge.__name__: judge for judge in _ALL}


def judge_named(name: str, arguments: Mapping[str, Any], paper: str) -> Judge:
    """Return a judge with its arguments bound. One that takes `paper` reads the printed number from there."""
    if name not in JUDGES:
        guess = did_you_mean(name, JUDGES)
        raise MetastepError(f"judge = {name!r}: there is no such judge.{guess} Choose one of {', '.join(JUDGES)}.")
    judge = JUDGES[name]
    given = {**arguments, "paper": paper} if "paper" in signature(judge).parameters else dict(arguments)
    try:
        signature(judge).bind(None, None, **given)
    except TypeError as error:
        raise MetastepError(f"judge = {name!r}: {error}. Its arguments stand in `with`.") from error
    return partial(judge, **given)
