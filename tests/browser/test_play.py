"""The page of `metastep play`, used by mouse, keys and files, in a browser."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metastep.play.questions import LARGEST, STROKES
from metastep.play.server import Server
from study import play_page
from study.play_page import CLASSES
from tests.browser.conftest import Opening, Tab


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with play_page.served() as server:
        yield server


def opened(browser: Opening, server: Server, **options: bool | int) -> Tab:
    tab = browser(server.url, **options)
    tab.page.wait_for_selector(".class")
    return tab


def fine(tab: Tab) -> bool:
    return (tab.errors, tab.elsewhere, tab.overflow) == ([], [], 0)


def test_five_classes_drawn_by_mouse(browser: Opening, server: Server) -> None:
    tab = opened(browser, server)
    play_page.teach(tab.page)
    named = np.array([play_page.ask(tab.page, index) for index in range(len(CLASSES))])
    learner, first_order, untrained = (named == np.array(list(CLASSES))[:, None]).sum(0)
    assert learner >= 4
    assert untrained < min(learner, first_order)
    assert fine(tab)


def test_a_telephone_in_the_dark(browser: Opening, server: Server) -> None:
    tab = opened(browser, server, dark=True, width=390)
    play_page.teach(tab.page)
    assert play_page.ask(tab.page, 0)[0] == "Omega"
    assert fine(tab)


def test_keys_and_files_do_what_the_mouse_does(browser: Opening, server: Server, tmp_path: Path) -> None:
    tab = opened(browser, server)
    page, says = tab.page, tab.page.locator("#status")
    for index, arrow in enumerate(("ArrowRight", "ArrowDown")):  # a bar that lies, and one that stands
        page.locator(".class canvas.ink").nth(index).focus()
        for key in (" ", *[arrow] * 9, " "):
            page.keyboard.press(key)
    says.filter(has_text="2 classes").wait_for()
    page.keyboard.press("Backspace")  # the stroke that stands is gone
    says.filter(has_text="at least 2").wait_for()

    picture = np.full((64, 64), 250, np.uint8)
    picture[10:54, 29:35] = 20
    Image.fromarray(picture).save(tmp_path / "standing.png")
    (tmp_path / "notes.png").write_text("words")
    page.locator(".class input[type=file]").nth(1).set_input_files(tmp_path / "standing.png")
    page.wait_for_selector(".shots button")
    page.locator("#query input").set_input_files(tmp_path / "standing.png")
    page.wait_for_selector(".best")
    assert page.locator(".answer .best .row span:first-child").all_inner_texts() == ["B", "B", "B"]
    assert fine(tab)

    page.locator("#query input").set_input_files(tmp_path / "notes.png")
    page.wait_for_selector("#status.bad")
    assert says.inner_text().startswith("notes.png: is not an image in a known format.")
    tab.errors.clear()  # Chromium notes the refusal

    (tmp_path / "large.png").write_bytes(bytes(LARGEST + 1))
    page.locator(".class input[type=file]").nth(0).set_input_files(tmp_path / "large.png")
    says.filter(has_text="large.png is larger than 10 MiB.").wait_for()

    page.locator(".shots button").click()
    says.filter(has_text="at least 2").wait_for()
    assert fine(tab)


def test_a_drawing_of_too_many_strokes_is_refused_aloud(browser: Opening, server: Server) -> None:
    page = opened(browser, server).page
    for index, strokes in ((1, 1), (0, STROKES + 2)):
        page.locator(".class canvas.ink").nth(index).focus()
        for _ in range(2 * strokes):  # the pen goes down and up: a dot
            page.keyboard.press(" ")
    page.wait_for_selector("#answers[aria-busy=false]")
    assert f"at most {STROKES}" in page.locator("#status.bad").inner_text()


def test_classes_come_and_go(browser: Opening, server: Server) -> None:
    tab = opened(browser, server)
    classes, add = tab.page.locator(".class"), tab.page.locator("#add-class")
    for _ in range(7):
        add.click()
    assert (classes.count(), add.is_disabled()) == (10, True)
    for _ in range(8):
        tab.page.locator(".class .remove").first.click()
    assert (classes.count(), tab.page.locator(".class .remove").first.is_disabled()) == (2, True)
    tab.page.click("#start-over")
    assert classes.count() == 3
    assert fine(tab)


def test_every_control_has_a_name(browser: Opening, server: Server) -> None:
    page = opened(browser, server).page
    nameless = """[...document.querySelectorAll('button, input, canvas')].filter(
        (e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('[aria-hidden]'))).length"""
    assert page.evaluate(nameless) == 0
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(document.activeElement.closest('.class, #query')?.id ?? '') + document.activeElement.tagName"
            )
        )
    assert {"CANVAS", "queryCANVAS", "BUTTON", "INPUT", "queryINPUT"} <= reached
