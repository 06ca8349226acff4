"""Beliefs against the best of all causal rules, which is known for noisy quadratics: LQG.

Each coordinate is pushed about by noise, and the learner sees its gradient through noise. The least cost
of any rule that knows the curvature and both noises is a Kalman filter followed by a linear feedback, from
two Riccati equations that SciPy solves here. A path is straight between two steps.
"""

import dataclasses

import numpy as np
import pytest
from scipy.linalg import solve_discrete_are

from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.gains import Betas

H = np.logspace(-3, 0.5, 8)
COPIES = 250


def least_cost(h, noise, push):
    """The mean cost of a step of the best rule, and the gain of its filter."""
    one = np.ones((1, 1))
    P = solve_discrete_are(one, one, h * one, (1 + h / 3) * one, s=h / 2 * one).item()
    before = solve_discrete_are(one, h * one, push * one, noise * one).item()
    gain = before * h**2 / (before * h**2 + noise)
    feedback = (P + h / 2) / (1 + h / 3 + P)
    unsure = feedback**2 * (1 + h / 3 + P) * (1 - gain) * before
    return (P * push + unsure) / 2, gain


def cost(rule, noise, push, *, steps=2200, forget=700):
    """The mean cost of a step of each curvature: of motion, and of the loss along the way."""
    rng = np.random.default_rng(0)
    h, noise, push = (np.repeat(a, COPIES) for a in (H, noise, push))
    x, total = np.zeros_like(h), np.zeros_like(h)
    state = rule.init(x)
    for t in range(steps):
        grad = h * x + np.sqrt(noise) * rng.normal(size=len(h))
        move, state = rule.update(grad, state, x)
        if t >= forget:
            total += move**2 / 2 + h / 2 * (x**2 + x * move + move**2 / 3)
        x = x + move + np.sqrt(push) * rng.normal(size=len(h))
    return total.reshape(len(H), COPIES).mean(axis=1) / (steps - forget)


def test_a_belief_that_foresees_its_own_moves_is_the_best_rule():
    """Curvature in proportion to the gradients' variance, as the learner believes: within 2 %."""
    noise, push = H.copy(), 0.01 / H
    best, gains = np.transpose([least_cost(*x) for x in zip(H, noise, push, strict=True)])
    assert np.ptp(gains) < 1e-12  # one gain suits all coordinates
    derived = BeliefRule(dt=1.0, gain=Betas(1 - gains[0]), beta2=0.999, predict=True)
    ours = cost(derived, noise, push) / best
    assert ours == pytest.approx(1.0, abs=0.05)
    assert ours.mean() == pytest.approx(1.0, abs=0.02)
    adam = BeliefRule(dt=1.0, finite=False)
    tuned = min(
        np.log(cost(dataclasses.replace(adam, dt=dt, gain=Betas(beta)), noise, push) / best).mean()
        for dt in (0.15, 0.3, 0.6)
        for beta in (0.6, 0.73, 0.9)
    )
    assert tuned > np.log(1.4)
