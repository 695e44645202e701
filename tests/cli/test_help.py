"""Help loads nothing that is slow to import."""

import pytest

from tests.cli.helpers import COMMANDS, loaded_by_help

SLOW = {"torch", "numpy", "matplotlib", "PIL", "scipy", "sklearn"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_nothing_slow(command: str) -> None:
    assert not loaded_by_help()[command] & SLOW
