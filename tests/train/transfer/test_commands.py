"""Transfer as it is typed: what it prints, what it refuses, and the pages it writes."""

import json
import re
import signal
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metastep.cli import demo
from metastep.cli.main import app
from metastep.report.figures import weights_of
from metastep.report.page import write_report
from metastep.train import presets
from metastep.train.config import FewShot, Scratch, TargetData, Transfer, WhatAndWhere
from metastep.train.loop import resume, train
from metastep.train.run import Run
from metastep.train.transfer.job import TransferJob
from tests.train.transfer.train_helpers import PUPIL, TEACHER, TINY, stop_at, tiny

PRESETS = presets.transfer()

cli = CliRunner()
pytestmark = pytest.mark.usefixtures("_tiny_presets")


def test_run_evaluate_resume_and_report() -> None:
    changes = ["epochs=2", "method.window=1", "--inner.lr", "0.01", "--gradient_difference=2"]
    done = cli.invoke(app, ["train", "tiny", *changes])
    assert done.exit_code == 0, done.output
    assert "2 epochs in" in done.output
    assert "best validation accuracy" in done.output
    config = Run(Path("runs/tiny")).config(Transfer)
    assert (config.window, config.inner.lr, config.epochs) == (1, 0.01, 2)

    nets = ["--net", PUPIL]
    judged = cli.invoke(app, ["evaluate", "runs/tiny", *nets])
    assert judged.exit_code == 0, judged.output
    assert "18 test pictures of stripes" in judged.output
    assert "stripe 2" in judged.output
    assert "0 to 100 %, ┊ chance 33.3 %" in judged.output
    printed = json.loads(cli.invoke(app, ["evaluate", "runs/tiny", *nets, "--json"]).stdout)
    assert [each["pictures"] for each in printed["classes"]] == [6, 6, 6]
    again = cli.invoke(app, ["resume", "runs/tiny", *nets, f"source.net={TEACHER}"])
    assert again.exit_code == 0, again.output

    assert cli.invoke(app, ["report", "runs/tiny", "--out", "page.html"]).exit_code == 0
    page = Path("page.html").read_text()
    for word in ("What and where", "Transfer loss", "Change of the transfer gradient", "method.window", "<svg"):
        assert word in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_run_is_evaluated_elsewhere_than_it_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run = Run(Path("run"))
    train(tiny(Scratch(), epochs=1), run.folder)
    run.config_path.write_text(run.config_path.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    assert run.config(Transfer).device == "cuda"
    evaluate = ["evaluate", "run", "--net", PUPIL]
    for flags in ([], ["--device", "cpu"]):
        judged = cli.invoke(app, [*evaluate, *flags])
        assert judged.exit_code == 0, judged.output
    refused = cli.invoke(app, [*evaluate, "--device", "cuda"])
    assert refused.exit_code == 2
    assert "PyTorch sees no GPU here. Leave it out" in refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "tinny"], "there is no preset, file or learner 'tinny'. Did you mean 'tiny'?"),
        (["train", "tiny", "inner.lr=-1"], "inner.lr = -1 "),
        (["train", "alone", "method.beta=1"], "method.beta: there is no such field."),
        (["train", "tiny", "inner=adam", "inner.momentum=1"], "inner.momentum = 1 is no option of adam"),
        (["train", "tiny", "method.outer=total"], "method.window = 2 with method.outer = total: leave the window out"),
        (["train", "tiny", "steps=0", "gradient_difference=1"], "there are none here"),
        (["train", "tiny", "source.weights=no.pth"], "source.weights: there is no 'no.pth'"),
        (["train", "tiny", "source.weights=a", "source.dataset=b"], "source.dataset = 'b': the source has weights (a)"),
        (["train", "tiny", "net.layers=bodies"], "has no layer 'bodies'"),
        (["train", "tiny", "net=tests.train.fewshot.helpers:pictures"], "gives (2, 1, 8, 8), not (2, 3)"),
        (["train", "tiny", "net=tests.train.fewshot.helpers:nothing"], "gives a int, no nn.Module"),
        (["train", "tiny", "net=tests.train.fewshot.helpers:broken"], "could not be built: 'no such'"),
        (["train", "tiny", "batch=1"], "batch = 1 must be at least 2"),
        (["resume", "nowhere"], "'nowhere': is not there"),
        (["evaluate", "nowhere"], "'nowhere': there is no such run or learner"),
        (["presets", "nothing"], "there is no preset 'nothing'"),
    ],
)
def test_one_line_and_status_2(arguments: list[str], message: str) -> None:
    done = cli.invoke(app, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_a_stopped_run_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(monkeypatch, 1)
    done = cli.invoke(app, ["train", "alone", "--out", "here"])
    assert done.exit_code == 130
    assert "Continue with: metastep resume here" in done.output


def test_what_only_few_shot_learners_have_is_refused() -> None:
    train(tiny(Scratch(), epochs=1), Path("run"))
    for flags, message in (
        (["--ways", "3"], "--ways: this is a transfer run, which has none"),
        (["--one-by-one"], "--one-by-one: this is a transfer run"),
        (["--split", "all"], "--split all: of a transfer run, choose one of test, val, train"),
        (["--checkpoint", "untrained"], "--checkpoint untrained: of a transfer run"),
    ):
        done = cli.invoke(app, ["evaluate", "run", "--net", PUPIL, *flags])
        assert done.exit_code == 2
        assert message in " ".join(done.output.split())


def test_presets() -> None:
    listed = cli.invoke(app, ["presets"], env={"COLUMNS": "80"}).output
    assert re.findall(r"^\S+", listed, re.MULTILINE) == list(presets.tables())
    assert "adam at 0.001" in listed
    assert "…" not in listed
    shown = cli.invoke(app, ["presets", "stl10-sgd-multistep", "--toml"])
    assert tomllib.loads(shown.output)["method"]["window"] == 2


@pytest.fixture
def _tiny_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, preset in demo.METHODS.items():
        method = PRESETS[preset].method
        monkeypatch.setitem(PRESETS, preset, tiny(method, data=TargetData("stripes", 8, per_class=2), batch=8))
        expected = {"s": Scratch(), "b": WhatAndWhere(window=1), "M": WhatAndWhere(window=2)}
        assert method == expected[name[0]]
    monkeypatch.setattr(demo, "resume", lambda folder: resume(folder, None, _named(folder)))


@pytest.mark.usefixtures("_tiny_comparison")
def test_alone_it_compares_three_ways_and_can_be_called_again() -> None:
    for _ in range(2):
        done = cli.invoke(
            app, ["demo", "transfer", "--out", "all", "--epochs", "2", "--source-epochs", "3"], env={"COLUMNS": "200"}
        )
        assert done.exit_code == 0, done.output
        assert "Teacher on stripes, 3 epochs" in done.output
        for word in ("scratch", "baseline (n = 1)", "Multi-step (n = 2)", "second-order products", "report.html"):
            assert word in done.output
    assert "3 runs side by side" in Path("all/report.html").read_text()


@pytest.mark.usefixtures("_tiny_comparison")
@pytest.mark.parametrize(
    ("flags", "place", "difference"),
    [
        (["--epochs", "1", "--seed", "1"], "source", "seed = 0, not 1"),
        (["--epochs", "2"], "scratch", "epochs = 1, not 2"),
    ],
)
def test_runs_of_something_else_are_not_taken_for_what_was_asked(flags: list[str], place: str, difference: str) -> None:
    assert cli.invoke(app, ["demo", "transfer", "--out", "all", "--epochs", "1"]).exit_code == 0
    done = cli.invoke(app, ["demo", "transfer", "--out", "all", *flags])
    assert done.exit_code == 2
    refusal = f"'all/{place}': is a run of something else ({difference}). Choose another --out, or move it."
    assert refusal in done.output
    assert "second-order products" not in done.output


@pytest.mark.usefixtures("_tiny_comparison")
def test_stopped_in_the_last_iteration_of_one_way_it_does_not_begin_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = TransferJob.judged

    def pressed(job: TransferJob, done: int) -> dict[str, float]:
        if job.config.method == Scratch() and job.config.net.name == PUPIL:
            signal.raise_signal(signal.SIGINT)
        return judged(job, done)

    monkeypatch.setattr(TransferJob, "judged", pressed)
    stopped = cli.invoke(app, ["demo", "transfer", "--out", "all", "--epochs", "1"])
    assert (stopped.exit_code, Path("all/baseline").exists()) == (130, False)
    assert "Run it again to continue" in stopped.output
    assert Path("all/scratch/net.safetensors").exists()


def _named(folder: Path) -> dict[str, str]:
    config = Run.open(folder).config(Transfer)
    return {"net.name": config.net.name, "source.net": config.source.net}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "tiny", "source.weights=b"], "b': is a few-shot run, not a transfer run. Give a run of the other"),
        (["classify", "a", "--support", "x", "--query", "y"], "'a': is a transfer run, not a few-shot run"),
        (["compare", "a"], "'a': is a transfer run, not a few-shot run"),
        (["train", "a"], "'a': is a transfer run, not a few-shot run"),
    ],
)
def test_runs_of_the_other_kind_are_told_in_users_words(arguments: list[str], message: str) -> None:
    Run.create(Path("a"), TINY)
    Run.create(Path("b"), FewShot())
    for folder in ("a", "b"):
        Path(folder, "last.safetensors").touch()  # is not looked at
    done = cli.invoke(app, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert "Config" not in done.output


def test_runs_of_two_kinds_stand_on_one_page(tmp_path: Path) -> None:
    train(tiny(Scratch(), epochs=1), tmp_path / "a")
    Run.create(tmp_path / "b", FewShot())
    write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert all(text in page for text in ("2 runs side by side", "No run here has meta-networks", "has no checkpoint"))


def test_weights_by_pair() -> None:
    rows = [{"kind": "weights", "epoch": e, "where_0_1": 1.0 * e, "where_1_0": 2.0, "what_0_1": 3.0} for e in (1, 2)]
    weights = weights_of(rows, "where")
    assert weights is not None
    assert weights.matrix.shape == (2, 2, 2)
    assert (weights.matrix[1, 0, 1], weights.matrix[0, 1, 0]) == (2.0, 2.0)
    assert (weights.sources, weights.targets) == (["0", "1"], ["0", "1"])  # of a run that did not note their names
    named = weights_of([{"kind": "layers", "source_1": "blocks4 32×8×8", "target_0": "a$b 1×2×2"}, *rows], "where")
    assert named is not None
    assert (named.sources, named.targets) == (["0", "1: blocks4 32×8×8"], [r"0: a\$b 1×2×2", "1"])
    assert weights_of([], "what") is None
