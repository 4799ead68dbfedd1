"""The picture of a report on its page: ``python tools/docs/report_picture.py`` takes it anew, in headless Chromium.

At the left the page on a desk, at the right on a phone, in dark.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from rankfold.reporting.page import make_report
from rankfold.reporting.reading import read_run
from rankfold.whole_files import write_whole

ROOT = Path(__file__).parents[2]
RUN = ROOT / "results" / "mnist" / "ttm-ard-lu-seed0.json"
PICTURE = ROOT / "docs" / "assets" / "report.png"
HEIGHT, DESK, GAP, PHONE = 1240, 1120, 30, 375
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    """Write the picture."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is installed; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        write_whole(page, make_report(read_run(RUN)).html)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        picture = Image.new("RGB", (DESK + GAP + PHONE, HEIGHT), "white")
        picture.paste(taken(browser, page, DESK, dark=False), (0, 0))
        picture.paste(taken(browser, page, PHONE, dark=True), (DESK + GAP, 0))
        browser.close()
    picture.save(PICTURE, optimize=True)


def taken(browser: Browser, page: Path, width: int, *, dark: bool) -> Image.Image:
    """The top of a page in a window of this width."""
    window = browser.new_page(
        viewport={"width": width, "height": HEIGHT}, color_scheme="dark" if dark else "light", device_scale_factor=1
    )
    window.goto(page.as_uri())
    return Image.open(io.BytesIO(window.screenshot()))


if __name__ == "__main__":
    main()
