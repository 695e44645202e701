"""Tutorials run from start to end, in their short setting, and their pages show the code that runs."""

from pathlib import Path

import pytest

from metastep.core import registry
from study import tutorials


@pytest.fixture
def _registry_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tutorial registers is gone after it"""
    tables = {kind: {name: registry.named(kind, name) for name in registry.names(kind)} for kind in registry._MODULES}
    monkeypatch.setattr(registry, "_registered", tables)


@pytest.mark.notebooks
@pytest.mark.usefixtures("_registry_as_before")
@pytest.mark.parametrize("name", tutorials.names())
def test_a_tutorial_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tutorials.run(name, short=True, figures=tmp_path)
    assert "![](figures/" in page  # each ends in a picture


@pytest.mark.parametrize("name", tutorials.names())
def test_a_page_is_in_step_with_its_tutorial(name: str) -> None:
    page = (tutorials.FOLDER / f"{name}.md").read_text()
    assert tutorials.without_outputs(page) == tutorials.source_page(name)


TEXT = """# %% [markdown]
# # Title
#
# Words.

# %%
steps = 300  # short: 2
print(steps)

# %%
import matplotlib.pyplot as plt

_ = plt.plot([steps])
"""


@pytest.mark.parametrize(("short", "printed"), [(True, "2"), (False, "300")])
def test_a_page_has_what_was_printed_and_drawn(
    short: bool, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tutorials, "FOLDER", tmp_path)
    (tmp_path / "one.py").write_text(TEXT)
    page = tutorials.run("one", short, figures=tmp_path / "figures")
    assert page.startswith("# Title\n\nWords.\n\n```python\nsteps")
    assert f"```text\n{printed}\n```" in page
    assert page.endswith("![](figures/one-2-1.png)\n")
    assert (tmp_path / "figures" / "one-2-1.png").stat().st_size > 1_000
    if not short:
        assert tutorials.without_outputs(page) == tutorials.source_page("one")
