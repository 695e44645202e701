"""Words that many things could be called by are the name of one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for folder in ("src", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]


def named(path: Path) -> Iterator[str]:
    """A module, and what is defined or assigned in it"""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@pytest.mark.parametrize(
    ("word", "places"),
    [
        # other runs under way: how far a run is, what it found
        ("beside", {"runs/together.py", "fewshot/train.py", "transfer/epoch.py", "reproduce/outcomes.py"}),
        ("joined", {"trees.py", "joining.py"}),  # leaves as one vector, and the same in a graph
    ],
)
def test_a_name_has_one_meaning(word: str, places: set[str]) -> None:
    found = [path for path in FILES if word in {name.strip("_").lower() for name in named(path)}]
    assert {path.relative_to(ROOT / "src" / "metastep").as_posix() for path in found} == places
