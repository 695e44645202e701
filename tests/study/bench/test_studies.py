"""`python -m study bench startup`, `profile` and `precision`: what their rows say, and that they say something."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from metastep.core.trees import map_tree, to_vector
from metastep.core.windows import Task
from metastep.step.chain.chain import NotAChainError
from metastep.train.config import FewShot
from metastep.train.fewshot.learner import Learner
from study.bench import precision, profile, startup
from study.bench.cases import INNER, METHODS, SETTINGS, STANDARD, Case
from study.bench.floor import floor, floor_parts, total
from study.bench.running import Conditions, FailedError
from study.commands import app
from tests.study.bench.helpers import CPU, POOLED, SETTING, TINY, tiny_case

HERE = Conditions("cpu", threads=1, repeats=1)


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.fixture
def standard_is_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, STANDARD, SETTING)


# ---- start-up


def test_a_cold_start_has_empty_caches_and_a_warm_one_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[dict[str, str], int]] = []

    def answer(module: str, asked: Any, caches: dict[str, str]) -> Any:
        folder = Path(caches["TRITON_CACHE_DIR"])
        seen.append((caches, len(list(folder.glob("*")))))
        folder.mkdir(exist_ok=True)
        (folder / "kernel").touch()
        return [3.0 / len(seen), "captured"]

    monkeypatch.setattr(startup, "answer", answer)
    row = startup.row(tiny_case(), HERE)
    assert (row["cold_seconds"], row["warm_seconds"], row["note"]) == (3.0, 1.5, "captured")
    assert seen[0][0] == seen[1][0]
    assert [kernels for _, kernels in seen] == [0, 1]
    assert not Path(seen[0][0]["TRITON_CACHE_DIR"]).exists()  # nothing is left


def test_a_start_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> Any:
        raise FailedError("out of memory")

    monkeypatch.setattr(startup, "answer", fail)
    row = startup.row(tiny_case(), HERE)
    assert row["note"] == "out of memory"
    assert "cold_seconds" not in row


# ---- profile


def test_a_profile_accounts_for_the_time() -> None:
    row = profile.row(tiny_case(steps=2), CPU)
    assert 0 < row["busy_ms"] < 20 * row["ms"]  # the profiler makes operators slower
    kernels = row["kernels"]
    assert sum(kernel["ms"] for kernel in kernels) == pytest.approx(row["busy_ms"], rel=1e-2)
    assert sum(kernel["share"] for kernel in kernels) == pytest.approx(1, abs=1e-2)
    assert sum(kernel["calls"] for kernel in kernels) == pytest.approx(row["launches"], rel=1e-2)
    products = next(kernel for kernel in kernels if kernel["name"] == "aten::bmm")
    assert products["calls"] >= 2 * (4 + 4 + 3)  # forward, weights and inputs of four blocks, in two windows
    assert row["note"].startswith("derivatives by hand")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(long)", "reduce_kernel"),
        ("forward_kernel", "forward_kernel"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD "),
        ("aten::bmm", "aten::bmm"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(float*)", "CatArrayBatchedCopy"),
        ("void at::native::<unnamed>::multi_tensor_apply_kernel<int>(int)", "multi_tensor_apply_kernel"),
        ("triton_poi_fused_add_mul_17", "inductor: pointwise"),
        ("triton_per_fused_sum_3", "inductor: reductions"),
        ("sm90_xmma_dgrad_implicit_gemm_f32f32_tf32f32", "convolution, input gradient"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64>(int)", "matrix product"),
    ],
)
def test_names_of_kernels_are_short(name: str, shown: str) -> None:
    assert profile.short(name) == shown.strip()


@pytest.mark.parametrize("label", METHODS)
def test_the_floor_is_the_sum_of_its_parts(label: str) -> None:
    method, window = METHODS[label]
    parts = floor_parts(STANDARD, method, 8, window, 32)
    assert list(parts) == ["forward", "backward", "head", "updates", "episodes, Adam"]
    assert total(parts.values()) == floor(STANDARD, method, 8, window, 32)
    assert all(part.bytes > 0 for part in parts.values())


# ---- precision


def test_float32_is_near_and_bfloat16_is_not() -> None:
    """On noise, from a fresh θ; a learner of another shape cannot be a start"""
    fp32, bf16 = precision.rows(tiny_case(precision="fp32"), CPU, seeds=[0, 1])
    assert [row["precision"] for row in (fp32, bf16)] == ["fp32", "bf16"]
    assert fp32["start"] == bf16["start"] == "fresh"
    assert 0 < fp32["relative_error"] < 1e-3 < bf16["relative_error"]
    assert fp32["relative_error"] <= fp32["worst_error"]
    assert fp32["cosine"] > 0.99999
    assert fp32["halves_difference"] == bf16["halves_difference"] > 0.1
    assert fp32["note"].startswith("derivatives by hand")
    assert bf16["note"].startswith("autograd")


def test_halves_make_the_whole() -> None:
    """The meta-gradient of all tasks is the mean of that of their halves: the same episodes"""
    case = tiny_case(tasks=4)
    whole, first, second = (precision.gradient(case, "fp64", CPU, 0, None, part)[0] for part in (None, (0, 2), (2, 2)))
    torch.testing.assert_close((first + second) / 2, whole, rtol=1e-9, atol=1e-12)
    expected = float(2 * (first - second).norm() / (first + second).norm())
    assert precision.halves(case, CPU, 0, None) == pytest.approx(expected)


def test_the_trained_start_is_the_learner_that_comes_with_metastep() -> None:
    starts = precision.starts(tiny_case(setting=STANDARD, precision="fp32"))
    assert list(starts) == ["fresh", "trained"]
    trained = starts["trained"]
    one = tiny_case(setting=STANDARD, method="first_order", steps=1, tasks=1)
    found, _ = precision.gradient(one, "fp64", CPU, 0, trained)
    again, _ = precision.gradient(one, "fp64", CPU, 0, map_tree(torch.zeros_like, trained))
    assert len(found) == len(to_vector(trained)) == 113_221
    assert not torch.allclose(found, again)


def test_the_rate_is_the_learners_where_the_pictures_are() -> None:
    on_omniglot, on_others = (tiny_case(setting=name, data="a directory") for name in (TINY, POOLED))
    rates = [precision.configured(case, "fp32", CPU, seed=0).inner.lr for case in (on_omniglot, on_others, tiny_case())]
    assert rates == [0.4, INNER.lr, INNER.lr]


GPU = torch.device("cuda")


def batch_of(case: Case, config: FewShot) -> Task:
    return precision.sampler(case, config.train_episodes, 0, CPU, "fp32")(0, case.tasks)


@pytest.mark.parametrize("kind", ["tf32x3", "bf16"])
def test_on_a_gpu_a_precision_of_factors_is_that_of_our_kernels(kind: str) -> None:
    """Which way is taken can be asked without a GPU: only calling it needs one"""
    pytest.importorskip("triton", reason="Triton is not installed")
    case = tiny_case(setting=STANDARD)
    config = precision.configured(case, kind, GPU, seed=0)
    learner, batch = Learner.fresh(config), batch_of(case, config)
    assert (
        precision.way_to(config, learner, kind, GPU, batch).path == f"derivatives by hand, by Triton kernels ({kind})"
    )
    assert precision.dtype_of(kind, GPU) == torch.float32  # pictures and parameters are of one type
    small = precision.configured(tiny_case(), kind, GPU, seed=0)
    with pytest.raises(NotAChainError, match="the kernels are for 16"):  # and so it has no row
        precision.way_to(small, Learner.fresh(small), kind, GPU, batch_of(tiny_case(), small))


def test_on_a_cpu_bfloat16_is_everything() -> None:
    assert precision.dtype_of("bf16", CPU) == torch.bfloat16
    config = precision.configured(tiny_case(), "bf16", CPU, seed=0)
    way = precision.way_to(config, Learner.fresh(config), "bf16", CPU, batch_of(tiny_case(), config))
    assert not way.path.endswith("kernels (bf16)")


# ---- the commands


@pytest.mark.parametrize(("name", "fields"), [("profile", {"busy_ms", "kernels"}), ("precision", {"relative_error"})])
@pytest.mark.usefixtures("standard_is_tiny")
def test_a_study_from_beginning_to_end(name: str, fields: set[str], tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.json"
    result = call(name, "--methods", "maml,first_order", "--steps", 1, "--out", path)
    assert result.exit_code == 0, result.output
    content = json.loads(path.read_text())
    assert content[
        "command"
    ] == f"python -m study bench {name} --methods maml,first_order --steps 1 --threads 1".replace(
        "--threads", "--seeds 3 --threads" if name == "precision" else "--threads"
    )
    assert {row["method"] for row in content["rows"]} == {"maml", "first_order"}
    assert all(fields <= set(row) for row in content["rows"])


@pytest.mark.usefixtures("standard_is_tiny")
def test_a_case_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = profile.started

    def fails_for_maml(case: Case, device: torch.device) -> Any:
        if case.method == "maml":
            raise RuntimeError("no such kernel\nand much more")
        return whole(case, device)

    monkeypatch.setattr(profile, "started", fails_for_maml)
    path = tmp_path / "rows.json"
    assert call("profile", "--methods", "maml,first_order", "--steps", 1, "--out", path).exit_code == 0
    failed, fine = json.loads(path.read_text())["rows"]
    assert failed["note"] == "RuntimeError: no such kernel"
    assert fine["busy_ms"] > 0


@pytest.mark.parametrize("flags", [("--methods", "es_maml"), ("--settings", "transfer-stl10")])
def test_what_cannot_be_compared_is_refused(flags: tuple[str, str], tmp_path: Path) -> None:
    result = call("precision", *flags, "--out", tmp_path / "rows.json")
    assert result.exit_code == 2
    assert "Choose a few-shot setting" in " ".join(result.output.split())


def test_a_precision_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = precision.look

    def fails_in_bf16(case: Case, kind: str, *rest: Any) -> Any:
        if kind == "bf16":
            raise RuntimeError("not implemented for BFloat16")
        return whole(case, kind, *rest)

    monkeypatch.setattr(precision, "look", fails_in_bf16)
    fp32, bf16 = precision.rows(tiny_case(precision="fp32", steps=1), CPU, seeds=[0])
    assert fp32["relative_error"] > 0
    assert (bf16["relative_error"], bf16["note"]) == (None, "not implemented for BFloat16")


def test_flags_before_a_study_are_refused() -> None:
    result = call("--steps", 2, "profile")
    assert result.exit_code == 2
    assert "--steps: flags of `python -m study bench profile` stand after its name" in " ".join(result.output.split())
