from pathlib import Path

import pytest

from benchmarks import results
from metastep.bench.cases import SETTINGS
from tests.bench.helpers import SETTING, TINY


@pytest.fixture(autouse=True)
def _tiny_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, TINY, SETTING)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results go and are read from, instead of the repository"""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results" / "bench")
    results.FOLDER.mkdir(parents=True)
    return tmp_path
