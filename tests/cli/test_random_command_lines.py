"""Random command lines: one line and status 2, or a run; never a traceback, never a file that is half written."""

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from PIL import Image
from typer.testing import CliRunner

from metastep.cli.fields import all_fields
from metastep.cli.main import app
from metastep.data import download
from metastep.errors import MetastepError
from metastep.report import comparison
from metastep.train import loop, presets
from metastep.train.presets import overridden, to_toml
from metastep.train.run import Trained
from metastep.train.validated import from_plain, to_plain
from tests.cli.helpers import COMMANDS

OPTIONS = [
    *("inner.lr", "inner.momentum", "inner.betas", "inner.eps", "method.window", "method.depth", "method.solver"),
    *("method.solver.steps", "method.curvature", "method.head", "method.weights", "net.filters", "net.head_init"),
    *("net.channels", "data", "source", "a", "inner.lr.x", "..", "=", ""),
]
FIELDS = [f"--{field.parameter}" for field in all_fields()]
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


PLACES = [
    "runs/one",
    "runs/damaged",
    "runs/empty",
    "runs/new",
    "photos",
    "folder:photos",
    "photos/a/0.png",
    "mine.toml",
    ".",
]
NAMES = ["glyphs", "digits", "omniglot", "cub", "omniglot-5w1s", "glyphs-5w1s-maml", "digits-sgd-multistep"]
FILES = [
    "x.png",
    "x.html",
    "x",
    "photos.png",
    "no/such/x.png",
    "runs/one",
    "",
    "\x00",
    "\udcff",
    "é\x1b[31m",
    "n" * 300,
]
NUMBERS_OF_OPTIONS = ["-1", "0", "1", "2", "3", "0.5", "9" * 40, "1e308", "-inf", "nan", "1,,2", "2,1", "x"]
ANYTHING = st.sampled_from(PLACES + NAMES + FILES + NUMBERS_OF_OPTIONS)
FITTING = {
    "run": [*PLACES[:2], "omniglot-5w1s"], "runs": PLACES[:2], "name": ["photos", "glyphs", "folder:photos", "digits"],
    "support": ["photos"], "query": ["photos", "photos/a"], "begin": ["mine.toml", "glyphs-5w1s-maml", "runs/one"],
    "out": FILES, "picture": FILES, "split": ["train", "test", "all"], "device": ["cpu"], "job": ["few-shot"],
    "checkpoint": ["best", "untrained"], "dataset": ["glyphs"], "steps": ["2", "1,1"], "ink": ["dark"],
}  # fmt: skip
LEAVES = {name: command for name, command in COMMANDS.items() if not hasattr(command, "commands")}


def values(name: str) -> st.SearchStrategy[str]:
    """Mostly what an option or argument of this name takes"""
    fitting = st.sampled_from(FITTING.get(name, ["1", "2", "3"]))
    return st.one_of(fitting, fitting, fitting, fitting, ANYTHING)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command, most of what it asks for, some of its options, and fields where it takes them"""
    name = draw(st.sampled_from(sorted(LEAVES)))
    words = name.split()
    for parameter in LEAVES[name].params:
        if parameter.param_type_name == "argument":
            fields = parameter.name == "changes"
            given = st.tuples(KEYS, VALUES).map("=".join) if fields else values(parameter.name)
            words += draw(st.lists(given, min_size=0 if fields else 1, max_size=3 if parameter.nargs == -1 else 1))
        elif parameter.name in ("plugin", "version", "help"):
            continue
        elif parameter.required or draw(st.integers(0, 19)) < (1 if "--" + str(parameter.name) in FIELDS else 4):
            option = draw(st.sampled_from(parameter.opts))
            words += [option] if parameter.is_flag else [option, draw(values(parameter.name))]
    return words


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of which is damaged, a folder of pictures, and a file"""
    place = tmp_path_factory.mktemp("lines")
    quick = ["net.filters=4", "data.queries=2", "steps=2", "tasks=1", "iterations=2", "validation.every=0"]
    config = overridden(presets.few_shot()["glyphs-5w1s-multistep4"], [*quick, "method.window=2"])
    loop.train(config, place / "runs" / "one")
    shutil.copytree(place / "runs" / "one", place / "runs" / "damaged")
    (place / "runs" / "damaged" / "metrics.jsonl").write_text('{"step": 1, "kind": "train", "loss": "x"}\n[]\n')
    (place / "runs" / "empty").mkdir()
    for i, name in enumerate("ab"):
        (place / "photos" / name).mkdir(parents=True)
        for j in range(3):
            Image.new("RGB", (9, 9), (i, j, 0)).save(place / "photos" / name / f"{j}.png")
    (place / "mine.toml").write_text(to_toml({"job": "few_shot", **to_plain(config)}))
    return place


@pytest.fixture
def _quickly(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """All but what takes long, or needs a network"""

    def refused(*arguments: Any, **options: Any) -> None:
        raise MetastepError("it takes too long.")

    monkeypatch.chdir(place)
    monkeypatch.delenv("METASTEP_DATA", raising=False)
    monkeypatch.setattr(loop, "train", lambda config, *others: Trained(config.length))
    monkeypatch.setattr(loop, "_carried_out", lambda plan, ranks: Trained(plan.config.length))
    monkeypatch.setattr(download, "download", refused)
    monkeypatch.setattr(comparison, "compared", refused)


def require_whole(path: Path) -> None:
    """A file that a command wrote is there from its beginning to its end"""
    assert not re.search(r"\.partial$|\.part$|^\.writing-", path.name), path
    if path.suffix == ".html":
        assert path.read_text(errors="replace").rstrip().endswith("</html>")
    elif path.suffix == ".png":
        Image.open(path).load()


@pytest.mark.usefixtures("_quickly")
@given(words=command_lines())
@settings(QUICKLY, max_examples=150, phases=[Phase.generate])  # shrinking what is slow would take too long
def test_random_command_lines_end_in_one_line(words: list[str]) -> None:
    if words[0] == "evaluate" and "--episodes" not in words:
        words = [*words, "--episodes", "2"]
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (0, 1, 2, 130), (words, done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output
    assert "pydantic" not in done.output
    if done.exit_code == 2 and "Usage:" not in done.output:
        assert [line[:10] for line in done.stderr.splitlines()] == ["metastep: "], (words, done.stderr)
    for path in Path().rglob("*"):
        if path.is_file() and before.get(path) != path.stat().st_mtime_ns:
            require_whole(path)


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
