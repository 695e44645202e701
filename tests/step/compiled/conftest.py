"""PyTorch's compiler logs each of its steps in detail if anybody listens, which takes most of the time."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _no_log_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
