"""Take a screenshot of the demo's report for the README, in headless Chromium.

make demo && python scripts/write_report_image.py mmprobe-demo/report.html docs/report.png
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def save_screenshot(report: Path, image: Path) -> None:
    """Save the explorer of a report, with one token selected, as an image."""
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1500})
        page.goto(report.resolve().as_uri() + "#explorer")
        page.locator("button[data-sample]", has_text="steps").first.click()
        page.locator("#tokens [role=option]", has_text=re.compile(r"^\s*moved$")).first.click()
        page.select_option("#map", "cause")
        page.mouse.move(0, 0)  # otherwise the token under the mouse is shown
        page.locator("#explorer .explorer").screenshot(path=image)
        browser.close()


if __name__ == "__main__":
    save_screenshot(Path(sys.argv[1]), Path(sys.argv[2]))
