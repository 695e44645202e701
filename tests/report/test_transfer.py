"""The page about transfer runs that are not far yet: what is there is shown, and what is not is said."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from metastep.report.page import write_report
from metastep.train.config import Scratch, TargetData, Transfer
from metastep.train.record import Metrics
from metastep.train.run import Run
from metastep.train.transfer.building import SOURCE, source_run
from tests.train.transfer.train_helpers import TINY, tiny


def write_run(folder: Path, config: Transfer, epochs: int = 0) -> Path:
    """A run that is so far"""
    run = Run.create(folder, config)
    with Metrics(run.metrics_path) as metrics:
        metrics.write(0, {"kind": "layers", "source_0": "first 4×8×8"})
        for epoch in range(1, epochs + 1):
            metrics.write(epoch, {"kind": "train", "epoch": epoch, "cross_entropy": 1.0, "seconds": 1.0})
            accuracies = {"validation_accuracy": 0.5, "test_accuracy": 0.25}
            metrics.write(epoch, {"kind": "validation", "epoch": epoch, **accuracies})
    return folder


def waiting(folder: Path, epochs: int, config: Transfer = TINY) -> Path:
    """A run whose source is so far"""
    Run.create(folder, config)
    write_run(folder / SOURCE, source_run(config), epochs)
    return folder


def said(tmp_path: Path, *folders: Path) -> str:
    """What a page about them says, and [drawn] for every drawing"""
    write_report(folders, tmp_path / "page.html")
    page = re.sub("<svg.*?</svg>", "[drawn]", (tmp_path / "page.html").read_text(), flags=re.DOTALL)
    return " ".join(re.sub("<[^>]*>", " ", page[page.index("<main") :]).split())


def test_a_run_that_waits_for_its_source_shows_the_source(tmp_path: Path) -> None:
    page = said(tmp_path, waiting(tmp_path / "mine", epochs=1))
    net = TINY.source.net
    assert f"mine : its source, {net} on stripes, is trained first: 1 of 2 epochs are done" in page
    assert "metastep resume RUN" in page
    assert "mine — — — transfer (steps 2, window 2) 0 of 3 epochs" in page
    assert "mine/source 25.00 — 50.00 scratch 1 of 2 epochs" in page
    assert page.count("[drawn]") == 3
    assert "No epoch of a run with meta-networks is over yet." in page
    assert "No run here has meta-networks" not in page


def test_a_source_that_has_not_begun_is_told(tmp_path: Path) -> None:
    Run.create(tmp_path / "new", TINY)
    assert "is trained first, and has not begun. If" in said(tmp_path, tmp_path / "new")


def test_a_source_is_told_without_its_place(tmp_path: Path) -> None:
    own = replace(TINY, source=replace(TINY.source, dataset=f"folder:{tmp_path}/letters"))
    page = said(tmp_path, waiting(tmp_path / "mine", 1, own))
    assert "on folder:letters, is trained first" in page
    assert str(tmp_path) not in page


def test_a_run_with_an_epoch_of_its_own_shows_that(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine", TINY, epochs=1)
    write_run(folder / SOURCE, source_run(TINY), epochs=2)
    page = said(tmp_path, folder)
    assert "mine transfer (steps 2, window 2) on stripes" in page
    assert "Test accuracy 25.0 %" in page
    assert "Epochs 1 of 3" in page
    assert "mine/source" not in page


@pytest.mark.parametrize(("method", "has"), [("transfer", True), ("scratch", False)])
def test_meta_networks_that_are_yet_to_come_are_told_from_none(method: str, has: bool, tmp_path: Path) -> None:
    config = tiny(Scratch()) if method == "scratch" else TINY
    page = said(tmp_path, write_run(tmp_path / "mine", config))
    assert ("No epoch of a run with meta-networks is over yet." in page) == has
    assert ("No run here has meta-networks." in page) != has


def test_runs_side_by_side_name_all_their_tasks(tmp_path: Path) -> None:
    scratch = tiny(Scratch())
    configs = {"a": scratch, "b": replace(scratch, data=TargetData("Stripes", 8)), "c": scratch}
    folders = [write_run(tmp_path / name, config, 1) for name, config in configs.items()]
    page = said(tmp_path, *folders, waiting(tmp_path / "d", 1))
    assert "5 runs side by side stripes; Stripes Curves" in page
    assert "Curves a b c d d/source" in page
