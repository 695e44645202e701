"""Take a picture of the page of `metastep play` for the documentation: docs/figures/play.png."""

import argparse
import io

from PIL import Image

from metastep.errors import MetastepError
from study import play_page, results
from study.browser import chromium_path, launched

PLACE = results.ROOT / "docs" / "figures" / "play.png"
WINDOW = {"width": 1180, "height": 860}


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    path = chromium_path()
    if path is None:
        raise MetastepError("Chromium is not installed: no picture can be taken. Install it (Debian: chromium).")
    with play_page.served() as server, launched(path) as browser:
        page = browser.new_context(viewport=WINDOW, device_scale_factor=1.5, color_scheme="light").new_page()
        page.goto(server.url)
        play_page.teach(page)
        print(play_page.ask(page, 0))
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        page.wait_for_timeout(300)  # the bars move
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    picture.convert("RGB").quantize(128).save(PLACE, optimize=True)
    print(PLACE)
