"""The site builds without a warning, documents every public name, and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import metastep

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("curvature", "data", "estimators", "methods", "nets", "optimizers", "problems", "solvers", "trees")
REFERENCE = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it"""
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    run = subprocess.run(
        build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    assert "WARNING" not in run.stderr
    return folder


def test_the_reference_has_every_public_name() -> None:
    listed = set(re.findall(r"^::: metastep\.(\S+)$", REFERENCE, flags=re.M))
    top = set(metastep.__all__) - set(ROOMS)
    in_rooms = {f"{room}.{name}" for room in ROOMS for name in getattr(metastep, room).__all__}
    twice = {name for name in in_rooms if name.split(".")[1] in top}
    assert listed == top | (in_rooms - twice)


@pytest.mark.docs
def test_every_documented_name_has_a_text(site: Path) -> None:
    for page in (site / "reference").glob("*.html"):
        for entry in page.read_text().split('<div class="doc doc-object')[1:]:
            name = re.search(r'id="(metastep[\w.]*)"', entry)
            contents = entry.split('<div class="doc doc-contents')[1]
            assert "<p>" in contents, name and name[1]


@pytest.mark.docs
def test_names_lead_to_the_reference(site: Path) -> None:
    assert 'href="../reference/gradient.html#metastep.suggest"' in (site / "how-to" / "choose.html").read_text()
    page = (site / "reference" / "methods.html").read_text()
    overview = page.split('<div class="doc doc-object')[0]
    assert 'href="#metastep.methods.ANIL"' in overview
    assert "Adapt the head alone" in overview
    assert 'href="problems.html#metastep.Problem"' in (site / "reference" / "gradient.html").read_text()


@pytest.mark.docs
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*?src="([^"]*)"|<link[^>]*?href="([^"]*)"', page.read_text())
        assert [url for pair in loaded for url in pair if url.startswith(("http", "//"))] == []
