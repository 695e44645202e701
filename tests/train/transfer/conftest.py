"""Runs learn stripes, from a source that knows them."""

from pathlib import Path

import pytest

from metastep.train import presets, remembered
from metastep.train.config import Scratch
from metastep.train.loop import train
from metastep.train.transfer.building import source_run
from tests.train.transfer.train_helpers import TINY, loading, tiny

PRESETS = presets.transfer()


@pytest.fixture
def _stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "load", loading)


@pytest.fixture
def _tiny_presets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, _stripes: None) -> None:
    """Of stripes, in an empty folder"""
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setitem(PRESETS, "alone", tiny(Scratch(), epochs=1))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source that was trained before"""
    folder = tmp_path_factory.mktemp("source") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remembered, "load", loading)
        train(source_run(TINY), folder)
    return folder
