"""The site in a browser, opened as a file."""

from pathlib import Path

import pytest

from tests.browser.conftest import Opening
from tests.test_site import site

__all__ = ["site"]  # a fixture


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)])
def test_pages_open_and_search_finds(site: Path, browser: Opening, dark: bool, width: int) -> None:
    tab = browser(site / "reference" / "methods.html", dark=dark, width=width)
    tab.page.goto(f"{tab.page.url}?q=Reptile")
    tab.page.wait_for_selector(".md-search-result__item")
    assert all(url.startswith((site.as_uri(), "data:", "about:")) for url in tab.requests), tab.requests
    assert (tab.errors, tab.overflow) == ([], 0)
