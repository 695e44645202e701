"""A run on a user's own folder: the same pictures from wherever it is called, or a word about it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from metastep.cli import evaluate as evaluate_commands, train as commands, use as use_commands
from metastep.data.registry import load
from metastep.train import presets, remembered
from metastep.train.config import Data, FewShot
from metastep.train.fewshot.learner import Learner
from metastep.train.remembered import differences
from metastep.train.run import Run, write_config
from metastep.train.validated import to_plain
from tests.data.helpers import write_classes
from tests.data.test_commands import check_refused
from tests.train.fewshot.helpers import TINY

PRESETS = presets.few_shot()

CLASSES = dict.fromkeys("abcdefghijkl", 3)

app = typer.Typer()
for command in (commands.train, commands.resume, evaluate_commands.evaluate, use_commands.report):
    app.command()(command)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def evaluated(*arguments: object) -> dict[str, object]:
    result = run("evaluate", *arguments, "--episodes", 2, "--json")
    assert result.exit_code == 0, result.output
    content: dict[str, object] = json.loads(result.stdout)
    return content


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on here/photos, seen from there, which has other photos"""
    monkeypatch.setattr(remembered, "load", load)
    monkeypatch.delenv("METASTEP_DATA", raising=False)
    photos = Data("folder:photos", ways=2, shots=1, queries=1)
    small = replace(TINY, data=photos, tasks=2, iterations=1)
    monkeypatch.setitem(PRESETS, "small", replace(small, validation=replace(TINY.validation, every=0)))
    write_classes(tmp_path / "here" / "photos", CLASSES)
    write_classes(tmp_path / "there" / "photos", CLASSES | {"m": 3})
    monkeypatch.chdir(tmp_path / "here")
    done = run("train", "small", "--out", tmp_path / "mine")
    assert done.exit_code == 0, done.output
    monkeypatch.chdir(tmp_path / "there")
    return tmp_path / "mine"


def data_of(folder: Path) -> Data:
    return Run(folder).config(FewShot).data


def test_the_folder_is_found_from_everywhere(mine: Path, tmp_path: Path) -> None:
    assert data_of(mine).name == f"folder:{tmp_path}/here/photos"
    assert evaluated(mine)["dataset"] == f"folder:{tmp_path}/here/photos"
    shutil.rmtree(tmp_path / "there" / "photos")
    again = run("resume", mine)
    assert again.exit_code == 0, again.output


def test_below_the_data_directory_it_is_found_without_that(mine: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "there" / "photos")
    run("train", "small", "--data", tmp_path / "here", "--out", "other")
    assert data_of(Path("other")).name == f"folder:{tmp_path}/here/photos"
    assert data_of(Path("other")) == data_of(mine)


def add(photos: Path) -> None:
    shutil.copy(photos / "a" / "000.png", photos / "a" / "more.png")


def enlarge(photos: Path) -> None:
    shutil.copy(photos / "a" / "002.png", photos / "a" / "000.png")


@pytest.mark.parametrize("change", [add, enlarge, lambda photos: (photos / "a" / "000.png").unlink()])
def test_other_pictures_are_noticed(change: object, mine: Path, tmp_path: Path) -> None:
    photos = tmp_path / "here" / "photos"
    change(photos)  # type: ignore[operator]
    words = (f"{photos}: has other pictures than in training", "Put them back", "--dataset folder:PATH")
    check_refused(run("evaluate", mine), *words)
    check_refused(run("resume", mine), *words)
    assert run("report", mine).exit_code == 0
    assert "has other pictures than in training" in Path("report.html").read_text()
    assert evaluated(mine, "--dataset", photos)["fingerprint"] != data_of(mine).fingerprint  # as they are


def test_a_folder_that_was_moved_is_named_anew(mine: Path, tmp_path: Path) -> None:
    before = data_of(mine)
    (tmp_path / "here" / "photos").rename(tmp_path / "pictures")
    check_refused(run("evaluate", mine), "here/photos: is not there", "metastep resume RUN data=folder:PATH")
    check_refused(run("resume", mine), "here/photos: is not there")
    check_refused(run("resume", mine, "data=folder:photos"), "there/photos: has other pictures")
    check_refused(run("resume", mine, "data=folder:absent"), "absent: is not there")
    assert data_of(mine) == before
    once = evaluated(mine, "--dataset", "folder:../pictures")
    refused = run("resume", mine, "data=folder:../pictures", "iterations=1")
    check_refused(refused, "has made 1 iteration,")
    assert data_of(mine) == before  # a run that cannot go on is left as it was
    again = run("resume", mine, "data=folder:../pictures")
    assert again.exit_code == 0, again.output
    assert data_of(mine) == replace(before, name=f"folder:{tmp_path}/pictures")
    assert evaluated(mine)["accuracies"] == once["accuracies"]


def test_only_a_folder_can_be_named_anew(mine: Path) -> None:
    photos = Run(mine).config(FewShot)
    write_config(Run(mine).config_path, replace(photos, data=replace(photos.data, name="glyphs", fingerprint=None)))
    refused = run("resume", mine, "data=folder:photos")
    check_refused(refused, "folder:photos: a run continues with its own data (glyphs)")


def test_evaluations_are_of_pictures_wherever_they_are(mine: Path, tmp_path: Path) -> None:
    evaluated(mine)
    shutil.copytree(tmp_path / "here" / "photos", tmp_path / "copy")
    evaluated(mine, "--dataset", tmp_path / "copy")
    assert len(list((mine / "evaluations").iterdir())) == 1
    evaluated(mine, "--dataset", "folder:photos")
    assert len(list((mine / "evaluations").iterdir())) == 2


def test_others_do_not_see_where_it_was(mine: Path, tmp_path: Path) -> None:
    Learner.load(mine).save("shared.safetensors")
    assert str(tmp_path).encode() not in Path("shared.safetensors").read_bytes()
    check_refused(run("evaluate", "shared.safetensors"), "photos: has other pictures")
    shutil.rmtree("photos")
    by_file = evaluated("shared.safetensors", "--data", tmp_path / "here")
    assert by_file["accuracies"] == evaluated(mine)["accuracies"]
    run("report", mine)
    assert str(tmp_path) not in Path("report.html").read_text()


def test_a_run_is_the_same_wherever_its_pictures_are_and_another_of_others() -> None:
    config = FewShot(data=Data("folder:/here/photos", fingerprint="1"))
    elsewhere = replace(config, data=replace(config.data, name="folder:/there/photos"))
    others = replace(config, data=replace(config.data, fingerprint="2"))
    assert config.essential == elsewhere.essential
    assert list(differences(to_plain(config.essential), to_plain(others.essential))) == [
        "data.fingerprint = '1', not '2'"
    ]
