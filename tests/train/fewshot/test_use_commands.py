"""`metastep evaluate`, `classify` and `report`: what is printed, what is written, what is refused."""

import json
from pathlib import Path

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from metastep.cli import use as use_commands
from metastep.cli.evaluate import evaluate
from metastep.train import presets
from tests.data.test_commands import check_refused
from tests.train.fewshot.use_helpers import drawings, fresh, write_bars, write_run

app = typer.Typer()
for command in (evaluate, use_commands.classify, use_commands.report):
    app.command()(command)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_evaluate_prints_and_saves() -> None:
    write_run(Path("mine"))
    result = run("evaluate", "mine", "--episodes", 5)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "3-way 1-shot, 2 queries of each class; 5 test episodes of stripes; best checkpoint" in result.stdout
    (saved,) = Path("mine/evaluations").iterdir()
    assert f"saved as {saved}" in result.stdout
    assert "0 to 100 %, ┊ chance 33.3 %" in result.stdout
    printed = run("evaluate", "mine", "--episodes", 5, "--json")
    content, kept = json.loads(printed.stdout), json.loads(saved.read_text())
    assert content == kept
    assert f"{content['accuracy']:.2f} ± {content['interval']:.2f} %" in result.stdout
    assert content["checkpoint"] == "best"


def test_where_there_is_no_room_numbers_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(Path("mine"))
    monkeypatch.setenv("COLUMNS", "42")
    printed = run("evaluate", "mine", "--episodes", 5).stdout
    scores = json.loads(run("evaluate", "mine", "--episodes", 5, "--json").stdout)["by_step"]
    assert all(f"{score['accuracy']:.2f} % │" in printed for score in scores)
    assert all(f"± {score['interval']:.2f} │" in printed for score in scores)


def test_evaluate_other_settings_and_the_untrained_net() -> None:
    write_run(Path("mine"))
    options = ("--ways", 4, "--shots", 2, "--steps", "3,1", "--exact-steps", "--checkpoint", "untrained", "--json")
    content = json.loads(run("evaluate", "mine", "--episodes", 3, *options).stdout)
    assert (content["ways"], content["shots"], content["windows"]) == (4, 2, [1, 1, 1, 1])
    assert content["weights"] != json.loads(run("evaluate", "mine", "--episodes", 3, "--json").stdout)["weights"]


@pytest.mark.parametrize(
    ("validated", "asked", "taken", "told"),
    [
        (True, "best", "best", "; best checkpoint"),
        (True, "last", "last", "; last checkpoint"),
        (False, "best", "last", "; last checkpoint"),
        (False, "untrained", "untrained", "; untrained"),
    ],
)
def test_the_checkpoint_that_was_really_taken_is_told(validated: bool, asked: str, taken: str, told: str) -> None:
    write_run(Path("mine"), best=validated)
    result = run("evaluate", "mine", "--episodes", 3, "--checkpoint", asked)
    assert result.stdout.splitlines()[0].endswith(f"3 test episodes of stripes{told}")
    (saved,) = Path("mine/evaluations").iterdir()
    assert f"steps-{taken}-" in saved.name
    assert json.loads(saved.read_text())["checkpoint"] == taken


@pytest.mark.parametrize("checkpoint", ["best", "untrained"])
def test_a_learner_is_opened_for_use(checkpoint: use_commands.Checkpoint) -> None:
    write_run(Path("mine"))
    assert not use_commands.open_learner(Path("mine"), checkpoint, None, "cpu").net.training


def test_a_learner_by_its_file_and_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh().save(tmp_path / "ours.safetensors")
    by_file = run("evaluate", "ours.safetensors", "--episodes", 3, "--json")
    check_refused(run("evaluate", "ours"), "'ours': there is no such run or learner")
    monkeypatch.setattr(presets, "LEARNERS", tmp_path)
    by_name = run("evaluate", "ours", "--episodes", 3, "--json")
    assert json.loads(by_file.stdout)["accuracies"] == json.loads(by_name.stdout)["accuracies"]
    assert json.loads(by_file.stdout)["checkpoint"] == ""
    assert "checkpoint" not in run("evaluate", "ours", "--episodes", 3).stdout
    check_refused(run("evaluate", "other"), "'other'", "comes with metastep: ours")
    assert [path.name for path in tmp_path.iterdir()] == ["ours.safetensors"]


