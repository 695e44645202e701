"""What a run is told that does not learn."""

from dataclasses import replace

from metastep.train import presets
from metastep.train.config import FewShot, Outer
from metastep.train.loop import PATIENCE, ROWS, Advice


def fed(config: FewShot, *, growth: float, first: float, last: float) -> list[tuple[int, str]]:
    """What is said, and when"""
    advice, said = Advice(config), []
    for i in range(60):
        step, done = 10 * (i + 1), i / 59
        line = advice(step, {"accuracy": first + done * (last - first), "growth": growth})
        said += [(step, line)] if line else []
    return said


def config(**outer: float) -> FewShot:
    found = presets.few_shot()["glyphs-5w1s-multistep4"]
    return replace(found, outer=Outer(**outer))  # type: ignore[arg-type]


def test_a_run_that_learns_is_told_nothing() -> None:
    assert fed(config(), growth=20, first=0.3, last=0.8) == []
    assert fed(config(), growth=20, first=0.9, last=0.9) == []  # it began from a learner


def test_a_growth_that_stays_is_told_once_with_what_to_try() -> None:
    ((step, line),) = fed(config(), growth=1721, first=0.3, last=0.8)
    assert step == PATIENCE
    assert "1.72e+03 times" in line
    assert "outer.clip=0.5" in line
    assert "inner.lr=0.005" in line
    assert "method.window" in line
    assert "outer.warmup=100" in line


def test_an_accuracy_that_stays_is_told() -> None:
    ((step, line),) = fed(config(clip=1.0, warmup=10), growth=3, first=0.4, last=0.41)
    assert step >= 10 * ROWS
    assert line.startswith("Accuracy is 40 % as it was at the start (chance: 20 %).")
    assert "outer.clip" not in line  # it is tried already
    assert "outer.warmup" not in line


def test_first_order_and_transfer_are_told_what_concerns_them() -> None:
    first_order = presets.few_shot()["glyphs-5w1s-fomaml"]
    advice = Advice(first_order)
    said = [advice(10 * (i + 1), {"accuracy": 0.2}) for i in range(60)]
    assert sum(map(bool, said)) == 1
    assert "method.window" not in "".join(said)
    transfer = next(iter(presets.transfer().values()))
    assert [Advice(transfer)(step, {"accuracy": 0.2}) for step in range(300, 600, 10)] == [""] * 30
