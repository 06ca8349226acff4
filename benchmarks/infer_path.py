"""infer_path on simulated learners: coverage of its 95 % intervals, size and power of its test.

Learners descend a quadratic loss of curvatures 1 and 1/9 (Fig. 2c of the paper) from (1, 1) to the minimum at zero.
Their speed is such that the steep direction decays at rate 1. They are observed at N times from 0 to 6 with normal
errors, whose standard deviation is relative to the start. The paths come from the formula, written out here.

    python benchmarks/infer_path.py [--repeats 200] [--jobs power drifts]

`power`: each discount, noise and number of times. `drifts`: decay, rotation and a diagonal metric, paths by `solve`.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse  # noqa: E402
import math  # noqa: E402
import warnings  # noqa: E402

import numpy as np  # noqa: E402

import lossnav as ln  # noqa: E402

CURVATURES = np.array([1.0, 1 / 9])
DISCOUNTS, NOISES, TIMES = (0.0, 1.0, 5.0, math.inf), (0.03, 0.1, 0.3), (10, 30, 100)


def learner(gamma, t):
    """The optimal path and its eta k, with rate 1 along curvature 1."""
    if math.isinf(gamma):
        return np.exp(-np.outer(t, CURVATURES)), math.inf
    a = 1 + gamma
    return np.exp(-np.outer(t, np.sqrt(gamma**2 / 4 + a * CURVATURES) - gamma / 2)), a


def power(repeats):
    """Rows: gamma, noise, N, rejections of gradient descent, coverage of gamma, eta k and the rate."""
    loss = ln.Quadratic(CURVATURES)
    print(
        f"{'gamma':>6}{'noise':>7}{'N':>5}{'rejected':>10}{'gamma':>8}{'eta k':>8}{'rate':>8}   (covered)"
    )
    for gamma in DISCOUNTS:
        for noise in NOISES:
            for count in TIMES:
                t = np.linspace(0, 6, count)
                path, a = learner(gamma, t)
                rng = np.random.default_rng([int(min(gamma, 99)), int(1000 * noise), count])
                hits = np.zeros(4)
                for _ in range(repeats):
                    found = ln.infer_path(t, path + noise * rng.normal(size=path.shape), loss)
                    h = found.curvature  # the reference of the rate differs from path to path
                    rate = h if math.isinf(gamma) else math.sqrt(gamma**2 / 4 + a * h) - gamma / 2
                    hits += (
                        found.farsighted,
                        found.gamma.holds(gamma),
                        found.eta_k.holds(a),
                        found.rate.holds(rate),
                    )
                shown = "".join(f"{x:>8.1%}" for x in hits[1:] / repeats)
                print(
                    f"{gamma:>6g}{noise:>7g}{count:>5}{hits[0] / repeats:>10.1%}{shown}", flush=True
                )


def drifts(repeats):
    """Coverage of every parameter, on a loss whose axes are not the coordinates."""
    loss = ln.Quadratic([[0.8, 0.6], [0.6, 0.8]], minimum=[1.0, 0.5])
    t = np.linspace(0, 8, 40)
    kinds = {
        "decay": ({"drift": ln.Decay(0.15)}, {"drift": "decay"}, {"decay": 0.15}),
        "rotation": ({"drift": ln.Rotation(0.4)}, {"drift": "rotation"}, {"rotation": 0.4}),
        "metric": ({"metric": [1.0, 3.0]}, {"metric": "diagonal"}, {"metric theta2": 3.0}),
    }  # fmt: skip
    for name, (given, asked, truth) in kinds.items():
        for gamma in (1.0, 1e4):
            a = 1.5 * (1 + gamma)
            path = ln.solve(ln.Objective(loss, eta=a, gamma=gamma, **given), [-1.0, 1.0]).at(t)
            truths = {"gamma": gamma, "eta_k/gamma": a / gamma, **truth}
            rng = np.random.default_rng(7)
            hits = dict.fromkeys(truths, 0)
            for _ in range(repeats):
                found = ln.infer_path(t, path + 0.05 * rng.normal(size=path.shape), loss, **asked)
                for key, value in truths.items():
                    hits[key] += found.estimates[key].holds(value)
            shown = ", ".join(f"{key} {count / repeats:.1%}" for key, count in hits.items())
            print(f"{name:<10}gamma {gamma:<8g}{shown}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument(
        "--jobs", nargs="+", default=["drifts", "power"], choices=["drifts", "power"]
    )
    asked = parser.parse_args()
    warnings.simplefilter("error")
    for job in asked.jobs:
        print(f"== {job}, {asked.repeats} repeats")
        {"power": power, "drifts": drifts}[job](asked.repeats)
