"""A Chromium for the tests that open pages, from the PATH or Playwright's own, and what a page shows.

`python tests/helpers/browser.py` exits with 0 if one starts.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
NO_BROWSER = (
    "no Chromium starts here; install one, e.g. with `apt install chromium` or `playwright install chromium`"
)


class NoBrowserError(Exception):
    """No Chromium starts on this machine."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Open a headless Chromium, and close it at the end of the block.

    Raises:
        NoBrowserError: none starts.
    """
    from playwright.sync_api import sync_playwright  # here, since every run of tests imports this module

    with sync_playwright() as playwright:
        browser = _launch(playwright)
        yield browser
        browser.close()


def _launch(playwright: Playwright) -> Browser:
    """Start the first Chromium that works."""
    from playwright.sync_api import Error

    on_path = [path for path in map(shutil.which, NAMES) if path]
    for path in (*on_path, None):  # None: the one that Playwright installed
        try:
            return playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        except Error:
            continue
    raise NoBrowserError(NO_BROWSER)


def open_page(page: Page, name: str) -> None:
    """Follow the link to a page of a report, and wait for it: a browser follows a link after the click."""
    page.click(f"#pages a[href='#{name}']")
    wait_for_page(page, name)


def wait_for_page(page: Page, name: str) -> None:
    """Wait until a page of a report is visible, and no other."""
    page.wait_for_function(
        "name => Array.from(document.querySelectorAll('.page'))"
        ".filter((page) => page.checkVisibility()).map((page) => page.id).join() === name",
        arg=name,
    )


def heat_maps(page: Page, container: str = "sample-images") -> list[np.ndarray]:
    """Return RGBA of the heat maps' cells, [height, width, 4] for each image."""
    canvases = page.evaluate(
        """(container) => [...document.querySelectorAll(`#${container} canvas`)].map((canvas) => {
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
            copy.drawImage(canvas, 0, 0);
            const pixels = [...copy.getImageData(0, 0, canvas.width, canvas.height).data];
            return { shape: [canvas.height, canvas.width, 4], pixels };
        })""",
        container,
    )
    return [np.array(canvas["pixels"]).reshape(canvas["shape"]) for canvas in canvases]


if __name__ == "__main__":
    try:
        with open_browser():
            pass
    except NoBrowserError as error:
        sys.exit(str(error))
