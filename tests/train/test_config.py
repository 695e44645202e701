"""The schema of both jobs: through files and back as the same, changes by key=value, and errors that name the field."""

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import metastep as ms
from metastep.core import registry
from metastep.core.registry import names
from metastep.errors import MetastepError
from metastep.train import presets
from metastep.train.config import Data, FewShot, FineTuning, Outer, Scratch, Source, Target, Test, Transfer, Validation
from metastep.train.io import ConfigError
from metastep.train.presets import overridden, to_toml
from metastep.train.run import read_config, write_config
from metastep.train.validated import to_plain

PRESETS = {**presets.few_shot(), **presets.transfer()}
FULL = {  # nothing is at its default
    "few": overridden(
        PRESETS["omniglot-20w1s-imaml"],
        ["method.solver=neumann", "method.solver.steps=3", "method.solver.rate=1",
         "method.curvature=central_difference", "inner=adam", "inner.betas=.5,0.9",
         "start=a b", "steps=3,2", "test.steps=4,1", "outer.clip=2", "net.filters=8", 'data.name=folder:C:\\it "is"',
         "chunk_size=3"],
    ),
    "transfer": overridden(
        PRESETS["digits-sgd-multistep"],
        ["net.layers=a,b", "method.pairs=0-1,2-2", "source.weights=/x/y.pth", "compile=true", "inner=rmsprop"],
    ),
}  # fmt: skip


def kept(memory: ms.methods.Method = ms.Reptile(keep_memory=True), **changes: object) -> FewShot:  # noqa: B008
    return FewShot(**{"inner": ms.Adam(), "outer": Outer("sgd", 1.0), "method": memory, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*PRESETS, *FULL])
