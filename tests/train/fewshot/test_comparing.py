"""`metastep compare`: approximations beside the exact meta-gradient, through a learner's own inner loop."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import metastep as ms
from metastep.cli.main import app
from metastep.core.problems import params_of
from metastep.core.trees import relative_change
from metastep.report.comparison import compared, gradients_of
from metastep.train import presets
from metastep.train.fewshot.evaluate import Sampler
from metastep.train.fewshot.learner import build_net, gradient_of
from metastep.train.schema import EVALUATION_SEED
from tests.train.fewshot.helpers import TINY, stripes
from tests.train.fewshot.use_helpers import fresh, write_run

PRESETS = presets.few_shot()

DOUBLE = replace(TINY, precision="float64")


def test_windows_are_those_that_the_steps_have_room_for() -> None:
    for steps, windows in ((4, (2, 4)), (5, (2, 4)), ((4, 2, 1, 1), (2, 4, 8)), (1, ())):
        config = replace(TINY, method=ms.MAML(), steps=steps)
        asked = gradients_of(config, build_net(config)).values()
        assert [gradient.method.window for gradient in list(asked)[1:-2]] == list(windows)
        assert {gradient.steps for gradient in asked} == {steps if isinstance(steps, int) else sum(steps)}


@pytest.mark.parametrize("method", [ms.MultiStep(window=2), ms.MetaSGD()], ids=repr)
def test_a_row_is_the_distance_from_the_exact_gradient(method: ms.methods.Method) -> None:
    learner = fresh(replace(DOUBLE, method=method))
    found = compared(learner, stripes(), 3)
    theta, gradient = params_of(learner.meta), gradient_of(replace(DOUBLE, method=ms.MAML()), learner.net)
    tasks = Sampler.of(stripes(), DOUBLE.train_episodes, EVALUATION_SEED, "cpu", torch.float64)(0, 3)
    exact, two = (replace(gradient, method=ms.methods.Reference(n))(theta, tasks).grad for n in (1, 2))
    rows = {row.method: row for row in found.rows}
    assert list(rows) == ["MAML", "Multi-step(2)", "Multi-step(4)", "FO-MAML", "HF-MAML"]
    assert rows["MAML"].relative_error < 1e-12
    assert rows["Multi-step(2)"].relative_error == pytest.approx(float(relative_change(two, exact)))
    assert [row.products for row in found.rows] == [4, 2, 1, 0, 0]
    assert found.changes.shape == (3, 4)
    assert found.windows == {"MAML": 1, "Multi-step(2)": 2, "Multi-step(4)": 4}
    assert [row.window for row in found.suggestion.windows] == [1, 2, 4]
    assert rows["MAML"].growth == pytest.approx(found.suggestion.windows[0].growth)
    assert rows["FO-MAML"].growth is None


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    for name in (str(write_run(tmp_path / "run")), "tiny"):
        done = CliRunner().invoke(app, ["compare", name, "--tasks", "2"])
        assert done.exit_code == 0, done.output
        for text in ("3-way 1-shot, 4 inner steps of sgd at 0.1, 2 tasks", "Multi-step(4)", "inner gradient changes"):
            assert text in done.output
            assert "longest stable window" in done.output
    for kind, begins in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        picture = tmp_path / f"windows{kind}"
        assert CliRunner().invoke(app, ["compare", "tiny", "--tasks", "2", "--picture", str(picture)]).exit_code == 0
        assert picture.read_bytes().startswith(begins)
    refused = CliRunner().invoke(app, ["compare", "tiny", "--picture", str(tmp_path / "windows.jpg")])
    assert (refused.exit_code, "ends with .svg or .png" in refused.output) == (2, True)
    refused = CliRunner().invoke(app, ["compare", str(tmp_path / "nowhere")])
    assert (refused.exit_code, "there is no such run or learner" in refused.output) == (2, True)
