"""Fields of a configuration on the command line: `inner.lr=0.1` and `--inner.lr 0.1` say the same.

The shell completes them, and the names of presets, learners and data sets. Nothing here loads torch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperOption

from metastep.core.registry import names_so_far
from metastep.data.episodes import FOLDER, ours
from metastep.errors import MetastepError
from metastep.train.config import JOBS
from metastep.train.presets import shipped, tables
from metastep.train.validated import fields_of, helps, members

HIDDEN = (
    "net.channels",
    "net.size",
    "net.options",
    "data.fingerprint",
    "data.test_fingerprint",
    "source.fingerprint",
)  # they come from the data
CHOSEN = ("net", "inner", "method")  # these tables are chosen by a name, and may be given as one


class Field(NamedTuple):
    path: str  # as in inner.lr
    said: dict[str, str]  # of it, by job

    @property
    def panel(self) -> str:
        return self.path.partition(".")[0] if "." in self.path else "run"

    @property
    def parameter(self) -> str:
        return self.path.replace(".", "__")

    @property
    def help(self) -> str:
        """Return what it is; if the jobs differ, for each of them."""
        jobs = {job.replace("_", "-"): said for job, said in self.said.items()}
        if len(jobs) == 1:
            return " ".join(f"{said} ({job})" for job, said in jobs.items())
        same = len(set(jobs.values())) == 1
        return next(iter(jobs.values())) if same else " ".join(f"{job}: {said}" for job, said in jobs.items())


def all_fields() -> list[Field]:
    """Return the fields of both jobs, without the options of what is chosen from the registry."""
    found: dict[str, Field] = {}
    for job, kind in JOBS.items():
        for path, said in _of(kind, ""):
            found.setdefault(path, Field(path, {})).said[job] = said
    return [field for field in found.values() if field.path not in HIDDEN]


def _of(kind: Any, part: str) -> Iterator[tuple[str, str]]:
    said = helps(kind)
    for name, annotation in fields_of(kind).items():
        path = f"{part}{name}"
        inner = [each for each in members(annotation) if fields_of(each)]
        if part or not inner or path in CHOSEN:
            yield path, said[name]
        for each in inner:
            yield from _of(each, f"{path}.")


def attach(command: Callable[..., None]) -> None:
    """Give a command an option for every field: typer reads its signature."""
    own = [p for p in Signature.from_callable(command).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    parameters = own + [_parameter(field) for field in all_fields()]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}


def _parameter(field: Field) -> Parameter:
    option = typer.Option(
        f"--{field.path}", help=field.help, rich_help_panel=field.panel, show_default=False, metavar="VALUE"
    )
    return Parameter(field.parameter, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option])


class FieldsCommand(TyperCommand):
    """A command whose help says which data sets there are by then, those of --plugin included."""

    def format_help(self, *about: Any) -> None:
        known = [name for name in dict.fromkeys([*ours(), *names_so_far("dataset")]) if name != FOLDER]
        for option in self.params:
            if option.name == "data__name" and isinstance(option, TyperOption):
                option.help = f"{option.help} Known: {', '.join(known)}."
        super().format_help(*about)


def changes_of(words: Sequence[str], options: Mapping[str, str | None]) -> list[str]:
    """Return what was typed as key=value: words in order, `--key value` among them, then options."""
    found, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and "=" not in word:
            if not rest:
                raise MetastepError(f"{word}: no value follows it. Write {word.removeprefix('--')}=VALUE.")
            word = f"{word}={rest.pop(0)}"
        found.append(word)
    given = {name: value for name, value in options.items() if value is not None}
    return found + [f"{name.replace('__', '.')}={value}" for name, value in given.items()]


# ---- what the shell completes besides files


def complete_presets(begun: str) -> list[str]:
    """Return the presets that begin so."""
    return _that_begin(begun, tables())


def complete_learners(begun: str) -> list[str]:
    """Return the learners that come with metastep."""
    return _that_begin(begun, shipped())


def complete_starts(begun: str) -> list[str]:
    """Return what a training can start from."""
    return complete_presets(begun) + complete_learners(begun)


def complete_changes(begun: str) -> list[str]:
    """Return the fields of a configuration, each with the = that follows it."""
    return _that_begin(begun, (f"{field.path}=" for field in all_fields()))


def complete_data_sets(begun: str) -> list[str]:
    """Return the data sets."""
    return _that_begin(begun, (name for name in ours() if name != FOLDER))


def _that_begin(begun: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(begun)]