def test_every_configuration_is_the_same_after_a_file(name: str, tmp_path: Path) -> None:
    config = {**PRESETS, **FULL}[name]
    write_config(tmp_path / "config.json", config)
    assert read_config(tmp_path / "config.json", type(config)) == config
    text = to_toml({"job": config.job, **to_plain(config)})
    (tmp_path / "mine.toml").write_text(text)
    assert presets.read(tmp_path / "mine.toml") == config


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Data(ways=1), "ways = 1 must be at least 2."),
        (lambda: Data(way=5), "way: there is no such field. Did you mean 'ways'?"),  # type: ignore[call-arg]
        (lambda: Data(split="trian"), "split = 'trian' must be one of 'train', 'trainval'. Did you mean 'train'?"),  # type: ignore[arg-type]
        (lambda: Outer("sgd", eps=1e-3), "outer.eps = 0.001 is no option of sgd"),
        (lambda: Outer(clip=0.0), "clip = 0.0 must be above 0."),
        (lambda: Outer(clip=1.0, clip_value=1.0), "outer.clip = 1.0 and outer.clip_value = 1.0: give one of them"),
        (lambda: Outer(lr=1e308), "lr = 1e+308 must be at most 1e+38."),
        (lambda: Outer(eps=-1.0), "eps = -1.0 must be at least 0."),
        (lambda: Validation(episodes=1), "episodes = 1 must be at least 2."),
        (lambda: FewShot(batch=0), "batch = 0 must be at least 1."),
        (lambda: FewShot(tasks=0), "tasks = 0 must be at least 1."),
        (lambda: FewShot(steps=0), "steps = 0 must be at least 1."),
        (lambda: FewShot(steps=10**20), "steps = 100000000000000000000 must be at least 1 and at most 100,000"),
        (lambda: FewShot(threads=10**20), "threads = 100000000000000000000 must be at most 1,024."),
        (lambda: FewShot(iterations=10**20), "iterations = 100000000000000000000 must be at most 1,000,000,000."),
        (lambda: FewShot(steps=(2, 2), method=ms.MultiStep(window=2)), "leave window"),
        (lambda: FewShot(data=Data(split="trainval")), "set validation.every to 0"),
        (lambda: FewShot(seed=-1), "seed = -1 must be at least 0."),
        (lambda: FewShot(seed=True), "seed = true must be a whole number."),
        (lambda: kept(inner=ms.SGD(0.1)), "inner = sgd has no memory that method.keep_memory could keep"),
        (lambda: kept(outer=Outer("adam")), "outer.optimizer = adam at outer.lr = 0.001: with method.keep_memory"),
        (lambda: kept(outer=Outer("sgd", 1.5)), "outer.optimizer = sgd at outer.lr = 1.5"),
        (lambda: FewShot(inner=ms.SGD(lambda meta, step: 0.1)), "inner.lr: <function"),
        (lambda: FewShot(inner=3), "inner = 3 has no name: register it"),
        (lambda: Transfer(), "method.name = transfer needs a net to learn from"),
        (lambda: Transfer(method=FineTuning(), source=Source(weights="a")), "Set net.name to it"),
        (lambda: Transfer(method=Scratch(), outer=Outer(clip=1.0)), "outer.clip = 1.0: in a transfer run"),
        (lambda: Transfer(method=Scratch(), gradient_difference=3), "gradient_difference is measured in virtual steps"),
        (lambda: Transfer(method=Scratch(), batch=1), "batch = 1 must be at least 2."),
        (lambda: Source(weights="a", dataset="b"), "source.dataset = 'b': the source has weights (a)"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(MetastepError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)


BASE = PRESETS["omniglot-5w1s-multistep4"]
TAUGHT = PRESETS["digits-sgd-multistep"]
REFUSED = [
    (BASE, "method.window=0", "method.window = 0 must be at least 1"),
    (BASE, "method.windw=3", "method.windw = 3 is no option of multi_step. Did you mean 'window'?"),
    (BASE, "method=truncated", "method.depth is missing: truncated needs it."),
    (BASE, "method=mutli_step", "Did you mean 'multi_step'?"),
    (BASE, "inner.lr=fast", "inner.lr = 'fast'"),
    (BASE, "inner.lr=1e308", "inner.lr = 1e+308 is too large"),
    (BASE, "inner.betas=0,1", "inner.betas = [0, 1] is no option of sgd."),
    (BASE, "steps=a,b", "steps = ['a', 'b'] must be a whole number, or the length of every window"),
    (BASE, "data.ways=five", "data.ways = 'five' must be a whole number."),
    (BASE, "data.ways.x=5", "data.ways = {'x': 5} must be a whole number."),
    (BASE, "data.name.x=5", "data.name = {'x': 5} must be text."),
    (BASE, "outer=adam", "outer = 'adam' must be a table of fields."),
    (BASE, "shots=5", "shots: there is no such field. Did you mean 'data.shots'?"),
    (BASE, "=5", "'=5' changes nothing."),
    (BASE, "a..b=5", "'a..b=5' changes nothing."),
    (BASE, "steps", "'steps' changes nothing. Write field=value"),
    (TAUGHT, "method=transfre", "must be one of 'transfer', 'scratch', 'fine_tuning'. Did you mean 'transfer'?"),
    (TAUGHT, "method.beta=-1", "method.beta = -1 must be at least 0."),
    (TAUGHT, "method.outer=total", "method.window = 2 with method.outer = total: leave the window out"),
    (TAUGHT, "data.size=99999", "data.size = 99999 must be at most 4,096."),
    (TAUGHT, "epochs=99999999999", "epochs = 99999999999 must be at most 1,000,000,000."),
]  # fmt: skip


@pytest.mark.parametrize(("config", "change", "message"), REFUSED, ids=[change for _, change, _ in REFUSED])
def test_errors_name_the_field_as_it_was_typed(config: FewShot | Transfer, change: str, message: str) -> None:
    with pytest.raises(MetastepError, match=re.escape(message)) as caught:
        overridden(config, [change])
    assert "\n" not in str(caught.value)


def test_key_and_value_change_a_preset() -> None:
    config = overridden(BASE, ["steps=4,2", "method.window=1", "--inner.lr=0.1", "seed=3", "validation.every=0"])
    assert isinstance(config, FewShot)
    assert (config.steps, config.window, config.inner.lr, config.seed) == ((4, 2), 1, 0.1, 3)
    assert overridden(config, ["steps=6"]).steps == 6
    adam = overridden(config, ["inner.betas=0,0.9", "inner=adam"])
    assert adam.inner == ms.Adam(betas=(0, 0.9)), "a new optimizer starts from its own defaults"
    assert overridden(BASE, ["data=folder:a,b", "chunk_size=none"]).data.name == "folder:a,b"
    assert overridden(BASE, ["data.rotations=none"]).data.rotations == "none"


def test_what_is_replaced_forgets_its_options() -> None:
    other = overridden(TAUGHT, ["source.weights=a.pth", "data=folder:b"])
    assert (other.data.per_class, other.source.dataset, other.source.epochs) == (None, None, None)
    trained = overridden(other, ["source.epochs=3", "source.dataset=folder:c"])
    assert (trained.source.weights, trained.source.dataset, trained.source.epochs) == (None, "folder:c", 3)
    net = overridden(PRESETS["glyphs-5w1s-maml"], ["net=finn_mini"]).net
    assert (net.options, net.size) == ({}, 28)
    assert overridden(TAUGHT, ["net=vgg4"]).net == Target("vgg4")


@pytest.mark.parametrize("method", [name for name in names("method") if name not in ("reptile", "truncated")])
def test_another_method_does_not_inherit_options(method: str) -> None:
    window = ["method.window=2"] if method == "multi_step" else []
    found = overridden(BASE, [f"method={method}", *window]).method
    assert found == registry.named("method", method)(**({"window": 2} if window else {}))


def test_judging_may_differ_from_training() -> None:
    config = FewShot(data=Data(shots=10), test=Test(shots=1, steps=50, batch=5))
    assert (config.train_episodes.shots, config.test_episodes.shots) == (10, 1)
    assert (config.as_tested().steps, config.as_tested().batch) == (50, 5)
    assert FewShot().as_tested() == FewShot()


def test_momentum_is_zero_unless_it_is_given() -> None:
    assert FewShot().inner == ms.SGD(0.4)
    assert Transfer(method=Scratch()).inner == ms.SGD(0.1)


@dataclass(frozen=True)
class Signed:
    lr: float = 0.1
    beta: float = 0.9

    def __post_init__(self) -> None:
        if self.beta > 1:
            raise RuntimeError("beta is too large")


@dataclass(frozen=True, repr=False)
class Last(ms.methods.Method):
    depth: int = 2


def test_what_a_plug_in_registers_needs_no_line_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for kind, name, thing in (("optimizer", "signed", Signed), ("method", "last", Last)):
        names(kind)
        monkeypatch.setitem(registry._registered[kind], name, thing)
    config = overridden(BASE, ["inner=signed", "inner.beta=0.5", "method=last", "method.depth=3"])
    assert (config.inner, config.method) == (Signed(0.1, 0.5), Last(3))
    write_config(tmp_path / "config.json", config)
    assert read_config(tmp_path / "config.json", FewShot) == config
    for change, message in (
        ("inner.betta=1", "inner.betta = 1 is no option of signed. Did you mean 'beta'?"),
        ("inner.beta=high", "inner.beta = 'high' must be a number"),
        ("inner.beta=2", "inner.beta is too large"),
        ("method.depth=1.5", "method.depth = 1.5 must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            overridden(config, [change])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("steps = 3", 'job is missing: write job = "few_shot"'),
        ('job = "other"', "job = 'other' is none"),
        ('like = "omniglot-5w1s-mam"', "there is no such preset. Did you mean 'omniglot-5w1s-maml'?"),
        ("steps = ", "is no TOML"),
        (
            'like = "omniglot-5w1s-maml"\n[data]\nwayz = 3',
            "data.wayz: there is no such field. Did you mean 'data.ways'?",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_why(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(content)
    with pytest.raises(MetastepError, match=re.escape(message)) as caught:
        presets.read(tmp_path / "mine.toml")
    assert "\n" not in str(caught.value)


def test_a_file_starts_from_a_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('like = "omniglot-5w1s-maml"\nsteps = [2, 1]\n[inner]\nlr = 0.1\n')
    found = presets.read(tmp_path / "mine.toml")
    assert found == replace(PRESETS["omniglot-5w1s-maml"], steps=(2, 1), inner=ms.SGD(0.1, 0.9, weight_decay=1e-4))  # type: ignore[arg-type]


def test_presets_are_toml() -> None:
    text = to_toml(presets.tables()["omniglot-5w1s-multistep4"])
    assert tomllib.loads(text)["method"] == {"name": "multi_step", "window": 4}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "not written by metastep"),
        ('{"format": "other"}', "not written by metastep"),
        ('{"format": "metastep run", "version": 2}', "format version 2, and this metastep reads version 3"),
        ('{"format": "metastep run", "version": 3}', "lacks config, job"),
        ('{"format": "metastep run", "version": 3, "job": "x", "config": {}}', "job = 'x' is none of few_shot"),
        ('{"format": "metastep run", "version": 3, "job": "transfer", "config": {}}', "a transfer run, not a few-shot"),
        ('{"format": "metastep run", "version": 3, "job": "few_shot", "config": {"data": {"ways": 1}}}',
         "data.ways = 1 must be at least 2."),
    ],
)  # fmt: skip
def test_files_that_are_no_configuration(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path / "config.json", FewShot)


def test_the_file_is_readable(tmp_path: Path) -> None:
    write_config(tmp_path / "config.json", BASE)
    content = json.loads((tmp_path / "config.json").read_text())
    assert (content["format"], content["version"], content["job"]) == ("metastep run", 3, "few_shot")
    assert content["config"]["method"] == {"name": "multi_step", "window": 4, "curvature": "exact"}
    assert (tmp_path / "config.json").read_text().count("\n") > 5


HUGE = ["threads=10000000", "steps=1000000000", "iterations=99999999999999999999", "data.size=10000000", "tasks=1e9",
        "validation.episodes=10000000000", "outer.eps=-1", "inner.lr=1e308", "outer.lr=1e308", "seed=-1",
        "checkpoint_seconds=1e300", "log_every=0", "batch=0", "inner.momentum=nan"]  # fmt: skip


@pytest.mark.parametrize("change", HUGE)
def test_numbers_that_no_machine_has_are_refused_in_one_line(change: str) -> None:
    with pytest.raises(MetastepError) as refused:
        overridden(FewShot(), [change])
    said = str(refused.value)
    assert said.startswith(change.partition("=")[0])
    assert "\n" not in said
