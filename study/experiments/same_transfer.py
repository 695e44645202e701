"""Compare a compiled transfer iteration with the plain one: how far each is from float64.

ResNet-32 to VGG-9, the first iteration of each method from the same state on the same batch. On a GPU inductor compiles
it, in float32 and in tf32; on a CPU it is traced, and the batch is small. Compiling takes minutes: the same command
continues where it was stopped.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from metastep.core.trees import Tree, map_tree, norm, subtract
from metastep.train.device import prepare_device, uses_gpu
from metastep.train.transfer.building import prepare
from study import results
from study.bench.cases import Case
from study.bench.transfer import config_of, endless, load, untrained_source
from study.experiments import arguments

SETTING, STEPS = "transfer-stl10", 2
WINDOWS = {"baseline": 1, "multi_step": 2}
Precision = Literal["float32", "tf32", "float64"]
RUNS: dict[str, tuple[tuple[Precision, str], ...]] = {
    "gpu": (("float32", "plain"), ("float32", "compiled"), ("tf32", "plain"), ("tf32", "compiled")),
    "cpu": (("float64", "compiled"), ("float32", "plain"), ("float32", "compiled")),
}
SMALL = 8  # pictures on a CPU
THREADS = 2


def first_iteration(case: Case, precision: Precision, compile: bool) -> tuple[dict[str, Tree], str]:
    """What it makes, as float64, and how"""
    device = prepare_device("auto", precision, THREADS)
    config = replace(config_of(case, device), precision=precision, compile=compile)
    if device.type == "cpu":
        config = replace(config, batch=SMALL)
    pictures = load(case, device)
    with untrained_source(config, pictures.train) as weights:
        parts = prepare(config, pictures, weights)
    rate = parts.initial.target.step.new_tensor(config.inner.lr, dtype=parts.dtype)
    state, metrics = parts.step(parts.initial, next(endless(parts.train, parts.dtype, parts.layout)), rate)
    made = {
        "gradient": state.target.memory,  # momentum starts as the first gradient
        "statistics": {name: value for name, value in state.buffers.items() if value.is_floating_point()},
        "meta_gradient": state.meta.memory[0],  # so does Adam's first moment, but for a factor
        "loss": metrics["loss"],
    }
    return map_tree(lambda x: x.double(), made), parts.step.path


def errors(found: dict[str, Tree], exact: dict[str, Tree]) -> dict[str, float]:
    """‖found − exact‖ / ‖exact‖ of each part"""
    return {name: float(norm(subtract(found[name], exact[name])) / norm(exact[name])) for name in exact}


def compared(case: Case, runs: list[tuple[Precision, str]]) -> Iterator[dict[str, Any]]:
    exact, _ = first_iteration(case, "float64", compile=False)
    for precision, run in runs:
        found, path = first_iteration(case, precision, run == "compiled")
        print(f"{case.method_label}, {precision}, {run}: {path}", flush=True)
        yield {
            "setting": SETTING, "implementation": "metastep", "method": case.method_label, "steps": STEPS,
            "window": case.window, "tasks": 1, "chunk": None, "precision": precision, "run": run,
            "errors": errors(found, exact), "note": path,
        }  # fmt: skip


def main() -> None:
    command = arguments.command("same_transfer", arguments.parser("same_transfer", __doc__).parse_args())
    rows = results.kept("same-transfer", command)
    done = [(row["method"], row["precision"], row["run"]) for row in rows]
    for method, window in WINDOWS.items():
        case = Case(SETTING, "metastep", method, STEPS, window, tasks=1, chunk=None, precision="fp32")
        runs = RUNS["gpu" if uses_gpu("auto") else "cpu"]
        left = [run for run in runs if (case.method_label, *run) not in done]
        results.write_each("same-transfer", command, rows, compared(case, left) if left else ())
