"""Every alternative computes our meta-gradient, in float64; what is not installed is skipped."""

from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
import torch

from metastep.core.optimizers import SGD
from study.bench import cases
from study.bench.cases import METHODS, Case
from study.bench.implementations import IMPLEMENTATIONS, ours
from study.bench.measure import measure
from study.bench.workload import Gradients, Workload, workload
from tests.study.bench.helpers import CPU, TINY_SETTINGS, tiny_case

BASIC = ["maml", "multi_step2", "first_order"]
LIBRARIES = [("higher", "maml"), ("higher", "first_order"), ("torchopt", "maml")]
LIBRARIES += [("learn2learn", "maml"), ("learn2learn", "first_order")]
every_setting = pytest.mark.parametrize("setting", TINY_SETTINGS)


def case_for(label: str, **changes: Any) -> Case:
    method, window = METHODS[label]
    return tiny_case(method=method, window=window, **changes)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    size = max(float(abs(g).max()) for g in expected.values())
    assert size > 1e-3
    for name, g in expected.items():
        assert float(abs(found[name] - g).max()) < 1e-12 * size, name


def ours_and(module: str, work: Workload) -> tuple[Gradients, Gradients]:
    tasks = work.episodes(0)
    theirs = import_module(f"study.bench.implementations.{module}").meta_gradient(work)
    return theirs(tasks), ours.vmapped(work)(tasks)


@every_setting
@pytest.mark.parametrize("label", BASIC)
@pytest.mark.parametrize("module", ["hand_loop", "torch_func"])
def test_by_hand(module: str, label: str, setting: str) -> None:
    assert_same(*ours_and(module, workload(case_for(label, setting=setting), CPU)))


@every_setting
@pytest.mark.parametrize("label", [label for label in METHODS if label not in ("ggs_maml", "es_maml")])
def test_looped_is_vmapped(label: str, setting: str) -> None:
    work = workload(case_for(label, setting=setting), CPU)
    tasks = work.episodes(0)
    assert_same(ours.looped(work)(tasks), ours.vmapped(work)(tasks))


@pytest.mark.parametrize("label", ["ggs_maml", "es_maml"])  # random: only that they run, in both modes
def test_random_methods_run(label: str) -> None:
    work = workload(case_for(label), CPU)
    for gradient in (ours.looped(work), ours.vmapped(work)):
        assert all(torch.isfinite(g).all() for g in gradient(work.episodes(0)).values())


@every_setting
@pytest.mark.parametrize(("name", "label"), LIBRARIES)
@pytest.mark.filterwarnings("ignore")  # theirs
def test_libraries(name: str, label: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    implementation = IMPLEMENTATIONS[name]
    if implementation.missing:
        pytest.skip(implementation.missing)
    if name == "learn2learn":  # has no momentum
        monkeypatch.setattr(cases, "INNER", SGD(0.05))
    work = workload(case_for(label, setting=setting), CPU)
    assert_same(*ours_and(implementation.module, work))
    assert_same(*ours_and(implementation.module, work))  # and leaves the net as it was


@every_setting
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("label", BASIC)
def test_jax(label: str, remat: bool, setting: str) -> None:
    jax = pytest.importorskip("jax")
    from study.bench.implementations import jax_maml

    case = case_for(label, setting=setting)
    work = workload(case, CPU)
    tasks = work.episodes(0)
    with jax.enable_x64(True):
        support, query = ((jax.numpy.asarray(x.movedim(2, -1).numpy()), jax.numpy.asarray(y.numpy())) for x, y in tasks)
        found = jax_maml.meta_gradient(case, remat)(jax_maml.from_torch(work.meta), support, query)
        assert_same(found, jax_maml.from_torch(ours.vmapped(work)(tasks)))


@every_setting
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_one_takes_steps(name: str, setting: str) -> None:
    implementation = IMPLEMENTATIONS[name]
    if implementation.missing:
        pytest.skip(implementation.missing)
    case = tiny_case(setting=setting, precision="fp32")
    implementation.load(case, CPU)
    step, machine = implementation.step(case, CPU), implementation.machine(case, CPU)
    for _ in range(2):
        step()
    machine.wait()


@pytest.mark.parametrize("label", METHODS)
def test_ours_is_what_training_does(label: str) -> None:
    step = ours.step(case_for(label), CPU)
    step()
    by_hand = label in ("maml", "multi_step2", "multi_step4", "multi_step8", "first_order", "reptile", "imaml")
    assert isinstance(step, ours.Trained)
    assert step.path.startswith("derivatives by hand" if by_hand else "autograd, 4 tasks at a time")
    assert measure(case_for(label), CPU, 1).path == step.path


def test_the_outer_step_moves_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    from study.bench import workload as module

    made: list[Workload] = []
    monkeypatch.setattr(module, "workload", lambda case, device: made.append(workload(case, device)) or made[-1])
    step = ours.step(tiny_case(), CPU, "vmap")
    seen = [torch.cat([p.detach().flatten() for p in made[0].meta.values()])]
    for _ in range(2):
        step()
        seen.append(torch.cat([p.detach().flatten() for p in made[0].meta.values()]))
    moved = [float((b - a).abs().max()) for a, b in pairwise(seen)]
    assert moved[0] == pytest.approx(1e-3, rel=1e-3)  # Adam's first step is its rate
    assert 0 < moved[1] <= 2e-3
