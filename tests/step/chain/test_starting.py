"""Kernels start early where the GPU can do that, but not before a profiler."""

import pytest
import torch

from metastep.step.chain import starting
from metastep.step.chain.starting import one_after_the_other, start


@pytest.mark.parametrize(("capability", "early"), [((8, 6), False), ((9, 0), True), ((10, 0), True)])
def test_by_what_the_gpu_can_do(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], early: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    starting._can_start_early.cache_clear()
    assert start()["CHAINED"] is early
    assert start().get("launch_pdl", False) is early
    with one_after_the_other():
        assert start() == {"CHAINED": False}
    assert start()["CHAINED"] is early
    starting._can_start_early.cache_clear()


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert start() == {"CHAINED": False}
