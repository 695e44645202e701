from pathlib import Path

import pytest

from study import results
from study.bench.cases import SETTINGS
from tests.study.bench.helpers import TINY_SETTINGS


@pytest.fixture(autouse=True)
def _tiny_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, setting in TINY_SETTINGS.items():
        monkeypatch.setitem(SETTINGS, name, setting)


@pytest.fixture(autouse=True)
def _committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was changed here and is not committed yet"""
    monkeypatch.setenv("METASTEP_COMMIT", "abc")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results go and are read from, instead of the repository"""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results" / "bench")
    results.FOLDER.mkdir(parents=True)
    return tmp_path
