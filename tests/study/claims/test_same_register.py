"""The claims of the paper do not change: every field of each of the 113, its judge by name and arguments.

The digests in register.json were made at commit 83121be. They stay as they are; `described` follows the code.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from study.claims.cells import RULES, Printed
from study.claims.claims import Claim
from study.claims.register import REGISTER
from study.claims.transfer_comparing import is_better

EXPECTED: dict[str, str] = json.loads(Path(__file__).with_name("register.json").read_text())


def described(claim: Claim) -> dict[str, Any]:
    """All that a claim consists of, as plain values."""
    judge: Any = claim.judge
    arguments = dict(judge.keywords)
    if "paper" in arguments:
        arguments["printed"] = Printed.read(arguments.pop("paper"))
    if "rule" in arguments:
        arguments["rule"] = RULES[arguments["rule"]]
    if "others" in arguments:
        others, bound = arguments.pop("others"), arguments.pop("bound")
        arguments["bound_of"] = [others.get(preset, bound) for preset in claim.presets]
    if judge.func is is_better:
        arguments.setdefault("size", None)
    fields = ("id", "claim", "paper", "presets", "stand_in", "group", "computed", "table")
    return {field: getattr(claim, field) for field in fields} | {"judge": judge.func.__name__, "arguments": arguments}


def digest(claim: Claim) -> str:
    return sha256(json.dumps(described(claim), sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("id", EXPECTED)
def test_a_claim_is_what_it_was(id: str) -> None:
    assert digest(REGISTER[id]) == EXPECTED[id], described(REGISTER[id])


def test_there_are_no_others() -> None:
    assert list(REGISTER) == list(EXPECTED)
    assert len(EXPECTED) == 113
