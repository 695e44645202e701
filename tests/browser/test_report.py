"""The page of a report in a browser: of both jobs, in both themes, wide and narrow."""

from pathlib import Path

import pytest

from metastep.report.page import write_report
from metastep.train import remembered
from tests.browser.conftest import Opening
from tests.report.test_transfer import write_run as write_transfer
from tests.train.fewshot.helpers import loading, stripes
from tests.train.fewshot.use_helpers import write_run
from tests.train.transfer.train_helpers import TINY


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    name = "a-run-with-a-very-long-name-that-does-not-fit-a-narrow-window-at-all"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remembered, "load", loading(stripes))
        write_report([write_run(folder / name), write_transfer(folder / "taught", TINY, 3)], folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_opens_without_a_fault(page: Path, browser: Opening, dark: bool, width: int) -> None:
    tab = browser(page, dark=dark, width=width)
    assert (tab.errors, tab.elsewhere, tab.overflow) == ([], [], 0)
    assert tab.page.locator("svg").count() > 6
    assert tab.page.locator(".query img").first.is_visible()
    back, text = (tab.page.evaluate(f"getComputedStyle(document.body).{key}") for key in ("backgroundColor", "color"))
    assert (brightness(back) < brightness(text)) == dark
    tab.page.locator("summary").click()
    assert tab.page.get_by_text("outer.optimizer").is_visible()
    assert tab.overflow == 0


def brightness(colour: str) -> int:
    """Of rgb(1, 2, 3)"""
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))
