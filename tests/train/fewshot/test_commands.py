import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from metastep.cli import train as commands
from metastep.train.fewshot import train as training
from metastep.train.fewshot.presets import PRESETS
from metastep.train.fewshot.train import Trained
from metastep.train.run import Run
from tests.train.fewshot.helpers import TINY

app = typer.Typer()
app.command()(commands.train)
app.command("presets")(commands.presets)
cli = CliRunner()


@pytest.fixture(autouse=True)
def _tiny_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.chdir(tmp_path)


def test_train_and_resume() -> None:
    done = cli.invoke(app, ["train", "--preset", "tiny", "--iterations", "4", "--window", "4", "--inner-lr", "0.05"])
    assert done.exit_code == 0, done.output
    assert "4 iterations in" in done.output
    assert "metastep evaluate runs/tiny" in done.output
    config = json.loads(Run(Path("runs/tiny")).config_path.read_text())["config"]
    assert (config["method"]["window"], config["inner"]["lr"], config["outer"]["iterations"]) == (4, 0.05, 4)
    again = cli.invoke(app, ["train", "--resume", "runs/tiny"])
    assert again.exit_code == 0, again.output
    assert (
        "All 4 iterations were made before. For more: metastep train --resume runs/tiny --iterations 8" in again.output
    )


def test_a_run_of_other_data_is_not_called_by_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []
    monkeypatch.setattr(training, "train", lambda config, folder, *others: folders.append(folder) or Trained())
    for flags in ((), ("--dataset", "folder:photos"), ("--dataset", "folder:photos", "--out", "there")):
        cli.invoke(app, ["train", "--preset", "tiny", *flags])
    assert folders == [Path("runs/tiny"), Path("runs/photos-multi_step"), Path("there")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "tinny"], "there is no preset 'tinny'. Did you mean 'tiny'?"),
        (["--preset", "tiny", "--inner-lr", "-1"], "--inner-lr = -1.0: it must not be negative"),
        (["--preset", "tiny", "--method", "maml", "--window", "2"], "--window = 2 is no option of maml"),
        (["--preset", "tiny", "--method", "anything"], "Invalid value for '--method'"),
        (["--preset", "tiny", "--net", "conv5"], "there is no net 'conv5'. Did you mean 'conv4'?"),
        (["--preset", "tiny", "--net", "nowhere.to:Find"], "there is no module 'nowhere'"),
        (["--preset", "tiny", "--net", "tests.train.fewshot.helpers:Flat", "--filters", "3"], "could not be built"),
        (
            ["--preset", "tiny", "--net", "tests.train.fewshot.helpers:narrow"],
            "of 1×16×16: mat1 and mat2 shapes cannot be",
        ),
        (["--preset", "tiny", "--net", "tests.train.fewshot.helpers:pictures"], "it gives (2, 1, 16, 16), not (2, 3)"),
        (["--preset", "tiny", "--net", "tests.train.fewshot.helpers:nothing"], "gives a int, no nn.Module"),
        (
            ["--preset", "tiny", "--net", "tests.train.fewshot.helpers:broken"],
            "could not be built: 'no such' (KeyError)",
        ),
        (["--preset", "tiny", "--method", "maml_pp", "--weights", "1,2,3"], "weights: 3 for 4 windows"),
        (["--preset", "tiny", "--ways", "1"], "--ways = 1: it must be at least 2"),
        (["--preset", "tiny", "--ways", "9"], "9-way episodes need 9 classes"),
        (["--preset", "tiny", "--shots", "9"], "9 shots and 2 queries need 11 images"),
        (["--resume", "nowhere"], "'nowhere': is not there"),
        (["--resume", "nowhere", "--inner-lr", "1"], "--inner-lr with --resume"),
        (["--resume", "nowhere", "--preset", "glyphs-5w1s-maml"], "--preset with --resume"),
        (["--resume", "nowhere", "--out", "elsewhere"], "--out with --resume"),
        (["--preset", "tiny", "--device", "cuda"], "PyTorch sees no GPU here"),
    ],
)
def test_one_line_and_status_2(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = cli.invoke(app, ["train", *arguments])
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output
    assert not Path("runs").exists()


def test_a_stopped_run_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.train.fewshot.test_train import stop_before

    stop_before(monkeypatch, 1)
    done = cli.invoke(app, ["train", "--preset", "tiny", "--out", "here"])
    assert done.exit_code == 130
    assert "Go on with: metastep train --resume here" in done.output


def test_a_users_net_is_named_again_on_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.train.fewshot.test_train import stop_before

    stop_before(monkeypatch, 0)
    net = ["--net", "tests.train.fewshot.helpers:Flat"]  # which knows nothing of the preset's filters
    assert cli.invoke(app, ["train", "--preset", "tiny", "--out", "own", *net]).exit_code == 130
    refused = cli.invoke(app, ["train", "--resume", "own"])
    assert refused.exit_code == 2
    assert "name it again: --net tests.train.fewshot.helpers:Flat" in refused.output
    assert cli.invoke(app, ["train", "--resume", "own", *net]).exit_code == 0


def test_a_net_with_lazy_layers_beside_which_one_works(tmp_path: Path) -> None:
    (tmp_path / "lazy_net.py").write_text(
        "from torch import nn\n\n"
        "def build(ways, channels, size):\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(ways))\n"
    )
    done = cli.invoke(app, ["train", "--preset", "tiny", "--iterations", "1", "--net", "lazy_net:build"])
    assert done.exit_code == 0, done.output


def test_presets() -> None:
    lines = cli.invoke(app, ["presets"], env={"COLUMNS": "80"}).output.splitlines()
    assert [line.split()[0] for line in lines[::2]] == list(PRESETS)  # two lines each, and no name is cut
    words = lines[list(PRESETS).index("omniglot-20w1s-multistep4") * 2 :][:2]
    assert [line.strip().rpartition("  ")[2] for line in words] == [
        "conv4: 8 × sgd at 0.4, momentum 0.9",
        "multi_step(4): 60,000 × 16 tasks, adam at 0.001",
    ]
    shown = cli.invoke(app, ["presets", "omniglot-5w1s-multistep4"])
    assert json.loads(shown.output)["method"]["window"] == 4
    assert cli.invoke(app, ["presets", "nothing"]).exit_code == 2
