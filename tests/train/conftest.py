"""What the tests of a run's folder share: programs to kill, disks that are full, folders that refuse."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Python = Callable[..., str]


@pytest.fixture
def python() -> Python:
    """Run a program in a fresh interpreter and return what it printed."""

    def run(source: str, *arguments: object) -> str:
        command = [sys.executable, "-c", source, *map(str, arguments)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mount is not allowed here: {done.stderr.strip()}")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tiny disk")
    folder = tmp_path / "tiny"
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def make_read_only(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Turn a folder read-only until the test ends. Permissions do not stop root: for root it is mounted so."""

    def make(folder: Path) -> None:
        if os.geteuid() != 0:
            folder.chmod(0o555)
            request.addfinalizer(lambda: folder.chmod(0o755))
            return
        _mount("--bind", str(folder), str(folder))
        request.addfinalizer(lambda: subprocess.run(["umount", str(folder)], check=True))
        _mount("-o", "remount,ro,bind", str(folder))

    return make
