"""Go through claims: judge what can be judged, train what is missing, judge again; stop cleanly when time is up."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from metastep.cli.common import progress_bar
from metastep.data.progress import QUIETLY, Progress
from metastep.errors import MetastepError, NonFiniteError, how_many
from metastep.train.asked_for import require_run_of
from metastep.train.budget import within
from metastep.train.device import release
from metastep.train.fields import Device
from metastep.train.run import Run
from metastep.train.stop import Stop, stop_on_signals
from metastep.train.turns import Turns
from study.claims import files
from study.claims.claims import Claim, Finding
from study.claims.evidence import Evidence, MissingError
from study.claims.kinds import Kind, kind_of
from study.claims.outcomes import MADE, made_here, write_made
from study.claims.planning import Job, presets_of, runs_of, wanted_for
from study.together import together

ABSENT, NOT_MADE = "is not at hand.", "Its runs were not made yet."


class StoppedError(Exception):
    """Asked to stop in the middle of a test, which is done again next time."""


class End(NamedTuple):
    """How a run ended in this session; stopped on the way, if it neither finished nor failed"""

    finished: bool = False
    failure: str = ""


@dataclass(frozen=True)
class Session:
    evidence: Evidence
    out: Path
    changes: dict[str, Any]
    """Fields of every configuration: device, precision"""
    say: Callable[[str], None]
    together: int = 1
    """Runs at a time, which share the device"""

    @property
    def device(self) -> Device:
        device: Device = self.changes.get("device", "auto")
        return device

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
        """What nobody could judge has a file too, which says why"""
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
        with stop_on_signals() as stop, within(budget):
            for claim in claims:
                self.settle(claim)
            for end in together((self.complete(job, served[job], stop) for job in jobs), self.together):
                ends.append(end)
                release()
        for claim in claims:
            self.excuse(claim)
        self._say_what_is_absent(claims)
        failed = [end.failure for end in ends if end.failure]
        if len(failed) + sum(end.finished for end in ends) < len(jobs):
            return False
        if failed:
            raise MetastepError(f"{len(failed)} of the runs could not go on. {failed[0]}")
        return True

    def _say_what_is_absent(self, claims: Sequence[Claim]) -> None:
        absent = [each for each in (absence(claim, self.evidence) for claim in claims) if each]
        if absent:
            what = ", ".join(dict.fromkeys(absent))
            self.say(
                f"Not at hand, for {how_many(len(absent), 'claim')}: {what}. `metastep data list` says where it is."
            )

    def complete(self, job: Job, served: Sequence[Claim], stop: Stop) -> Turns[End]:
        """Train, test, and settle the claims it serves; the others go on if this one cannot"""
        try:
            finished = yield from self.advance(job, stop)
            for claim in served if finished else ():
                self.settle(claim)
        except (MetastepError, torch.OutOfMemoryError) as error:
            failure = f"{job.preset}, seed {job.seed}: {self.reason(error)}"
            self.say(failure)
            for claim in served if isinstance(error, NonFiniteError) else ():
                finding = Finding("not run", note=failure)
                self.write(claim, finding, files.content_of(claim, finding))
            return End(failure=failure)
        return End(finished)

    def reason(self, error: Exception) -> str:
        if not isinstance(error, torch.OutOfMemoryError):
            return str(error)
        return f"the device has too little memory for it (--together {self.together}). Lower that, and it goes on."

    def advance(self, job: Job, stop: Stop) -> Turns[bool]:
        """Train and test; False where it was stopped on the way"""
        kind, folder = kind_of(job.preset), self.evidence.folder(job.preset, job.seed)
        config = kind.configured(job.preset, job.seed, self.evidence.iterations, self.changes)
        data = self.evidence.data
        self.say(f"{folder}")
        if not Run.is_there(folder):
            yield from kind.train(config, folder, data, self.showing(f"reading {config.data.name}"))
        else:
            require_run_of(config, folder, "--runs")
            if not kind.position(folder).finished:
                yield from kind.resume(folder, data)
        position = kind.position(folder)
        if not position.finished:
            at = f"{position.unit} {position.done:,} of {position.total:,}"
            self.say(f"{folder}: stopped at {at}; the same command goes on")
            return False
        if not (folder / MADE).is_file():
            write_made(folder, made_here(kind.described(config, data), self.device))
        return kind.judged(folder) or self._test(kind, folder, stop)

    def _test(self, kind: Kind, folder: Path, stop: Stop) -> bool:
        with self.showing("testing") as shown:
            try:
                kind.test(folder, self.evidence.data, self.device, _interruptible(shown, stop))
            except StoppedError:
                self.say(f"{folder}: stopped while testing; the same command goes on")
                return False
        return True

    def showing(self, doing: str) -> AbstractContextManager[Progress]:
        """Beside other runs the display is theirs"""
        return QUIETLY if self.together > 1 else progress_bar(doing)


def absence(claim: Claim, evidence: Evidence) -> str | None:
    """What a claim needs that is not at hand"""
    lacking = [evidence.lacking(preset) for preset in presets_of(claim, evidence)]
    size = claim.group or max(len(lacking), 1)
    groups = [lacking[first : first + size] for first in range(0, len(lacking), size)]
    absent = [next((each for each in group if each), None) for group in groups]
    return None if None in absent or not absent else absent[0]


def absent_for_more(claim: Claim, evidence: Evidence, seeds: int | None) -> str | None:
    """What further seeds of a claim need, which can be judged by those that there are, and is not at hand"""
    judged = {run for run in runs_of(claim, evidence) if evidence.lacking(run) is None}
    left = (job for job in wanted_for([claim], evidence, seeds) if job.preset in judged and not evidence.finished(*job))
    return next(filter(None, (evidence.lacking_to_train(job.preset) for job in left)), None)


def _interruptible(progress: Progress, stop: Stop) -> Progress:
    def shown(done: int, total: int) -> None:
        progress(done, total)
        if stop.requested and done < total:
            raise StoppedError

    return shown
