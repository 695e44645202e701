"""The public names are imported when they are first used, and two files list them alike."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import metastep

CODE = "import json, sys, metastep; print(json.dumps(list(sys.modules)))"


def test_importing_metastep_loads_next_to_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert "torch" not in loaded
    assert len([name for name in loaded if name.split(".")[0] == "metastep"]) <= 5


def typed(package: ModuleType = metastep) -> dict[str, str]:
    """The names in the file for type checkers, and the modules that it takes them from"""
    content = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in content.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or "": f"{node.module}.{alias.name}" for node in imports for alias in node.names}


def listed() -> dict[str, str]:
    """The names that are imported at first use, and where they are"""
    modules = {name: f"metastep.{place}" for name, place in metastep._MODULES.items()}
    return modules | {name: f"{module}.{name}" for name, module in metastep._PLACE.items()}


def test_both_lists_have_the_same_names() -> None:
    assert typed() == listed()
    assert sorted(typed()) == metastep.__all__


@pytest.mark.parametrize("package", [metastep.data, metastep.nets])
def test_both_lists_of_a_package_have_the_same_names(package: ModuleType) -> None:
    assert typed(package) == {name: f"{place}.{name}" for name, place in package._PLACE.items()}
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert sorted(package._PLACE) == package.__all__ == dir(package)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("name", metastep.__all__)
def test_a_public_name_is_there(name: str) -> None:
    assert getattr(metastep, name) is not None
    assert name in dir(metastep)
