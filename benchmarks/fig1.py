"""Fig. 1 of the paper: `lossnav reproduce fig1` against the authors' approach, one after the other.

    python benchmarks/fig1.py               60,000 gradient steps, as in the paper (App. B)
    python benchmarks/fig1.py --steps 600   a short try; the time is scaled up, and said to be

The authors' approach: J as a sum over 50 left rectangles, differentiated by PyTorch, and 60,000 steps of plain
gradient descent at 0.01 from a straight line. It gives the path of panels b and c, and nothing else. Ours gives the
path, gradient flow, both costs and the surface (`fig1.data()`); the whole command, with the drawing of
a PNG, an SVG and a PDF in a new process, is timed too.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import argparse  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402

from lossnav.paper.figures import double_well  # noqa: E402
from lossnav.paper.figures.double_well import fig1  # noqa: E402
from lossnav.solvers import Direct, solve  # noqa: E402

STEPS, POINTS, ASKED = 60_000, 50, 1 / 100


def by_gradient_descent(steps):
    """Seconds of the authors' approach, and the J it ends at; ``tol=0`` never stops early."""
    import torch

    torch.set_num_threads(1)
    method = Direct(
        steps=POINTS, rule="left", optimizer="gradient-descent", backend="torch", iterations=steps
    )
    began = time.perf_counter()
    path = solve(
        double_well.OBJECTIVE,
        double_well.START,
        double_well.HORIZON,
        double_well.MINIMUM,
        method,
        tol=1e-300,
    )
    return time.perf_counter() - began, path.J


def by_us():
    """Seconds of all numbers of the figure."""
    began = time.perf_counter()
    fig1.data()
    return time.perf_counter() - began


def by_the_command():
    """Seconds of the whole command, from the start of Python to the page."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lossnav", "reproduce", "fig1", "--out", folder]
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="gradient steps to take")
    parser.add_argument("--repeats", type=int, default=5, help="of ours; the median counts")
    given = parser.parse_args()
    first = by_us()  # this one also derives the loss's formulas
    ours = [by_us() for _ in range(given.repeats)]
    command = [by_the_command() for _ in range(min(given.repeats, 3))]
    theirs, J = by_gradient_descent(given.steps)
    ours.append(by_us())
    scaled = theirs * STEPS / given.steps
    words = "" if given.steps == STEPS else f", scaled from {given.steps:,} steps"
    print(f"authors' approach, {STEPS:,} steps{words}: {scaled:.1f} s, J = {J:.5f}")
    for name, seconds in (
        ("data of all panels", statistics.median(ours)),
        ("data, the first time", first),
        ("whole command, with its imports, drawing and files", statistics.median(command)),
    ):
        verdict = "reached" if seconds / scaled <= ASKED else "not reached"
        print(
            f"ours, {name}: {seconds:.4g} s, 1/{scaled / seconds:.0f} (asked: 1/{1 / ASKED:.0f}; {verdict})"
        )


if __name__ == "__main__":
    main()
