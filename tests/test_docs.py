"""What the documents say is true: their code runs, their tables are in step, the core is as short as promised."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parent.parent
CORE = ("methods", "estimators", "windows", "dynamics", "curvature")


@pytest.mark.parametrize("page", ["README.md", "docs/library.md", "docs/transfer.md"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_code_on_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_every_public_name_is_on_the_page() -> None:
    import metastep

    page = (ROOT / "docs" / "library.md").read_text()
    assert [name for name in metastep.__all__ if not re.search(rf"\b{name}\b", page)] == []


def test_tables_are_in_step_with_results() -> None:
    run = subprocess.run([sys.executable, "-m", "study", "tables", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_make_bench_runs_what_the_page_says() -> None:
    run = set(re.findall(r"-m study run (\w+)", (ROOT / "Makefile").read_text())) - {"tables"}
    told = re.search(r"`make bench`.*?\n\n", (ROOT / "docs" / "measurements.md").read_text(), flags=re.S)
    assert told
    assert set(re.findall(r"`(\w+)`", told[0])) == run


def test_commands_of_transfer_that_are_named_exist() -> None:
    from metastep.cli.transfer import app

    known = {command.name or str(command.callback.__name__) for command in app.registered_commands if command.callback}
    texts = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("study/**/*.py"),
        ROOT / "study" / "README.md",
        *ROOT.glob("src/**/*.py"),
    ]
    named = {word for path in texts for word in re.findall(r"metastep transfer ([a-z]\w*)", path.read_text())}
    assert known >= named > set()


def lines_of_code(path: Path) -> int:
    """Without docstrings, comments and blanks"""
    text = path.read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    first = [node.body[0] for node in ast.walk(ast.parse(text)) if isinstance(node, documented) and node.body]
    docstrings = {
        line
        for node in first
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
    assert sum(lines_of_code(ROOT / "src" / "metastep" / "core" / f"{name}.py") for name in CORE) <= 500
