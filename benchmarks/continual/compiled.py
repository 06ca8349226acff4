"""Stream C and its rivals, compiled by numba: a run takes a fraction of a second instead of half a minute.

Streams of C differ so much that one seed says little about settings. This chooses them by many: for each rival 25
points, on the same 20 streams, none of which is reported. What it prints is what C.toml names. The rules are those of
peers.py and unit_peers.py, written once more for one network, 20-5-1, and one example at a time; where no chance
is in them, they take the same steps, which is tested.

    python benchmarks/continual/compiled.py [RULE ...]
"""

# ruff: noqa: NPY002  (numba knows this generator alone)

import math
import sys
import time

import numba
import numpy as np

from lossnav.studies.tasks.streams.regression import SlowBits
from lossnav.studies.trial.setup import batch_rng, seed_all

SEEDS = range(100, 120)
INPUTS, UNITS = 20, 5
BIAS = INPUTS * UNITS  # where the hidden biases begin, in the vector of all parameters
OUT = BIAS + UNITS  # the output's weights, and its bias after them
SIZE = OUT + UNITS + 1
njit = numba.njit(error_model="numpy")


@njit
def slope(theta, x, y, g, units):
    """The gradient of the squared error, in place, with what the units put out; returns the error."""
    said = theta[-1]
    for i in range(UNITS):
        total = theta[BIAS + i]
        for j in range(INPUTS):
            total += theta[i * INPUTS + j] * x[j]
        units[i] = max(total, 0.0)
        said += theta[OUT + i] * units[i]
    error = said - y
    g[-1] = 2 * error
    for i in range(UNITS):
        g[OUT + i] = 2 * error * units[i]
        back = 2 * error * theta[OUT + i] if units[i] > 0 else 0.0
        g[BIAS + i] = back
        for j in range(INPUTS):
            g[i * INPUTS + j] = back * x[j]
    return error


@njit
def sgd(theta, start, g, units, held, x, y, t, lr, none):
    theta -= lr * g


@njit
def l2(theta, start, g, units, held, x, y, t, lr, decay):
    theta -= lr * (g + decay * theta)


@njit
def l2_init(theta, start, g, units, held, x, y, t, lr, strength):
    theta -= lr * (g + 2 * strength * (theta - start))


@njit
def l2_init_adam(theta, start, g, units, held, x, y, t, lr, strength):
    m, v = held[0], held[1]
    root, rate = math.sqrt(1 - 0.999**t), lr / (1 - 0.9**t)
    for i in range(SIZE):
        slope = g[i] + 2 * strength * (theta[i] - start[i])
        m[i] += 0.1 * (slope - m[i])
        v[i] = 0.999 * v[i] + 0.001 * slope * slope
        theta[i] -= rate * m[i] / (math.sqrt(v[i]) / root + 1e-8)


@njit
def adam(theta, start, g, units, held, x, y, t, lr, none):
    l2_init_adam(theta, start, g, units, held, x, y, t, lr, 0.0)


@njit
def shrink_perturb(theta, start, g, units, held, x, y, t, lr, shrink):
    for i in range(SIZE):
        theta[i] = (theta[i] - lr * g[i]) * (1 - shrink) + 1e-3 * np.random.randn()


@njit
def upgd(theta, start, g, units, held, x, y, t, lr, decay):
    utility = held[0]
    for i in range(SIZE):
        utility[i] = 0.999 * utility[i] - 0.001 * g[i] * theta[i]
    scale = utility.max() * (1 - 0.999**t)
    for i in range(SIZE):
        free = 1 / (1 + math.exp(min(utility[i] / (scale if scale != 0 else 1.0), 700.0)))
        theta[i] = theta[i] * (1 - lr * decay) - lr * free * (g[i] + 1e-2 * np.random.randn())


@njit
def drawn(theta, unit):
    """A unit anew."""
    bound = math.sqrt(6 / INPUTS)
    for j in range(INPUTS):
        theta[unit * INPUTS + j] = np.random.uniform(-bound, bound)
    theta[BIAS + unit] = theta[OUT + unit] = 0.0


@njit
def continual_backprop(theta, start, g, units, held, x, y, t, lr, rate):
    theta -= lr * g
    utility, mean, age, due = held[0], held[1], held[2], held[3]
    ripe = 0
    for i in range(UNITS):
        ripe += age[i] >= 100 and t > 100
        age[i] += 1
        mean[i] += 0.01 * (units[i] - mean[i])
        away = abs(units[i] - mean[i] / (1 - 0.99 ** age[i])) * abs(theta[OUT + i])
        into = np.abs(theta[i * INPUTS : (i + 1) * INPUTS]).sum()
        utility[i] += 0.01 * (away / into - utility[i])
    due[0] += rate * ripe
    if due[0] < 1:
        return
    due[0] -= 1
    worst, least = 0, np.inf
    for i in range(UNITS):
        if age[i] > 100 and utility[i] / (1 - 0.99 ** age[i]) < least:
            worst, least = i, utility[i] / (1 - 0.99 ** age[i])
    theta[-1] += theta[OUT + worst] * mean[worst] / (1 - 0.99 ** age[worst])
    utility[worst] = mean[worst] = age[worst] = 0.0
    drawn(theta, worst)


