"""Time and memory of one iteration of meta-transfer learning: `python -m benchmarks.transfer_time`.

Multi-step beside the baseline, in one run: as they are here (source features found once for a batch; the first window's
product is its mixed part alone), without that shortcut, and with a source that is run again by every loss, which is
what the published implementation pays. Pictures are synthetic; nets, batches and rates are those of the presets.

On a GPU all of these are captured, and not compiled: a compiler finds what is done twice. Compiled, as by `--compile`,
each method has a row of its own, whose note tells how long that took, and with --no-compile it has none.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from benchmarks import results
from metastep.bench.cases import TRANSFERS, Transfer
from metastep.bench.transfer import RATE, nets, pictures
from metastep.compiling import Compiled, Step
from metastep.curvature import exact
from metastep.data.batches import Batches
from metastep.engine import Captured as CapturedUnit
from metastep.engine import Unit, recorded_by_cuda
from metastep.transfer import lookahead, presets
from metastep.transfer.building import laid_out, layout_on, method_of
from metastep.transfer.iteration import initial_state, iteration

METHODS = {
    "scratch": presets.SCRATCH,
    "baseline": presets.TRANSFER,
    "multi_step": presets.METHODS["multistep"],
    **{name: presets.ABLATIONS[name] for name in ("t0", "t1", "t3")},
    "3-step estimate": presets.ABLATIONS["3step-estimate"],
}
WARM = 1  # recording is done in the first call
STANDARD, BIRD = "transfer-stl10", "transfer-bird"
PAIR = ("baseline", "multi_step")
VARIANTS = {"": METHODS, "no mixed part": PAIR, "source run again": PAIR, "source run again, no mixed part": PAIR}


@contextmanager
def whole_products(wanted: bool) -> Iterator[None]:
    """The first window pays for (∂²L/∂φ²)·d too, which nobody asks for"""
    kept = lookahead.mixed
    lookahead.mixed = exact if wanted else kept
    try:
        yield
    finally:
        lookahead.mixed = kept


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


def units(step: Step, cuda: bool, compile: bool) -> Iterator[tuple[str, Unit]]:
    """Ways to run a step, by what they are called in the results"""
    if not cuda:
        yield "metastep", Unit(step)
        return
    yield "metastep", CapturedUnit(step, recorded_by_cuda())
    yield "metastep, not captured", Unit(step)
    if compile:
        yield "metastep, compiled", CapturedUnit(Compiled(step), recorded_by_cuda())


def rows(
    setting: str, sizes: Transfer, device: torch.device, repeats: int, precision: str, compile: bool,
    variants: Mapping[str, Collection[str]],
) -> Iterator[Any]:  # fmt: skip
    cuda, data = device.type == "cuda", pictures(sizes, device).train
    x, y = Batches(data, sizes.config.data.batch, sizes.config.data.augment).batch(0, 0)
    x = x.contiguous(memory_format=layout_on(device))
    lr = torch.tensor(RATE, device=device)
    for variant, methods in variants.items():
        for name in methods:
            config = replace(sizes.config, method=METHODS[name])
            method, (target, guide) = method_of(config), nets(config, data, x[:2])
            laid_out(target.module, layout_on(device))
            step = iteration(method, target, guide, recompute_source="again" in variant)
            for implementation, unit in units(step, cuda, compile):
                if variant and implementation != "metastep":
                    continue
                with whole_products("no mixed" in variant):
                    ms, spread, peak = measured(unit, initial_state(method, target, guide), ((x, y), lr), repeats, cuda)
                note = unit.path if implementation == "metastep, compiled" else variant
                row = {
                    "setting": setting, "implementation": implementation, "method": name, "steps": method.steps,
                    "window": method.window, "tasks": len(y), "chunk": None, "precision": precision,
                    "ms": round(ms, 3), "ms_spread": round(spread, 3), "peak_mib": peak, "note": note,
                }  # fmt: skip
                print(
                    {key: row[key] for key in ("setting", "implementation", "method", "ms", "peak_mib", "note")},
                    flush=True,
                )
                yield row
                del unit
                if cuda:
                    torch.cuda.empty_cache()


def with_fewer(setting: Transfer, times: int) -> Transfer:
    data = setting.config.data
    return replace(setting, config=replace(setting.config, data=replace(data, batch=data.batch // times)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fewer", type=int, default=1, help="divides the batches, for a CPU")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--settings", nargs="+", choices=TRANSFERS, default=[STANDARD, BIRD])
    parser.add_argument("--pair", action="store_true", help="baseline and Multi-step alone, as they are")
    parser.add_argument("--name", default="transfer-time", help="of the file: results/bench/DEVICE-NAME.json")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="on a GPU, compiled too")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    precision = "tf32" if device.type == "cuda" else "float32"
    if device.type == "cpu":
        torch.set_num_threads(1)
    settings = {name: with_fewer(TRANSFERS[name], options.fewer) for name in options.settings}
    how = device, options.repeats, precision, options.compile, {"": PAIR} if options.pair else VARIANTS
    found = [row for name, sizes in settings.items() for row in rows(name, sizes, *how)]
    command = f"python -m benchmarks.transfer_time --fewer {options.fewer} --repeats {options.repeats}"
    command += f" --settings {' '.join(options.settings)}" + (" --pair" if options.pair else "")
    command += ("" if options.compile else " --no-compile") + f" --name {options.name}"
    print(results.write(options.name, command, found))


if __name__ == "__main__":
    main()
