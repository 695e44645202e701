"""The browser of the other tests notices what it is there to notice."""

from pathlib import Path

import pytest

from tests.browser.conftest import Opening

FAULTS = {
    "errors": "<script>console.error('broken')</script>",
    "errors ": "<script>undefined.name</script>",
    "elsewhere": "<img src='http://127.0.0.1:9/picture.png'>",
    "elsewhere ": "<img src='picture.png'>",
    "overflow": "<div style='width:2000px'>wide</div>",
}


def written(tmp_path: Path, body: str) -> Path:
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><html lang='en'><title>a page</title><body>{body}</body></html>")
    return page


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_noticed(what: str, browser: Opening, tmp_path: Path) -> None:
    assert getattr(browser(written(tmp_path, FAULTS[what])), what.strip())


def test_a_sound_page_has_none(browser: Opening, tmp_path: Path) -> None:
    dot = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="
    tab = browser(written(tmp_path, f"<p>fine</p><img alt='a dot' src='{dot}'>"), dark=True, width=390)
    assert (tab.errors, tab.elsewhere, tab.overflow) == ([], [], 0)
    assert tab.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
