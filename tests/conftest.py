"""What a test may change of the process is as it was for the next."""

import signal
from collections.abc import Iterator

import pytest
import torch

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have background jobs ignore it


@pytest.fixture(autouse=True)
def _products_as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]
