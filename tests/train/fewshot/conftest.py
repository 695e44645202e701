import pytest
import torch

from metastep.train import remembered
from tests.train.fewshot.helpers import loading, stripes


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stripes for data, and one thread: tensors here are too small to share"""
    monkeypatch.setattr(remembered, "load", loading(stripes))
    torch.set_num_threads(1)
