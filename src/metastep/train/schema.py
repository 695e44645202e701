"""What the configurations of both jobs are made of: types of fields, choices from the registry, data, outer optimizer.

`"adam"` and `{"name": "adam", "lr": 0.01}` are read into the registered dataclass itself, whose annotations are the
bounds. A plug-in's options need no line here. Importing this module loads no torch.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PlainValidator

from metastep.core.registry import name_of, named, names
from metastep.data.episodes import without_place
from metastep.errors import MetastepError, did_you_mean, first_line
from metastep.train.validated import (
    LARGEST,
    MOST,
    CountOrNone,
    Number,
    Positive,
    Rate,
    RefusedError,
    Seed,
    Text,
    Whole,
    checked,
    to_plain,
)

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
NESTED = ("curvature", "solver")  # options whose values are chosen by name, too


def chosen(kind: str) -> PlainValidator:
    """Return what makes a field one that is chosen from the registry: `inner: Annotated[Any, chosen("optimizer")]`."""
    return PlainValidator(lambda value: read(kind, value))


def read(kind: str, value: Any) -> Any:
    """Return the registered value that is described by its name, or by a mapping of its name and options.

    A value that is one already is returned as it is, if a file can keep it.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return _kept(kind, value)
    options = dict(value)
    if (name := options.pop("name", None)) is None:
        raise RefusedError(".name", f" is missing: choose one of {', '.join(names(kind))}.")
    thing = _named(kind, name)
    if kind == "curvature" and not isinstance(thing, type):  # the function itself is the value
        _require_known(options, {}, name)
        return thing
    return _built(thing, name, options)


def options(kind: str, name: str) -> dict[str, Any]:
    """Return the options of what has this name, as `metastep.core.options` describes them."""
    from metastep.core.options import options_of  # here, since it loads torch and --help must not

    thing = _named(kind, name)
    return options_of(thing) if kind != "curvature" or isinstance(thing, type) else {}


def _named(kind: str, name: Any) -> Any:
    known = names(kind)
    if not isinstance(name, str) or name not in known:
        try:
            named(kind, str(name))  # says which plug-ins are broken
        except MetastepError as error:
            raise RefusedError(f" = {name!r}", f": {error}") from None
    return named(kind, name)


def _built(thing: Any, name: str, given: dict[str, Any]) -> Any:
    from metastep.core.options import REQUIRED, options_of, require_options

    known = options_of(thing)
    _require_known(given, known, name)
    for option in known.values():
        if option.default is REQUIRED and option.name not in given:
            raise RefusedError(f".{option.name}", f" is missing: {name} needs it. {option.help}".rstrip())
    values = {option: _fitting(known[option].type, option, _value(option, value)) for option, value in given.items()}
    try:
        built = thing(**values)
        if is_dataclass(built):
            require_options(built)
    except Exception as error:  # a plug-in may fail in any way
        raise _refused(error, type(thing).__name__ if not isinstance(thing, type) else thing.__name__, values) from None
    return built


def _require_known(given: Mapping[str, Any], known: Mapping[str, Any], name: str) -> None:
    for option in given:
        if option not in known:
            near = did_you_mean(option, known)
            told = f"It has {', '.join(known)}." if known else "It has none."
            raise RefusedError(f".{option}", f" = {given[option]!r} is no option of {name}.{near} {told}")


