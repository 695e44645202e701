"""How many words the documentation has, now and before it was rewritten.

Prose is what a reader reads from start to end: words outside of tables and code. Generated tables are those between
`<!-- table: … -->` and `<!-- end -->`.
"""

import json
import re
import subprocess
from typing import Annotated

import typer

from metastep.train.io import replace_file
from study import CODE

ROOT = CODE.parent
FILE = ROOT / "results" / "words.json"
BEFORE = "f8a7508"
PAGES = re.compile(r"(README|CONTRIBUTING|CHANGELOG|study/README|benchmarks/README|docs/.*)\.md")
GENERATED = re.compile(r"<!-- table: .*?<!-- end -->", re.S)
CODE_BLOCK = re.compile(r"^```[^`]*^```|(?<=\n\n)(?:    [^\n]*\n)+", re.M)
TABLE_ROW = re.compile(r"^ *\|.*$", re.M)
Counts = dict[str, int]


def counted(text: str) -> Counts:
    """Count the words of a page in three ways: as `wc -w` does, without generated tables, and its prose."""
    written = GENERATED.sub("", text)
    prose = TABLE_ROW.sub("", CODE_BLOCK.sub("", written))
    return {"all": len(text.split()), "without generated tables": len(written.split()), "prose": len(prose.split())}


def total(pages: dict[str, str]) -> Counts:
    """Count the words of several pages together."""
    each = [counted(text) for text in pages.values()]
    return {kind: sum(one[kind] for one in each) for kind in counted("")}


def now() -> dict[str, str]:
    """Return the pages as they are."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("study/*.md"), *ROOT.glob("docs/**/*.md")]
    names = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return {name: (ROOT / name).read_text() for name in names if PAGES.fullmatch(name)}


def at(commit: str) -> dict[str, str]:
    """Return the pages of a commit."""
    names = _git("ls-tree", "-r", "--name-only", commit).split()
    return {name: _git("show", f"{commit}:{name}") for name in names if PAGES.fullmatch(name)}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def kept() -> dict[str, Counts]:
    """Return the counts of the file: `before` and `now`."""
    found: dict[str, Counts] = json.loads(FILE.read_text())
    return found


def words(write: Annotated[bool, typer.Option("--write", help=f"Keep the counts in {FILE.name}.")] = False) -> None:
    """Count the words of the documentation, and compare them with those before it was rewritten."""
    pages = now()
    for name, text in pages.items():
        print(f"{counted(text)['prose']:6,}  {name}")
    found = {"before": total(at(BEFORE)) if write else kept()["before"], "now": total(pages)}
    for kind, number in found["now"].items():
        was = found["before"][kind]
        print(f"{kind}: {number:,}, at {BEFORE} {was:,} ({100 * (number / was - 1):+.0f} %)")
    if write:
        replace_file(FILE, json.dumps({"command": "python -m study words --write", **found}, indent=1).encode() + b"\n")
