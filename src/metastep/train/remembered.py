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
from metastep.train.config import AnyData, Config, FewShot, Source, Transfer
from metastep.train.io import RunError, problem
from metastep.train.presets import overridden
from metastep.train.run import Run, how_far
from metastep.train.validated import to_plain

AGAIN = (
    "metastep resume RUN data=folder:PATH, of a source source.dataset=folder:PATH, of data to test on "
    "data.test=folder:PATH; or once, metastep evaluate RUN --dataset folder:PATH"
)

# Where the pictures of a table of the configuration are: the field that says what they were.
HELD = {"name": "fingerprint", "test": "test_fingerprint", "dataset": "fingerprint"}

Chosen = TypeVar("Chosen", bound=AnyData | Source)


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


def remembered(table: Chosen, root: Path | None, *keys: str) -> Chosen:
    """Return a table with the places of a user's own folders, and what they hold now.

    keys: The fields that name them; data.name and data.test if left out.
    """
    for key in keys or ("data.name", "data.test"):
        field = key.partition(".")[2]
        if (name := getattr(table, field)) is not None and is_own(name, root):
            with _told(key, name):
                found: Any = {field: placed(name, root), HELD[field]: fingerprint_of(name, root)}
            table = replace(table, **found)
    return table


def moved_to(table: Chosen, root: Path | None, **places: str | None) -> Chosen:
    """Return a table with folders that are in other places now, by their fields; None leaves them where they were.

    They have to have the pictures that they had.
    """
    for field, to in places.items():
        if to is not None:
            new = moved(getattr(table, field), getattr(table, HELD[field]), to, root, AGAIN)
            found: Any = {field: new, HELD[field]: fingerprint_of(new, root)}
            table = replace(table, **found)
    return table


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
        config = replace(config, source=moved_to(config.source, root, dataset=given["source.dataset"]))
    moved_data = moved_to(config.data, root, name=given.get("data.name"), test=given.get("data.test"))
    return replace(config, data=moved_data)  # type: ignore[arg-type]


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
