"""Take a screenshot of a report's explorer for the README, in headless Chromium.

make demo-real && python scripts/write_report_image.py build/demo-real/report.html docs/report.png --sample 0001-where --token top
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright


def save_screenshot(report: Path, image: Path, sample: str, token: str) -> None:
    """Save the explorer of a report, with one token of an answer selected, as an image.

    Args:
        sample: a part of the name of the sample; the first that has it is shown.
        token: the text of the selected token.
    """
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1400, "height": 2400})  # the whole explorer
        page.set_default_timeout(600_000)  # milliseconds; a busy machine takes long
        page.goto(report.resolve().as_uri() + "#explorer")
        page.locator("button[data-sample]", has_text=sample).first.click()
        page.locator("#tokens [role=option]", has_text=re.compile(rf"^\s*{token}$")).first.click()
        page.select_option("#map", "cause")
        page.mouse.move(0, 0)  # otherwise the token under the mouse is shown
        page.locator("#explorer .explorer").screenshot(path=image)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--sample", required=True, help="a part of a sample's name")
    parser.add_argument("--token", required=True, help="the text of a token of its answer")
    arguments = parser.parse_args()
    save_screenshot(arguments.report, arguments.image, arguments.sample, arguments.token)
