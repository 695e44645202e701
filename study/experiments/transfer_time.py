"""Measure time and memory of one iteration of meta-transfer learning.

Multi-step and the baseline in one run: as they are here (source features computed once for a batch; the first window's
product is its mixed part alone), without that shortcut, and with a source that is run again by every loss, as the
published implementation does. Pictures are synthetic; nets, batches and rates are those of the presets.

On a GPU all of these are captured, and not compiled: a compiler would remove the repetition. Each method also has a row
without a capture, and a compiled one, whose note says how long compiling took. --no-compile leaves out the compiled
rows, --pair both kinds.

The file is written after every row: the same command continues with the next.
"""

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import torch

from metastep.cli.common import unless_stopped
from metastep.core.curvature import exact_forward
from metastep.data.draw import Batches
from metastep.step.capture import Captured as CapturedUnit, Unit, recorded_by_cuda
from metastep.step.compiler.compiling import Compiled, Step
from metastep.train import config as schema
from metastep.train.device import device_for
from metastep.train.transfer import iteration as algorithm
from metastep.train.transfer.building import laid_out, layout_on
from metastep.train.transfer.iteration import initial_state, iteration
from study import results
from study.bench.cases import TRANSFERS, Transfer
from study.bench.transfer import RATE, nets, pictures
from study.experiments import arguments
from study.targets import config_of

METHODS = {  # as the presets call them
    "scratch": "scratch",
    "baseline": "baseline",
    "multi_step": "multistep",
    **{name: name for name in ("t0", "t1", "t3")},
    "3-step estimate": "3step-estimate",
}
WARM = 1  # recording is done in the first call
STANDARD, BIRD = "transfer-stl10", "transfer-bird"
PAIR = ("baseline", "multi_step")
OURS, COMPILED = "metastep", "metastep, compiled"
VARIANTS = {"": METHODS, "no mixed part": PAIR, "source run again": PAIR, "source run again, no mixed part": PAIR}


@contextmanager
def whole_products(wanted: bool) -> Iterator[None]:
    """The first window pays for (∂²L/∂φ²)·d too, which nobody asks for"""
    kept = algorithm.mixed
    algorithm.mixed = exact_forward if wanted else kept
    try:
        yield
    finally:
        algorithm.mixed = kept


def measured(
    unit: Callable[..., Any], state: Any, inputs: Any, repeats: int, cuda: bool
) -> tuple[float, float, float | None]:
    """Median and spread (half the range between quartiles) in ms; on a GPU, peak in MiB"""
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    clock = time.perf_counter if cuda else time.process_time  # on a CPU, whatever else runs there does not count
    times = []
    for i in range(repeats + WARM):
        start = clock()
        state, _ = unit(state, *inputs)
        if cuda:
            torch.cuda.synchronize()
        if i >= WARM:
            times.append(1e3 * (clock() - start))
    quarters = statistics.quantiles(times, n=4, method="inclusive")
    peak = round((torch.cuda.max_memory_allocated() - before) / 2**20) if cuda else None
    return statistics.median(times), (quarters[2] - quarters[0]) / 2, peak


Ways = Mapping[str, Callable[[Step], Unit]]


def ways_to_run(cuda: bool, pair: bool, compile: bool) -> Ways:
    """By what they are called in the results"""
    if not cuda:
        return {OURS: Unit}
    others: dict[str, Callable[[Step], Unit]] = {"metastep, not captured": Unit}
    if compile:
        others[COMPILED] = lambda step: captured(Compiled(step))
    return {OURS: captured} | ({} if pair else others)


def captured(step: Step) -> Unit:
    return CapturedUnit(step, recorded_by_cuda())


class Job(NamedTuple):
    """What a row is of"""

    setting: str
    variant: str
    method: str
    implementation: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Job":
        variant = "" if row["implementation"] == COMPILED else row["note"]
        return cls(row["setting"], variant, row["method"], row["implementation"])


def planned(settings: Iterable[str], variants: Mapping[str, Collection[str]], ways: Ways) -> Iterator[Job]:
    for setting, (variant, methods) in product(settings, variants.items()):
        yield from (Job(setting, variant, *each) for each in product(methods, [OURS] if variant else ways))


def row_of(job: Job, sizes: Transfer, ways: Ways, device: torch.device, repeats: int, precision: str) -> dict[str, Any]:
    data, config = pictures(sizes, device).train, with_method(sizes.config, job.method)
    x, y = Batches(data, config.batch, config.data.augment).batch(0, 0)
    x = x.contiguous(memory_format=layout_on(device))
    target, guide = nets(config, data, x[:2])
    laid_out(target.module, layout_on(device))
    unit = ways[job.implementation](iteration(config, target, guide, recompute_source="again" in job.variant))
    inputs = (x, y), torch.tensor(RATE, device=device)
    with whole_products("no mixed" in job.variant):
        state = initial_state(config, target, guide)
        ms, spread, peak = measured(unit, state, inputs, repeats, device.type == "cuda")
    return {
        "setting": job.setting, "implementation": job.implementation, "method": job.method, "steps": config.steps,
        "window": config.window, "tasks": len(y), "chunk": None, "precision": precision,
        "ms": round(ms, 3), "ms_spread": round(spread, 3), "peak_mib": peak,
        "note": unit.path if job.implementation == COMPILED else job.variant,
    }  # fmt: skip


def with_method(config: schema.Transfer, method: str) -> schema.Transfer:
    own = config_of("stl10", "sgd", METHODS[method])
    return replace(config, method=own.method, steps=own.steps)


def with_fewer(setting: Transfer, times: int) -> Transfer:
    return replace(setting, config=replace(setting.config, batch=setting.config.batch // times))


def main() -> None:
    parser = arguments.parser("transfer_time", __doc__)
    parser.add_argument("--fewer", type=int, default=1, help="divides the batches, for a CPU")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--settings", nargs="+", choices=TRANSFERS, default=[STANDARD, BIRD])
    parser.add_argument("--pair", action="store_true", help="baseline and Multi-step alone, as they are")
    parser.add_argument("--no-compile", action="store_true", help="on a GPU, measure nothing compiled")
    parser.add_argument("--name", default="transfer-time", help="of the file: results/bench/DEVICE-NAME.json")
    options = parser.parse_args()
    device = device_for("auto")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    precision = "tf32" if device.type == "cuda" else "float32"
    if device.type == "cpu":
        torch.set_num_threads(1)
    settings = {name: with_fewer(TRANSFERS[name], options.fewer) for name in options.settings}
    ways = ways_to_run(device.type == "cuda", options.pair, not options.no_compile)
    command = arguments.command("transfer_time", options)
    rows = results.kept(options.name, command)
    done = [Job.of(row) for row in rows]
    for job in planned(settings, {"": PAIR} if options.pair else VARIANTS, ways):
        if job in done:
            continue
        with unless_stopped():
            rows.append(row_of(job, settings[job.setting], ways, device, options.repeats, precision))
            told = {key: rows[-1][key] for key in ("setting", "implementation", "method", "ms", "peak_mib", "note")}
            print(told, results.write(options.name, command, rows), flush=True)
        torch.cuda.empty_cache()  # of a GPU; elsewhere it does nothing
