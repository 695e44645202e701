"""`metastep transfer` as it is typed: what it prints, what it refuses, and the pages it writes."""

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from metastep.cli import app
from metastep.errors import MetastepError
from metastep.fewshot.config import TrainConfig
from metastep.nets import CLASSIFIERS
from metastep.report import write_report
from metastep.report.weights import weights_of
from metastep.runs import Run
from metastep.runs.presets import default_folder
from metastep.runs.together import Turns
from metastep.transfer import comparison
from metastep.transfer import epoch as epochs
from metastep.transfer import train as training
from metastep.transfer.config import DataConfig, MethodConfig, TransferConfig
from metastep.transfer.presets import PRESETS
from metastep.transfer.train import train
from tests.transfer.train_helpers import PUPIL, TEACHER, TINY, stop_at, stripes, tiny

cli = CliRunner()


@pytest.fixture(autouse=True)
def _tiny_presets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, _stripes: None) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setitem(PRESETS, "alone", tiny(MethodConfig("scratch"), epochs=1))
    monkeypatch.chdir(tmp_path)


def test_run_evaluate_resume_and_report() -> None:
    flags = ["--epochs", "2", "--window", "1", "--inner-lr", "0.01", "--gradient-difference", "2"]
    done = cli.invoke(app, ["transfer", "run", "--preset", "tiny", *flags])
    assert done.exit_code == 0, done.output
    assert "2 of 2 epochs in" in done.output
    assert "best validation accuracy" in done.output
    config = Run(Path("runs/tiny")).config(TransferConfig)
    assert (config.method.window, config.inner.lr, config.epochs) == (1, 0.01, 2)

    nets = ["--target-net", PUPIL]
    judged = cli.invoke(app, ["transfer", "evaluate", "runs/tiny", *nets])
    assert judged.exit_code == 0, judged.output
    assert "18 test pictures of stripes" in judged.output
    assert "stripe 2" in judged.output
    assert "0 to 100 %, ┊ chance 33.3 %" in judged.output
    printed = json.loads(cli.invoke(app, ["transfer", "evaluate", "runs/tiny", *nets, "--json"]).stdout)
    assert [each["pictures"] for each in printed["classes"]] == [6, 6, 6]
    again = cli.invoke(app, ["transfer", "run", "--resume", "runs/tiny", *nets, "--source-net", TEACHER])
    assert again.exit_code == 0, again.output

    assert cli.invoke(app, ["report", "runs/tiny", "--out", "page.html"]).exit_code == 0
    page = Path("page.html").read_text()
    for word in ("What and where", "Transfer loss", "Change of the transfer gradient", "method.window", "<svg"):
        assert word in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_run_is_evaluated_elsewhere_than_it_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run = Run(Path("run"))
    train(tiny(MethodConfig("scratch"), epochs=1), run.folder)
    run.config_path.write_text(run.config_path.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    assert run.config(TransferConfig).device == "cuda"
    evaluate = ["transfer", "evaluate", "run", "--target-net", PUPIL]
    for flags in ([], ["--device", "cpu"]):
        judged = cli.invoke(app, [*evaluate, *flags])
        assert judged.exit_code == 0, judged.output
    refused = cli.invoke(app, [*evaluate, "--device", "cuda"])
    assert refused.exit_code == 2
    assert "PyTorch sees no GPU here. Leave it out" in refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--preset", "tinny"], "there is no preset 'tinny'. Did you mean 'tiny'?"),
        (["run", "--preset", "tiny", "--inner-lr", "-1"], "--inner-lr = -1.0: it must not be negative"),
        (["run", "--preset", "alone", "--beta", "1"], "--beta = 1.0 is no option of scratch (it has none)"),
        (["run", "--preset", "tiny", "--inner-optimizer", "adam", "--inner-momentum", "1"], "is no option of adam"),
        (["run", "--preset", "tiny", "--outer", "total"], "--window = 2 with --outer = total: leave the window out"),
        (["run", "--preset", "tiny", "--steps", "0", "--gradient-difference", "1"], "there are none here"),
        (["run", "--preset", "tiny", "--source-weights", "no.pth"], "--source-weights: there is no 'no.pth'"),
        (
            ["run", "--preset", "tiny", "--source-weights", "a", "--source-data", "b"],
            "--source-data = b is no option of",
        ),
        (["run", "--preset", "tiny", "--target-layers", "bodies"], "has no layer 'bodies'"),
        (
            ["run", "--preset", "tiny", "--target-net", "tests.fewshot.helpers:pictures"],
            "gives (2, 1, 8, 8), not (2, 3)",
        ),
        (["run", "--preset", "tiny", "--target-net", "tests.fewshot.helpers:nothing"], "gives a int, no nn.Module"),
        (["run", "--preset", "tiny", "--target-net", "tests.fewshot.helpers:broken"], "could not be built: 'no such'"),
        (["run", "--preset", "tiny", "--batch", "1"], "--batch = 1: it must be at least 2"),
        (["run", "--resume", "nowhere"], "'nowhere': is not there"),
        (["run", "--resume", "nowhere", "--seed", "1"], "--seed with --resume"),
        (["run", "--resume", "nowhere", "--preset", "digits-sgd-scratch"], "--preset with --resume"),
        (["evaluate", "nowhere"], "'nowhere': is not there"),
        (["presets", "nothing"], "there is no preset 'nothing'"),
    ],
)
def test_one_line_and_status_2(arguments: list[str], message: str) -> None:
    done = cli.invoke(app, ["transfer", *arguments])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_a_stopped_run_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(monkeypatch, 1)
    done = cli.invoke(app, ["transfer", "run", "--preset", "alone", "--out", "here"])
    assert done.exit_code == 130
    assert "Go on with: metastep transfer run --resume here" in done.output


