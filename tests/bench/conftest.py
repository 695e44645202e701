import pytest

from metastep.bench.cases import SETTINGS
from tests.bench.helpers import SETTING, TINY


@pytest.fixture(autouse=True)
def _tiny_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, TINY, SETTING)
