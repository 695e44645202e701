"""Every claim of the paper (Kim, Park and Choi 2020), by table, read from claims.toml."""

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metastep.errors import MetastepError
from study.claims.claims import Claim
from study.claims.judges import judge_named

FILE = Path(__file__).with_name("claims.toml")


def read(path: Path) -> tuple[dict[str, str], dict[str, Claim]]:
    """Return the title of each table, and each claim by its id, in the order of the file."""
    tables = tomllib.loads(path.read_text())
    claims = [claim for table in tables.values() for claim in _claims(table["claims"], path)]
    several = [id for id, number in Counter(claim.id for claim in claims).items() if number > 1]
    if several:
        raise MetastepError(f"{path.name}: two claims are called {several[0]}. Give each an id of its own.")
    return {name: table["title"] for name, table in tables.items()}, {claim.id: claim for claim in claims}


def _claims(rows: list[dict[str, Any]], path: Path) -> Iterator[Claim]:
    for row in rows:
        try:
            yield claim_of(row)
        except (MetastepError, KeyError, TypeError) as error:
            raise MetastepError(
                f"{path.name}, claim {row.get('id', '?')}: {error}. The top of the file explains what a row has."
            ) from error


def claim_of(row: dict[str, Any]) -> Claim:
    """Return the claim that a row describes."""
    judge = judge_named(row["judge"], row.get("with", {}), row["paper"])
    fields: dict[str, Any] = {name: value for name, value in row.items() if name not in ("judge", "with")}
    fields |= {name: tuple(fields[name]) for name in ("presets", "stand_in") if name in fields}
    return Claim(judge=judge, **fields)


TABLES, REGISTER = read(FILE)