def test_presets() -> None:
    listed = cli.invoke(app, ["transfer", "presets"], env={"COLUMNS": "80"}).output
    assert re.findall(r"^\S+", listed, re.MULTILINE) == list(PRESETS)
    assert "adam at 0.001" in listed
    assert "…" not in listed
    shown = cli.invoke(app, ["transfer", "presets", "stl10-sgd-multistep"])
    assert json.loads(shown.output)["method"]["window"] == 2


@pytest.fixture
def _tiny_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, preset in comparison.METHODS.items():
        method = PRESETS[preset].method
        monkeypatch.setitem(PRESETS, preset, tiny(method, data=DataConfig("stripes", 8, per_class=2, batch=8)))
        assert (method.window, method.name) == {"s": (None, "scratch"), "b": (1, "transfer"), "M": (2, "transfer")}[
            name[0]
        ]
    monkeypatch.setattr(comparison, "resume", lambda folder: training.resume(folder, None, TEACHER, _net_of(folder)))


@pytest.mark.usefixtures("_tiny_comparison")
def test_alone_it_compares_three_ways_and_can_be_called_again() -> None:
    for _ in range(2):
        done = cli.invoke(
            app, ["transfer", "--out", "all", "--epochs", "2", "--source-epochs", "3"], env={"COLUMNS": "200"}
        )
        assert done.exit_code == 0, done.output
        assert "Teacher learns stripes, 3 epochs" in done.output
        for word in ("scratch", "baseline (n = 1)", "Multi-step (n = 2)", "second-order products", "report.html"):
            assert word in done.output
    assert Path("all/weights.png").stat().st_size > 10_000
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
    assert cli.invoke(app, ["transfer", "--out", "all", "--epochs", "1"]).exit_code == 0
    done = cli.invoke(app, ["transfer", "--out", "all", *flags])
    assert done.exit_code == 2
    refusal = f"'all/{place}': is a run of something else ({difference}). Choose another --out, or move it."
    assert refusal in done.output
    assert "second-order products" not in done.output


