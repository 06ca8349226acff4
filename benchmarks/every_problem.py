"""Every landscape x drift x metric x discount: solved to its tolerance, or refused with a reason.

Prints one line for each problem that is not solved to 1e-10, and for quadratic ones that differ
from the exact solution by more than 1e-9; then the number of problems and the time of all.
"""

import itertools
import sys
import time
from pathlib import Path

import numpy as np

import lossnav as ln

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from test_ritz import DRIFTS, GAMMAS, LOSSES, METRICS


def main():
    begun, solved, count = time.perf_counter(), 0, 0
    for loss, drift, metric, gamma in itertools.product(LOSSES, DRIFTS, METRICS, GAMMAS):
        landscape, k, start = LOSSES[loss]
        objective = ln.Objective(landscape, METRICS[metric], DRIFTS[drift], k=k, gamma=gamma)
        name = f"{loss}, drift {drift}, metric {metric}, gamma {gamma:g}"
        count += 1
        try:
            path = ln.solve(objective, start, method=ln.Ritz())
        except ValueError as error:
            print(f"{name}: refused: {error}")
            continue
        good = path.status.ok and path.error <= 1e-10
        if objective.quadratic() is not None:
            exact = ln.solve(objective, start, method=ln.Riccati()).velocity0
            gap = np.linalg.norm(path.velocity0 - exact) / np.linalg.norm(exact)
            good = good and gap <= 1e-9
        solved += good
        if not good:
            print(f"{name}: {path.status.value} error {path.error:.1e}")
    print(f"{solved} of {count} solved to 1e-10 in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
