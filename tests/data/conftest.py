"""Every test has its own cache, and real data only where the environment names it."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("METASTEP_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The data directory with the real packs; for the session, and so found before a test hides it."""
    root = os.environ.get("METASTEP_DATA")
    if not root or not (Path(root) / "omniglot.npz").is_file():
        pytest.skip("METASTEP_DATA does not name a folder with the real packs")
    return Path(root)