@pytest.mark.usefixtures("_tiny_comparison")
def test_stopped_in_the_last_iteration_of_one_way_it_does_not_begin_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = epochs.finish_epoch

    def pressed(*arguments: Any) -> Turns[None]:
        if "scratch" in str(arguments[0].record.run.folder):
            signal.raise_signal(signal.SIGINT)
        return finish(*arguments)

    monkeypatch.setattr(training, "finish_epoch", pressed)
    stopped = cli.invoke(app, ["transfer", "--out", "all", "--epochs", "1"])
    assert (stopped.exit_code, Path("all/baseline").exists()) == (130, False)
    assert "Call it again to go on" in stopped.output
    assert Path("all/scratch/net.safetensors").exists()


def _net_of(folder: Path) -> str:
    return Run.open(folder).config(TransferConfig).target.net


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transfer", "evaluate", "b"], "'b': is a few-shot run, not a transfer run. Use metastep evaluate, classify"),
        (["transfer", "run", "--resume", "b"], "'b': is a few-shot run, not a transfer run. Use metastep evaluate"),
        (["transfer", "run", "--preset", "tiny", "--source-weights", "b"], "b': is a few-shot run, not a transfer"),
        (["evaluate", "a"], "'a': is a transfer run, not a few-shot run. Use metastep transfer evaluate, transfer run"),
        (["classify", "a", "--support", "x", "--query", "y"], "'a': is a transfer run, not a few-shot run"),
        (["train", "--resume", "a"], "'a': is a transfer run, not a few-shot run"),
    ],
)
def test_runs_of_the_other_kind_are_told_in_users_words(arguments: list[str], message: str) -> None:
    Run.create(Path("a"), TINY)
    Run.create(Path("b"), TrainConfig())
    for folder in ("a", "b"):
        Path(folder, "last.safetensors").touch()  # is not looked at
    done = cli.invoke(app, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert "Config" not in done.output


def test_runs_of_two_kinds_make_no_page(tmp_path: Path) -> None:
    train(tiny(MethodConfig("scratch"), epochs=1), tmp_path / "a")
    Run.create(tmp_path / "b", TrainConfig())
    with pytest.raises(MetastepError, match="give those of one kind"):
        write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html")
    write_report([tmp_path / "a"], tmp_path / "page.html")
    assert "No run here has meta-networks" in (tmp_path / "page.html").read_text()


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


OWN = ["--target-data", "folder:mine", "--source-data", "folder:letters", "--size", "8", "--source-epochs", "2"]


@pytest.fixture
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users' own, for the target and for the source, and the real loader"""
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "letters"):
        part = stripes(name).train
        for i, (image, label) in enumerate(zip(part.images, part.labels, strict=True)):
            place = tmp_path / name / f"class {int(label)}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(place / f"{i}.png")
    monkeypatch.setitem(PRESETS, "tiny", replace(TINY, epochs=1))


@pytest.fixture
def own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _folders: None) -> Path:
    """On users' own folders; then somebody goes elsewhere"""
    done = cli.invoke(app, ["transfer", "run", "--preset", "tiny", *OWN])
    assert done.exit_code == 0, done.output
    assert "1 of 1 epochs" in done.output
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


@pytest.mark.usefixtures("_folders")
def test_a_source_of_ones_own_is_not_trained_as_that_of_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = replace(TINY.source, augment="resized_crop", weight_decay=0.5)
    monkeypatch.setitem(PRESETS, "tiny", replace(TINY, epochs=1, source=chosen, checkpoint_every=7.0))
    stop_at(monkeypatch, 0)
    cli.invoke(app, ["transfer", "run", "--preset", "tiny", *OWN, "--out", "run"])
    source = Run.open(Path("run", "source")).config(TransferConfig)
    assert (source.data.augment, source.inner.weight_decay) == ("none", 1e-4)
    assert (source.epochs, source.checkpoint_every) == (2, 7.0)


def resumed(folder: Path, *more: str) -> tuple[int, str]:
    nets = ["--source-net", TEACHER, "--target-net", PUPIL]
    done = cli.invoke(app, ["transfer", "run", "--resume", str(folder), *nets, *more])
    return done.exit_code, done.output


