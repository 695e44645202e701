"""The laws of everything that is registered; a new entry is tested by existing."""

from pathlib import Path

import pytest

import metastep
from metastep.core.registry import named, names
from tests.core import laws

OPTIMIZERS = names("optimizer")
over_optimizers = pytest.mark.parametrize("name", OPTIMIZERS)
over_curvatures = pytest.mark.parametrize("name", names("curvature"))


@over_optimizers
def test_an_optimizer_says_what_it_is(name: str) -> None:
    laws.optimizer_says_what_it_is(name)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if hasattr(named("optimizer", name), "original")])
def test_an_optimizer_equals_its_original(name: str) -> None:
    assert laws.optimizer_equals_its_original(name) > 4


@over_optimizers
def test_a_window_of_an_optimizer_is_its_steps(name: str) -> None:
    laws.optimizer_window_is_its_steps(name)


def test_an_optimizer_is_linear_if_it_says_so() -> None:
    said = {name: laws.optimizer_is_linear_if_it_says_so(name) for name in OPTIMIZERS}
    assert any(said.values())  # otherwise nothing was tested


@over_optimizers
def test_an_optimizer_pulls_back_what_differences_give(name: str) -> None:
    laws.optimizer_pulls_back_what_differences_give(name)


@pytest.mark.parametrize("name", [name for name in names("method") if named("method", name).is_exact])
def test_an_exact_method_gives_the_derivative_of_its_loop(name: str) -> None:
    laws.method_gives_the_derivative_of_its_loop(name)


@pytest.mark.parametrize("name", [name for name in names("method") if named("method", name).needs_start])
def test_a_method_that_needs_the_start_refuses_another_theta(name: str) -> None:
    laws.method_refuses_a_theta_that_it_cannot_learn(name)


@over_curvatures
def test_a_curvature_is_right_on_a_quadratic(name: str) -> None:
    laws.curvature_is_right_on_a_quadratic(name)


@over_curvatures
def test_a_curvature_gives_zero_for_zero(name: str) -> None:
    laws.curvature_gives_zero_for_zero(name)


def test_an_optimizer_is_named_in_one_file() -> None:
    """Besides the lists of public names, and the rule of stability, which is known for some optimizers only"""
    source = Path(metastep.__file__).parent
    files = [path.relative_to(source) for kind in ("*.py", "*.pyi", "*.toml") for path in source.rglob(kind)]
    named_in = {str(path) for path in files if "rmsprop" in (source / path).read_text().lower()}
    assert named_in == {"__init__.py", "__init__.pyi", "core/optimizers.py", "core/stability.py"}
