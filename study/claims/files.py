"""results/claims/<id>.json: one file for each claim, with all that is needed to make it again."""

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from metastep.errors import MetastepError
from metastep.train.device import commit, processor
from metastep.train.io import explained, read_file, replace_file
from study import CODE
from study.claims.claims import Claim, Finding
from study.claims.outcomes import Outcome

FIELDS = (
    "id", "claim", "paper", "value", "interval", "verdict", "seeds", "iterations", "episodes", "seconds", "device",
    "versions", "data", "command", "commit", "note",
)  # fmt: skip

VERSIONS = ("python", "torch")
NOT_AT_HAND = "Not at hand"  # of data
STANDS_IN = "STL-10 stands in for Bird."
SHORTENED = "of the paper's"  # iterations

Content = dict[str, Any]


def read(folder: Path, id: str) -> Content | None:
    path = folder / f"{id}.json"
    if not path.is_file():
        return None
    try:
        content: Content = json.loads(read_file(path))
        if list(content) != list(FIELDS):
            raise ValueError("its fields are not those of a claim")
        return content
    except (ValueError, TypeError) as error:
        raise MetastepError(f"{str(path)!r}: is no file of a claim ({error}). Restore it, or remove it.") from error


def write(folder: Path, content: Content, anyway: bool = False) -> bool:
    """Whether it was written: what rests on less than the file that is there leaves it alone, if not `anyway`"""
    before = read(folder, content["id"])
    if not anyway and before and _weight(before) > _weight(content):
        return False
    with explained(folder, "made"):
        folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    replace_file(folder / f"{content['id']}.json", text.encode())
    return True


def _weight(content: Content) -> tuple[bool, bool, bool, int, int]:
    """Judged at all; on the paper's own data; by whole runs, or by longer ones; by how many of them"""
    whole, own = SHORTENED not in content["note"], not stands_in(content)
    return is_judged(content), own, whole, 0 if whole else content["iterations"] or 0, len(content["seconds"] or ())


def is_judged(content: Content | None) -> bool:
    return content is not None and content["verdict"] != "not run"


def stands_in(content: Content) -> bool:
    return STANDS_IN in content["note"]


def shown_value(content: Content) -> str:
    """Return a value with its interval, or several numbers, each with its name."""
    value = content["value"]
    if value is None:
        return ""
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_plain(each)}" for name, each in value.items())
    return _plain(value) + ("" if content["interval"] is None else f" ± {content['interval']}")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(f"{each:,}" for each in value) if isinstance(value, list) else str(value)


def content_of(claim: Claim, finding: Finding, stands_in: bool = False) -> Content:
    rest = _of_runs(claim, finding.outcomes) if finding.outcomes else _of_here(claim, finding.verdict != "not run")
    notes = [finding.note, *_about_runs(finding.outcomes), *([STANDS_IN] if stands_in else [])]
    content = {
        "id": claim.id,
        "claim": claim.claim,
        "paper": claim.paper,
        "value": finding.value,
        "interval": finding.interval,
        "verdict": finding.verdict,
        **rest,
        **finding.about,
        "note": " ".join(filter(None, notes)),
    }
    return {name: content[name] for name in FIELDS}


def _of_runs(claim: Claim, outcomes: Sequence[Outcome]) -> Content:
    seeds, several = sorted({outcome.seed for outcome in outcomes}), [outcome.made for outcome in outcomes]
    evaluation, fewest = outcomes[0].evaluation, min(outcome.iterations for outcome in outcomes)
    fewer = f" --iterations {fewest}" if any(outcome.iterations < outcome.full for outcome in outcomes) else ""
    return {
        "seeds": seeds,
        "iterations": fewest,
        "episodes": evaluation.episodes if evaluation else None,
        "seconds": [round(outcome.seconds) for outcome in outcomes],
        "device": ", ".join(dict.fromkeys(made.device for made in several)),
        "versions": {name: ", ".join(dict.fromkeys(getattr(made, name) for made in several)) for name in VERSIONS},
        "data": " | ".join(dict.fromkeys(made.data for made in several)),
        "command": f"python -m study claims --only {claim.id} --seeds {max(seeds) + 1}{fewer} "
        f"--precision {outcomes[0].precision} --data DATA",
        "commit": ", ".join(dict.fromkeys(made.commit for made in several)),
    }


def _about_runs(outcomes: Sequence[Outcome]) -> list[str]:
    short = sorted({(o.iterations, o.full) for o in outcomes if o.iterations < o.full})
    fewer = [f"{done:,} {SHORTENED} {full:,} iterations." for done, full in short]
    precisions = dict.fromkeys(outcome.precision for outcome in outcomes)
    trained = [f"Trained in {', '.join(precisions)}."] if precisions else []
    checkpoints = dict.fromkeys(outcome.checkpoint for outcome in outcomes if outcome.checkpoint)
    others = max((outcome.beside for outcome in outcomes), default=0)
    shared = [f"Seconds are those of a device that up to {others + 1} runs shared."] if others else []
    return fewer + trained + [f"The checkpoint is {each}." for each in checkpoints] + shared


def _of_here(claim: Claim, computed: bool) -> Content:
    """Where no run is behind it"""
    return {
        **dict.fromkeys(("seeds", "iterations", "episodes", "seconds")),
        "device": processor() if computed else None,
        "versions": {"python": platform.python_version(), "torch": torch.__version__} if computed else None,
        "data": None,
        "command": f"python -m study claims --only {claim.id}",
        "commit": commit(CODE) if computed else None,
    }
