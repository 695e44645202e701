"""What the tests of each kind of run use."""

from tests.train.fewshot.conftest import _small
from tests.train.transfer.conftest import _stripes, source

__all__ = ["_small", "_stripes", "source"]
