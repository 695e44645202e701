"""Vary one choice of a preset at a time, where the paper leaves it open, and judge by validation.

    python -m study run variations first-order --presets omniglot-20w1s-fomaml \\
        --vary net.head_init=default,kaiming inner.weight_decay=0.0001 seed=1
    python -m study run variations mini-rates --presets miniimagenet-5w1s-maml miniimagenet-5w1s-multistep4 \\
        --vary inner.lr=0.1,0.04,0.01,0.004
    python -m study run variations implicit --presets omniglot-5w1s-imaml \\
        --vary inner.lr=0.05 method.free=true+method.strength=24
    python -m study run variations implicit --presets omniglot-5w1s-imaml --base net.filters=16+tasks=8 \\
        --vary data.queries=15
    python -m study run variations carried --presets omniglot-5w1s-reptile --vary method.keep_memory=false
    python -m study run variations transfer-choices --presets stl10-sgd-baseline stl10-sgd-multistep \\
        --vary outer.lr=0.0001 seed=1

Few-shot presets are trained on training classes alone, and judged on validation classes; transfer presets as usual.
Names are those of config.json. --base makes every run smaller, so that a CPU can train it.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from metastep.cli.common import UNFINISHED
from metastep.train.config import FewShot, Transfer
from metastep.train.presets import overridden
from metastep.train.run import Run
from study.claims.kinds import kind_of
from study.claims.outcomes import position
from study.experiments import arguments, trials
from study.tables.curves import VARIED

Config = FewShot | Transfer
UNCHANGED = "as it is"


class Variation(NamedTuple):
    preset: str
    base: str  # of all variations
    change: str  # such as inner.lr=0.1, or several joined by +

    @property
    def name(self) -> str:
        return "-".join([self.preset, *(part.replace(" ", "-") for part in (self.base, self.change) if part)])

    @property
    def config(self) -> Config:
        return varied(preset_of(self.preset, self.base), self.change)


def preset_of(name: str, base: str = "") -> Config:
    """In the precision that its claims are run with"""
    config: Config = kind_of(name).presets()[name]
    return varied(replace(config, precision=trials.usual_precision()), base)


def varied(config: Config, change: str) -> Config:
    """`config` with fields changed"""
    if change in ("", UNCHANGED):
        return config
    return overridden(config, change.split("+"))


def variations(presets: list[str], vary: list[str], base: str = "") -> Iterator[Variation]:
    for preset in presets:
        yield Variation(preset, base, UNCHANGED)
        for change in vary:
            first, _, values = change.rpartition("=")  # of those joined by +, the last may have several
            several = (Variation(preset, base, f"{first}={value}") for value in values.split(","))
            yield from (one for one in several if one.config != preset_of(preset, base))


def main() -> None:
    options = parsed()
    asked = {one.name: one for one in variations(options.presets, options.vary, options.base)}

    def folder(name: str) -> Path:
        return Path(options.runs / name)

    def finished(name: str) -> bool:
        return position(folder(name)).finished

    works = {
        name: partial(trials.trained, judged(one.config, options), folder(name), options.data)
        for name, one in asked.items()
    }
    ended = trials.complete(works, finished, options.together, options.budget)
    begun = [one for name, one in asked.items() if Run.is_there(folder(name))]
    rows = [described(one, folder(one.name), ended.get(one.name, "")) for one in begun]
    trials.tell(options.name, arguments.command(f"variations {options.name}", options, "name"), rows)
    if len(ended) < len(asked):
        sys.exit(UNFINISHED)


def judged(config: Config, options: argparse.Namespace) -> Config:
    """So that there is a validation to go by"""
    if isinstance(config, Transfer):
        return config
    return trials.validated(config, options.iterations, options.looks, options.episodes)


def described(one: Variation, folder: Path, failure: str) -> dict[str, Any]:
    if isinstance(one.config, Transfer):
        setting, _, method = one.preset.partition("-")
        return trials.transfer_row(folder, setting, method, failure) | {"change": one.change}
    setting, _, method = one.preset.rpartition("-")
    return trials.few_shot_row(folder, setting, method, failure) | {"change": one.change}


def parsed() -> argparse.Namespace:
    parser = arguments.parser("variations", __doc__)
    parser.add_argument("name", choices=VARIED, help="of the study: results/bench/DEVICE-NAME.json")
    parser.add_argument("--presets", nargs="+", required=True)
    parser.add_argument("--base", default="", help="of every run, such as net.filters=16+tasks=8")
    parser.add_argument(
        "--vary", nargs="+", default=[], help="such as inner.lr=0.1,0.04 or net.head_init=zero+inner.lr=0.1"
    )
    trials.add_options(parser, iterations=5_000, runs="variations")
    arguments.add_data(parser)
    return parser.parse_args()
