"""Each shell line of the pages can be typed: commands, flags, presets, learners, fields exist. A walk of them runs."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.main import get_command
from typer.testing import CliRunner

from metastep.cli.fields import changes_of
from metastep.cli.main import app
from metastep.cli.train import DEFAULT, begun_from, with_net_of_source
from metastep.data.registry import load
from metastep.report.sheet import save_picture, shown
from metastep.train import presets
from metastep.train.presets import overridden, shipped, to_toml
from metastep.train.validated import to_plain

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted({*DOCS.glob("*.md")} - {DOCS / "log.md"}), *sorted(DOCS.glob("how-to/*.md"))]
QUICK = {"iterations": "2", "validation.every": "2", "validation.episodes": "2", "tasks": "2"}
PLACES = {"PRESET": "glyphs-5w1s-maml", "LEARNER": "omniglot-5w1s", "NAME": "glyphs", "FILE.toml": "mine.toml"}


def commands() -> list[tuple[str, bool, list[str]]]:
    """Return (page, whether it is a line of its own, words) of each command of the pages."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        text = re.sub(r"^Files of results keep the commands as they were typed:.*?\n\n", "", text, flags=re.M | re.S)
        lines = re.findall(r"^    ((?:torchrun .*-m )?metastep .*)$", text, flags=re.M)
        mentions = re.findall(r"`((?:torchrun .*-m )?metastep [a-z][^`]*)`", text)
        both = [(True, line) for line in lines] + [(False, line) for line in mentions]
        found += [(page.name, whole, shlex.split(line, comments=True)) for whole, line in dict.fromkeys(both)]
    return found


COMMANDS = commands()


def test_there_are_lines_to_check() -> None:
    assert len(COMMANDS) > 30


@pytest.fixture
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which the file that the pages name is there"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("mine.toml").write_text(to_toml({"job": "few_shot", **to_plain(presets.preset(DEFAULT))}))


def parsed(words: list[str], whole: bool) -> tuple[str, dict[str, Any], list[str]]:
    """Return what the command line is read as: the command, its parameters, and words that are left to us."""
    command: Any = get_command(app)
    name, context = "", Context(command, info_name="metastep")
    words = words[words.index("metastep") + 1 :]
    if ">" in words:
        words = words[: words.index(">")]
    while hasattr(command, "commands"):
        name, *words = words
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
        context = Context(command, info_name=name, parent=context)
    lenient = not whole or "--help" in words
    made = command.make_context(name, words, parent=context.parent, resilient_parsing=lenient)
    return name, made.params, made.args


def identified(value: object) -> str:
    return "-".join(value) if isinstance(value, list) else str(value)


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize(("page", "whole", "words"), COMMANDS, ids=identified)
def test_a_line_can_be_typed(page: str, whole: bool, words: list[str]) -> None:
    del page
    words = [PLACES.get(word, word.replace("=LEARNER", "=omniglot-5w1s")) for word in words]
    name, params, rest = parsed(words, whole)
    if name == "train" and "--help" not in words:
        train_can_be_typed(params, rest)
    elif name == "presets" and params["name"]:
        assert params["name"] in presets.known()
    elif name in ("classify", "evaluate", "compare") and params["run"] not in ("RUN", None):
        assert params["run"] in {*shipped(), *presets.known()} or params["run"].startswith("runs/")


def train_can_be_typed(params: dict[str, Any], rest: list[str]) -> None:
    begin, typed = params["begin"], [*(params["changes"] or []), *rest]
    if "=" in begin:
        begin, typed = DEFAULT, [begin, *typed]
    usual = begun_from(begin, [])[1]
    options = {key: value for key, value in params.items() if key not in ("begin", "changes", "out", "data", "plugin")}
    changes = changes_of([word for word in typed if word not in ("…", "FIELD=VALUE")], options)
    overridden(usual, with_net_of_source(changes))


@pytest.mark.usefixtures("_place")
def test_own_pictures_from_check_to_classify() -> None:
    """The walk of how-to/pictures.md, with few iterations on small pictures"""
    digits = load("digits").labelled().train
    for label in range(10):
        for i, picture in enumerate(digits.images[digits.labels == label][:8]):
            folder = Path("photos") / f"kind {label}"
            folder.mkdir(parents=True, exist_ok=True)
            save_picture(shown(picture), folder / f"{i}.png")
    quick = [f"{key}={value}" for key, value in QUICK.items()]
    small = ["data.size=28", "net=conv4", "net.filters=8", "data.ways=2", "data.queries=3", "steps=2"]
    walk = [
        ["data", "check", "photos", "--ways", "2", "--shots", "1", "--queries", "3"],
        ["data", "show", "photos", "--ways", "2", "--queries", "3"],
        ["train", "data=folder:photos", *small, *quick, "--out", "runs/mine"],
        ["evaluate", "runs/mine", "--episodes", "4"],
        ["report", "runs/mine", "--out", "report.html"],
        ["classify", "runs/mine", "--support", "photos", "--query", "photos/kind 3", "--picture", "predictions.png"],
        ["resume", "runs/mine"],
        ["train", "runs/mine", "iterations=3", "--out", "runs/longer"],
    ]
    for words in walk:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (words, done.output)
    assert all(Path(name).stat().st_size > 5_000 for name in ("photos-all.png", "report.html", "predictions.png"))