@njit
def redo(theta, start, g, units, held, x, y, t, lr, threshold):
    theta -= lr * g
    held[0][:UNITS] += units
    if t % 1000 == 0:
        least = threshold * held[0][:UNITS].mean()
        for i in range(UNITS):
            if held[0][i] <= least:
                drawn(theta, i)
        held[0][:] = 0.0


@njit
def variational_newton(theta, start, g, units, held, x, y, t, lr, size):
    m, h, noise, at = held[0], held[1], held[2], held[3]
    if t == 1:
        h[:] = 1.0
    for i in range(SIZE):
        noise[i] = np.random.randn() / math.sqrt(size * (h[i] + 1e-3))
        at[i] = theta[i] + noise[i]
    slope(at, x, y, g, units)
    young = 1 - 0.9**t
    for i in range(SIZE):
        m[i] += 0.1 * (g[i] - m[i])
        gap = g[i] * noise[i] * size * (h[i] + 1e-3) - h[i]
        h[i] += 1e-4 * gap + 1e-8 / 2 * gap * gap / (h[i] + 1e-3)
        theta[i] -= lr * (m[i] / young + 1e-3 * theta[i]) / (h[i] + 1e-3)


@njit
def run(move, X, Y, begin, a, b, seed):
    """Squared errors of a stream, each before its step."""
    np.random.seed(seed)
    theta, g, units = begin.copy(), np.zeros(SIZE), np.zeros(UNITS)
    held, errors = np.zeros((4, SIZE)), np.zeros(len(X))
    for t in range(len(X)):
        errors[t] = slope(theta, X[t], Y[t], g, units) ** 2
        move(theta, begin, g, units, held, X[t], Y[t], t + 1, a, b)
    return errors


RATES = (0.0025, 0.005, 0.01, 0.02, 0.04)
FINE = tuple(np.geomspace(5e-4, 0.1, 25).round(6).tolist())
RULES = {
    "sgd": (sgd, FINE, ("", (0.0,))),
    "l2": (l2, RATES, ("weight_decay", (1e-3, 3e-3, 1e-2, 3e-2, 1e-1))),
    "adam": (adam, FINE, ("", (0.0,))),
    "l2-init": (l2_init, RATES, ("strength", (1e-3, 3e-3, 1e-2, 3e-2, 1e-1))),
    "l2-init with adam": (l2_init_adam, (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2), ("strength", (3e-4, 1e-3, 3e-3, 1e-2, 3e-2))),
    "shrink and perturb": (shrink_perturb, RATES, ("shrink", (1e-5, 3e-5, 1e-4, 3e-4, 1e-3))),
    "continual backprop": (continual_backprop, RATES, ("rate", (1e-4, 3e-4, 1e-3, 3e-3, 1e-2))),
    "upgd": (upgd, RATES, ("decay", (3e-4, 1e-3, 3e-3, 1e-2, 3e-2))),
    "redo": (redo, RATES, ("threshold", (3e-4, 1e-3, 3e-3, 1e-2, 3e-2))),
    "variational newton": (variational_newton, (3e-4, 1e-3, 3e-3, 1e-2, 3e-2), ("size", (1e2, 1e3, 1e4, 1e5, 1e6))),
}  # fmt: skip


def stream(seed, tasks=60):
    """The bits and targets of a study's trial with that seed, and the parameters that it begins with."""
    task = SlowBits(tasks=tasks)
    seed_all(seed)
    begin = [p.detach().flatten().numpy() for p in task.model().parameters()]
    X, Y = zip(*task.batches(batch_rng(seed)), strict=True)
    return np.concatenate(X).astype(float), np.ravel(Y).astype(float), np.concatenate(begin).astype(float)  # fmt: skip


def error(rule, streams, a, b):
    """The mean squared error over the last third, of all streams."""
    found = [run(RULES[rule][0], *streams[seed], a, b, seed) for seed in streams]
    return float(np.mean([errors[len(errors) * 2 // 3 :].mean() for errors in found]))


def main(chosen):
    unknown = [rule for rule in chosen if rule not in RULES]
    if unknown:
        sys.exit(f"There is no rule {unknown[0]!r}; rules: {', '.join(RULES)}.")
    streams = {seed: stream(seed) for seed in SEEDS}
    for rule in chosen or RULES:
        began = time.perf_counter()
        _, rates, (name, others) = RULES[rule]
        found = {(a, b): error(rule, streams, a, b) for a in rates for b in others}
        best = min(found, key=found.get)
        ends = [
            label
            for label, value, values in zip(("lr", name), best, (rates, others), strict=True)
            if len(values) > 1 and value in (values[0], values[-1])
        ]
        print(f"{rule}: lr = {best[0]:g}{f', {name} = {best[1]:g}' if name else ''}: {found[best]:.4f}"
              f"{', at the edge in ' + ' and '.join(ends) if ends else ''} ({time.perf_counter() - began:.0f} s)", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
