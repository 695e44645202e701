"""Go through claims: judge what can be judged, train what is missing, judge again; stop cleanly when time is up."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from metastep.cli.common import progress_bar
from metastep.data.errors import QUIETLY, Progress
from metastep.errors import MetastepError, NonFiniteError, how_many
from metastep.train.device import release
from metastep.train.loop import resume, train
from metastep.train.remembered import require_run_of
from metastep.train.run import Run
from metastep.train.schema import Device
from metastep.train.stop import Stop, stop_on_signals
from study.budget import within
from study.claims import files
from study.claims.claims import Claim, Finding
from study.claims.evidence import Evidence, MissingError
from study.claims.kinds import kind_of
from study.claims.outcomes import MADE, made_here, position, remember_beside, write_made
from study.claims.planning import Job, presets_of, runs_of, wanted_for
from study.together import together

ABSENT, NOT_MADE = "is not at hand.", "Its runs were not made yet."


class StoppedError(Exception):
    """Asked to stop in the middle of a test, which is done again next time."""


class End(NamedTuple):
    """How a run ended in this session; stopped on the way, if it neither finished nor failed"""

    finished: bool = False
    failure: str = ""
    said: str = ""
    diverged: bool = False
    """It left the finite numbers, and would again"""


@dataclass(frozen=True)
class Session:
    evidence: Evidence
    out: Path
    changes: dict[str, Any]
    """Fields of every configuration: device, precision"""
    say: Callable[[str], None]
    together: int = 1
    """Runs at a time, which share the device"""

    def settle(self, claim: Claim) -> None:
        """Judge it and write its file, as far as there is something to judge by"""
        presets, began = presets_of(claim, self.evidence), time.perf_counter()
        try:
            finding = claim.judge(self.evidence, presets)
        except MissingError:
            return
        self.evidence.keep(finding.outcomes)
        if claim.computed:
            seconds = round(time.perf_counter() - began, 2)
            finding = replace(finding, about={"seconds": [seconds], **finding.about})
        content = files.content_of(claim, finding, stands_in=bool(claim.stand_in) and presets == claim.stand_in)
        self.write(claim, finding, content, anyway=any(map(self.evidence.outdated, presets)))

    def excuse(self, claim: Claim) -> None:
        """Write why nobody could judge a claim."""
        before, absent = files.read(self.out, claim.id), absence(claim, self.evidence)
        if before is None or before["note"].endswith((ABSENT, NOT_MADE)):
            reason = f"{absent} {ABSENT}" if absent else NOT_MADE
            files.write(self.out, files.content_of(claim, Finding("not run", note=reason)))

    def write(self, claim: Claim, finding: Finding, content: files.Content, anyway: bool = False) -> None:
        if files.write(self.out, content, anyway):
            shown = f"{files.shown_value(content)} against {claim.paper}, " if files.is_judged(content) else ""
            fewer = next((o for o in finding.outcomes if o.iterations < o.full), None)
            about = f"{fewer.iterations:,} of {fewer.full:,} iterations" if fewer else ""
            about = about if shown else finding.note.rstrip(".")
            self.say(f"{claim.id}, {claim.claim}: {shown}{finding.verdict}" + (f" ({about})" if about else ""))

    def run(self, claims: Sequence[Claim], jobs: Sequence[Job], budget: float | None) -> bool:
        """Whether nothing is left to do"""
        needs = [(claim, runs_of(claim, self.evidence)) for claim in claims]
        served = {job: [claim for claim, runs in needs if job.preset in runs] for job in jobs}
        ends: list[End] = []
        with stop_on_signals(), within(budget):
            for claim in claims:
                self.settle(claim)
            for job, end in together(self.works(jobs), self.together):
                ends.append(end)
                self.conclude(end, job, served[job])
                release()
        for claim in claims:
            self.excuse(claim)
        self._say_what_is_absent(claims)
        failed = [end.failure for end in ends if end.failure]
        if len(failed) + sum(end.finished for end in ends) < len(jobs):
            return False
        if failed:
            raise MetastepError(f"{len(failed)} of the runs could not continue. {failed[0]}")
        return True

    def _say_what_is_absent(self, claims: Sequence[Claim]) -> None:
        absent = [each for each in (absence(claim, self.evidence) for claim in claims) if each]
        if absent:
            what = ", ".join(dict.fromkeys(absent))
            self.say(
                f"Missing for {how_many(len(absent), 'claim')}: {what}. `metastep data list` says where to get it."
            )

    def works(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Callable[[], End]]]:
        """Each is said when its turn comes"""
        for job in jobs:
            self.say(str(self.evidence.folder(*job)))
            yield job, partial(completed, self.evidence, job, self.changes, self.together)

    def conclude(self, end: End, job: Job, served: Sequence[Claim]) -> None:
        """Settle the claims that a run serves"""
        if end.said:
            self.say(end.said)
        for claim in served if end.finished else ():
            self.settle(claim)
        for claim in served if end.diverged else ():
            finding = Finding("not run", note=end.failure)
            self.write(claim, finding, files.content_of(claim, finding))


def completed(evidence: Evidence, job: Job, changes: dict[str, Any], places: int) -> End:
    """Train a run and test it, as far as it goes; what is wrong with it ends no other"""
    try:
        with stop_on_signals() as stop:
            return _advanced(evidence, job, changes, places, stop)
    except (MetastepError, torch.OutOfMemoryError) as error:
        failure = f"{job.preset}, seed {job.seed}: {_reason(error, places)}"
        return End(failure=failure, said=failure, diverged=isinstance(error, NonFiniteError))


def _reason(error: Exception, places: int) -> str:
    if not isinstance(error, torch.OutOfMemoryError):
        return str(error)
    return f"the device has too little memory for it (--together {places}). Lower that to continue."


def _advanced(evidence: Evidence, job: Job, changes: dict[str, Any], places: int, stop: Stop) -> End:
    kind, folder, data = kind_of(job.preset), evidence.folder(job.preset, job.seed), evidence.data
    config = kind.configured(job.preset, job.seed, evidence.iterations, changes)
    showing = progress_bar if places == 1 else quietly
    if not Run.is_there(folder):
        train(config, folder, data, reading=showing(f"reading {config.data.name}"))
    else:
        require_run_of(config, folder, "--runs")
        if not position(folder).finished:
            resume(folder, data)
    remember_beside(folder, places - 1)
    at = position(folder)
    if not at.finished:
        return End(said=f"{folder}: stopped at {at.unit} {at.done:,} of {at.total:,}; the same command continues")
    device: Device = changes.get("device", "auto")
    if not (folder / MADE).is_file():
        write_made(folder, made_here(kind.described(config, data), device))
    if kind.judged(folder):
        return End(finished=True)
    with showing("testing") as shown:
        try:
            kind.test(folder, data, device, _interruptible(shown, stop))
        except StoppedError:
            return End(said=f"{folder}: stopped while testing; the same command continues")
    return End(finished=True)


def quietly(doing: str) -> AbstractContextManager[Progress]:
    """Beside other runs the terminal is theirs too"""
    del doing
    return QUIETLY


def absence(claim: Claim, evidence: Evidence) -> str | None:
    """Return what is missing for a claim."""
    lacking = [evidence.lacking(preset) for preset in presets_of(claim, evidence)]
    size = claim.group or max(len(lacking), 1)
    groups = [lacking[first : first + size] for first in range(0, len(lacking), size)]
    absent = [next((each for each in group if each), None) for group in groups]
    return None if None in absent or not absent else absent[0]


def absent_for_more(claim: Claim, evidence: Evidence, seeds: int | None) -> str | None:
    """Return what is missing for further seeds of a claim that can be judged by the present ones."""
    judged = {run for run in runs_of(claim, evidence) if evidence.lacking(run) is None}
    left = (job for job in wanted_for([claim], evidence, seeds) if job.preset in judged and not evidence.finished(*job))
    return next(filter(None, (evidence.lacking_to_train(job.preset) for job in left)), None)


def _interruptible(progress: Progress, stop: Stop) -> Progress:
    def shown(done: int, total: int) -> None:
        progress(done, total)
        if stop.requested and done < total:
            raise StoppedError

    return shown
