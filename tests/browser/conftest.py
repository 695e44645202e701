"""Pages in headless Chromium, as people see them. Without Chromium or Playwright these tests are skipped."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from study.browser import chromium_path, launched

INSIDE = ("data", "blob", "about", "chrome-error")  # addresses that reach for nothing


@dataclass
class Tab:
    """An open page, with what it complained about and what it asked for."""

    page: Any
    """Playwright's own: click, type, evaluate, screenshot"""
    errors: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and exceptions that nobody caught"""
    requests: list[str] = field(default_factory=list)

    @property
    def elsewhere(self) -> list[str]:
        """Requests to any other place than the one that the page itself came from"""
        own = urlsplit(self.page.url)
        return [
            url
            for url in self.requests
            if (to := urlsplit(url)).scheme not in INSIDE
            and url != self.page.url.split("#")[0]
            and (own.scheme == "file" or to.netloc != own.netloc)
        ]

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than its window, when what moves has come to rest"""
        self.page.evaluate("Promise.all(document.getAnimations().map((each) => each.finished.catch(() => {})))")
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


Opening = Callable[..., Tab]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    pytest.importorskip("playwright.sync_api", reason="no Playwright: nothing is tested in a browser")
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium: nothing is tested in a browser (Debian: apt-get install chromium)")
    with launched(path) as running:
        yield running


@pytest.fixture
def browser(chromium: Any) -> Iterator[Opening]:
    """Open a file or an address: `tab = browser(path, dark=True, width=390)`."""
    contexts = []

    def opening(place: Path | str, dark: bool = False, width: int = 1280, height: int = 900, **options: Any) -> Tab:
        scheme = "dark" if dark else "light"
        context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        context.set_default_timeout(10_000)
        tab = Tab(context.new_page())
        tab.page.on("console", lambda said: tab.errors.append(said.text) if said.type in ("error", "warning") else None)
        tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
        tab.page.on("request", lambda request: tab.requests.append(request.url))
        tab.page.goto(place.resolve().as_uri() if isinstance(place, Path) else place)
        return tab

    yield opening
    for context in contexts:
        context.close()
