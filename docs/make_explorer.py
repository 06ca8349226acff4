"""Take the pictures of the explorer that its page shows.

    python docs/make_explorer.py        writes docs/_static/explore-*.png

Needs lossnav[explore], Playwright and Chromium. Pictures are kept small: 1280 points wide, one for each point of the page.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent / "_static"
RUN = "import typer; from lossnav.cli.explore import explore; typer.run(explore)"
PICTURES = {
    "explore-paths": (
        "#field=true",
        "Explorer.paths.latest.rules && Explorer.paths.latest.equations",
    ),
    "explore-uncertainty": ("#view=uncertainty", "Explorer.uncertainty.latest"),
}


def take(page, address, name, link, ready):
    page.goto("about:blank")
    page.goto(address + link)
    page.wait_for_selector("#tab-paths[aria-selected]")
    while not page.evaluate(f"Boolean({ready})"):
        page.wait_for_timeout(100)
    page.wait_for_timeout(1500)
    file = FOLDER / f"{name}.png"
    page.screenshot(path=str(file))
    with Image.open(file) as picture:
        # Few colours keep the file small; by coverage, thin lines keep theirs.
        few = picture.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE)
    few.save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB")


def main():
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", RUN, "--port", "0", "--no-open"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = re.search(r"http://\S+", process.stdout.readline())[0]
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
            for name, (link, ready) in PICTURES.items():
                take(page, address, name, link, ready)
            browser.close()
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
