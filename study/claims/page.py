"""The rows of docs/results.md: every claim, and what was found, from the files of claims."""

from collections.abc import Iterator
from pathlib import Path

from study.claims import files
from study.claims.claims import Claim
from study.claims.files import Content
from study.claims.register import REGISTER, TABLES

HEADINGS = ("claim", "what", "paper", "ours", "verdict", "seeds", "iterations", "seconds", "device", "data", "note")
FEW_SHOT = ("T4", "T5")  # tables
MANY = 4  # seconds of so many runs are listed; of more, their sum is told


def summary(folder: Path) -> Iterator[str]:
    """Count which verdict how many claims of each table have."""
    verdicts = ("better", "reproduced", "short", "not reproduced", "measured", "not run", "open")
    yield "| | claims | " + " | ".join(verdicts) + " |"
    yield "|---|---:|" + "---:|" * len(verdicts)
    for table, title in TABLES.items():
        found = [_verdict(files.read(folder, claim.id)) for claim in _of(table)]
        counts = (str(found.count(verdict) or "") for verdict in verdicts)
        yield f"| {title} | {len(found)} | " + " | ".join(counts) + " |"


def rows(table: str, folder: Path) -> Iterator[str]:
    yield "| " + " | ".join(HEADINGS) + " |"
    yield "|" + "---|" * len(HEADINGS)
    for claim in _of(table):
        yield "| " + " | ".join(_cell(text) for text in _cells(claim, files.read(folder, claim.id))) + " |"


def few_shot_accuracies(folder: Path) -> Iterator[str]:
    """Ours and in brackets the paper's, of every method and setting that has one of ours"""
    found: dict[str, dict[str, str]] = {}
    claims = [claim for table in FEW_SHOT for claim in _of(table) if claim.presets]
    for claim in claims:
        content = files.read(folder, claim.id)
        if content and content["value"] is not None:
            ours, paper = f"{content['value']:.2f}", claim.paper.partition("±")[0]
            found.setdefault(claim.claim.partition(",")[0], {})[_setting(claim)] = f"{ours} ({paper})"
    settings = [s for s in dict.fromkeys(map(_setting, claims)) if any(s in row for row in found.values())]
    yield f"| accuracy, % | {' | '.join(settings)} |"
    yield "|---|" + "---:|" * len(settings)
    for title, row in found.items():
        yield f"| {title} | {' | '.join(row.get(setting, '') for setting in settings)} |"


def _setting(claim: Claim) -> str:
    """Return what the preset of a cell is of, such as omniglot-5w1s."""
    return claim.presets[0].rpartition("-")[0]


def _of(table: str) -> list[Claim]:
    return [claim for claim in REGISTER.values() if claim.table == table]


def _verdict(content: Content | None) -> str:
    return content["verdict"] if content else "open"


def _cells(claim: Claim, content: Content | None) -> tuple[str, ...]:
    if content is None:
        return claim.id, claim.claim, claim.paper, "", "open", *[""] * (len(HEADINGS) - 5)
    return (
        claim.id,
        claim.claim,
        claim.paper,
        files.shown_value(content),
        content["verdict"],
        ", ".join(map(str, content["seeds"] or ())),
        f"{content['iterations']:,}" if content["iterations"] else "",
        _seconds(content["seconds"] or []),
        content["device"] or "",
        content["data"] or "",
        content["note"],
    )


def _seconds(each: list[float]) -> str:
    if len(each) > MANY:
        return f"{sum(each):,.0f} in {len(each)} runs"
    return ", ".join(f"{value:,}" for value in each)


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