def test_users_folders_are_found_from_everywhere(own_run: Path, tmp_path: Path) -> None:
    assert own_run.name == "mine-transfer"
    assert resumed(own_run)[0] == 0
    judged = cli.invoke(app, ["transfer", "evaluate", str(own_run), "--target-net", PUPIL])
    assert judged.exit_code == 0, judged.output
    cli.invoke(app, ["report", str(own_run)])
    assert "folder:mine" in Path("report.html").read_text()
    assert str(tmp_path) not in Path("report.html").read_text()


def test_users_folders_that_changed_are_noticed(own_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "class 0" / "0.png").unlink()
    judged = cli.invoke(app, ["transfer", "evaluate", str(own_run), "--target-net", PUPIL])
    for status, said in ((judged.exit_code, judged.output), resumed(own_run)):
        assert status == 2
        assert f"{tmp_path}/mine: has other pictures than in training" in said
    # Naming the source's anew does not make the target's right.
    assert "mine: has other pictures" in resumed(own_run, "--source-data", str(tmp_path / "letters"))[1]
    assert resumed(own_run)[0] == 2


def test_users_folders_that_were_moved_are_named_anew(own_run: Path, tmp_path: Path) -> None:
    for name in ("mine", "letters"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    assert f"{tmp_path}/mine: is not there" in resumed(own_run)[1]
    assert resumed(own_run, "--target-data", "folder:mine")[0] == 0
    assert resumed(own_run)[0] == 0  # which remembers it, and whose source is trained
    before = Run(own_run).config(TransferConfig)
    assert "mine: has other pictures" in resumed(own_run, "--source-data", "folder:mine")[1]
    assert Run(own_run).config(TransferConfig) == before
    assert resumed(own_run, "--source-data", "folder:letters")[0] == 0
    judged = cli.invoke(app, ["transfer", "evaluate", str(own_run / "source"), "--target-net", TEACHER])
    assert judged.exit_code == 0, judged.output  # the source's own run remembers it, too
    assert "digits: is not there" in resumed(own_run, "--target-data", "digits")[1]


@pytest.fixture
def stopped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _folders: None) -> Path:
    """The same, stopped in the first iteration of its source"""
    stop_at(monkeypatch, 0)
    done = cli.invoke(app, ["transfer", "run", "--preset", "tiny", *OWN, "--out", "run"])
    assert done.exit_code == 130, done.output
    return tmp_path / "run"


@pytest.mark.usefixtures("_folders")
def test_a_source_is_told_before_it_is_trained_and_counted_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_at(monkeypatch, 1)  # the source has two epochs of one iteration
    done = cli.invoke(app, ["transfer", "run", "--preset", "tiny", *OWN, "--out", "run", "--source-epochs", "3"])
    assert f"First the source: {TEACHER} on folder:{Path('letters').resolve()}, 3 epochs." in done.output
    assert "Stopped after 2 of 3 epochs of the source in 0 s, before the target's turn. Go on with" in done.output
    status, said = resumed(Path("run"))
    assert status == 0
    assert said.index("First the source") < said.index(f"Then the target: {PUPIL} on folder:") < said.index("1 of 1")
    assert "the source" not in resumed(Path("run"))[1]


def test_a_run_that_was_stopped_in_its_source_has_a_page(stopped_run: Path) -> None:
    assert cli.invoke(app, ["report", str(stopped_run), "--out", "page.html"]).exit_code == 0
    page = Path("page.html").read_text()
    assert f"its source, {TEACHER} on folder:letters, is trained first: 1 of 2 epochs are done" in page
    assert "No run here has meta-networks" not in page


@pytest.mark.usefixtures("_folders")
@pytest.mark.parametrize("part", ["target", "source"])
def test_a_folder_that_is_not_there_is_named(part: str) -> None:
    there = [flag.replace("folder:mine" if part == "target" else "folder:letters", "folder:nowhere") for flag in OWN]
    done = cli.invoke(app, ["transfer", "run", "--preset", "tiny", *there])
    assert done.exit_code == 2
    assert "nowhere: is not a folder. Give a folder with one sub-folder of pictures per class." in done.output


