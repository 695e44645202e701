"""Runs end to end: what they write, how they stop and go on, what they refuse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from metastep.core.optimizers import SGD, Adam
from metastep.core.registry import named
from metastep.data.draw import Batches
from metastep.errors import MetastepError, NonFiniteError
from metastep.train import transfer
from metastep.train.config import FineTuning, Scratch, Source, Target, TargetData, Transfer, WhatAndWhere
from metastep.train.loop import resume, train
from metastep.train.record import read_metrics
from metastep.train.run import Run
from metastep.train.transfer.building import is_compiled, kin_of, prepare, source_run
from metastep.train.transfer.evaluate import evaluate, judge, load
from study.targets import ABLATIONS, METHODS, config_of
from tests.train.transfer.train_helpers import (
    NAMED,
    PUPIL,
    TEACHER,
    TINY,
    Pupil,
    capture,
    checkpoint,
    same,
    stop_at,
    stripes,
    with_source,
)

pytestmark = pytest.mark.usefixtures("_stripes")


def test_transfer_knows_nothing_of_few_shot() -> None:
    modules = list(Path(transfer.__file__).parent.glob("*.py"))
    assert len(modules) > 5
    assert not [module.name for module in modules if "metastep.train.fewshot" in module.read_text()]


def test_a_run_from_nothing_trains_its_source_first(tmp_path: Path) -> None:
    trained = train(TINY, tmp_path / "run")
    assert (trained.iterations, trained.length) == (9, 3)
    assert Run(tmp_path / "run" / "source").config(Transfer) == source_run(TINY)
    place, layers, engine, *rows = read_metrics(Run(tmp_path / "run").metrics_path)
    assert (layers["source_1"], layers["target_0"]) == ("second 6×4×4", "body 5×8×8")
    assert (place["kind"], place["torch"]) == ("environment", torch.__version__)
    assert engine["path"] == "called as it is"
    assert [row["kind"] for row in rows] == ["train", "weights", "validation"] * 3
    assert [row["step"] for row in rows if row["kind"] == "train"] == [3, 6, 9]
    assert {"loss", "cross_entropy", "transfer_loss", "outer_loss", "accuracy", "lr", "seconds"} <= rows[0].keys()
    assert {"where_0_0", "where_1_0", "what_0_0", "what_1_0"} <= rows[1].keys()
    assert rows[0]["loss"] == pytest.approx(rows[0]["cross_entropy"] + 0.5 * rows[0]["transfer_loss"], rel=1e-5)

    judged = [row for row in rows if row["kind"] == "validation"]
    best = max(row["validation_accuracy"] for row in judged)
    first = next(row for row in judged if row["validation_accuracy"] == best)  # the first best, and its test
    assert (trained.best, trained.best_epoch, trained.test) == (best, first["epoch"], first["test_accuracy"])
    exported = load_file(tmp_path / "run" / "net.safetensors")
    net = Pupil(3, 1, 8)
    net.load_state_dict(exported)
    assert torch.equal(
        net.head.weight, Run(tmp_path / "run").load("best")["state"]["target"]["params"]["target"]["head.weight"]
    )


@pytest.mark.parametrize(("device", "enough"), [("cpu", 100), ("cuda", 5_000)])
def test_long_runs_that_learn_weights_are_compiled_unless_told(device: str, enough: int) -> None:
    there, scratch = torch.device(device), replace(TINY, method=Scratch())
    assert is_compiled(TINY, there, enough)
    assert not is_compiled(TINY, there, enough - 1)
    assert not is_compiled(scratch, there, enough)
    assert is_compiled(replace(TINY, compile=True), there, 1)
    assert not is_compiled(replace(TINY, compile=False), there, enough)


@pytest.mark.parametrize(("stopped_at", "way"), [(4, "traced"), (4, "captured"), (7, "captured")])
def test_compiled_and_captured_runs_end_as_if_they_had_not_been_stopped(
    stopped_at: int, way: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced, too, where the first batch after it is the last of an epoch, and smaller"""
    config = with_source(source, gradient_difference=2, compile=way == "traced")
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(config, whole)
    if way == "captured":
        capture(monkeypatch)
    stop_at(monkeypatch, stopped_at)
    trained = train(config, halves)
    assert trained.iterations == stopped_at + 1
    assert not (halves / "net.safetensors").exists()
    assert resume(halves, changes=NAMED).length == 3
    assert same(checkpoint(whole), checkpoint(halves))
    rows = [[{**row, "seconds": 0} for row in read_metrics(Run(run).metrics_path)] for run in (whole, halves)]
    rows = [
        [row for row in part if row["kind"] not in ("environment", "layers", "engine")] for part in rows
    ]  # written at every start
    assert rows[0] == rows[1]
    assert [row["step"] for row in rows[0] if row["kind"] == "gradient_difference"] == [1, 3, 5, 7, 9]


