"""The browser of the tests: the system's Chromium, or the one that Playwright downloads."""

import functools
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium was found"


@functools.cache
def launch_options():
    """What to hand to Playwright's ``chromium.launch``, or None where no browser starts."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        return None
    launch = {"args": ["--no-sandbox"]}
    if path := next(filter(None, map(shutil.which, NAMES)), None):
        return launch | {"executable_path": path}
    try:
        with sync_playwright() as driver:
            driver.chromium.launch(**launch).close()
    except Error:
        return None
    return launch
