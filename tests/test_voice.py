"""Sentences that people read avoid phrases that are hard to read, in docs, help, messages, docstrings and comments."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PHRASES = {  # what to look for: what to write
    r"without a word": "silently",
    r"\bat hand\b": "available, missing",
    r"\bthat who\b|[:;] who\b|\bas who\b|^who [a-z]+s\b": "name who does it",
    r"\blet go of\b": "freed",
    r"\b(is|are) told (?!apart|what)": "reported",
    r"\b[Gg]o(es)? on (with|as|bit|from|where)\b|\bgo on\b[.,]|\bgoes on\b[.,]|\bto go on\b": "continue, resume",
    r"(?<![-./`])\bbeside\b(?!\.py|\.txt|=|: int)": "next to, in addition to",
    r"\bof one's own\b": "your own",
    r"\bof which\b": "one idea a sentence",
    r"\bin which validation was best first\b": "with the best validation accuracy",
    r"\bturn about\b": "interleaved, in turn",
    r"\b[Ww]hoever\b|\b(from|to) whom\b": "name who does it",
    r"\brefused or told\b|\bis not at hand\b": "reported, missing",
    r"\bby who\b|\bfor who\b|\bwho (maps|reads) (it|them)\b": "name who does it",
}
PAGES = [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "study/README.md", "docs/_site/hooks.py")
]
PAGES += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.py")]
PAGES += [ROOT / "Makefile", *(ROOT / "src" / "metastep" / "learners").glob("*.md")]
CODE = [path for room in ("src", "study", "examples") for path in (ROOT / room).rglob("*.py")]
CODE += (ROOT / "src" / "metastep" / "play" / "page").glob("*.js")
IN_RESULTS = ("is not at hand.", "Not at hand", "exact MAML beside first order")  # words that files and tables keep


def readable(path: Path) -> str:
    """The text without what is made from results"""
    text = re.sub(r"<!-- table: \S+ -->.*?<!-- end -->", "", path.read_text(), flags=re.S)
    return re.sub("|".join(map(re.escape, IN_RESULTS)), "", text)


@pytest.mark.parametrize("path", [*PAGES, *CODE], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_phrase_is_hard_to_read(path: Path) -> None:
    found = [
        f"{number}: {match[0]!r}, better: {better}"
        for number, line in enumerate(readable(path).splitlines(), 1)
        for phrase, better in PHRASES.items()
        if (match := re.search(phrase, line))
    ]
    assert not found, "\n".join(found)


BEFORE = (
    "Wrong without a word", "So that who records a step calls it as it is", "is let go of then", "the run goes on.",
    "what is kept beside it", "there is no GPU at hand", "a form of which inductor makes fewer kernels",
    "it is told so", "two of them turn about", "Whoever records it", "from whom is it to learn?",
)  # fmt: skip
AFTER = (
    "Silently wrong.", "Someone who knows the paper", "Which classes cannot be told apart", "Besides, it is available.",
    "This is side by side", "You are told what to write.", "It continues where it stopped.",
)  # fmt: skip


def test_phrases_catch_the_dialect_and_nothing_else() -> None:
    assert [text for text in BEFORE if not any(re.search(phrase, text) for phrase in PHRASES)] == []
    assert [text for text in AFTER if any(re.search(phrase, text) for phrase in PHRASES)] == []
