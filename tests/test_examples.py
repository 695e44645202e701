"""The examples run as a reader would run them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("sinusoid.py", ["--iterations", "3", "--out", "picture.png"], "picture.png"),
        ("restart.py", [], "φ re-initialised for each task"),
    ],
)
def test_example(name: str, options: list[str], says: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert says in run.stdout
    assert "--out" not in options or (tmp_path / "picture.png").stat().st_size > 10_000
