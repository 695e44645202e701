"""How numbers become verdicts: cells, paired differences, means over seeds, costs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_ind

from metastep.errors import MetastepError
from study.claims import fewshot_costs, transfer_costs
from study.claims.cells import MINI_IMAGENET, OMNIGLOT, Printed, few_shot_verdict, transfer_verdict
from study.claims.claims import Finding
from study.claims.differences import Difference, over_seeds, paired
from study.claims.evidence import Evidence, MissingError
from study.claims.figures import draw_epochs
from study.claims.outcomes import Outcome
from study.claims.register import REGISTER
from study.claims.transfer_comparing import gradients_settle
from study.targets import TARGETS
from tests.study.claims.helpers import few_shot, known, transfer

STEPS_OF = {"t1": 1, "t3": 3, "3-step estimate": 3}
M1, M4 = "omniglot-5w1s-maml", "omniglot-5w1s-multistep4"


def judged(id: str, evidence: Evidence, stands_in: bool = False) -> Finding:
    claim = REGISTER[id]
    return claim.judge(evidence, claim.stand_in if stands_in else claim.presets)


@pytest.mark.parametrize(
    ("value", "interval", "verdict"),
    [(99.3, 0.1, "better"), (99.3, 0.3, "reproduced"), (98.61, 0.1, "reproduced"), (98.59, 0.1, "short"),
     (98.0, 2.0, "short")],
)  # fmt: skip
def test_a_few_shot_cell(value: float, interval: float, verdict: str) -> None:
    assert few_shot_verdict(value, interval, Printed(99.1, 0.77), OMNIGLOT) == verdict


@pytest.mark.parametrize(("value", "verdict"), [(62.6, "better"), (62.5, "reproduced")])
def test_intervals_that_can_be_are_counted(value: float, verdict: str) -> None:
    assert few_shot_verdict(value, 0.73, Printed(61.57, 0.68), MINI_IMAGENET) == verdict  # ± 1.00 together


def test_mini_imagenet_may_be_a_point_below() -> None:
    low = [47.6, 47.6]  # the paper has 48.49
    assert judged("T5.9", known(few_shot("miniimagenet-5w1s-maml", low))).verdict == "reproduced"
    assert judged("T5.9", known(few_shot("miniimagenet-5w1s-maml", [47.4, 47.4]))).verdict == "short"
    assert judged("T4.17", known(few_shot(M1, [98.5, 98.5]))).verdict == "short"  # 99.10


def test_seeds_of_a_few_shot_cell_are_averaged_by_episode() -> None:
    found = judged("T4.17", known(few_shot(M1, [98.0, 100.0]), few_shot(M1, [100.0, 98.0], seed=1)))
    assert (found.value, found.interval) == (99.0, 0.0)
    assert len(found.outcomes) == 2


def test_a_mean_of_seeds_may_differ_by_the_papers_own_deviation() -> None:
    printed = Printed(61.93, 3.32)
    verdicts = [transfer_verdict(value, printed) for value in (58.5, 58.7, 65.2, 65.3)]
    assert verdicts == ["short", "reproduced", "reproduced", "better"]
    assert transfer_verdict(66.1, Printed(65.18, 0.91)) == "reproduced"
    found = judged("T2.8", known(transfer("stl10-sgd-baseline", 78.0), transfer("stl10-sgd-baseline", 79.0, 1)))
    assert (found.value, found.interval, found.verdict) == (78.5, 0.71, "reproduced")


def test_paired_differences_have_the_interval_of_the_differences() -> None:
    evidence = known(few_shot(M1, [90.0, 50.0, 70.0]), few_shot(M4, [89.0, 49.0, 69.0]))
    difference = paired(evidence, M1, M4)
    assert (difference.mean, difference.interval) == (pytest.approx(1.0), pytest.approx(0.0))
    other = known(few_shot(M1, [90.0, 50.0]), few_shot(M4, [89.0, 49.0], queries=1))
    with pytest.raises(MetastepError, match="different episodes"):
        paired(other, M1, M4)


def seeds(preset: str, *accuracies: float) -> list[Outcome]:
    return [transfer(preset, accuracy, seed) for seed, accuracy in enumerate(accuracies)]


def test_differences_of_means_over_seeds() -> None:
    a, b = "stl10-adam-baseline", "stl10-adam-t0"
    found = over_seeds(known(*seeds(a, 80, 82, 84), *seeds(b, 70, 74, 78)), a, b)
    assert found.mean == 8
    both = ttest_ind([80, 82, 84], [70, 74, 78], equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(both))
    assert over_seeds(known(*seeds(a, 80, 80), *seeds(b, 70, 70)), a, b).interval == 0
    alone = over_seeds(known(transfer(a, 80), transfer(b, 70)), a, b)
    assert (alone.interval, alone.is_above_zero) == (None, True)
    assert str(alone) == f"{a} − {b} = +10.00 of one seed each"


@pytest.mark.parametrize(
    ("mean", "interval", "about"),
    [(2.6, 0.5, True), (1.0, 0.5, True), (0.7, 0.5, False), (0.4, 0.5, False), (-2.6, 0.5, False), (5.5, 0.5, True),
     (6.0, 0.5, False)],
)  # fmt: skip
def test_about_the_size(mean: float, interval: float, about: bool) -> None:
    assert Difference("a", "b", mean, interval, ()).about(2.59) is about


def flat(preset: str, accuracy: float) -> Any:
    return few_shot(preset, [accuracy] * 4)


def test_x3_allows_a_drop_of_a_tenth() -> None:
    assert judged("X3", known(flat(M1, 99.1), flat(M4, 99.0))).verdict == "reproduced"
    found = judged("X3", known(flat(M1, 99.1), flat(M4, 98.9)))
    assert (found.verdict, found.value, found.interval) == ("not reproduced", 0.2, 0.0)
    assert f"{M1} − {M4} = +0.20 ± 0.00" in found.note


def omniglot(drops: dict[str, float]) -> Evidence:
    settings = ("5w1s", "5w5s", "20w1s", "20w5s")
    rows = [flat(f"omniglot-{s}-{m}", 97 - drops.get(f"{s}-{m}", 0.0)) for s in settings
            for m in ("maml", "multistep2", "multistep4", "multistep8")]  # fmt: skip
    return known(*rows)


def test_x6_has_two_bounds() -> None:
    assert judged("X6", omniglot({"20w1s-multistep8": 1.5, "5w1s-multistep8": 0.39})).verdict == "reproduced"
    assert judged("X6", omniglot({"20w1s-multistep8": 1.6})).verdict == "not reproduced"
    found = judged("X6", omniglot({"20w1s-multistep4": 0.5, "20w1s-multistep8": 1.5}))
    assert (found.verdict, found.value) == ("not reproduced", 0.5)
    assert len(found.outcomes) == 16
    with pytest.raises(MissingError):
        judged("X6", known(flat(M1, 99)))


def test_x7_a_strong_first_order_baseline_refutes_it() -> None:
    names = [f"omniglot-20w1s-{m}" for m in ("fomaml", "multistep2", "multistep4")]
    assert judged("X7", known(*map(flat, names, (90.0, 95.6, 95.7)))).verdict == "reproduced"
    assert judged("X7", known(*map(flat, names, (93.0, 95.6, 95.7)))).verdict == "not reproduced"


def test_x9_and_x20() -> None:
    mini = [f"miniimagenet-{s}-{m}" for s in ("5w1s", "5w5s") for m in ("maml", "multistep2", "multistep4")]
    assert judged("X9", known(*map(flat, mini, (48, 48.1, 48.2, 63, 63.1, 63)))).verdict == "reproduced"
    assert judged("X9", known(*map(flat, mini, (48, 47.9, 48.2, 63, 63.1, 63)))).verdict == "not reproduced"
    inner = [f"omniglot-20w1s-{m}" for m in ("maml", "maml_sgd", "maml_finn")]
    assert judged("X20", known(*map(flat, inner, (95, 90, 96)))).verdict == "reproduced"
    assert judged("X20", known(*map(flat, inner, (95, 95, 96)))).verdict == "not reproduced"


def test_transfer_comparisons() -> None:
    def on(optimizer: str, **accuracies: float) -> Evidence:
        names = {name.replace("_", "-"): value for name, value in accuracies.items()}
        return known(*(run for name, x in names.items() for run in seeds(f"stl10-{optimizer}-{name}", x, x)))

    assert judged("X5", on("sgd", scratch=67, multistep=77, first_order=68), True).verdict == "reproduced"
    assert judged("X5", on("sgd", scratch=67, multistep=77, first_order=74), True).verdict == "not reproduced"
    assert judged("X10", on("adam", baseline=80, t0=70), True).verdict == "reproduced"
    doubled = known(*seeds("stl10-adam-multistep", 79, 79), *seeds("stl10-adam-1step-2lr", 80, 80))
    assert judged("X13", doubled, True).verdict == "not reproduced"
    estimates = ("multistep", "baseline", "3step-estimate", "t3")
    for last, verdict in ((79.5, "reproduced"), (81.5, "not reproduced")):
        accuracies = (79, 79.9, 79, last)
        rows = [run for n, x in zip(estimates, accuracies, strict=True) for run in seeds(f"stl10-adam-{n}", x, x)]
        assert judged("X12", known(*rows), True).verdict == verdict


def test_one_seed_each_decides_nothing() -> None:
    found = judged("X10", known(transfer("stl10-adam-baseline", 80), transfer("stl10-adam-t0", 70)), True)
    assert (found.verdict, found.value, found.interval) == ("measured", 10, None)


@pytest.mark.parametrize(("gain", "verdict"), [(17.0, "reproduced"), (0.5, "not reproduced")])
def test_a_printed_size_counts_on_the_pictures_it_was_printed_for(gain: float, verdict: str) -> None:
    for target, expected in (("bird", verdict), ("stl10", "reproduced")):
        runs = [*seeds(f"{target}-adam-baseline", 66, 66), *seeds(f"{target}-adam-t0", 66 - gain, 66 - gain)]
        assert judged("X10", known(*runs), target == "stl10").verdict == expected


@pytest.mark.parametrize(
    ("accuracies", "times", "verdict"),
    [((78, 80, 80.5), (30, 40, 50), "reproduced"), ((78, 80, 83), (30, 40, 50), "not reproduced"),
     ((78, 80, 80.5), (30, 40, 70), "not reproduced"), ((80, 79, 78), (30, 40, 50), "not reproduced")],
)  # fmt: skip
def test_x11_needs_accuracy_and_the_time_of_a_benchmark(
    accuracies: Any, times: Any, verdict: str, tmp_path: Path
) -> None:
    names, variant = ("t1", "baseline", "t3"), "source run again"
    runs = [run for n, a in zip(names, accuracies, strict=True) for run in seeds(f"stl10-adam-{n}", a, a)]
    assert judged("X11", known(*runs, bench=tmp_path), True).verdict == "not run"
    rows = [transfer_row("transfer-stl10", n, ms) for n, ms in zip(names, times, strict=True)]
    rows += [transfer_row("transfer-bird", "baseline", 1), transfer_row("transfer-stl10", "baseline", 1, variant)]
    bench_file(tmp_path, "gpu-transfer.json", rows)
    found = judged("X11", known(*runs, bench=tmp_path), True)
    assert found.verdict == verdict
    assert f"30, 40, {times[2]} ms with T = 1, 2, 3 (transfer-stl10 on a card, results/bench/gpu-tr" in found.note


def test_x19_judges_the_data_sets_that_were_run() -> None:
    found = judged("X19", known(*seeds("stl10-sgd-scratch", 67, 67), *seeds("stl10-adam-multistep", 79, 79)))
    assert (found.verdict, found.value) == ("reproduced", 12)
    assert "1 of 6 data sets" in found.note
    with pytest.raises(MissingError):
        judged("X19", known(transfer("stl10-sgd-scratch", 67)))


@pytest.mark.parametrize(("end", "verdict"), [(0.01, "reproduced"), (0.5, "not reproduced")])
def test_x15_looks_at_how_gradients_change(end: float, verdict: str) -> None:
    preset = "stl10-sgd-baseline"
    looks = tuple((float(epoch), 1.0 if epoch < 10 else end) for epoch in range(200))
    evidence = known(transfer(preset, 78), replace(transfer(preset, 77, seed=1), gradient_differences=looks))
    found = gradients_settle(evidence, (preset,))
    assert (found.verdict, [each.seed for each in found.outcomes]) == (verdict, [1])
    others = tuple((epoch, 2.0) for epoch, _ in looks[::2])  # a seed whose gradients never settle, seen less often
    both = known(*evidence.outcomes(preset), replace(transfer(preset, 77, seed=2), gradient_differences=others))
    assert gradients_settle(both, (preset,)).verdict == "not reproduced"


# ---- costs


def bench_file(folder: Path, name: str, rows: list[dict[str, Any]], device: str = "a card") -> Evidence:
    folder.mkdir(exist_ok=True)
    content = {"command": "measured", "commit": "abc", "device": device, "versions": {"torch": "2"}, "rows": rows}
    (folder / name).write_text(json.dumps(content))
    return Evidence(folder, folder)


def transfer_row(setting: str, method: str, ms: float, note: str = "") -> dict[str, Any]:
    steps = STEPS_OF.get(method, 2)
    window = steps if method in ("multi_step", "3-step estimate") else 1
    return {"setting": setting, "implementation": "metastep", "method": method, "steps": steps, "window": window,
            "tasks": 64, "ms": ms, "note": note}  # fmt: skip


@pytest.mark.parametrize(("ms", "verdict"), [(65, "reproduced"), (71, "short"), (59, "better")])
def test_time_is_judged_by_the_ratio_within_a_file(ms: float, verdict: str, tmp_path: Path) -> None:
    rows = [transfer_row("transfer-bird", "baseline", 100), transfer_row("transfer-bird", "multi_step", ms),
            transfer_row("transfer-bird", "multi_step", 1, "source run again")]  # fmt: skip
    evidence = bench_file(tmp_path, "gpu-transfer.json", rows)
    assert judged("T1.2", evidence).verdict == verdict
    assert judged("T1.2", evidence).value == {"s/epoch": pytest.approx(ms * 0.079, abs=0.06), "ratio": ms / 100}
    assert judged("T1.1", evidence).verdict == "measured"
    found = judged("X1", evidence)
    assert (found.verdict, found.value) == (verdict, 100 - ms)
    assert (found.about["device"], found.about["commit"]) == ("a card", "abc")
    assert judged("X14", evidence).verdict == "not run", "of one target by SGD"


@pytest.mark.parametrize(("slowest", "verdict"), [(80.0, "reproduced"), (100.0, "not reproduced")])
def test_epochs_of_all_targets_are_compared(slowest: float, verdict: str, tmp_path: Path) -> None:
    ours = dict.fromkeys(TARGETS, 75.0) | {"dog": slowest}
    pairs = {target: {"baseline": 100.0, "multi_step": ms} for target, ms in ours.items()}
    rows = [transfer_row(f"transfer-{t}-adam", m, ms) for t, pair in pairs.items() for m, ms in pair.items()]
    bench_file(tmp_path / "one", "gpu-transfer.json", rows[:-1])
    assert judged("X14", Evidence(tmp_path / "one", tmp_path / "one")).verdict == "not run", "a row is missing"
    bench_file(tmp_path, "cpu-transfer.json", [row | {"ms": 1.0} for row in rows])  # a GPU goes before
    evidence = bench_file(tmp_path, "gpu-transfer-epochs.json", rows)
    found = judged("X14", evidence)
    assert (found.verdict, found.value) == (verdict, dict.fromkeys(TARGETS, 25.0) | {"dog": 100 - slowest})
    assert f"dog 16.9 and {slowest * 0.169:.1f}." in found.note  # ⌈10,800 / 64⌉ = 169 batches
    drawn = transfer_costs.epochs(evidence)
    assert drawn is not None
    draw_epochs(drawn, tmp_path / "epochs.svg")
    assert "−25 %" in (tmp_path / "epochs.svg").read_text()


def test_rows_of_metastep_bench_are_judged_too(tmp_path: Path) -> None:
    """They count one task, whose pictures the setting knows, and their notes say how they were computed"""
    note = "captured in a CUDA graph"
    rows = [
        transfer_row("transfer-bird", "baseline", 100, note) | {"tasks": 1, "steps": 2},
        transfer_row("transfer-bird", "multi_step", 65, note) | {"tasks": 1, "steps": 2},
        transfer_row("transfer-bird", "multi_step", 90, note) | {"tasks": 1, "steps": 3},
    ]
    evidence = bench_file(tmp_path, "h200-bench.json", rows)
    assert judged("T1.2", evidence).value == {"s/epoch": pytest.approx(65 * 0.079, abs=0.06), "ratio": 0.65}
    assert judged("X1", evidence).verdict == "reproduced"
    assert "batches of 64" in judged("X1", evidence).about["data"]


def test_a_setting_without_all_methods_at_8_steps_is_left_out(tmp_path: Path) -> None:
    others = [row | {"setting": "omniglot-20w5s"} for row in bench_rows(MEMORY, TIMES) if row["steps"] == 4]
    evidence = bench_file(tmp_path, "h200-bench.json", [*bench_rows(MEMORY, TIMES), *others])
    assert judged("X4", evidence).verdict == "reproduced"


def test_nothing_is_said_of_steps_that_were_not_measured(tmp_path: Path) -> None:
    rows = [row for row in bench_rows(MEMORY, TIMES) if row["method"] != "imaml" or row["steps"] == 8]
    found = judged("X4", bench_file(tmp_path, "h200-bench.json", rows))
    assert not found.value["iMAML is the slowest below 8 steps"]


def test_more_steps_come_from_the_file_of_that_name(tmp_path: Path) -> None:
    evidence = bench_file(tmp_path, "h200-bench.json", bench_rows(MEMORY, TIMES))
    more = [row | {"steps": 7} for row in bench_rows(MEMORY, TIMES | {"imaml": 39.0}) if row["steps"] == 4]
    assert "slowest up to: omniglot-5w1s 4;" in judged("X4", evidence).note
    found = judged("X4", bench_file(tmp_path, "h200-steps.json", more))
    assert found.verdict == "not reproduced"
    assert not found.value["iMAML is the slowest below 8 steps"]
    assert "slowest up to: omniglot-5w1s 4;" in found.note
    assert found.about["data"].endswith("results/bench/h200-bench.json, h200-steps.json")


def test_a_gpu_goes_before_a_cpu_and_nothing_is_not_run(tmp_path: Path) -> None:
    assert {judged(id, Evidence(tmp_path, tmp_path)).verdict for id in ("T1.1", "T1.2", "X1", "X2", "X4", "X14")} == {
        "not run"
    }
    bench_file(tmp_path, "cpu-transfer-digits.json", [{"setting": "digits", "method": "baseline", "accuracy": 85.0}])
    bench_file(
        tmp_path, "cpu-transfer.json", [transfer_row("transfer-bird", m, 100) for m in ("baseline", "multi_step")]
    )
    assert judged("X1", Evidence(tmp_path, tmp_path)).value == 0
    rows = [transfer_row("transfer-bird", "baseline", 100), transfer_row("transfer-bird", "multi_step", 65)]
    assert judged("X1", bench_file(tmp_path, "gpu-transfer.json", rows)).value == 35


def test_a_damaged_file_of_a_benchmark_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpu-transfer.json").write_text("[]")
    with pytest.raises(MetastepError, match=r"gpu-transfer.json.*is no file of a benchmark"):
        judged("X1", Evidence(tmp_path, tmp_path))


def bench_rows(memory: dict[str, float], times: dict[str, float]) -> list[dict[str, Any]]:
    methods = {"maml": ("maml", 1), "first_order": ("first_order", 1), "imaml": ("imaml", 1)}
    methods |= {f"multi_step{n}": ("multi_step", n) for n in (2, 4, 8)}
    return [
        {"setting": "omniglot-5w1s", "implementation": "metastep", "method": method, "steps": steps, "window": window,
         "tasks": 32, "chunk": None, "precision": "tf32", "ms": times.get(label, 10.0), "ms_spread": 0,
         "peak_mib": memory.get(label, 10.0), "note": ""}
        for label, (method, window) in methods.items() for steps in (4, 8) if window <= steps
    ]  # fmt: skip


MEMORY = {"maml": 80.0, "multi_step2": 60.0, "multi_step4": 40.0, "multi_step8": 30.0, "first_order": 20, "imaml": 21}
TIMES = {"maml": 40.0, "multi_step4": 20.0, "imaml": 50.0}


def test_x2_and_x4(tmp_path: Path) -> None:
    evidence = bench_file(tmp_path, "h200-bench.json", bench_rows(MEMORY, TIMES))
    saved = judged("X2", evidence)
    assert (saved.verdict, saved.value) == ("reproduced", 50.0)
    assert judged("X4", evidence).verdict == "reproduced"
    slow = bench_file(tmp_path, "h200-bench.json", bench_rows(MEMORY, TIMES | {"multi_step4": 30.0}))
    assert judged("X2", slow).verdict == "short"


@pytest.mark.parametrize(
    ("memory", "times"), [({"multi_step4": 60.0}, {}), ({"imaml": 50.0}, {}), ({}, {"imaml": 30.0})]
)
def test_x4_needs_all_three_statements(memory: Any, times: Any, tmp_path: Path) -> None:
    evidence = bench_file(tmp_path, "h200-bench.json", bench_rows(MEMORY | memory, TIMES | times))
    found = judged("X4", evidence)
    assert found.verdict == "not reproduced"
    assert sorted(found.value.values()) == [False, True, True]


def test_a_file_without_imaml_is_not_enough(tmp_path: Path) -> None:
    rows = [row for row in bench_rows(MEMORY, TIMES) if row["method"] != "imaml"]
    assert fewshot_costs.few_shot_rows(bench_file(tmp_path, "h200-bench.json", rows)) is None
