"""What the documents say is true: their code runs, their tables are in step, the core is as short as promised."""

import ast
import doctest
import inspect
import io
import re
import subprocess
import sys
import tokenize
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from metastep.core import registry

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parent.parent
CORE = ("methods", "estimators", "windows", "optimizers", "curvature")
LINES = 560


WITH_CODE = [
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "how-to").glob("*.md")))
    if "```python" in path.read_text()
]


@pytest.mark.parametrize("page", WITH_CODE)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_code_on_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_loop_by_hand_gives_what_its_counterpart_gives() -> None:
    """Two columns of `coming-from.md` move the net alike"""
    page = (ROOT / "docs" / "how-to" / "coming-from.md").read_text().split("## higher")[0]
    (setup, ours), (by_hand,) = (re.findall(rf"```{kind}\n(.*?)```", page, flags=re.S) for kind in ("python", "py"))
    moved = []
    for code in (ours, by_hand):
        names: dict[str, Any] = {"functional_call": torch.func.functional_call}
        torch.manual_seed(0)
        exec(setup, names)
        tasks = names["tasks"]
        names["episodes"] = [
            ((tasks.support[0][i], tasks.support[1][i]), (tasks.query[0][i], tasks.query[1][i])) for i in range(4)
        ]
        exec(code, names)
        moved.append(torch.cat([p.grad.flatten() for p in names["net"].parameters()]))
    torch.testing.assert_close(*moved)


def test_tables_are_in_step_with_results() -> None:
    run = subprocess.run([sys.executable, "-m", "study", "tables", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_make_bench_runs_what_the_page_says() -> None:
    run = set(re.findall(r"-m study run (\w+)", (ROOT / "Makefile").read_text())) - {"tables"}
    told = re.search(r"`make bench`.*?\n\n", (ROOT / "docs" / "measurements.md").read_text(), flags=re.S)
    assert told
    assert set(re.findall(r"`(\w+)`", told[0])) == run


PAGES = [ROOT / "docs" / "index.md", *(ROOT / "docs" / "how-to").glob("*.md")]  # the others tell what was


def test_commands_that_are_named_exist() -> None:
    from metastep.cli.main import app

    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    texts = [
        path.read_text() for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES, *ROOT.glob("src/**/*.py"))
    ]
    texts = [
        re.sub(r"^Files of results keep the commands as they were typed:.*?\n\n", "", text, flags=re.M | re.S)
        for text in texts
    ]
    named = {word for text in texts for word in re.findall(r"(?:`|    |-m )metastep ([a-z]\w*)", text)}
    assert known >= named > {"train", "resume"}


SOURCE = ROOT / "src" / "metastep"
WITH_EXAMPLES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>>" in path.read_text()]


@pytest.fixture
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an example registers is gone after it"""
    tables = {kind: {name: registry.named(kind, name) for name in registry.names(kind)} for kind in registry._MODULES}
    monkeypatch.setattr(registry, "_registered", tables)


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples_in_docstrings_run(path: Path) -> None:
    module = import_module(".".join(("metastep", *path.relative_to(SOURCE).with_suffix("").parts)))
    done = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    assert done.attempted
    assert not done.failed


VERBS = {
    "Adapt", "Apply", "Call", "Change", "Compare", "Compute", "Describe", "Differentiate", "Evaluate", "Give", "Hold",
    "Learn", "Let", "Load", "Make", "Measure", "Move", "Name", "Report", "Return", "Run", "Say", "Solve", "Stop",
    "Update", "Use",
}  # fmt: skip
ROOMS = ("curvature", "data", "estimators", "methods", "nets", "optimizers", "problems", "solvers", "trees")


def public() -> dict[str, Any]:
    """Every public class and function, by the name that a user writes"""
    import metastep

    named = {name: getattr(metastep, name) for name in metastep.__all__}
    for room in ROOMS:
        named |= {f"{room}.{name}": getattr(named[room], name) for name in getattr(named[room], "__all__", ())}
    ours = {name: thing for name, thing in named.items() if getattr(thing, "__module__", "").startswith("metastep.")}
    return {name: thing for name, thing in ours.items() if inspect.isclass(thing) or inspect.isfunction(thing)}


@pytest.mark.parametrize("room", ROOMS)
def test_a_module_lists_what_is_public(room: str) -> None:
    import metastep

    assert getattr(metastep, room).__all__


def sections(text: str) -> dict[str, str]:
    """The parts of a docstring by their headings"""
    parts = re.split(r"^(Args|Returns|Raises|Example):\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def arguments(thing: Any) -> list[str]:
    """What a user passes; exceptions are not made by users, and a protocol is not made at all"""
    if inspect.isclass(thing) and (issubclass(thing, Exception) or getattr(thing, "_is_protocol", False)):
        return []
    return list(inspect.signature(thing).parameters)


def may_be_left_out(thing: Any) -> set[str]:
    """*args and **options, which say nothing by themselves"""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name for name, given in inspect.signature(thing).parameters.items() if given.kind in variadic}


@pytest.mark.parametrize("name", sorted(public()))
def test_a_public_name_is_documented(name: str) -> None:
    thing = public()[name]
    text = inspect.cleandoc(thing.__doc__ or "")
    first, parts = text.split("\n\n")[0], sections(text)
    assert first.split(" ")[0] in VERBS, f"not an imperative that VERBS knows: {first!r}"
    assert "\n" not in first, f"longer than a line: {first!r}"
    assert first.endswith("."), f"no full stop: {first!r}"
    described = re.findall(r"^    (\w+): \S", parts.get("Args", ""), flags=re.M)
    assert [name for name in arguments(thing) if name in described or name not in may_be_left_out(thing)] == described
    gives = inspect.isfunction(thing) and inspect.signature(thing).return_annotation is not None
    assert ("Returns" in parts) == gives
    assert ">>> " in parts.get("Example", "")


def lines_of_code(path: Path) -> int:
    """Without docstrings, comments and blanks"""
    text = path.read_text()
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in layout
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - docstrings)


def test_the_core_is_read_in_one_sitting() -> None:
    assert sum(lines_of_code(SOURCE / "core" / f"{name}.py") for name in CORE) <= LINES


def test_pages_say_how_long_the_core_is() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"{LINES} lines of code" in (ROOT / page).read_text()
