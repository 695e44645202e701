"""Random command lines: one line and status 2, or a run; never a traceback, never a file that is half written."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from typer.testing import CliRunner

from metastep.cli.fields import all_fields
from metastep.cli.main import app
from metastep.errors import MetastepError
from metastep.train import presets
from metastep.train.fewshot import train as few_shot_training
from metastep.train.fewshot.train import Trained
from metastep.train.overrides import overridden
from metastep.train.toml import to_toml
from metastep.train.transfer import train as transfer_training
from metastep.train.validated import from_plain, to_plain

OPTIONS = [
    *("inner.lr", "inner.momentum", "inner.betas", "inner.eps", "method.window", "method.depth", "method.solver"),
    *("method.solver.steps", "method.curvature", "method.head", "method.weights", "net.filters", "net.head_init"),
    *("net.channels", "data", "source", "a", "inner.lr.x", "..", "=", ""),
]
KEYS = st.sampled_from([field.path for field in all_fields()] + OPTIONS) | st.text(max_size=8)
WORDS = ["adam", "sgd", "adamw", "maml", "multi_step", "imaml", "truncated", "scratch", "transfer", "fine_tuning"]
WORDS += ["exact", "neumann", "zero", "linear", "trainval", "none", "null", "true", "conv4", "vgg4", "folder:x", "cpu"]
NUMBERS = ["-1", "0", "1", "2", "3.5", "1e308", "1e-320", "nan", "-inf", "9" * 40, "1e999", ".5", "0x10", "1_000"]
NUMBERS += ["4,2,1", "1,,2", ",", "[1, 2]", "[1", "{a = 1}", "1979-05-27", '"quoted"', "'", "\n", "\ud800", "\x00"]
VALUES = st.sampled_from(WORDS + NUMBERS) | st.integers().map(str) | st.floats().map(str) | st.text(max_size=8)
CHANGES = st.lists(st.tuples(KEYS, VALUES).map("=".join), min_size=1, max_size=4)
STARTS = ["glyphs-5w1s-multistep4", "omniglot-20w1s-imaml", "glyphs-5w1s-reptile", "digits-sgd-multistep"]
QUICKLY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)


@given(start=st.sampled_from(STARTS), changes=CHANGES)
@settings(QUICKLY, max_examples=500)
def test_random_changes_are_made_or_refused_in_one_line(start: str, changes: list[str]) -> None:
    config = presets.preset(start)
    try:
        changed = overridden(config, changes)
    except MetastepError as error:
        said = str(error)
    else:
        assert from_plain(type(config), json.loads(json.dumps(to_plain(changed)))) == changed
        assert to_toml(to_plain(changed))
        return
    assert said.strip()
    assert "\n" not in said
    assert "pydantic" not in said


@pytest.fixture
def _untrained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All but training itself, which takes long"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("METASTEP_DATA", raising=False)
    monkeypatch.setattr(few_shot_training, "train", lambda config, *others: Trained(config.iterations))
    monkeypatch.setattr(transfer_training, "train", lambda config, *others: transfer_training.Trained(config.epochs))


ARGUMENTS = st.lists(
    st.sampled_from(["train", "resume", "evaluate", "classify", "compare", "report", "presets", "data", "list", "x"])
    | st.sampled_from(["glyphs-5w1s-maml", "a.toml", "runs/x", ".", "--out", "--steps", "--json", "--toml", "--data"])
    | st.tuples(KEYS, VALUES).map("=".join)
    | st.tuples(KEYS, VALUES).map(lambda pair: f"--{pair[0]}={pair[1]}"),
    max_size=5,
)


@pytest.mark.usefixtures("_untrained")
@given(command=st.sampled_from(["train", "resume", "presets", "evaluate", "report"]), rest=ARGUMENTS)
@settings(QUICKLY, max_examples=100)
def test_random_command_lines_end_in_one_line(command: str, rest: list[str]) -> None:
    done = CliRunner().invoke(app, [command, *rest])
    assert done.exit_code in (0, 2, 130), (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output
    assert not list(Path().rglob("*.partial"))


@given(
    text=st.text(max_size=60) | st.tuples(KEYS, VALUES).map(lambda pair: f'like = "{STARTS[0]}"\n{pair[0]}={pair[1]}')
)
@settings(QUICKLY, max_examples=100)
def test_random_files_are_read_or_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text, errors="surrogatepass")
    with suppress(MetastepError):
        found: Any = presets.read(path)
        assert to_plain(found)
