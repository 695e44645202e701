"""The claims of the paper do not change: every field of each of the 113, its judge by name and arguments.

The digests in register.json were made at commit 83121be. They stay as they are; `described` follows the code.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from study.claims.claims import Claim
from study.claims.register import REGISTER

EXPECTED: dict[str, str] = json.loads(Path(__file__).with_name("register.json").read_text())


def described(claim: Claim) -> dict[str, Any]:
    """All that a claim consists of, as plain values."""
    judge: Any = claim.judge
    cells = [cell.cell_contents for cell in judge.__closure__ or ()]
    arguments = dict(zip(judge.__code__.co_freevars, cells, strict=True))
    if "bound_of" in arguments:
        arguments["bound_of"] = [arguments["bound_of"](preset) for preset in claim.presets]
    name = judge.__qualname__.partition(".")[0]
    fields = ("id", "claim", "paper", "presets", "stand_in", "group", "computed", "table")
    return {field: getattr(claim, field) for field in fields} | {"judge": name, "arguments": arguments}


def digest(claim: Claim) -> str:
    return sha256(json.dumps(described(claim), sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("id", EXPECTED)
def test_a_claim_is_what_it_was(id: str) -> None:
    assert digest(REGISTER[id]) == EXPECTED[id], described(REGISTER[id])


def test_there_are_no_others() -> None:
    assert list(REGISTER) == list(EXPECTED)
    assert len(EXPECTED) == 113
