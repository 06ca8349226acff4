"""How quick the explorer is: server time, slider to redrawn path in headless Chromium, first draw, bytes.

    python benchmarks/explorer.py            all of it; about two minutes
    python benchmarks/explorer.py --quick    a few moves of each slider

Goals on two idle cores: server p95 <= 30 ms, slider to path p95 <= 100 ms, first draw <= 2 s, <= 5 MB transferred.
A move is one of the sliders gamma, eta, k, x, y, horizon, ratio and speed, on every built-in landscape, from its first
settings; horizon, ratio and speed with a finite horizon, an anisotropic metric and a drift. The browser's part needs
Playwright and Chromium, and is left out with a line that says so where one is missing.
"""

import argparse
import contextlib
import http.client
import json
import re
import shutil
import subprocess
import sys
import time

import numpy as np

from lossnav.explorer.landscapes import LANDSCAPES
from lossnav.explorer.paths import FIELDS

RUN = "import typer; from lossnav.cli import explore; typer.run(explore.explore)"
SLIDERS = {
    "gamma": ({}, [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0]),
    "eta": ({}, [0.3, 0.5, 0.8, 1.2, 2.0, 3.0]),
    "k": ({}, None),
    "x": ({}, None),
    "y": ({}, None),
    "horizon": ({"horizon": 4.0}, [1.0, 2.0, 3.0, 5.0, 8.0]),
    "ratio": ({"metric": "anisotropic"}, [0.3, 1.0, 3.0, 10.0]),
    "speed": ({"drift": "rotation"}, [0.1, 0.3, 0.6, 1.0]),
}


def moves(quick):
    """(landscape, slider, settings, value) for every move."""
    for name, terrain in LANDSCAPES.items():
        usual = {key: field["default"] for key, field in FIELDS.items()} | {"landscape": name}
        usual |= terrain.settings
        for slider, (more, values) in SLIDERS.items():
            if slider == "speed" and terrain.positive:
                continue  # a rotation would turn a variance negative
            if slider in ("x", "y"):
                low, high = terrain.box[:2] if slider == "x" else terrain.box[2:]
                values = low + (high - low) * np.linspace(0.15, 0.85, 8)
            elif slider == "k":
                values = usual["k"] * np.array([0.3, 0.5, 0.8, 1.2, 2.0, 3.0])
            for value in list(values)[:: 3 if quick else 1]:
                yield name, slider, usual | more, float(value)


def tell(title, times, goal):
    """One line: median, p95 and the largest, in milliseconds."""
    ms = 1e3 * np.array(times)
    p95 = np.percentile(ms, 95)
    mark = "" if goal is None else f"   goal p95 <= {goal} ms: {'met' if p95 <= goal else 'MISSED'}"
    print(
        f"  {title:<26}{len(ms):5d} moves  median {np.median(ms):6.1f}  p95 {p95:6.1f}  max {ms.max():7.1f} ms{mark}"
    )


def grouped(found, goal):
    for position, kind in ((0, "landscape"), (1, "slider")):
        print(f"  by {kind}:")
        for name in dict.fromkeys(key[position] for key in found):
            tell(
                f"  {name}",
                [t for key, all_ in found.items() if key[position] == name for t in all_],
                None,
            )
    tell("all", [t for all_ in found.values() for t in all_], goal)


def server_time(port, quick):
    """Time of each request at the server, one after the other on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    found, refusals = {}, 0
    for name, slider, settings, value in moves(quick):
        body = json.dumps(settings | {slider: value})
        begun = time.perf_counter()
        connection.request("POST", "/api/path", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        took = time.perf_counter() - begun
        if response.status == 200:
            found.setdefault((name, slider), []).append(took)
        else:
            refusals += 1
    print("Server, request to answer:")
    grouped(found, 30)
    print(f"  refused (no optimal path there): {refusals}")


MOVE = """(settings) => new Promise((done) => {
  const before = Explorer.drawn || 0, begun = performance.now(), until = begun + 4000;
  Explorer.state.set(settings);
  const look = () => {
    if ((Explorer.drawn || 0) > before) requestAnimationFrame(() => done(performance.now() - begun));
    else if (performance.now() > until) done(null);
    else setTimeout(look, 1);
  };
  look();
})"""


def browser_time(port, quick):
    """Time from a slider's move to the frame in which the new path is drawn."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("Browser: left out; it needs Playwright (pip install playwright) and Chromium.")
        return
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        sizes = []
        network = page.context.new_cdp_session(page)
        network.send("Network.enable")
        network.on(
            "Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"])
        )
        page.goto(f"http://127.0.0.1:{port}/")
        while not page.evaluate("window.Explorer && Explorer.first"):
            page.wait_for_timeout(5)
        first = page.evaluate("Explorer.first")
        page.wait_for_timeout(4000)
        print(
            f"First draw {first / 1e3:.2f} s (goal 2 s); {sum(sizes) / 1e6:.2f} MB transferred (goal 5 MB)"
        )
        found = {}
        before = None
        for name, slider, settings, value in moves(quick):
            if (name, slider) != before:  # not a move of a slider, so it is not timed
                page.evaluate("(settings) => Explorer.state.set(settings)", settings)
                page.wait_for_timeout(1500)
                before = (name, slider)
            took = page.evaluate(MOVE, {slider: value})
            if took is not None:
                found.setdefault((name, slider), []).append(took / 1e3)
            page.wait_for_timeout(30)
        print("Browser, slider to redrawn path:")
        grouped(found, 100)
        browser.close()


@contextlib.contextmanager
def served():
    """The port of an explorer that runs for as long as the block; its workers have begun."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", RUN, "--port", "0", "--no-open"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        begun = time.perf_counter()
        port = int(re.search(r":(\d+)/", process.stdout.readline())[1])
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(4):  # both workers begin
            connection.request("POST", "/api/path", "{}", {"Content-Type": "application/json"})
            connection.getresponse().read()
        print(f"From the command to the first answers: {time.perf_counter() - begun:.1f} s")
        yield port
    finally:
        process.terminate()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with served() as port:
        server_time(port, quick)
        browser_time(port, quick)


if __name__ == "__main__":
    main()
