"""What there is to judge by: finished runs, what earlier ones found, files of benchmarks, data."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from metastep.errors import MetastepError
from metastep.train.run import Run
from study.claims import keeping
from study.claims.kinds import kind_of
from study.claims.outcomes import MADE, Outcome, Position, position


class MissingError(MetastepError):
    """What a judgement needs is not there yet."""


@dataclass(frozen=True)
class Evidence:
    runs: Path
    bench: Path
    data: Path | None = None
    iterations: int | None = None
    """Of few-shot runs, where they are to be fewer than the presets'"""
    kept: Path | None = None
    """Where there is what earlier runs found"""

    def folder(self, preset: str, seed: int) -> Path:
        return self.runs / f"{self._name(kind_of(preset).trained_as(preset))}-seed{seed}"

    def _name(self, preset: str) -> str:
        full = kind_of(preset).configured(preset, 0, None, {})
        fewer = full != kind_of(preset).configured(preset, 0, self.iterations, {})
        return f"{preset}-{self.iterations}it" if fewer else preset

    def folders(self, preset: str) -> dict[int, Path]:
        """All that were begun, by seed"""
        pattern = re.compile(rf"{re.escape(self._name(kind_of(preset).trained_as(preset)))}-seed(\d+)")
        entries = self.runs.iterdir() if self.runs.is_dir() else ()
        found = {int(match[1]): each for each in entries if (match := pattern.fullmatch(each.name))}
        return {seed: found[seed] for seed in sorted(found) if Run.is_there(found[seed])}

    def position(self, preset: str, seed: int) -> Position | None:
        """Return how far a run is; None if it was not begun."""
        folder = self.folders(preset).get(seed)
        return position(folder) if folder else None

    def finished(self, preset: str, seed: int) -> bool:
        """Trained, tested, and known where; or, of every preset that is trained as it is, what such a run found"""
        folder = self.folders(preset).get(seed)
        if folder is None:
            return all(seed in self._kept(each) for each in self._trained_alike(preset))
        if not (folder / MADE).is_file():
            return False
        return position(folder).finished and kind_of(preset).judged(folder)

    def _trained_alike(self, preset: str) -> Iterator[str]:
        kind = kind_of(preset)
        return (each for each in kind.presets() if kind.trained_as(each) == kind.trained_as(preset))

    def outcomes(self, preset: str) -> tuple[Outcome, ...]:
        """One for each seed"""
        found = self._kept(preset) | self._made(preset)
        if not found:
            raise MissingError(f"{preset} was not run yet.")
        return tuple(found[seed] for seed in sorted(found))

    def _made(self, preset: str) -> dict[int, Outcome]:
        folders = {seed: each for seed, each in self.folders(preset).items() if self.finished(preset, seed)}
        return {seed: kind_of(preset).outcome(folder, preset) for seed, folder in folders.items()}

    def _kept(self, preset: str) -> dict[int, Outcome]:
        found = self._ever_kept(preset).items()
        return {seed: each for seed, each in found if kind_of(preset).is_of(each.config, preset)}

    def _ever_kept(self, preset: str) -> dict[int, Outcome]:
        return keeping.kept(self.kept, self._name(preset)) if self.kept else {}

    def outdated(self, preset: str) -> bool:
        """Whether what is kept was found by another recipe than the preset is now"""
        found = self._ever_kept(preset).values()
        return not all(kind_of(preset).is_of(each.config, preset) for each in found)

    def keep(self, outcomes: Iterable[Outcome]) -> None:
        if self.kept:
            for outcome in outcomes:
                keeping.keep(self.kept, self._name(outcome.preset), outcome)

    def lacking(self, preset: str) -> str | None:
        """Return what is missing to judge it; nothing, where there is a run already."""
        if self._kept(preset) or any(self.finished(preset, seed) for seed in self.folders(preset)):
            return None
        return self.lacking_to_train(preset)

    def lacking_to_train(self, preset: str) -> str | None:
        """Return what is missing for a new run of it."""
        return kind_of(preset).lacking(kind_of(preset).presets()[preset], self.data)
