"""Final loss after N noisy gradients of a quadratic, relative to the least that any causal rule can expect.

The loss has 100 curvatures over three decades, and the start is normal with variance 1 in each direction. Noise of
gradients has a variance in proportion to the curvature, or the same in all directions; the eigenvectors are the axes,
or a random rotation. The least expected loss is that of the Kalman filter with free motion (`LQGRule.least_loss`).

Learning rates are tuned on seeds of their own, each schedule by itself; the first rule has nothing to tune, and the
last is told kappa (the mean of curvature over that of noise). Runs are stacked as rows of one array, and mean values
over a tensor are over all of them.

    python benchmarks/noisy_quadratics.py [axes] [N ...]      (100 and 1000 by default, axes and rotated)
"""

import math
import sys
from dataclasses import replace

import numpy as np

import lossnav as ln
from lossnav.rules.diagonal import BeliefRule, average_of, damping

D, TUNING, SEEDS = 100, 32, 128
H = np.logspace(-3, 0, D)
NOISES = {"V = 0.1 h": 0.1 * H, "V = 0.01": np.full(D, 0.01)}
MEMORY = 0.9  # of the measured noise; that of the mean, not tuned
RATES = np.logspace(-3.5, 0, 15)


def linear(t, N):
    return 1 - t / N


def wsd(t, N):
    return min(1.0, (N - t) / (0.2 * N))


def constant(t, N):
    return 1.0


ADAM = BeliefRule.practical(1.0, betas=(0.9, 0.999))
NAVIGATOR = replace(ADAM, beta2=0.99, nesterov=True)
SATURATED = BeliefRule.practical(1.0, betas=(0.9, 0.99), nesterov=True, saturation=4.0, shared=0.5)


def scheduled(rule, schedule):
    def run(rate, N, kappa):
        state = None

        def step(g, t):
            nonlocal state
            state = rule.init(g) if state is None else state
            now = replace(rule, dt=rate * schedule(t, N))
            move, state = now.update(g, state, g)  # without weight decay theta is not used
            return move

        return step

    return run


def as_it_comes(horizon=True, wandering=None, cooldown=0.2):
    """Navigator with a horizon or a belief about wandering, all else at its defaults."""

    def run(rate, N, kappa):
        end = N if horizon else None
        c, a = damping(None, None, end, wandering)
        rule = BeliefRule.practical(
            1.0, betas=(0.9, 0.99), nesterov=True, saturation=c, shared=a, horizon=end,
            cooldown=cooldown, wandering=wandering, second=average_of(False, wandering),
        )  # fmt: skip
        return scheduled(rule, constant)(rate, N, kappa)

    return run


def early_late(rate, N, kappa):
    """Adam early, filter late: -g / (sqrt(E g^2)/rate + kappa v (t + 1)), v the measured noise."""
    m = square = noise = 0.0

    def step(g, t):
        nonlocal m, square, noise
        two = 1 - 0.999 ** (t + 1)
        seen = (g - m / (1 - 0.9**t)) ** 2 if t else 0 * g
        noise = noise + max(1 / (t + 1), 1 - MEMORY) * (0.95 * seen - noise)  # seen has v/0.95
        m, square = 0.9 * m + 0.1 * g, 0.999 * square + 0.001 * g**2
        return -g / (np.sqrt(square / two) / rate + kappa * noise * (t + 1))

    return step


def filtered(rate, N, kappa, rule):
    state = None

    def step(g, t):
        nonlocal state
        state = rule.init(g) if state is None else state
        move, state = rule.update(g, state, g)
        return move

    return step


RULES = {
    "AdamW, linear decay": scheduled(ADAM, linear),
    "AdamW, WSD (20 %)": scheduled(ADAM, wsd),
    "Navigator, linear decay": scheduled(SATURATED, linear),
    "Navigator, no saturation, linear": scheduled(NAVIGATOR, linear),
    "Navigator(horizon)": as_it_comes(),
    "Navigator(horizon, wandering=0.01)": as_it_comes(wandering=0.01),
    "Navigator(horizon, wandering=0.01, cooldown=1)": as_it_comes(wandering=0.01, cooldown=1.0),
    "Navigator(wandering=0)": as_it_comes(horizon=False, wandering=0.0),
    "Adam early, filter late": early_late,
}


def final_loss(step, N, V, turn, seed, runs=SEEDS):
    """Mean loss over all runs; theta = turn x, with x along the eigenvectors."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(runs, D))
    with np.errstate(all="ignore"):
        for t in range(N):
            g = H * x + np.sqrt(V) * rng.normal(size=x.shape)
            x = x + (step(g, t) if turn is None else step(g @ turn.T, t) @ turn)
        losses = (H * x**2).sum(axis=1) / 2
    mean = float(losses.mean())
    return (mean, float(losses.std()) / math.sqrt(runs)) if math.isfinite(mean) else (math.inf, 0.0)


def tuned(make, N, V, turn):
    kappa = H.mean() / V.mean()
    scores = {
        rate: final_loss(make(rate, N, kappa), N, V, turn, 0, TUNING)[0] for rate in RATES[::2]
    }
    best = min(scores, key=scores.get)
    at = int(np.argmin(np.abs(RATES - best)))
    for rate in RATES[max(at - 1, 0) : at + 2]:
        if rate not in scores:
            scores[rate] = final_loss(make(rate, N, kappa), N, V, turn, 0, TUNING)[0]
    best = min(scores, key=scores.get)
    return *final_loss(make(best, N, kappa), N, V, turn, 1), best


def main(lengths, turns):
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(D, D)))[0]
    objective, rows = ln.Objective(ln.Quadratic(np.diag(H))), {}
    columns = [(N, V, turn) for N in lengths for V in NOISES for turn in turns]
    for N, name, turned in columns:
        V, turn = NOISES[name], rotation if turned == "rotated" else None
        belief = ln.belief.Gaussian(V, 1.0)
        rule = ln.learning_rule(objective, math.inf, curvature="diagonal", belief=belief)
        least = rule.least_loss(N, np.zeros(D))
        # A matrix filter in turned axes is this one along the eigenvectors, where it is quick.
        rows_of = np.broadcast_to(H, (SEEDS, D))
        stacked = replace(
            rule, plan=replace(rule.plan, curvature=rows_of),
            belief=ln.belief.Gaussian(np.broadcast_to(V, (SEEDS, D)), 1.0),
        )  # fmt: skip
        own = final_loss(filtered(0, N, 0, stacked), N, V, None, 1)
        rows.setdefault("LQG rule (told h, V, P0)", []).append(
            f"{own[0] / least:.2f} ± {own[1] / least:.2f}"
        )
        for label, make in RULES.items():
            mean, error, rate = tuned(make, N, V, turn)
            rows.setdefault(label, []).append(
                f"{mean / least:.2f} ± {error / least:.2f} (lr {rate:.3g})"
            )
    print(
        "| final loss / least expected | "
        + " | ".join(f"{N}, {V}, {turn}" for N, V, turn in columns)
        + " |"
    )
    print("| --- " * (len(columns) + 1) + "|")
    for label, cells in rows.items():
        print(f"| {label} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    axes = "axes" in sys.argv
    asked = [int(word) for word in sys.argv[1:] if word != "axes"]
    main(asked or [100, 1000], ["axes"] if axes else ["axes", "rotated"])
