"""Beliefs against the best of all causal rules, which is known for noisy quadratics: LQG.

Each coordinate is pushed about by noise, and the learner sees its gradient through noise. The least cost
of any rule that knows the curvature and both noises is a Kalman filter followed by a linear feedback, from
two Riccati equations that SciPy solves here. A path is straight between two steps.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy.linalg import block_diag, solve_discrete_are

import lossnav as ln
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


# A finite number of steps: LQGRule

TURN = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
BENDS = TURN * [0.3, 1.0, 4.0] @ TURN.T
NOISE = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.5]])
PRIOR = np.array([[1.0, 0.2, 0.1], [0.2, 2.0, 0.0], [0.1, 0.0, 0.5]])
WANDERING = np.diag([0.1, 0.0, 0.3])


def randomness(bends, noise, prior, wandering, steps):
    """Positions that no step has moved, and gradients there, as linear maps of standard normals.

    The first is ``(steps + 1, D, M)``, the second ``(steps, D, M)``, for M normals.
    """
    D = len(bends)
    roots = [np.linalg.cholesky(prior), *[np.sqrt(wandering)] * steps]  # wandering is diagonal
    roots += [np.linalg.cholesky(noise)] * steps
    whole = block_diag(*roots).reshape(1 + 2 * steps, D, -1)
    x = np.cumsum(whole[: steps + 1], axis=0)
    return x, bends @ x[:-1] + whole[steps + 1 :]


def best_causal_moves(x, y, price, counted):
    """Moves ``(steps, D, M)`` of the least expected cost, each linear in the gradients so far.

    The cost is ``price |move|^2 / 2`` for each move and ``x.Q.x / 2`` after it, for Q in ``counted``;
    least squares over all coefficients, which knows neither filter nor Riccati equation.
    """
    steps, D, M = y.shape
    zero = np.zeros((steps, D, M))
    columns = []
    for t in range(steps):
        for s in range(t + 1):
            for i in range(D):
                for j in range(D):
                    moves = zero.copy()
                    moves[t, i] = y[s, j]
                    columns.append(moves)
    roots = [np.linalg.cholesky(Q + 1e-30 * np.eye(D)).T if Q.any() else Q for Q in counted]

    def cost(moves, start):
        after = start + np.cumsum(moves, axis=0)
        losses = [root @ part for root, part in zip(roots, after, strict=True)]
        return np.concatenate([math.sqrt(price) * moves.ravel(), np.ravel(losses)])

    design = np.stack([cost(moves, 0) for moves in columns], axis=1)
    weights = np.linalg.lstsq(design, -cost(zero, x[1:]), rcond=None)[0]
    return np.tensordot(weights, columns, axes=1)


def closed_loop(rule, x, y, bends, theta):
    """Moves of a rule as linear maps of the same normals."""
    moves = []
    for m in range(x.shape[-1]):
        state, moved, made = rule.init(theta), np.zeros(len(theta)), []
        for seen in y[..., m]:
            step, state = rule.update(seen + bends @ moved, state, theta + moved)
            moved = moved + step
            made.append(step)
        moves.append(made)
    return np.moveaxis(moves, 0, -1)


@pytest.mark.parametrize("wandering", [0 * WANDERING, WANDERING])
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("diagonal", [False, True])
def test_the_rule_is_the_best_of_all_causal_rules(diagonal, free, wandering):
    """Every linear causal rule competes, over three steps: with a loss at the end, and with free motion."""
    bends, noise, prior = BENDS, NOISE, PRIOR
    if diagonal:
        bends, noise, prior = (np.diag(np.diag(part)) for part in (bends, noise, prior))
    x, y = randomness(bends, noise, prior, wandering, 3)
    told = [np.diag(part) if diagonal else part for part in (noise, prior, wandering)]
    belief = ln.belief.Gaussian(*told)
    curvature = "diagonal" if diagonal else "exact"
    if free:
        objective = ln.Objective(ln.Quadratic(bends))
        rule = ln.learning_rule(objective, math.inf, curvature=curvature, belief=belief)
        best = best_causal_moves(x, y, 0.0, [bends] * 3)
    else:
        end = ln.Quadratic(bends)
        objective = ln.Objective(end, eta=0.7, k=0, terminal=end)
        c = {"curvature": curvature, "horizon": 1.5, "belief": belief}
        rule = ln.learning_rule(objective, 0.5, **c)
        best = best_causal_moves(x, y, 1 / (0.7 * 0.5), [0 * bends, 0 * bends, bends])
    theta = np.zeros(3)
    moves = closed_loop(rule, x, y, bends, theta)
    assert rule.init(theta)["precision"].shape == ((3,) if diagonal else (3, 3))
    # Errors of normal equations, whose condition number is below 1e4.
    assert moves == pytest.approx(best, rel=1e-8, abs=1e-8)
    if free:
        last = x[-1] + moves.sum(axis=0)
        expected = np.trace(last.T @ bends @ last) / 2
        assert rule.least_loss(3, theta) == pytest.approx(expected, rel=1e-10)
        if not wandering.any():
            P = np.linalg.inv(np.linalg.inv(prior) + 3 * bends @ np.linalg.solve(noise, bends))
            assert rule.least_loss(3, theta) == pytest.approx(np.trace(bends @ P) / 2, rel=1e-10)


def test_limits_of_free_motion():
    """MATHS: Newton and then 1/t, the constant rate P0/V of a gradient, and the bound by simulation."""
    h, V, P0 = (
        np.array([1e-3, 0.1, 1.0, 100.0]),
        np.array([0.1, 1.0, 0.3, 2.0]),
        np.array([2.0, 1.0, 0.5, 1.0]),
    )
    objective = ln.Objective(ln.Quadratic(h))
    settings = {"curvature": "diagonal", "belief": ln.belief.Gaussian(V, P0)}
    rule = ln.learning_rule(objective, math.inf, **settings)
    rng, theta = np.random.default_rng(0), np.zeros(4)
    state = rule.init(theta)
    for t in range(30):
        g = rng.normal(size=4)
        step, state = rule.update(g, state, theta)
        assert step == pytest.approx(-g / (h * (t + 1) + V / (h * P0)), rel=1e-12)
        assert step[0] / g[0] == pytest.approx(-h[0] * P0[0] / V[0], rel=1e-3)
        assert step[3] / g[3] == pytest.approx(-1 / (h[3] * (t + 1)), rel=1e-3)
    assert rule.least_loss(30, theta) == pytest.approx((h / (1 / P0 + 30 * h**2 / V)).sum() / 2)
    copies = np.ones((4000, 1))
    many = dataclasses.replace(
        rule, plan=dataclasses.replace(rule.plan, curvature=copies * h),
        belief=ln.belief.Gaussian(copies * V, copies * P0),
    )  # fmt: skip
    x = rng.normal(size=(4000, 4)) * np.sqrt(P0)
    state = many.init(x)
    for _ in range(30):
        step, state = many.update(h * x + rng.normal(size=x.shape) * np.sqrt(V), state, x)
        x = x + step
    losses = (h * x**2).sum(axis=1) / 2
    error = losses.std() / math.sqrt(len(losses))
    assert abs(losses.mean() - rule.least_loss(30, theta)) < 4 * error


def test_a_wandering_minimum_has_a_steady_gain():
    h, V, Q = np.array([0.5, 2.0]), np.array([1.0, 3.0]), np.array([0.2, 0.01])
    objective = ln.Objective(ln.Quadratic(h), eta=0.7, gamma=0.4)
    belief = ln.belief.Gaussian(V, wandering=Q)
    theta, g = np.zeros(2), np.array([1.0, -0.3])
    rule = ln.learning_rule(objective, math.inf, curvature="diagonal", belief=belief)
    state = rule.init(theta)
    for _ in range(400):
        step, state = rule.update(g, state, theta)
    K = 2 / (1 + np.sqrt(1 + 4 * V / (h**2 * Q)))
    assert step == pytest.approx(-K * g / h, rel=1e-10)
    assert 1 / state["precision"] == pytest.approx(
        [
            solve_discrete_are(1.0, np.atleast_2d(c), q, v).item()
            for c, q, v in zip(h, Q, V, strict=True)
        ]
    )
    # With a cost of motion, the same filter and the step of an exact gradient H x.
    slow = ln.learning_rule(objective, 0.3, curvature="diagonal", belief=belief)
    exact = ln.learning_rule(objective, 0.3, curvature="diagonal")
    x = state["x"] + K / h * (g - h * state["x"])
    step, after = slow.update(g, state, theta)
    assert step == pytest.approx(exact.update(h * x, {}, theta)[0], rel=1e-10)
    assert after["x"] == pytest.approx(x + step)  # its own move is no surprise


def test_a_diffuse_prior_and_a_direction_without_curvature():
    h, g = np.array([0.0, 2.0]), np.array([1.0, 3.0])
    for curvature in (h, np.diag(h)):
        objective = ln.Objective(ln.Quadratic(h + 1))
        belief = ln.belief.Gaussian(1.0, mean=[5.0, 7.0])
        rule = ln.learning_rule(objective, math.inf, curvature=curvature, belief=belief)
        step, state = rule.update(g, rule.init(g), g)
        # Nothing is learnt of the first; of the second the gradient says all.
        assert step[1] == pytest.approx(-1.5)
        assert state["x"] - step == pytest.approx([5.0, 1.5])


def test_noise_and_drift_together():
    """Certainty equivalence: the plan for the mean gradient, drift and all."""
    objective = ln.Objective(ln.Quadratic(BENDS), drift=ln.LinearDrift(TURN, np.ones(3)), gamma=0.5)
    theta, g = np.array([1.0, 2.0, -1.0]), np.array([0.3, -0.2, 1.0])
    belief = ln.belief.Gaussian(NOISE, PRIOR, mean=[0.5, 0.0, 1.0])
    K = PRIOR @ BENDS @ np.linalg.inv(BENDS @ PRIOR @ BENDS + NOISE)
    x = np.array([0.5, 0.0, 1.0]) + K @ (g - BENDS @ [0.5, 0.0, 1.0])
    for horizon in (None, 2.0):
        exact = ln.learning_rule(objective, 0.2, horizon=horizon)
        rule = ln.learning_rule(objective, 0.2, horizon=horizon, belief=belief)
        step, state = rule.update(g, rule.init(theta), theta)
        expected = exact.update(BENDS @ x, exact.init(theta), theta)[0]
        assert step == pytest.approx(expected, rel=1e-9)
        assert state["x"] == pytest.approx(x + step, rel=1e-9)


def test_tensors_of_any_shape():
    torch = pytest.importorskip("torch")
    from lossnav.optim.torch import from_rule

    h = np.array([[1.0, 2.0], [0.5, 3.0]])
    objective = ln.Objective(ln.TorchLoss(lambda x: (x**2).sum()))
    belief = ln.belief.Gaussian(0.5 * h, 2.0, 0.1)
    full = ln.belief.Gaussian(np.diag(0.5 * h.ravel()), 2.0, 0.1)
    for told in (belief, full):
        rule = ln.learning_rule(objective, 0.3, curvature=h, horizon=1.5, belief=told)
        theta = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
        optimizer = from_rule([theta], rule)
        x, state = np.ones((2, 2)), None
        plain = ln.learning_rule(objective, 0.3, curvature=h, horizon=1.5, belief=belief)
        state = plain.init(x)
        for _ in range(6):
            theta.grad = theta.detach() * torch.tensor(h) + 0.1
            optimizer.step()
            step, state = plain.update(x * h + 0.1, state, x)
            x = x + step
        assert theta.detach().numpy() == pytest.approx(x, rel=1e-10)
        assert not step.any()  # beyond the horizon
    said = rule.assumptions
    assert said.startswith("LQGRule is optimal")
    assert "normal noise of known variance" in said
    assert "wanders" in said


@pytest.mark.parametrize(
    ("belief", "sentence"),
    [
        ({"noise": 0.0}, "noise has the variance 0, but it must be greater than zero"),
        ({"noise": 1.0, "prior": [1.0, -1.0]}, "prior has the variance -1"),
        ({"noise": 1.0, "wandering": -0.1}, "wandering has the variance -0.1, but it must be zero or more"),
        ({"noise": math.inf}, "noise is not finite, but only the prior"),
        ({"noise": math.nan}, "noise is not finite"),
        ({"noise": np.ones(3)}, r"noise has shape \(3,\), but theta has shape \(2,\)"),
        ({"noise": [[1.0, 2.0], [2.0, 1.0]]}, "noise has the variance -1, but"),
        ({"noise": 1.0, "wandering": -np.eye(2)}, "wandering has the variance -1"),
        ({"noise": 1.0, "mean": np.eye(2)}, r"mean has shape \(2, 2\)"),
    ],
)  # fmt: skip
def test_what_is_no_belief_is_refused(belief, sentence):
    rule = ln.learning_rule(
        ln.Objective(ln.Quadratic([1.0, 2.0])), belief=ln.belief.Gaussian(**belief)
    )
    with pytest.raises(ValueError, match=sentence):
        rule.init(np.ones(2))


def test_a_belief_must_fit_the_objective():
    objective = ln.Objective(ln.Quadratic([1.0, 2.0]))
    with pytest.raises(ValueError, match="needs the entries of the curvature"):
        ln.learning_rule(objective, curvature="lanczos", belief=ln.belief.Gaussian(1.0))
    with pytest.raises(TypeError, match="The belief is a float"):
        ln.learning_rule(objective, belief=1.0)
