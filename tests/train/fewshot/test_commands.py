import json
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from metastep.cli import train as commands
from metastep.cli.presets import presets as presets_command
from metastep.train import loop, presets
from metastep.train.run import Run, Trained
from tests.train.fewshot.helpers import TINY

PRESETS = presets.few_shot()

app = typer.Typer()
for command in (commands.train, commands.resume):
    app.command(context_settings={"ignore_unknown_options": True})(command)
app.command("presets")(presets_command)
cli = CliRunner()


@pytest.fixture(autouse=True)
def _tiny_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.chdir(tmp_path)


def test_train_and_resume() -> None:
    done = cli.invoke(app, ["train", "tiny", "iterations=4", "--method.window", "4", "--inner.lr=0.05"])
    assert done.exit_code == 0, done.output
    assert "4 iterations in" in done.output
    assert "metastep evaluate runs/tiny" in done.output
    config = json.loads(Run(Path("runs/tiny")).config_path.read_text())["config"]
    assert (config["method"]["window"], config["inner"]["lr"], config["iterations"]) == (4, 0.05, 4)
    again = cli.invoke(app, ["resume", "runs/tiny"])
    assert again.exit_code == 0, again.output
    assert "All 4 iterations were made before. For more: metastep resume runs/tiny iterations=8" in again.output


def test_a_run_of_other_data_is_not_called_by_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []
    monkeypatch.setattr(loop, "train", lambda config, folder, *others: folders.append(folder) or Trained())
    for flags in ((), ("data=folder:photos",), ("data.name=folder:photos", "--out", "there")):
        cli.invoke(app, ["train", "tiny", *flags])
    assert folders == [Path("runs/tiny"), Path("runs/photos-multi_step"), Path("there")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tinny"], "there is no preset, file or learner 'tinny'. Did you mean 'tiny'?"),
        (["tiny", "inner.lr=-1"], "inner.lr = -1 "),
        (["tiny", "method=maml", "method.window=2"], "method.window = 2 is no option of maml. It has curvature."),
        (["tiny", "method=mamll"], "method = 'mamll': there is no method 'mamll'. Did you mean 'maml'?"),
        (["tiny", "net=conv5"], "there is no net 'conv5'. Did you mean 'conv4'?"),
        (["tiny", "net=nowhere.to:Find"], "there is no module 'nowhere'"),
        (["tiny", "net=tests.train.fewshot.helpers:Flat", "net.filters=3"], "could not be built"),
        (["tiny", "net=tests.train.fewshot.helpers:narrow"], "of 1×16×16: mat1 and mat2 shapes cannot be"),
        (["tiny", "net=tests.train.fewshot.helpers:pictures"], "it gives (2, 1, 16, 16), not (2, 3)"),
        (["tiny", "net=tests.train.fewshot.helpers:nothing"], "gives a int, no nn.Module"),
        (["tiny", "net=tests.train.fewshot.helpers:broken"], "could not be built: 'no such' (KeyError)"),
        (["tiny", "method=maml_pp", "method.weights=1,2,3"], "weights: 3 for 4 windows"),
        (["tiny", "data.ways=1"], "data.ways = 1 must be at least 2"),
        (["tiny", "ways=3"], "ways: there is no such field. Did you mean 'data.ways'?"),
        (["tiny", "data.ways=9"], "9-way episodes need 9 classes"),
        (["tiny", "data.shots=9"], "9 shots and 2 queries need 11 images"),
        (["tiny", "steps"], "'steps' changes nothing. Write field=value"),
        (["tiny", "--ways", "3"], "Did you mean 'data.ways'?"),
        (["tiny", "--steps"], "requires an argument"),
        (["tiny", "device=cuda"], "PyTorch sees no GPU here"),
    ],
)
def test_one_line_and_status_2(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    require_refused(["train", *arguments], message)
    assert not Path("runs").exists()


def require_refused(arguments: list[str], message: str) -> None:
    done = cli.invoke(app, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere': is not there"),
        (["runs/tiny", "inner.lr=1"], "inner.lr: a run continues as it was configured; only net.name, iterations,"),
        (["runs/tiny", "--out", "elsewhere"], "out: a run continues as it was configured"),
    ],
)
def test_a_run_goes_on_as_it_was_configured(arguments: list[str], message: str) -> None:
    assert cli.invoke(app, ["train", "tiny", "iterations=1"]).exit_code == 0
    require_refused(["resume", *arguments], message)


def test_a_stopped_run_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.train.fewshot.test_train import stop_before

    stop_before(monkeypatch, 1)
    done = cli.invoke(app, ["train", "tiny", "--out", "here"])
    assert done.exit_code == 130
    assert "Continue with: metastep resume here" in done.output


def test_a_users_net_is_named_again_on_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.train.fewshot.test_train import stop_before

    stop_before(monkeypatch, 0)
    net = ["net=tests.train.fewshot.helpers:Flat"]  # which knows nothing of the preset's filters
    assert cli.invoke(app, ["train", "tiny", "--out", "own", *net]).exit_code == 130
    refused = cli.invoke(app, ["resume", "own"])
    assert refused.exit_code == 2
    assert "name it again: --net=tests.train.fewshot.helpers:Flat" in refused.output
    assert cli.invoke(app, ["resume", "own", *net]).exit_code == 0


def test_a_net_with_lazy_layers_beside_which_one_works(tmp_path: Path) -> None:
    (tmp_path / "lazy_net.py").write_text(
        "from torch import nn\n\n"
        "def build(ways, channels, size):\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(ways))\n"
    )
    done = cli.invoke(app, ["train", "tiny", "iterations=1", "net=lazy_net:build"])
    assert done.exit_code == 0, done.output


def test_presets() -> None:
    lines = cli.invoke(app, ["presets"], env={"COLUMNS": "80"}).output.splitlines()
    known = list(presets.tables())
    assert [line.split()[0] for line in lines[::2]] == known  # two lines each, and no name is cut
    words = lines[known.index("omniglot-20w1s-multistep4") * 2 :][:2]
    assert [line.strip().rpartition("  ")[2] for line in words] == [
        "conv4: 8 × sgd at 0.4, momentum 0.9",
        "multi_step(4): 60,000 × 16 tasks, adam at 0.001",
    ]
    shown = cli.invoke(app, ["presets", "omniglot-5w1s-multistep4"])
    assert tomllib.loads(shown.output)["method"]["window"] == 4
    assert cli.invoke(app, ["presets", "nothing"]).exit_code == 2
