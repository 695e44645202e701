"""Meta-transfer in `python -m study bench`: the hand-written loop makes our meta-gradient, and both are measured."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from metastep.errors import MetastepError
from metastep.train import presets
from metastep.train.config import Source, Target, TargetData
from metastep.train.transfer.iteration import Lookahead, guided_by, initial_state, looks, real_step
from metastep.train.transfer.losses import Losses
from study import results
from study.bench.cases import TRANSFERS, Case, Grid, Transfer
from study.bench.implementations import IMPLEMENTATIONS
from study.bench.implementations.hand_transfer import ByHand, Hand
from study.bench.implementations.ours_transfer import Trained
from study.bench.measure import measure
from study.bench.plan import planned
from study.bench.transfer import Nets, config_of
from study.claims import transfer_costs
from study.experiments import transfer_time
from study.tables import transfer_tables
from tests.study.bench.helpers import CPU
from tests.train.transfer.helpers import batches, parts

PRESETS = presets.transfer()

SMALL = replace(
    PRESETS["stl10-sgd-baseline"],
    data=TargetData(size=16, augment="crop"),
    batch=4,
    source=Source("resnet8", weights="none", classes=5),
    net=Target("vgg4"),
)


@pytest.fixture(autouse=True)
def _small_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSFERS, "small", Transfer(SMALL, classes=3))


def case_of(method: str, window: int = 1, implementation: str = "metastep", steps: int = 2) -> Case:
    return Case("small", implementation, method, steps, window, 1, None, "fp32")


@pytest.mark.parametrize(
    ("method", "window", "steps"), [("baseline", 1, 2), ("multi_step", 2, 2), ("multi_step", 2, 3)]
)
def test_the_hand_written_loop_makes_our_meta_gradient(method: str, window: int, steps: int) -> None:
    """In float64, with a velocity and with running statistics that have moved"""
    config = config_of(case_of(method, window, steps=steps), CPU)
    target, guidance = parts()
    (first, second) = batches(2)
    state = initial_state(config, target, guidance)
    target.module.train()
    hand = Hand(config, Nets(target, guidance))
    for batch in (first, second):
        losses = Losses(guided_by(config).beta, target, guidance, looks(guidance, batch[0], False), state.buffers)
        reached, buffers, _ = real_step(losses, config, state, batch, config.inner.lr)
        look = Lookahead(config, losses._replace(buffers=buffers), reached, batch, config.inner.lr)
        expected = look.estimate(state.meta.params).grad
        hand.real_step(batch)
        found = dict(zip(expected, hand.meta_gradient(batch), strict=True))
        state = state._replace(target=reached, buffers=buffers)
        size = max(float(g.abs().max()) for g in expected.values())
        assert size > 1e-9
        for name, g in expected.items():
            assert float((found[name] - g).abs().max()) < 1e-9 * size, name


@pytest.mark.parametrize("implementation", ["metastep", "hand-loop"])
@pytest.mark.parametrize(("method", "window"), [("scratch", 1), ("baseline", 1), ("multi_step", 2)])
def test_every_method_is_measured(implementation: str, method: str, window: int) -> None:
    cost = measure(case_of(method, window, implementation), CPU, repeats=1)
    assert cost.ms > 0
    ours = "called as it is" if method == "scratch" else "traced in"
    assert cost.path.startswith(ours) if implementation == "metastep" else not cost.path


def test_both_start_alike_and_take_the_same_steps() -> None:
    ours, hand = (IMPLEMENTATIONS[name].step(case_of("scratch"), CPU) for name in ("metastep", "hand-loop"))
    assert isinstance(ours, Trained)
    assert isinstance(hand, ByHand)
    for _ in range(2):
        ours()
        hand()
    for name, p in hand.hand.target.module.named_parameters():
        torch.testing.assert_close(ours._state.target.params["target"][name], p.detach(), rtol=1e-4, atol=1e-5)


def test_few_shot_alternatives_do_not_serve_it() -> None:
    with pytest.raises(MetastepError, match="Ask for other methods"):
        planned(Grid(("transfer-stl10",)), ["torch.func"])
    with pytest.raises(MetastepError, match="none of them has baseline"):
        planned(Grid(("omniglot-5w1s",), ("baseline",)), ["metastep"])


def test_the_hand_written_loop_serves_what_it_is() -> None:
    """Its steps are those of SGD with momentum"""
    grid = Grid(("transfer-stl10", "transfer-stl10-adam"), methods=("baseline",))
    found = {(case.implementation, case.setting) for case in planned(grid, ["metastep", "hand-loop"])}
    both = {("metastep", setting) for setting in grid.settings}
    assert found == both | {("hand-loop", "transfer-stl10")}


@pytest.mark.parametrize("pair", [True, False])
def test_iterations_are_timed_and_told(pair: bool, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["--settings", "small", "--fewer", "2", "--repeats", "2", *(["--pair"] if pair else [])]
    monkeypatch.setattr(sys, "argv", ["transfer_time", *asked])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # of this process, for good
    transfer_time.main()
    pairs, content = transfer_costs.pairs_in(root / "results" / "bench" / "cpu-transfer-time.json")
    assert [row["tasks"] for row in pairs["small"]] == [2, 2]
    assert len(content["command"].split("--pair")) == 1 + pair
    assert len(results.read("bench/cpu-transfer-time")["rows"]) == (2 if pair else 13)
    if not pair:
        told = "\n".join(transfer_tables.times("bench/cpu-transfer-time"))
        assert "| Multi-step / baseline, both: as published |" in told
