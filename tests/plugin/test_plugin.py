"""A package with an entry point adds one of each kind, with no other line anywhere: found, checked, trained with."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import metastep as ms
from metastep.cli.main import app
from metastep.core import registry
from metastep.core.options import options_of
from metastep.data.episodes import Episodes
from metastep.train.config import FewShot
from metastep.train.fewshot.evaluate import Sampler
from metastep.train.presets import to_toml
from metastep.train.run import Run
from metastep.train.validated import to_plain
from tests.core import laws

HERE = Path(__file__).resolve().parent
ADDED = {"optimizer": "lion", "method": "growing", "curvature": "one_sided", "net": "patches", "dataset": "waves"}


def install(site: Path) -> None:
    """As pip does: the package's metadata, with the entry points of its pyproject.toml, beside its code"""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{n} = {place}\n" for n, place in points.items()) for group, points in groups]
    (info / "entry_points.txt").write_text("".join(lines))


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The plug-in is there for this module, and gone after it"""
    site = tmp_path_factory.mktemp("site")
    install(site)
    tables = {kind: dict(registry._complete(kind)) for kind in registry.KINDS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", tables)
        patch.setattr(registry, "_begun", [])
        patch.syspath_prepend(site)
        patch.syspath_prepend(HERE)
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "metastep_example"]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", ADDED)
def test_each_kind_is_found_by_its_name(kind: str) -> None:
    thing = registry.named(kind, ADDED[kind])
    assert thing.__module__ == f"metastep_example.{kind}"
    assert registry.names(kind)[-1] == ADDED[kind]
    if kind not in ("curvature", "dataset"):
        assert all(option.help for option in options_of(thing).values())


def test_the_laws_of_what_is_registered_hold_for_it() -> None:
    laws.optimizer_says_what_it_is("lion")
    laws.optimizer_window_is_its_steps("lion")
    laws.optimizer_pulls_back_what_differences_give("lion")
    laws.method_gives_the_derivative_of_its_loop("growing")
    laws.curvature_is_right_on_a_quadratic("one_sided", draws=2)
    laws.curvature_gives_zero_for_zero("one_sided")


def test_windows_of_the_method_grow() -> None:
    gradient = ms.MetaGradient(few_shot(), registry.named("method", "growing")(), ms.SGD(lr=0.1), steps=9)
    assert gradient.loop.lengths == (1, 2, 4, 2)


def few_shot() -> ms.Problem:
    torch.manual_seed(0)
    net = ms.nets.build(ADDED["net"], ways=3, channels=1, size=8)
    return ms.few_shot(net, cross_entropy, {"accuracy": ms.accuracy})


def test_all_of_it_together_is_trained_with() -> None:
    problem = few_shot()
    method, inner = registry.named("method", "growing")(first=2), registry.named("optimizer", "lion")(lr=0.02)
    gradient = ms.MetaGradient(problem, method, inner, steps=6)
    meta = gradient.init(problem.made_of.module)
    step = ms.MetaStep(gradient, meta, torch.optim.Adam(ms.trees.leaves(meta), lr=1e-2))
    losses = [float(step(tasks(k)).loss) for k in range(30)]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert (
        repr(gradient)
        == "MetaGradient(few_shot(Sequential, cross_entropy), Growing(first=2), " + f"{inner!r}, steps=6)"
    )


def test_its_curvature_serves_the_methods_that_take_one() -> None:
    problem, curvature = few_shot(), registry.named("curvature", "one_sided")
    net = problem.made_of.module
    found, exact = (
        ms.MetaGradient(problem, ms.MAML(**given), ms.SGD(lr=0.1), steps=3)(net, tasks(0)).grad
        for given in ({"curvature": curvature}, {})
    )
    for name in exact:
        torch.testing.assert_close(found[name], exact[name], rtol=0.05, atol=5e-3)  # differences in float32
    assert any(bool((found[name] != exact[name]).any()) for name in exact)


def test_its_data_set_serves_episodes_and_labels() -> None:
    waves = ms.data.load("waves")
    parts = {split: waves.classes(split) for split in ("train", "val", "test")}
    assert sum(len(part.names) for part in parts.values()) == 60
    assert not set(parts["train"].names) & set(parts["test"].names)
    assert parts["train"].images.shape[1:] == (1, 16, 16)
    assert waves.labelled().counts == (720, 240, 240)


def test_few_shot_learning_with_all_five() -> None:
    inner, method = registry.named("optimizer", "lion")(), registry.named("method", "growing")()
    torch.manual_seed(0)
    net = ms.nets.build("patches", ways=3, channels=1, size=16)
    gradient = ms.MetaGradient(ms.few_shot(net, cross_entropy, {"accuracy": ms.accuracy}), method, inner, steps=4)
    waves = ms.data.load("waves")
    episodes = Episodes(3, 1, 5, "none")
    draw, check = (Sampler.of(waves.classes(part), episodes, 0, "cpu", torch.float32) for part in ("train", "val"))
    before = gradient.judge(net, check(0, 50)).metrics["accuracy"].mean()
    step = ms.MetaStep(gradient, net, torch.optim.Adam(net.parameters(), 3e-3), draw=lambda k: draw(k, 8))
    for _ in range(60):
        step()
    after = gradient.judge(net, check(0, 50)).metrics["accuracy"].mean()
    assert after > max(0.95, before + 0.1)


CHANGES = [
    "data=waves",
    "net=patches",
    "net.width=8",
    "inner=lion",
    "inner.beta=0.5",
    "method=growing",
    "method.first=2",
]


def test_a_command_line_and_a_file_name_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["iterations=2", "tasks=2", "validation.every=0"]
    done = CliRunner().invoke(app, ["train", "glyphs-5w1s-maml", *CHANGES, *small, "--out", "typed"])
    assert done.exit_code == 0, done.output
    config = Run.open(Path("typed")).config(FewShot)
    assert (config.inner_name, config.inner.beta, config.method.first, config.net.options) == (
        "lion", 0.5, 2, {"width": 8},
    )  # fmt: skip
    Path("mine.toml").write_text(to_toml({"job": config.job, **to_plain(config)}))
    assert CliRunner().invoke(app, ["train", "mine.toml", "--out", "read"]).exit_code == 0
    assert Run.open(Path("read")).config(FewShot) == config
    asked = CliRunner().invoke(app, ["evaluate", "typed", "--episodes", "4"])
    assert asked.exit_code == 0, asked.output
    refused = CliRunner().invoke(app, ["train", "glyphs-5w1s-maml", "inner=lion", "inner.betta=1"])
    assert "inner.betta = 1 is no option of lion. Did you mean 'beta'?" in refused.output


def tasks(seed: int) -> ms.Task:
    """Three classes of patterns, with noise; 4 tasks that give the classes other numbers"""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(9)).repeat_interleave(4, 0)
    x = patterns + 0.1 * torch.randn(2, 4, 12, 1, 8, 8, generator=generator)
    y = torch.stack([torch.randperm(3, generator=generator).repeat_interleave(4) for _ in range(4)])
    return ms.Task((x[0], y), (x[1], y))


SCRIPT = """
import metastep as ms
from metastep.core import registry
for kind, name in {added!r}.items():
    print(kind, registry.named(kind, name).__name__)
"""


def test_a_fresh_process_finds_it_where_it_is_installed(tmp_path: Path) -> None:
    install(tmp_path)
    paths = os.pathsep.join([str(tmp_path), str(HERE), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(added=ADDED)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    found = dict(line.split() for line in run.stdout.splitlines())
    assert list(found) == list(ADDED), run.stderr
    assert list(found.values()) == ["Lion", "Growing", "one_sided", "patches", "Waves"]


def test_a_plug_in_that_cannot_be_imported_is_reported_and_the_rest_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[metastep.plugins]\nbroken = metastep_broken\n")
    (tmp_path / "metastep_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_begun", [])
    monkeypatch.setattr(registry, "_failed", {})
    with pytest.warns(
        UserWarning, match=r"plug-in 'broken' \(metastep_broken\).*division by zero.*Repair or uninstall"
    ):
        assert "sgd" in registry.names("optimizer")
    with pytest.raises(ms.MetastepError, match=r"no net 'mine'.*'broken' could not be imported: division by zero"):
        registry.named("net", "mine")
