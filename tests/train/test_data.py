"""Data of a run: a second data set to be tested on, another size, names that are wrong, folders that are moved."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metastep.cli.main import app
from metastep.errors import MetastepError
from metastep.train.config import Data, FewShot, TargetData
from metastep.train.presets import overridden
from metastep.train.remembered import data_of, moved_to, remembered
from metastep.train.run import Run
from tests.data.helpers import write_classes

SMALL = ("iterations=2", "tasks=2", "data.ways=2", "data.queries=2", "net.filters=4", "steps=1", "method.window=1")


def run(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders of pictures, of 10 classes each"""
    monkeypatch.chdir(tmp_path)
    for name, classes in (("mine", "abcdefghij"), ("yours", "klmnopqrst")):
        write_classes(tmp_path / name, dict.fromkeys(classes, 4))
    return tmp_path


def test_a_run_is_validated_and_tested_on_a_second_data_set(photos: Path) -> None:
    across = (
        "data=folder:mine",
        "data.test=folder:yours",
        "data.size=16",
        "validation.every=2",
        "outer.schedule=constant",
    )
    run("train", *across, *SMALL, "validation.episodes=2", "outer.schedule=constant", "--out", "run")
    config = Run.open(Path("run")).config(FewShot)
    assert (config.data.name, config.data.test) == (f"folder:{photos}/mine", f"folder:{photos}/yours")
    assert config.net.size == 16
    found = json.loads(run("evaluate", "run", "--episodes", 4, "--json"))
    assert found["dataset"] == f"folder:{photos}/yours"
    named = json.loads(run("evaluate", "run", "--episodes", 4, "--json", "--dataset", "folder:yours"))
    assert (named["accuracies"], named["fingerprint"]) == (found["accuracies"], found["fingerprint"])
    assert json.loads(run("evaluate", "run", "--episodes", 4, "--json", "--split", "train"))["dataset"].endswith("mine")
    assert f"folder:{photos}" not in str(config.shared)
    Path("yours").rename("theirs")
    assert "data.test=" in CliRunner().invoke(app, ["resume", "run"]).output
    run("resume", "run", "data.test=folder:theirs", "iterations=3")
    assert Run.open(Path("run")).config(FewShot).data.test == f"folder:{photos}/theirs"


def test_a_transfer_run_is_tested_on_a_second_data_set(photos: Path) -> None:
    write_classes(Path("again"), dict.fromkeys("abcdefghij", 5))
    words = ("method=scratch", "data=folder:mine", "data.test=folder:again", "data.size=16", "batch=5", "epochs=1")
    run("train", "digits-sgd-multistep", *words, "--out", "run")
    assert json.loads(run("evaluate", "run", "--json"))["dataset"] == f"folder:{photos}/again"
    refused = CliRunner().invoke(app, ["train", "digits-sgd-multistep", *words, "data.test=folder:yours"])
    assert "a is not in both. Choose two with the same classes" in refused.output


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Data("omniglto"), r"^data.name = omniglto: there is no such folder here.*Did you mean 'omniglot'\?"),
        (Data("glyphs", test="digitts"), r"^data.test = digitts: there is no .*Did you mean 'digits'\?"),
        (Data("glyphs", test="folder:mine"), r"^data.test = folder:mine: glyphs has pictures of 28x28 in grey, and"),
        (TargetData("digits", test="folder:mine"), r"^data.test = folder:mine: digits has pictures of 32x32 in grey"),
        (Data("omniglot"), r"^data.name = omniglot: where is it\? Name the folder"),
    ],
)
def test_an_error_names_the_field(
    data: Data | TargetData, said: str, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("METASTEP_DATA", raising=False)
    with pytest.raises(MetastepError, match=said):
        data_of(data, None).labelled()


def test_another_data_set_forgets_the_one_to_be_tested_on() -> None:
    across = overridden(FewShot(), ["data=mini_imagenet", "data.test=cub", "data.size=32"])
    assert across.data == Data("mini_imagenet", test="cub", size=32)
    assert overridden(across, ["data=cub"]).data == Data("cub", size=32)
    assert overridden(across, ["data=cub", "data.test=cifar_fs"]).data.test == "cifar_fs"


def test_folders_of_both_are_remembered_and_moved(photos: Path) -> None:
    known = remembered(Data("folder:mine", test="folder:yours"), None)
    assert known.fingerprint != known.test_fingerprint
    assert remembered(known, None) == known
    Path("yours").rename("theirs")
    with pytest.raises(MetastepError, match="is not there"):
        data_of(known, None)
    moved = moved_to(known, None, test="folder:theirs")
    assert (moved.test, moved.test_fingerprint) == (f"folder:{photos}/theirs", known.test_fingerprint)
    assert data_of(moved, None).classes("test").names
    with pytest.raises(MetastepError, match="has other pictures"):
        moved_to(known, None, name="folder:theirs")


def test_the_help_of_train_lists_the_data_sets() -> None:
    said = " ".join(run("train", "--help").replace("│", " ").split())
    assert "Known: cifar100, cifar_fs, cub, cub200, digits," in said
