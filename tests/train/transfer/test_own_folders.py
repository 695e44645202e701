"""Transfer on folders of users' own: where they are looked for, what is noticed, what is refused."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from metastep.cli.main import app
from metastep.cli.train import default_folder
from metastep.nets.registry import load_net
from metastep.train import presets
from metastep.train.config import TargetData, Transfer
from metastep.train.run import Run
from tests.train.transfer.train_helpers import PUPIL, TEACHER, TINY, stop_at, stripes

PRESETS = presets.transfer()

cli = CliRunner()
pytestmark = pytest.mark.usefixtures("_tiny_presets")

OWN = ["data=folder:mine", "source.dataset=folder:letters", "data.size=8", "source.epochs=2"]


@pytest.fixture
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _tiny_presets: None) -> None:
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
    done = cli.invoke(app, ["train", "tiny", *OWN])
    assert done.exit_code == 0, done.output
    assert "1 epoch in" in done.output
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


@pytest.mark.usefixtures("_folders")
def test_a_source_of_ones_own_is_not_trained_as_that_of_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = replace(TINY.source, augment="resized_crop", weight_decay=0.5)
    monkeypatch.setitem(PRESETS, "tiny", replace(TINY, epochs=1, source=chosen, checkpoint_seconds=7.0))
    stop_at(monkeypatch, 0)
    cli.invoke(app, ["train", "tiny", *OWN, "--out", "run"])
    source = Run.open(Path("run", "source")).config(Transfer)
    assert (source.data.augment, source.inner.weight_decay) == ("none", 1e-4)
    assert (source.epochs, source.checkpoint_seconds) == (2, 7.0)


def resumed(folder: Path, *more: str) -> tuple[int, str]:
    nets = ["--source.net", TEACHER, "--net", PUPIL]
    done = cli.invoke(app, ["resume", str(folder), *nets, *more])
    return done.exit_code, done.output


def test_users_folders_are_found_from_everywhere(own_run: Path, tmp_path: Path) -> None:
    assert own_run.name == "mine-transfer"
    assert resumed(own_run)[0] == 0
    judged = cli.invoke(app, ["evaluate", str(own_run), "--net", PUPIL])
    assert judged.exit_code == 0, judged.output
    cli.invoke(app, ["report", str(own_run)])
    assert "folder:mine" in Path("report.html").read_text()
    assert str(tmp_path) not in Path("report.html").read_text()


def test_users_folders_that_changed_are_noticed(own_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "class 0" / "0.png").unlink()
    judged = cli.invoke(app, ["evaluate", str(own_run), "--net", PUPIL])
    for status, said in ((judged.exit_code, judged.output), resumed(own_run)):
        assert status == 2
        assert f"{tmp_path}/mine: has other pictures than in training" in said
    # Naming the source's anew does not make the target's right.
    assert "mine: has other pictures" in resumed(own_run, f"source.dataset={tmp_path}/letters")[1]
    assert resumed(own_run)[0] == 2


def test_users_folders_that_were_moved_are_named_anew(own_run: Path, tmp_path: Path) -> None:
    for name in ("mine", "letters"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    assert f"{tmp_path}/mine: is not there" in resumed(own_run)[1]
    assert resumed(own_run, "data=folder:mine")[0] == 0
    assert resumed(own_run)[0] == 0  # which remembers it, and whose source is trained
    before = Run(own_run).config(Transfer)
    assert "mine: has other pictures" in resumed(own_run, "source.dataset=folder:mine")[1]
    assert Run(own_run).config(Transfer) == before
    assert resumed(own_run, "source.dataset=folder:letters")[0] == 0
    judged = cli.invoke(app, ["evaluate", str(own_run / "source"), "--net", TEACHER])
    assert judged.exit_code == 0, judged.output  # the source's own run remembers it, too
    assert "digits: is not there" in resumed(own_run, "data=digits")[1]


@pytest.fixture
def stopped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _folders: None) -> Path:
    """The same, stopped in the first iteration of its source"""
    stop_at(monkeypatch, 0)
    done = cli.invoke(app, ["train", "tiny", *OWN, "--out", "run"])
    assert done.exit_code == 130, done.output
    return tmp_path / "run"


@pytest.mark.usefixtures("_folders")
def test_a_source_is_told_before_it_is_trained_and_counted_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_at(monkeypatch, 1)  # the source has two epochs of one iteration
    done = cli.invoke(app, ["train", "tiny", *OWN, "--out", "run", "source.epochs=3"])
    assert f"First the source: {TEACHER} on folder:{Path('letters').resolve()}, 3 epochs." in done.output
    stopped = r"Stopped after 2 of 3 epochs of the source in \d+ s, before the target's turn. Continue with"
    assert re.search(stopped, done.output)
    status, said = resumed(Path("run"))
    assert status == 0
    assert (
        said.index("First the source") < said.index(f"Then the target: {PUPIL} on folder:") < said.index("1 epoch in")
    )
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
    done = cli.invoke(app, ["train", "tiny", *there])
    assert done.exit_code == 2
    assert "nowhere: is not a folder. Give a folder with one sub-folder of pictures per class." in done.output


@pytest.mark.usefixtures("_folders")
def test_what_data_check_says_is_what_is_learned_from() -> None:
    checked = cli.invoke(app, ["data", "check", "mine", "--transfer"]).output
    assert "│ class 2 │     4 │   2 │    1 │" in checked
    cli.invoke(app, ["train", "tiny", *OWN, "--out", "run"])
    judge = ["evaluate", "run", "--net", PUPIL, "--json", "--split"]
    classes = [json.loads(cli.invoke(app, [*judge, part]).stdout)["classes"][2] for part in ("train", "val", "test")]
    assert [each["pictures"] for each in classes] == [4, 2, 1]


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("other", ["folder:mine", "folder:nowhere"])
def test_another_folder_does_not_become_the_sources(stopped_run: Path, begun: bool, other: str) -> None:
    if not begun:
        shutil.rmtree(stopped_run / "source")
    before = contents(stopped_run)
    status, said = resumed(stopped_run, f"source.dataset={other}")
    assert status == 2
    assert ("has other pictures than in training" if other == "folder:mine" else "is not there, or no folder") in said
    assert contents(stopped_run) == before


def test_a_run_is_judged_on_pictures_that_were_moved(own_run: Path, tmp_path: Path) -> None:
    judge = ["evaluate", str(own_run), "--net", PUPIL, "--json"]
    there = json.loads(cli.invoke(app, judge).stdout)
    (tmp_path / "mine").rename(tmp_path / "moved")
    before = contents(own_run)
    lost = cli.invoke(app, judge)
    assert "mine: is not there, or no folder" in lost.output
    found = json.loads(cli.invoke(app, [*judge, "--dataset", f"folder:{tmp_path}/moved"]).stdout)
    assert (found["accuracy"], found["classes"]) == (there["accuracy"], there["classes"])
    other = cli.invoke(app, [*judge, "--dataset", f"folder:{tmp_path}/letters"])
    assert "has other pictures than in training" in other.output
    assert contents(own_run) == before


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_cannot_go_on_is_left_as_it_was(stopped_run: Path, tmp_path: Path, begun: bool) -> None:
    if not begun:
        shutil.rmtree(stopped_run / "source")
    for name in ("mine", "letters"):
        (tmp_path / name).rename(tmp_path / f"{name} moved")
    before = contents(stopped_run)
    status, said = resumed(stopped_run, "data=folder:mine moved")
    assert status == 2
    assert f"{tmp_path}/letters: is not there" in said
    assert "of a source source.dataset=folder:PATH" in said
    assert contents(stopped_run) == before
    moved = ["data=folder:mine moved", "source.dataset=folder:letters moved"]
    assert resumed(stopped_run, *moved)[0] == 0
    assert resumed(stopped_run)[0] == 0
    names = [Run(run).config(Transfer).data.name for run in (stopped_run, stopped_run / "source")]
    assert names == [f"folder:{tmp_path}/{name} moved" for name in ("mine", "letters")]


def test_runs_from_before_the_sources_pictures_were_remembered_are_read(stopped_run: Path) -> None:
    config = json.loads(Run(stopped_run).config_path.read_text())
    assert config["config"]["source"].pop("fingerprint")
    Run(stopped_run).config_path.write_text(json.dumps(config))
    assert "has other pictures" in resumed(stopped_run, "source.dataset=folder:mine")[1]
    assert resumed(stopped_run)[0] == 0


def test_a_source_that_is_trained_needs_its_pictures_no_more(
    stopped_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 1)  # the last of the source
    assert resumed(stopped_run)[0] == 130
    shutil.rmtree(tmp_path / "letters")
    assert resumed(stopped_run)[0] == 0


def contents(folder: Path) -> dict[str, bytes]:
    """But for what evaluations have added"""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name != "evaluations"]
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.usefixtures("_folders")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "data.name = folder:mine: which source should teach it? The source of tiny, trained on stripes, is for"),
        (["source.net=resnet8"], "Name one with source.weights=, a file or an earlier run, or what to train one"),
        (["source.dataset=glyphs"], "source.dataset = glyphs: its pictures are grey, and those of folder:"),
        (["source.dataset=glyphs"], "mine are read in colour. Name a source for such pictures"),
        (["source.dataset=glyphs"], "in source.weights; or what to train one on in source.dataset."),
    ],
)
def test_pictures_of_ones_own_need_a_source_for_them(flags: list[str], message: str) -> None:
    done = cli.invoke(app, ["train", "tiny", "data=folder:mine", "data.size=8", *flags])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert not Path("runs").exists()


@pytest.mark.usefixtures("_folders")
def test_pictures_of_ones_own_need_no_source_from_scratch() -> None:
    own = ["data=folder:mine", "data.size=8", "method=scratch"]
    done = cli.invoke(app, ["train", "tiny", *own])
    assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("_folders")
def test_a_source_that_does_not_fit_says_why() -> None:
    save_file(load_net("resnet8")(ways=7, channels=1, size=8).state_dict(), "grey.safetensors")
    save_file(load_net("resnet8")(ways=7, channels=3, size=8).state_dict(), "coloured.safetensors")
    wrong = {
        ("grey", "resnet8", "7"): "that net takes pictures that are grey, and those of folder:",
        ("coloured", "resnet8", "9"): "that net tells 7 classes apart, not 9. Set source.classes to 7.",
        ("coloured", "resnet32", "7"): "it has no 'blocks2.0.conv1.weight', so it is no resnet32. Set source.net",
    }
    for (file, net, classes), message in wrong.items():
        weights = [f"source.weights={file}.safetensors", f"source.net={net}", f"source.classes={classes}"]
        run = ["train", "tiny", "data=folder:mine", "data.size=8"]
        done = cli.invoke(app, [*run, *weights])
        assert done.exit_code == 2
        assert f"{file}.safetensors: {message}" in " ".join(done.output.split())
        assert done.output.startswith("metastep: source.weights = ")
    unsaid = cli.invoke(app, [*run, "source.weights=grey.safetensors"])
    assert "how many classes does that net tell apart? Set source.classes." in unsaid.output


def test_an_earlier_run_says_which_net_it_trained() -> None:
    cli.invoke(app, ["train", "alone", "net=resnet8", "--out", "first"])
    run = ["train", "tiny", "source.weights=first", "--out", "second"]
    other = cli.invoke(app, [*run, "source.net=vgg4"]).output
    assert "so it is no vgg4" in " ".join(other.split())
    done = cli.invoke(app, run)
    assert done.exit_code == 0, done.output
    assert Run.open(Path("second")).config(Transfer).source.net == "resnet8"


def test_only_folders_can_be_named_anew(tmp_path: Path) -> None:
    cli.invoke(app, ["train", "alone", "--out", "alone"])
    for option in ("data", "source.dataset"):
        status, said = resumed(Path("alone"), f"{option}=folder:mine")
        assert status == 2
        assert "folder:mine: a run continues with its own data" in said


def test_a_run_is_the_same_wherever_its_pictures_are() -> None:
    here, there = (
        replace(
            TINY, data=TargetData(f"folder:/{place}/mine"), source=replace(TINY.source, dataset=f"folder:/{place}/x")
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
