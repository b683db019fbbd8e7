"""Take the README's picture from the demo's report, in headless Chromium.

make demo && python scripts/write_report_image.py mmprobe-demo/report.html docs/report.png
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main(report: Path, picture: Path) -> None:
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1500})
        page.goto(report.resolve().as_uri() + "#explorer")
        page.locator("button[data-sample]", has_text="steps").first.click()
        page.locator("#tokens [role=option]", has_text=re.compile(r"^\s*moved$")).first.click()
        page.mouse.move(0, 0)  # else the token under the mouse is shown
        page.locator("#explorer .explorer").screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