@pytest.mark.usefixtures("_folders")
def test_what_data_check_says_is_what_is_learned_from() -> None:
    checked = cli.invoke(app, ["data", "check", "mine", "--transfer"]).output
    assert "│ class 2 │     4 │   2 │    1 │" in checked
    cli.invoke(app, ["transfer", "run", "--preset", "tiny", *OWN, "--out", "run"])
    judge = ["transfer", "evaluate", "run", "--target-net", PUPIL, "--json", "--split"]
    classes = [json.loads(cli.invoke(app, [*judge, part]).stdout)["classes"][2] for part in ("train", "val", "test")]
    assert [each["pictures"] for each in classes] == [4, 2, 1]


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("other", ["folder:mine", "folder:nowhere"])
def test_another_folder_does_not_become_the_sources(stopped_run: Path, begun: bool, other: str) -> None:
    if not begun:
        shutil.rmtree(stopped_run / "source")
    before = contents(stopped_run)
    status, said = resumed(stopped_run, "--source-data", other)
    assert status == 2
    assert ("has other pictures than in training" if other == "folder:mine" else "is not there, or no folder") in said
    assert contents(stopped_run) == before


def test_a_run_is_judged_on_pictures_that_were_moved(own_run: Path, tmp_path: Path) -> None:
    judge = ["transfer", "evaluate", str(own_run), "--target-net", PUPIL, "--json"]
    there = json.loads(cli.invoke(app, judge).stdout)
    (tmp_path / "mine").rename(tmp_path / "moved")
    before = contents(own_run)
    lost = cli.invoke(app, judge)
    assert "mine: is not there, or no folder" in lost.output
    found = json.loads(cli.invoke(app, [*judge, "--target-data", f"folder:{tmp_path}/moved"]).stdout)
    assert (found["accuracy"], found["classes"]) == (there["accuracy"], there["classes"])
    other = cli.invoke(app, [*judge, "--target-data", f"folder:{tmp_path}/letters"])
    assert "has other pictures than in training" in other.output
    assert contents(own_run) == before


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_cannot_go_on_is_left_as_it_was(stopped_run: Path, tmp_path: Path, begun: bool) -> None:
    if not begun:
        shutil.rmtree(stopped_run / "source")
    for name in ("mine", "letters"):
        (tmp_path / name).rename(tmp_path / f"{name} moved")
    before = contents(stopped_run)
    status, said = resumed(stopped_run, "--target-data", "folder:mine moved")
    assert status == 2
    assert f"{tmp_path}/letters: is not there" in said
    assert "of a source --source-data, with --resume" in said
    assert contents(stopped_run) == before
    moved = ["--target-data", "folder:mine moved", "--source-data", "folder:letters moved"]
    assert resumed(stopped_run, *moved)[0] == 0
    assert resumed(stopped_run)[0] == 0
    names = [Run(run).config(TransferConfig).data.name for run in (stopped_run, stopped_run / "source")]
    assert names == [f"folder:{tmp_path}/{name} moved" for name in ("mine", "letters")]


def test_runs_from_before_the_sources_pictures_were_remembered_are_read(stopped_run: Path) -> None:
    config = json.loads(Run(stopped_run).config_path.read_text())
    assert config["config"]["source"].pop("fingerprint")
    Run(stopped_run).config_path.write_text(json.dumps(config))
    assert "has other pictures" in resumed(stopped_run, "--source-data", "folder:mine")[1]
    assert resumed(stopped_run)[0] == 0


def test_a_source_that_is_trained_needs_its_pictures_no_more(
    stopped_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 1)  # the last of the source
    assert resumed(stopped_run)[0] == 130
    shutil.rmtree(tmp_path / "letters")
    assert resumed(stopped_run)[0] == 0


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.usefixtures("_folders")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--target-data folder:mine: from whom is it to learn? The source of tiny, trained on stripes, is for"),
        (["--source-net", "resnet8"], "Name one with --source-weights, a file or an earlier run, or what to train one"),
        (["--source-data", "glyphs"], "--source-data = glyphs: its pictures are grey, and those of folder:"),
        (["--source-data", "glyphs"], "mine are read in colour. Name a source for such pictures"),
        (["--source-data", "glyphs"], "in --source-weights; or what to train one on in --source-data."),
    ],
)
def test_pictures_of_ones_own_need_a_source_for_them(flags: list[str], message: str) -> None:
    done = cli.invoke(
        app, ["transfer", "run", "--preset", "tiny", "--target-data", "folder:mine", "--size", "8", *flags]
    )
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert not Path("runs").exists()


