"""The wheel and the sdist hold what they must and nothing else, and the wheel runs in an environment of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import metastep

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
MEBIBYTES = 6

pytestmark = [pytest.mark.wheel, pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")]


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, built by the hatchling that is installed"""
    pytest.importorskip("hatchling", reason="the extra `dev` is not installed")
    pytest.importorskip("build", reason="the extra `dev` is not installed")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--sdist", "--outdir", folder, ROOT)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def tracked(folder: str) -> set[str]:
    return set(run("git", "ls-files", "--cached", "--others", "--exclude-standard", folder).splitlines())


def test_the_wheel_holds_the_package_alone(built: tuple[Path, Path]) -> None:
    wheel = built[0]
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if not name.startswith(f"metastep-{metastep.__version__}.dist-info/")}
    there = {name for name in tracked("src") if (ROOT / name).exists()}
    assert inside == {name.removeprefix("src/") for name in there}
    assert {"metastep/py.typed", "metastep/__init__.pyi"} <= inside
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert wheel.stat().st_size < MEBIBYTES * 2**20


def test_the_sdist_makes_the_wheel_and_holds_no_results(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "src/metastep/__init__.py",
        "tests/conftest.py",
    } <= names
    tops = {name.partition("/")[0] for name in names}
    assert not tops & {"results", "runs", "site", "demo", "dist", ".venv"}


def test_twine_accepts_both(built: tuple[Path, Path]) -> None:
    pytest.importorskip("twine", reason="the extra `dev` is not installed")
    assert "WARNING" not in run(sys.executable, "-m", "twine", "check", "--strict", *built)


def test_the_wheel_runs_in_an_environment_of_its_own(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Its dependencies are read from this environment, metastep itself is not"""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    zipfile.ZipFile(built[0]).extractall(packages)
    for dependency in Path(sysconfig.get_path("purelib")).iterdir():
        if "metastep" not in dependency.name and dependency.suffix != ".pth":
            os.symlink(dependency, packages / dependency.name)
    where = run(python, "-c", "import metastep; print(metastep.__file__, metastep.__version__)", cwd=tmp_path)
    assert where.startswith(str(packages)), where
    command = (python, "-m", "metastep")
    assert "classify" in run(*command, "--help", cwd=tmp_path)
    assert "omniglot-5w1s" in run(*command, "learners", cwd=tmp_path)
    run(*command, "demo", "--iterations", "2", "--episodes", "2", cwd=tmp_path)
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    shutil.rmtree(tmp_path / "venv")