def _fitting(kind: Any, option: str, value: Any) -> Any:
    """A plain value of its plain type, before a plug-in meets it; the class itself looks at the others"""
    if kind not in _WORDS:
        return value
    fits = isinstance(value, int | float if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    if not fits:
        raise RefusedError(f".{option}", f" = {value!r} must be {_WORDS[kind]}.")
    return value


def _value(option: str, value: Any) -> Any:
    if option in NESTED and isinstance(value, str | Mapping):
        try:
            return read(option, value)
        except RefusedError as error:
            raise RefusedError(f".{option}{error.place}", error.said) from None
    if isinstance(value, list):
        return tuple(_value(option, item) for item in value)
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise RefusedError(f".{option}", f" = {value:.3g} is too large: at most {LARGEST:g}.")
    return value


def _refused(error: Exception, owner: str, given: Mapping[str, Any]) -> RefusedError:
    """Return a class's error about its options, without its own name in front."""
    said = first_line(error).removeprefix(f"{owner}: ")
    word = said.split(" ", 1)[0].partition("[")[0]
    if word in given:
        return RefusedError(f".{word}", said.removeprefix(word))
    return RefusedError("", f": {said}" if isinstance(error, MetastepError) else f": {said} ({type(error).__name__}).")


def _kept(kind: str, value: Any) -> Any:
    name = name_of(value)
    if name is None or name not in names(kind):
        raise RefusedError("", f" = {value!r} has no name: register it, or give one of {', '.join(names(kind))}.")
    if is_dataclass(value):
        for field in fields(value):
            try:
                to_plain(getattr(value, field.name))
            except MetastepError as error:
                raise RefusedError(f".{field.name}", f": {error}") from None
    return value


# ---- parts of both jobs


Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["float32", "tf32", "bf16", "float64"]
Ink = Literal["auto", "dark", "light"]
EVALUATION_SEED = 600  # fixed, so that every method is judged by the same episodes

LONGEST = 100_000  # inner steps: a loop in Python makes each of them
WIDEST = 4096  # pixels


def _steps(value: Any) -> int | tuple[int, ...] | None:
    lengths = list(value) if isinstance(value, list | tuple) else [value]
    whole = all(isinstance(length, int) and not isinstance(length, bool) for length in lengths)
    if not lengths or not whole:
        raise RefusedError("", f" = {value!r} must be a whole number, or the length of every window such as 4,2,1,1.")
    if min(lengths) < (0 if value == 0 else 1) or sum(lengths) > LONGEST:
        raise RefusedError("", f" = {value!r} must be at least 1 and at most {LONGEST:,} in all.")
    return tuple(lengths) if isinstance(value, list | tuple) else int(value)


def _steps_or_none(value: Any) -> int | tuple[int, ...] | None:
    return None if value is None else _steps(value)


def named_part(value: Any) -> Any:
    """Return text as the name of a part."""
    return {"name": value} if isinstance(value, str) else value


Steps = Annotated[int | tuple[int, ...], PlainValidator(_steps)]
StepsOrNone = Annotated[int | tuple[int, ...] | None, PlainValidator(_steps_or_none)]
Names = tuple[Text, ...]
Side = Annotated[Whole, Field(ge=1, le=WIDEST)]


@checked(frozen=True)
class AnyData:
    """Which data set a run is about, and where a user's own folder is."""

    name: Text
    """A data set by name, as `metastep data list` has them, or folder:PATH for your own."""
    size: Side | None = None
    """Pixels along the side of a picture; the data set's own if left out."""
    test: Text | None = None
    """A second data set, or folder:PATH, whose pictures are validated and tested on instead."""
    fingerprint: Text | None = None
    """Fingerprint of the pictures in a folder of your own; training takes it from the data."""
    test_fingerprint: Text | None = None
    """The same of data.test."""

    def serving(self, split: str) -> Self:
        """Return the one data set that a split is of."""
        if self.test is None or split not in ("val", "test"):
            return self
        return replace(self, name=self.test, fingerprint=self.test_fingerprint, test=None, test_fingerprint=None)

    @property
    def shared(self) -> Self:
        """Return it without the places of users' folders."""
        return replace(self, name=without_place(self.name), test=self.test and without_place(self.test))


@checked(frozen=True)
class Outer:
    """What moves the meta-parameters θ."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """The optimizer of θ."""
    lr: Rate = 1e-3
    """Its learning rate."""
    weight_decay: Rate = 0.0
    """Pulls θ to 0 at every update."""
    eps: Rate | None = None
    """What adam and adamw add to their denominator; 1e-8 if left out."""
    clip: Positive | None = None
    """The largest norm of the meta-gradient; a longer one is scaled down."""
    clip_value: Positive | None = None
    """The largest size of each element of the meta-gradient."""
    warmup: CountOrNone = 0
    """Iterations at the start that use first order's meta-gradient; 0 for none."""
    ramp: CountOrNone = 0
    """Iterations at the start over which the inner rate rises to its value; 0 for none."""
    schedule: Literal["constant", "linear"] = "constant"
    """How the rate changes; linear falls to 0 at the end."""

    def __post_init__(self) -> None:
        if self.optimizer == "sgd" and self.eps is not None:
            raise MetastepError(f"outer.eps = {self.eps} is no option of sgd. Leave it out.")
        if self.clip is not None and self.clip_value is not None:
            raise MetastepError(f"outer.clip = {self.clip} and outer.clip_value = {self.clip_value}: give one of them.")


@checked(frozen=True, kw_only=True)
class Config:
    """What both jobs have."""

    outer: Outer = Outer()
    """What moves the meta-parameters."""
    seed: Seed = 0
    """Seed of the first parameters, and of everything that is drawn."""
    checkpoint_seconds: Annotated[Number, Field(ge=0, le=MOST)] = 30.0
    """Seconds between two checkpoints; 0 for one at every look."""
    device: Device = "auto"
    """auto takes a GPU where there is one."""

    job: ClassVar[str]
    words: ClassVar[str]
    """What a run of it is called"""
    unit: ClassVar[str]
    """What its length is counted in"""
    may_change: ClassVar[tuple[str, ...]]
    """Fields that can be given again for a run that goes on"""

    @property
    def length(self) -> int:
        """Return how many iterations, or epochs, a run has."""
        raise NotImplementedError

    @property
    def nets(self) -> tuple[str, ...]:
        """Return the fields that name nets, which may be a user's own."""
        return ("net.name",)

    @property
    def in_short(self) -> str:
        """Return what is trained, in words."""
        raise NotImplementedError

    @property
    def shared(self) -> "Config":
        """Return it without the places of users' folders and files, for others to see."""
        raise NotImplementedError

    @property
    def essential(self) -> "Config":
        """Return it without what makes no other run: where it is computed, how precisely, and how often looked at."""
        raise NotImplementedError


def name_of_part(value: Any) -> str:
    """Return the registered name of a part of a configuration."""
    return name_of(value) or type(value).__name__
