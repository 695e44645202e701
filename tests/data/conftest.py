"""Every test has its own cache, and real data only where the environment names it."""

import os
from pathlib import Path

import pytest

from metastep.data.glyphs import load_glyphs


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("METASTEP_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def drawn_glyphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with glyphs in it: drawing them takes seconds."""
    folder = tmp_path_factory.mktemp("glyphs")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("METASTEP_CACHE", str(folder))
        load_glyphs()
    return folder


@pytest.fixture
def glyphs_cache(own_cache: Path, drawn_glyphs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For a test that loads glyphs and does not care that they have been drawn."""
    del own_cache  # it comes first, so that this one stays
    monkeypatch.setenv("METASTEP_CACHE", str(drawn_glyphs))
    return drawn_glyphs


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The data directory with the real packs; for the session, and so found before a test hides it."""
    root = os.environ.get("METASTEP_DATA")
    if not root or not (Path(root) / "omniglot.npz").is_file():
        pytest.skip("METASTEP_DATA does not name a folder with the real packs")
    return Path(root)
