"""Three routes that know nothing of each other: do they find the same path?

`Ritz` minimises J over polynomials, `Collocation` solves the derived Euler-Lagrange equations, and
`Direct` minimises the paper's sum over steps. Every landscape x drift x metric x discount, over a
finite time with a free end. Two agree if the initial velocities, and J, differ by no more than ten
times the errors that the two state. `Ritz` looks for the best of several paths, the others for one
near a straight line; where theirs costs more, `Ritz` is given it as a first guess and its own end,
and must agree that it is a path of locally least cost. Prints the problems where they do not, and
counts.
"""

import itertools
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import lossnav as ln

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from test_ritz import DRIFTS, GAMMAS, LOSSES, METRICS

HORIZON = 1.5
FLOOR = 1e-9  # below this, rounding decides


def gap(one, other):
    """The larger of the relative differences of J and of the initial velocity."""
    speed = np.linalg.norm(one.velocity0)
    return max(
        abs(one.J - other.J) / abs(one.J), np.linalg.norm(one.velocity0 - other.velocity0) / speed
    )


def close(one, other):
    return gap(one, other) <= max(10 * (one.error + other.error), FLOOR)


def main():
    warnings.simplefilter("ignore")
    begun, count = time.perf_counter(), 0
    agree, local = ({"Collocation": 0, "Direct": 0} for _ in range(2))
    for loss, drift, metric, gamma in itertools.product(LOSSES, DRIFTS, METRICS, GAMMAS):
        landscape, k, start = LOSSES[loss]
        objective = ln.Objective(landscape, METRICS[metric], DRIFTS[drift], k=k, gamma=gamma)
        count += 1
        best = ln.solve(objective, start, HORIZON, method=ln.Ritz())
        for method, tol in ((ln.Collocation(), 1e-8), (ln.Direct(steps=200), 1e-10)):
            name = type(method).__name__
            try:
                path = ln.solve(objective, start, HORIZON, method=method, tol=tol)
            except ValueError as error:
                print(f"{loss}, {drift}, {metric}, gamma {gamma:g}: {name} refused: {error}")
                continue
            if close(best, path):
                agree[name] += 1
                continue
            there = ln.solve(objective, start, HORIZON, path.theta[-1], ln.Ritz(guess=path.at))
            if path.J > best.J and close(there, path):
                local[name] += 1
                continue
            print(
                f"{loss}, drift {drift}, metric {metric}, gamma {gamma:g}: {name} is "
                f"{gap(best, path):.1e} away, stated {best.error + path.error:.1e}; J {best.J:.9g} "
                f"against {path.J:.9g}; from there {gap(there, path):.1e}; {path.status.name}",
                flush=True,
            )
    print(f"{count} problems in {time.perf_counter() - begun:.0f} s")
    for name in agree:
        print(f"{name}: {agree[name]} agree, {local[name]} are another, dearer path; Ritz agrees")


if __name__ == "__main__":
    main()
