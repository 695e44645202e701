"""What a run remembers of its data and nets, and what may change when it continues.

What may change: where its pictures are, how long it is, and nets of the user's own, which have to be named again.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from metastep.data.errors import DataError, Progress, printable, silent
from metastep.data.folder import fingerprint_of, moved, placed, require_folder, require_remembered
from metastep.data.registry import DataSet, across, is_own, load
from metastep.errors import MetastepError, how_many
from metastep.train.config import AnyData, Config, FewShot, Transfer
from metastep.train.io import RunError, problem
from metastep.train.presets import overridden
from metastep.train.run import Run, how_far
from metastep.train.validated import to_plain

AGAIN = (
    "metastep resume RUN data=folder:PATH, of a source source.dataset=folder:PATH, of data to test on "
    "data.test=folder:PATH; or once, metastep evaluate RUN --dataset folder:PATH"
)

PARTS = {"name": "fingerprint", "test": "test_fingerprint"}  # of data: where it is, and what it held

Chosen = TypeVar("Chosen", bound=AnyData)


def data_of(data: AnyData, root: Path | None, progress: Progress = silent, field: str = "data.name") -> DataSet:
    """Return the data set of a run; of a folder that is remembered, only with the pictures that it had.

    field: What chose its name, for messages.
    """
    first = _found(field, data.name, data.fingerprint, root, data.size, progress)
    if data.test is None:
        return first
    second = _found("data.test", data.test, data.test_fingerprint, root, data.size, progress)
    with _told("data.test", data.test):
        return across(first, second)


def _found(
    field: str, name: str, fingerprint: str | None, root: Path | None, size: int | None, progress: Progress
) -> DataSet:
    with _told(field, name):
        found = load(name, root, size, progress=progress)
        if is_own(name, root) and fingerprint is None:
            require_folder(found.root)
    require_remembered(name, fingerprint, root, AGAIN)
    return found


@contextmanager
def _told(field: str, value: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        named = f"{printable(value)}: "
        raise DataError(f"{field} = {named}{str(error).removeprefix(named)}") from error


def remembered(data: Chosen, root: Path | None) -> Chosen:
    """Return it with the places of a user's own folders, and what they hold now."""
    for part, held in PARTS.items():
        if (value := getattr(data, part)) is not None:
            with _told(f"data.{part}", value):
                found: dict[str, Any] = dict(zip((part, held), as_it_is(value, root), strict=True))
            data = replace(data, **found)
    return data


def as_it_is(name: str, root: Path | None) -> tuple[str, str | None]:
    """Return the name by which a data set is found from everywhere, and what it holds now if it is a user's folder."""
    return (placed(name, root), fingerprint_of(name, root)) if is_own(name, root) else (name, None)


def as_it_was(name: str | None, fingerprint: str | None, to: str, root: Path | None) -> tuple[str, str]:
    """Return the name and the content of a folder that is in another place now, with the pictures that it had."""
    new = moved(name, fingerprint, to, root, AGAIN)
    return new, fingerprint_of(new, root)


def moved_to(data: Chosen, root: Path | None, name: str | None = None, test: str | None = None) -> Chosen:
    """Return it with folders that are in other places now; None leaves them where they were."""
    for (part, held), to in zip(PARTS.items(), (name, test), strict=True):
        if to is not None:
            now = as_it_was(getattr(data, part), getattr(data, held), to, root)
            found: dict[str, Any] = dict(zip((part, held), now, strict=True))
            data = replace(data, **found)
    return data


# ---- what may change


AnyConfig = TypeVar("AnyConfig", bound=Config)


def changed(run: Run, given: Mapping[str, str], root: Path | None) -> FewShot | Transfer:
    """Return the configuration that a run keeps from now on. Nets that are named again are not kept: see `trusted`."""
    config = run.config(Config)
    assert isinstance(config, FewShot | Transfer)
    if odd := [key for key in given if key not in config.may_change]:
        raise MetastepError(
            f"{odd[0]}: a run continues as it was configured; only {', '.join(config.may_change)} can be given. Leave "
            "it out, or start a new run."
        )
    if isinstance(config, FewShot) and "iterations" in given:
        config = lengthened(run, config, overridden(config, [f"iterations={given['iterations']}"]).iterations)
    if isinstance(config, Transfer) and "source.dataset" in given:
        source = config.source
        name, fingerprint = as_it_was(source.dataset, source.fingerprint, given["source.dataset"], root)
        config = replace(config, source=replace(source, dataset=name, fingerprint=fingerprint))
    return replace(config, data=moved_to(config.data, root, given.get("data.name"), given.get("data.test")))  # type: ignore[arg-type]


def lengthened(run: Run, config: FewShot, iterations: int) -> FewShot:
    """Return it with so many iterations; refused where those that were made would have been others"""
    made = how_far(run).iterations
    if iterations <= made:
        reason = f"has made {how_many(made, 'iteration')}, and iterations={iterations} asks for no more"
        raise problem(RunError, run.folder, reason, "Ask for more, or evaluate it as it is")
    if iterations != config.iterations and config.outer.schedule != "constant":
        over = f"over the {how_many(config.iterations, 'iteration')} that it was started with"
        reason = (
            f"its rate has a {config.outer.schedule} schedule {over}, and would have been another for {iterations:,}"
        )
        remedy = f"Leave iterations out, or start a new run with iterations={iterations}"
        raise problem(RunError, run.folder, reason, remedy)
    return replace(config, iterations=iterations)


def trusted(config: AnyConfig, given: Mapping[str, str | None], only: str | None = None) -> AnyConfig:
    """Return a configuration that was read from a file, with the nets that the user names now.

    A file must not decide what is imported: the path of a user's own module counts only when it is typed again.

    Args:
        config: The configuration.
        given: Nets by the names of their fields.
        only: The one field to look at, if not all.
    """
    for key in config.nets if only is None else (only,):
        table, field = key.split(".")
        part = getattr(config, table)
        known, typed = getattr(part, field), given.get(key)
        if typed is not None:
            config = replace(config, **{table: replace(part, **{field: typed})})
        elif ":" in known:
            raise MetastepError(
                f"this was trained with a net of its author's own, {known!r}, which would have to be imported "
                f"and run. If you trust it, name it again: --{key.removesuffix('.name')}={known}"
            )
    return config


def require_run_of(wanted: Config, folder: Path, option: str) -> None:
    """option: the one that chose the folder"""
    found = Run.open(folder).config(type(wanted))
    if apart := "; ".join(differences(to_plain(found.essential), to_plain(wanted.essential))):
        reason = f"is a run of something else ({apart})"
        raise problem(RunError, folder, reason, f"Choose another {option}, or move it")


def differences(found: Any, wanted: Any, field: str = "") -> Iterator[str]:
    """Describe differences, such as 'iterations = 300, not 200'."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for name in dict.fromkeys((*found, *wanted)):
            yield from differences(found.get(name), wanted.get(name), f"{field}.{name}" if field else name)
    elif found != wanted:
        yield f"{field} = {found!r}, not {wanted!r}"