def test_evaluate_refuses_in_one_line(tmp_path: Path) -> None:
    write_run(Path("mine"))
    (tmp_path / "empty").mkdir()
    check_refused(run("evaluate", "empty"), "holds no run")
    check_refused(run("evaluate", "mine", "--steps", "x"), "--steps x")
    check_refused(run("evaluate", "mine", "--steps", "0"), "at least 1")
    check_refused(run("evaluate", "mine", "--ways", 9), "9-way episodes need 9 classes")
    (tmp_path / "mine" / "best.safetensors").write_bytes(b"\x80\x04")
    check_refused(run("evaluate", "mine"), "is a pickle")


def test_what_was_found_is_printed_even_if_it_cannot_be_saved() -> None:
    write_run(Path("mine"))
    Path("mine/evaluations").write_text("in the way")
    result = run("evaluate", "mine", "--episodes", 3)
    assert result.exit_code == 0
    assert "3 test episodes of stripes" in result.stdout
    assert "not saved: 'mine/evaluations': cannot be made" in result.stderr


def test_what_was_found_is_saved_even_if_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*others: object) -> None:
        raise BrokenPipeError

    write_run(Path("mine"))
    monkeypatch.setattr("metastep.cli.evaluate.print_evaluation", closed)
    run("evaluate", "mine", "--episodes", 3)
    assert len(list(Path("mine/evaluations").iterdir())) == 1


def test_turned_classes_and_other_episodes_are_told() -> None:
    write_run(Path("mine"))
    told = run("evaluate", "mine", "--episodes", 3, "--rotations", "per_episode", "--seed", 7).stdout
    assert "2 queries of each class, turned per_episode, seed 7; 3 test episodes" in told


@pytest.fixture
def folders(tmp_path: Path) -> tuple[object, ...]:
    fresh(drawings()).save(tmp_path / "ours.safetensors")
    write_bars(tmp_path / "support", {"lying": 2, "standing": 1})
    write_bars(tmp_path / "query", {"lying": 2, "standing": 2}, first=5, dark=True)
    return "classify", "ours.safetensors", "--support", "support", "--query", "query"


def test_classify_prints_a_table(folders: tuple[object, ...]) -> None:
    result = run(*folders, "--picture", "seen.png")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "4 of 4 right: 100.0 %" in result.stdout
    assert "4 of 7 pictures were inverted" in result.stdout
    assert result.stdout.count("standing/") == 2
    with Image.open("seen.png") as picture:
        assert picture.format == "PNG"


def test_classify_prints_json_or_csv_alone(folders: tuple[object, ...]) -> None:
    Path("query/lying/half.png").write_bytes(b"half a picture")
    content, csv = json.loads(run(*folders, "--json").stdout), run(*folders, "--csv")
    lines = csv.stdout.splitlines()
    assert "metastep: left out: lying/half.png" in csv.stderr
    assert len(content["predictions"]) == len(lines) - 1 == 4
    check_refused(run(*folders, "--csv", "--json"), "--csv and --json")


def test_classify_refuses_in_one_line(folders: tuple[object, ...], tmp_path: Path) -> None:
    check_refused(run(*folders[:-1], "absent"), "absent: is not there")
    result = run(*folders, "--picture", tmp_path / "absent" / "x.png")
    assert result.exit_code == 2
    assert "x.png: cannot be written" in result.stderr


def test_report_says_where_it_is() -> None:
    write_run(Path("mine"))
    assert run("report", "mine").stdout == "report.html: 1 run\n"
    write_run(Path("other"))
    assert run("report", "mine", "other", "--out", "both.html", "--episodes", 0).stdout == "both.html: 2 runs\n"
    assert "<img" in Path("report.html").read_text()
    assert "<img" not in Path("both.html").read_text()


def test_report_says_what_is_not_in_it() -> None:
    write_run(Path("own"), learner=fresh())
    config = json.loads(Path("own/config.json").read_text())
    config["config"]["net"]["name"] = "tests.train.fewshot.helpers:Flat"
    Path("own/config.json").write_text(json.dumps(config))
    first, second = run("report", "own").stdout.splitlines()
    assert first == "report.html: 1 run"
    assert second.startswith("Predictions and costs are not in it. own: this was trained with a net of")


def test_report_refuses_in_one_line(tmp_path: Path) -> None:
    write_run(Path("mine"))
    check_refused(run("report", "absent"), "'absent': is not there")
    (tmp_path / "folder.html").mkdir()
    for out in (tmp_path / "absent" / "x.html", tmp_path / "folder.html"):
        check_refused(run("report", "mine", "--out", out, "--episodes", 0), f"{str(out)!r}: cannot be written")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "mine"]