@pytest.mark.usefixtures("_folders")
def test_pictures_of_ones_own_need_no_source_from_scratch() -> None:
    own = ["--target-data", "folder:mine", "--size", "8", "--method", "scratch"]
    done = cli.invoke(app, ["transfer", "run", "--preset", "tiny", *own])
    assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("_folders")
def test_a_source_that_does_not_fit_says_why() -> None:
    save_file(CLASSIFIERS["resnet8"](ways=7, channels=1, size=8).state_dict(), "grey.safetensors")
    save_file(CLASSIFIERS["resnet8"](ways=7, channels=3, size=8).state_dict(), "coloured.safetensors")
    wrong = {
        ("grey", "resnet8", "7"): "that net takes pictures that are grey, and those of folder:",
        ("coloured", "resnet8", "9"): "that net tells 7 classes apart, not 9. Set --source-classes to 7.",
        ("coloured", "resnet32", "7"): "it has no 'blocks2.0.conv1.weight', so it is no resnet32. Set --source-net",
    }
    for (file, net, classes), message in wrong.items():
        weights = ["--source-weights", f"{file}.safetensors", "--source-net", net, "--source-classes", classes]
        run = ["transfer", "run", "--preset", "tiny", "--target-data", "folder:mine", "--size", "8"]
        done = cli.invoke(app, [*run, *weights])
        assert done.exit_code == 2
        assert f"{file}.safetensors: {message}" in " ".join(done.output.split())
        assert done.output.startswith("metastep: --source-weights = ")
    unsaid = cli.invoke(app, [*run, "--source-weights", "grey.safetensors"])
    assert "how many classes does that net tell apart? Set --source-classes." in unsaid.output


def test_an_earlier_run_says_which_net_it_trained() -> None:
    cli.invoke(app, ["transfer", "run", "--preset", "alone", "--target-net", "resnet8", "--out", "first"])
    run = ["transfer", "run", "--preset", "tiny", "--source-weights", "first", "--out", "second"]
    other = cli.invoke(app, [*run, "--source-net", "vgg4"]).output
    assert "so it is no vgg4" in " ".join(other.split())
    done = cli.invoke(app, run)
    assert done.exit_code == 0, done.output
    assert Run.open(Path("second")).config(TransferConfig).source.net == "resnet8"


def test_only_folders_can_be_named_anew(tmp_path: Path) -> None:
    cli.invoke(app, ["transfer", "run", "--preset", "alone", "--out", "alone"])
    for option in ("--target-data", "--source-data"):
        status, said = resumed(Path("alone"), option, "folder:mine")
        assert status == 2
        assert "folder:mine: a run goes on with its own data" in said


def test_a_run_is_the_same_wherever_its_pictures_are() -> None:
    here, there = (
        replace(
            TINY, data=DataConfig(f"folder:/{place}/mine"), source=replace(TINY.source, dataset=f"folder:/{place}/x")
        )
        for place in ("here", "there")
    )
    assert here.essential == there.essential
    assert here.essential != replace(here, data=replace(here.data, fingerprint="another")).essential


@pytest.mark.parametrize(
    ("data", "folder"),
    [
        ("digits", "digits-sgd-baseline"),
        ("stl10", "stl10-scratch"),
        ("folder:a/My  pictures", "My-pictures-scratch"),
        ("folder:../there/", "there-scratch"),
        ("glyphs:Greek,Latin", "glyphs-Greek-Latin-scratch"),
    ],
)
def test_a_presets_name_is_for_its_own_data(data: str, folder: str) -> None:
    assert default_folder("digits-sgd-baseline", "digits", data, "scratch") == Path("runs", folder)
    assert (folder in PRESETS) == (data == "digits")
