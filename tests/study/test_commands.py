"""`python -m study run`: what it lists, what it refuses, and how a command is told again."""

import argparse
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metastep.train.device import CHANGED
from study import CODE, commands, results
from study.bench import options as bench_options, results as files
from study.claims import files as claim_files
from study.claims.claims import Finding
from study.claims.register import REGISTER
from study.experiments import arguments


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(commands.app, words)
    return done.exit_code, done.output


@pytest.mark.parametrize("words", [("run",), ("run", "--help")])
def test_without_a_name_every_experiment_is_listed(words: tuple[str, ...]) -> None:
    code, output = call(*words)
    lines = output.splitlines()[2:]
    assert code == 0
    assert [line.split()[0] for line in lines] == list(commands.experiments())
    assert "short_runs       Train four methods for a short time on a CPU" in output
    assert not {"trials", "settings", "first_look", "arguments"} & {line.split()[0] for line in lines}
    assert all(len(line.split()) > 3 for line in lines), "each says what it is"


def test_an_unknown_experiment_is_refused() -> None:
    code, output = call("run", "short_rnus")
    assert code == 2
    assert "there is no experiment 'short_rnus'. Did you mean 'short_runs'? Choose one of compare_conv4" in output


def test_what_follows_the_name_is_for_the_experiment() -> None:
    code, output = call("run", "heads", "--help")
    assert code == 0
    assert "usage: python -m study run heads" in output
    assert "--episodes" in output


def test_a_command_tells_what_rows_depend_on() -> None:
    parser = arguments.parser("study", "What it is.")
    arguments.add_runs(parser)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--vary", nargs="+", default=[])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--pair", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float)
    arguments.add_data(parser)
    typed = ["runs/a", "--vary", "inner.lr=0.1,0.2", "seed=1", "--no-compile", "--budget", "60", "--data", "/somewhere"]
    options = parser.parse_args(typed)
    expected = "python -m study run study RUNS --vary inner.lr=0.1,0.2 seed=1 --no-compile --repeats 3 --data DATA"
    assert arguments.command("study RUNS", options) == expected
    assert arguments.command("study", argparse.Namespace(rate=0.0, name="a b", pair=True), "pair") == (
        "python -m study run study --rate 0.0 --name 'a b'"
    )


def test_code_of_the_study_that_is_not_committed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study lies beside the package, and has made the numbers too."""
    seen: list[Path] = []

    def commit(*folders: Path) -> str:
        seen.extend(folders)
        return "abc" + CHANGED

    monkeypatch.setattr(files, "commit", commit)
    monkeypatch.setattr(claim_files, "commit", commit)
    place = results.device_for("cpu")
    assert bench_options.about("bench", {"threads": 1}, place)["commit"] == "abc, changed"
    assert results.provenance("c")["commit"] == "abc, changed"
    assert claim_files.content_of(REGISTER["X16"], Finding("measured"))["commit"] == "abc, changed"
    assert seen == [CODE] * 3
    assert (CODE / "claims" / "claims.toml").is_file()


def test_rows_are_safe_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "bench")
    monkeypatch.setattr(results, "ROOT", tmp_path)

    def rows() -> object:
        yield {"method": "a"}
        assert json.loads((tmp_path / "bench" / f"{results._device()}-x.json").read_text())["rows"] == [{"method": "a"}]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results.write_each("x", "c", [], rows())  # type: ignore[arg-type]