def test_a_run_that_broke_goes_on_from_its_last_epoch(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_source(source, net=Target("tests.train.transfer.train_helpers:forgetful", ("body",)))
    train(config, tmp_path / "whole")
    stop_at(monkeypatch, 7, RuntimeError("the machine broke"))
    with pytest.raises(RuntimeError, match="the machine broke"):
        train(config, tmp_path / "broken")
    assert checkpoint(tmp_path / "broken")["trained"]["iterations"] == 6
    resume(tmp_path / "broken", changes=NAMED | {"net.name": config.net.name})
    assert same(checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "broken"))  # dropout too


def test_a_best_state_that_waits_for_its_checkpoint_stays_as_it_was(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured steps write over the state that they handed out"""
    often, seldom = tmp_path / "often", tmp_path / "seldom"
    trained = train(with_source(source, epochs=5), often)
    assert trained.best_epoch < 5
    capture(monkeypatch)
    saved, save = [], Run.save
    monkeypatch.setattr(Run, "save", lambda *given: saved.append(save(*given)))
    train(with_source(source, epochs=5, checkpoint_seconds=1e9), seldom)
    assert len(saved) == 1
    for which in ("best", "last"):
        assert same(checkpoint(often, which), checkpoint(seldom, which))


@pytest.mark.parametrize(
    ("changed", "traced"),
    [
        ({}, False),  # 9 iterations
        ({"epochs": 34}, True),  # 102
        ({"epochs": 34, "compile": False}, False),
        ({"compile": True}, True),
        ({"epochs": 34, "method": Scratch()}, False),
        ({"epochs": 34, "steps": 0}, False),
    ],
)
def test_where_a_trace_pays(changed: dict[str, Any], traced: bool, source: Path) -> None:
    config = with_source(source, **changed)
    weights = None if config.method_name == "scratch" else source / "net.safetensors"
    path = prepare(config, stripes(), weights).step.path
    assert path == ("traced; operator by operator" if traced else "called as it is")


VARIANTS = (*METHODS, *ABLATIONS)


def varied(config: Transfer, name: str) -> Transfer:
    """With the method of a preset; fine-tuning goes on with the source net itself"""
    own = config_of("stl10", "sgd", name)
    net = Target(config.source.net) if name == "fine-tuning" else config.net
    return replace(config, method=own.method, steps=own.steps, net=net)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_variant_reaches_the_iteration(name: str, optimizer: Any, source: Path, tmp_path: Path) -> None:
    config = varied(with_source(source, inner=named("optimizer", optimizer)(lr=1e-2), epochs=1), name)
    parts = prepare(config, stripes(), source / "net.safetensors")
    train(config, tmp_path / "run")
    state = Run(tmp_path / "run").load()["state"]
    moved = not same(parts.initial.meta.params, state["meta"]["params"])
    assert moved == config.learns_weights == (name not in ("scratch", "t0", "fixed-weights", "fine-tuning"))
    assert not same(parts.initial.target.params["target"], state["target"]["params"]["target"])
    if name == "fine-tuning":  # begins where the source ended, but for its head
        weights = load_file(source / "net.safetensors")
        assert torch.equal(parts.initial.target.params["target"]["first.0.weight"], weights["first.0.weight"])
        assert not torch.equal(parts.initial.target.params["target"]["head.weight"], weights["head.weight"])


@pytest.mark.parametrize(("stopped_at", "taken"), [(1, "last"), (4, "best")])  # in the first epoch, and in the second
def test_before_it_was_validated_the_last_checkpoint_is_judged_and_told(
    stopped_at: int, taken: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, stopped_at)
    train(with_source(source), tmp_path / "run")
    assert evaluate(load(tmp_path / "run", target_net=PUPIL)).checkpoint == taken


def test_judging_equals_a_plain_loop(source: Path, tmp_path: Path) -> None:
    config = with_source(source, epochs=2)
    trained = train(config, tmp_path / "run")
    net = Pupil(3, 1, 8)
    net.load_state_dict(load_file(tmp_path / "run" / "net.safetensors"))
    net.eval()
    test = stripes().test
    x = (test.images.float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        logits = net(x)
    right = logits.argmax(1) == test.labels
    found = evaluate(load(tmp_path / "run", target_net=PUPIL))
    assert found.accuracy == pytest.approx(100 * right.double().mean().item())
    assert trained.test == pytest.approx(right.double().mean().item())
    assert [each.accuracy for each in found.classes] == pytest.approx(
        [100 * right[test.labels == c].double().mean().item() for c in range(3)]
    )
    assert (found.epoch, len(found.accuracies), found.split) == (trained.best_epoch, 18, "test")
    batches = Batches(test, 5, training=False)
    judged = judge(net, {}, {}, batches)
    assert float(judged.loss.mean()) == pytest.approx(cross_entropy(logits, test.labels).item(), rel=1e-5)


def test_running_statistics_are_of_the_real_steps_alone(source: Path, tmp_path: Path) -> None:
    train(with_source(source, epochs=1), tmp_path / "run")
    assert Run(tmp_path / "run").load()["state"]["buffers"]["body.1.num_batches_tracked"] == 3


def test_the_rate_follows_a_cosine(source: Path, tmp_path: Path) -> None:
    config = with_source(source, inner=SGD(0.2), epochs=4)
    rates = [config.rate(epoch) for epoch in range(4)]
    assert rates == pytest.approx([0.2, 0.2 * 0.8535534, 0.1, 0.2 * 0.1464466])
    assert replace(config, inner_schedule="constant").rate(3) == 0.2
    train(config, tmp_path / "run")
    rows = read_metrics(Run(tmp_path / "run").metrics_path)
    assert [row["lr"] for row in rows if row["kind"] == "train"] == pytest.approx(rates)


def test_numbers_that_are_not_finite_stop_the_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Batches.batch

    def poisoned(self: Batches, epoch: int, i: int) -> Any:
        x, y = draw(self, epoch, i)
        return (x * torch.nan if self.training and (epoch, i) == (1, 2) else x), y

    monkeypatch.setattr(Batches, "batch", poisoned)
    with pytest.raises(NonFiniteError, match=r"epoch 2, by batch 3 of 3: .*cross_entropy.* left the finite") as caught:
        train(with_source(source), tmp_path / "run")
    assert "inner.lr, now 0.05" in str(caught.value)
    assert "The last good checkpoint, of iteration 3, is kept" in str(caught.value)


def test_transfer_learns(source: Path, tmp_path: Path) -> None:
    config = with_source(source, epochs=30, inner=Adam(1e-2), data=replace(TINY.data, augment="none"))
    trained = train(config, tmp_path / "run")
    assert trained.best is not None
    assert trained.best > 0.8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": Source(TEACHER, weights="nowhere.pth")}, "there is no 'nowhere.pth'"),
        ({"net": Target(PUPIL)}, "does not say which of its layers to use. Name some, of body, dropout, head"),
        ({"net": Target(PUPIL, ("bodies",))}, "has no layer 'bodies'. Did you mean 'body'"),
        ({"method": WhatAndWhere(pairs="0-7")}, '"0-7" is not a pair'),
        ({"method": FineTuning()}, "Set net.name to it"),
        ({"net": Target("vgg99", ("body",))}, "there is no net 'vgg99'. Did you mean 'vgg9'?"),
        ({"device": "cuda"}, "PyTorch sees no GPU"),
        (
            {
                "net": Target("tests.train.transfer.train_helpers:shrinking", ("body",)),
                "batch": 10,
            },
            "batch = 10: the last batch of 21 pictures has a single one",
        ),
    ],
)
def test_what_cannot_be_trained_leaves_no_folder(
    changes: dict[str, Any], message: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from a source that is there, nor from one that is to be trained first"""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for config in (with_source(source), TINY):
        with pytest.raises(MetastepError) as caught:
            train(replace(config, **changes), tmp_path / "run")
        assert message in str(caught.value)
        assert not (tmp_path / "run").exists()


def test_a_source_from_a_file_says_its_classes(source: Path, tmp_path: Path) -> None:
    torch.save(load_file(source / "net.safetensors"), tmp_path / "teacher.pth")
    config = replace(with_source(source, epochs=1), source=Source(TEACHER, weights="teacher.pth"))
    with pytest.raises(MetastepError, match=r"how many classes .* Set source.classes"):
        train(config, tmp_path / "run", data=tmp_path)
    config = replace(config, source=replace(config.source, classes=3))
    train(config, tmp_path / "run", data=tmp_path)  # found in the data directory
    train(with_source(source, epochs=1), tmp_path / "other")
    assert same(checkpoint(tmp_path / "run"), checkpoint(tmp_path / "other"))


def test_a_file_of_weights_is_found_from_everywhere(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_on(data: Path | None = None) -> None:
        resume(tmp_path / "run", data, changes=NAMED)

    monkeypatch.delenv("METASTEP_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "teacher.safetensors"
    weights.write_bytes((source / "net.safetensors").read_bytes())
    train(replace(with_source(source, epochs=1), source=Source(TEACHER, weights=weights.name)), tmp_path / "run")
    for folder in ("elsewhere", "data"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    Path(weights.name).write_text("another one of that name")
    go_on()
    weights.rename(tmp_path / "data" / weights.name)
    with pytest.raises(MetastepError, match=f"there is no '{weights}'"):
        go_on()
    go_on(tmp_path / "data")
    config = Run(tmp_path / "run").config(Transfer)
    assert (config.source.weights, config.shared.source.weights) == (str(weights), weights.name)


def test_users_nets_are_named_again(source: Path, tmp_path: Path) -> None:
    train(with_source(source, epochs=1), tmp_path / "run")
    with pytest.raises(MetastepError, match=r"name it again: --net=tests\.train\.transfer\.train_helpers:Pupil"):
        resume(tmp_path / "run")
    with pytest.raises(
        MetastepError, match=r"name it again: --source.net=tests\.train\.transfer\.train_helpers:Teacher"
    ):
        resume(tmp_path / "run", changes={"net.name": PUPIL})
    with pytest.raises(MetastepError, match="name it again: --net="):
        load(tmp_path / "run")


def test_few_labels(source: Path, tmp_path: Path) -> None:
    data = TargetData("stripes", size=8, per_class=2)
    assert train(with_source(source, data=data, batch=8, epochs=1), tmp_path / "run").length == 1


def test_a_net_of_the_users_own_is_traced_anew(source: Path) -> None:
    assert kin_of(with_source(source), None) is None
