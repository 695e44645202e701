"""What is done and what is open, as a table on the terminal."""

from collections.abc import Iterable
from pathlib import Path

from rich.table import Table
from rich.text import Text

from metastep.errors import how_many
from study.claims import files
from study.claims.claims import Claim
from study.claims.evidence import Evidence
from study.claims.files import Content
from study.claims.planning import is_done, presets_of, seeds_of
from study.claims.session import absence

COLOURS = {"better": "green", "reproduced": "green", "short": "yellow", "not reproduced": "red"}


def listing(claims: Iterable[Claim], evidence: Evidence, out: Path, seeds: int | None) -> Table:
    """Id, verdict, and lines about it: as columns of their own they would be too narrow to read in 80"""
    table = Table.grid(padding=(0, 2, 0, 0))
    for claim in claims:
        content = files.read(out, claim.id)
        verdict = content["verdict"] if content else ""
        ours = files.shown_value(content) if content else ""
        parts = (f"paper {claim.paper}", f"ours {ours}" if ours else "", state_of(claim, content, evidence, seeds))
        about = Text(claim.claim, overflow="fold").append(f"\n{' · '.join(filter(None, parts))}", "dim")
        colour = COLOURS.get(verdict, "dim")
        table.add_row(Text(claim.id, "bold", no_wrap=True), Text(verdict, colour, no_wrap=True), about)
    return table


def state_of(claim: Claim, content: Content | None, evidence: Evidence, seeds: int | None) -> str:
    if is_done(claim, content, evidence, seeds) or (files.is_judged(content) and not claim.presets):
        return "done"
    if not claim.presets:
        return f"not run because {content['note'].rstrip('.')}" if content else "open"
    if running := _running(claim, evidence):
        return running
    if files.is_judged(content):
        assert content is not None
        wanted = seeds or seeds_of(claim.presets[0])
        made = f"{len(content['seeds'])} of {how_many(wanted, 'seed')}, {how_many(content['iterations'], 'iteration')}"
        return f"done with {made}"
    if absent := absence(claim, evidence):
        return f"needs data: {absent}"
    return "open"


def _running(claim: Claim, evidence: Evidence) -> str:
    """The first run that was begun and is not finished"""
    for preset in presets_of(claim, evidence):
        for seed in evidence.folders(preset):
            position = evidence.position(preset, seed)
            if position and not position.finished:
                return f"running: {preset} at {position.unit} {position.done:,} of {position.total:,}"
            if not evidence.finished(preset, seed):
                return f"running: {preset} is trained and not tested"
    return ""
