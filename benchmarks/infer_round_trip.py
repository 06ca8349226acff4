"""Whether the learning rule of a random Objective comes back from its steps as one with the same steps.

    python benchmarks/infer_round_trip.py                   200 of each of the five kinds of rule
    python benchmarks/infer_round_trip.py COUNT [KIND ...]  COUNT of each of these kinds, or of all

An Objective *comes back* if the rule of `infer(rule).objective()` makes the same steps to 1e-6, on gradients
of four sizes that no fit used. Otherwise its name is printed, with what `infer` says.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import sys  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402

import numpy as np  # noqa: E402

import lossnav as ln  # noqa: E402
from lossnav.inference import infer  # noqa: E402
from lossnav.inference.probes import ProbedOptimizer, ProbeError  # noqa: E402
from lossnav.problem.belief import adaptive, weight_uncertainty  # noqa: E402
from lossnav.problem.geometry import ConstantMetric, Decay, LinearDrift, Rotation  # noqa: E402
from lossnav.rules.sources import SquaredGradients  # noqa: E402

SAME = 1e-6


def decade(rng, low=-1.0, high=1.0):
    return float(10.0 ** rng.uniform(low, high))


def positive(rng, n):
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    return (Q * 10.0 ** rng.uniform(-1, 1, n)) @ Q.T


def constants(rng, discounted=0.7):
    return {
        "eta": decade(rng),
        "k": decade(rng),
        "gamma": decade(rng) * (rng.random() < discounted),
    }


def local(rng):
    """A quadratic loss, with or without a metric and a decay; a step of any length."""
    n = int(rng.integers(1, 5))
    metric = ConstantMetric(positive(rng, n)) if rng.random() < 0.5 else None
    drift = Decay(decade(rng, -2, 0)) if rng.random() < 0.5 else None
    dt = np.inf if rng.random() < 0.1 else decade(rng, -2, 1)
    form = "diagonal" if rng.random() < 0.2 else "exact"
    loss = ln.Quadratic(positive(rng, n))
    return ln.learning_rule(
        ln.Objective(loss, metric, drift, **constants(rng)), dt, curvature=form
    ), (n,)


def drifted(rng):
    """The same with an affine drift."""
    n = int(rng.integers(2, 4))
    kind = rng.integers(3)
    if kind == 0:
        drift = LinearDrift(0.4 * rng.standard_normal((n, n)), 0.3 * rng.standard_normal(n))
    elif kind == 1:
        n, drift = 2, Rotation(decade(rng))
    else:
        drift = Decay([decade(rng, -2, 0) for _ in range(n)])
    metric = ConstantMetric(positive(rng, n)) if rng.random() < 0.5 else None
    objective = ln.Objective(ln.Quadratic(positive(rng, n)), metric, drift, **constants(rng))
    return ln.learning_rule(objective, decade(rng, -1, 0)), (n,)


def squares(rng):
    """Squared gradients in place of the curvature."""
    drift = Decay(decade(rng, -2, 0)) if rng.random() < 0.3 else None
    objective = ln.Objective(ln.Quadratic([1.0]), drift=drift, **constants(rng))
    source = SquaredGradients(1 - decade(rng, -3, -0.5), kappa=decade(rng))
    return ln.learning_rule(objective, decade(rng, -2, 0), curvature=source), (4, 3)


def averaging(rng):
    """Averaged gradients."""
    gamma, sigma = (
        decade(rng) * (rng.random() < 0.8),
        (decade(rng, -0.5, 0.5), decade(rng, -0.5, 0.5)),
    )
    alpha = tuple(decade(rng, -2, 0) * (rng.random() < 0.5) for _ in range(2))
    dt = decade(rng, -2, 0)
    rates = [decade(rng, -3, -0.3) / dt for _ in range(2)]  # (1 - beta) / dt
    alpha = tuple(min(a, 0.5 * rate) for a, rate in zip(alpha, rates, strict=True))
    q = [rate - a for a, rate in zip(alpha, rates, strict=True)]
    xi = tuple(s * (np.sqrt(x * gamma) if gamma else x) for s, x in zip(sigma, q, strict=True))
    moments = bool(rng.random() < 0.7)
    objective = adaptive(
        [0.0],
        observation="moments" if moments else "squares",
        kappa=decade(rng),
        alpha=alpha,
        xi=xi,
        sigma=sigma,
        eta=decade(rng),
        k=decade(rng),
        gamma=gamma,
    )
    options = {"plan": ["path", "straight"][rng.integers(2)], "look_ahead": bool(rng.integers(2))}
    options["shared"] = float(rng.uniform(0.1, 0.9)) * (rng.random() < 0.4)
    options["relative"] = bool(rng.random() < 0.3)
    if moments and rng.random() < 0.2:
        options["wandering"] = 0.0 if rng.random() < 0.5 else decade(rng, -3, -1)
    return ln.learning_rule(objective, dt, **options), (4, 3)


def uncertain(rng):
    """Weights with a mean and a variance each."""
    n = int(rng.integers(1, 4))
    H = np.diag(10.0 ** rng.uniform(-1, 1, n))
    entropy = bool(rng.random() < 0.8)
    objective = weight_uncertainty(ln.Quadratic(H), entropy=entropy, **constants(rng))
    return ln.learning_rule(objective, decade(rng, -2, 0), variance=decade(rng)), (n,)


KINDS = {make.__name__: make for make in (local, drifted, squares, averaging, uncertain)}


def apart(rule, other, shape):
    """Largest difference of the steps, relative to the largest step, over sixty steps of three tensors."""
    rng = np.random.default_rng(123)
    worst = 0.0
    for size in (1e-3, 0.1, 1.0, 30.0):
        g = size * 10.0 ** rng.uniform(-1, 1, (1, 3, *shape)) * rng.standard_normal((60, 3, *shape))
        theta = rng.standard_normal((3, *shape))
        try:
            a = ProbedOptimizer(rule, shape).run(g, theta)
        except ProbeError:  # a variance that large gradients bring to zero has no steps
            continue
        b = ProbedOptimizer(other, shape).run(g, theta)
        worst = max(worst, float(np.abs(a - b).max() / np.abs(a).max()))
    return worst


def trip(kind, seed):
    """The verdict in a word, and what was said."""
    rule, shape = KINDS[kind](np.random.default_rng([seed, *map(ord, kind)]))
    found = infer(rule, shape=shape)
    try:
        found.objective()
        back = found.rule()
    except ValueError as error:
        return "refused", f"{rule!r}\n  {error}"
    gap = apart(rule, back, shape)
    if not gap <= SAME:
        return "differs", f"{rule!r}\n  by {gap:.2g}: {found.learner}"
    return "comes back", "; ".join(found.learner.ambiguous)


def main(count=200, *kinds):
    for kind in kinds or KINDS:
        began, counts = time.process_time(), Counter()
        for seed in range(int(count)):
            verdict, words = trip(kind, seed)
            counts[verdict] += 1
            if verdict != "comes back":
                print(f"{kind} {seed} {verdict}: {words}", flush=True)
        spent = time.process_time() - began
        total = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
        print(f"{kind}: {total}; {spent / int(count):.1f} s each", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
