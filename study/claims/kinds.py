"""The two kinds of runs, few-shot and transfer, behind one set of functions."""

from pathlib import Path
from typing import Any, Protocol

from metastep.data.errors import Progress
from metastep.errors import MetastepError
from metastep.train.schema import Device
from study.claims import fewshot_runs, transfer_runs
from study.claims.outcomes import Outcome


class Kind(Protocol):
    def presets(self) -> dict[str, Any]: ...

    def configured(self, preset: str, seed: int, iterations: int | None, changes: dict[str, Any]) -> Any: ...

    def is_of(self, config: Any, preset: str) -> bool:
        """Whether an outcome with this configuration is one of the preset as it is now"""

    def trained_as(self, preset: str) -> str:
        """The preset whose runs serve it: the first that differs from it only in how its runs are tested"""

    def read(self, folder: Path) -> Any:
        """The configuration of a run"""

    def lacking(self, config: Any, data: Path | None) -> str | None:
        """Return what is missing for a run with this configuration."""

    def described(self, config: Any, data: Path | None) -> str:
        """The data, for the file of a claim"""

    def judged(self, folder: Path) -> bool:
        """Whether a run that is finished has been tested too"""

    def test(self, folder: Path, data: Path | None, device: Device, progress: Progress) -> None: ...

    def outcome(self, folder: Path, preset: str) -> Outcome: ...


KINDS: tuple[Kind, ...] = (fewshot_runs, transfer_runs)


def kind_of(preset: str) -> Kind:
    for kind in KINDS:
        if preset in kind.presets():
            return kind
    raise MetastepError(
        f"there is no preset {preset!r}. `metastep presets` and `metastep transfer presets` list all of them."
    )
