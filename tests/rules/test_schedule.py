"""The derived schedule, against routes that know nothing of its recursion."""

import math

import numpy as np
import pytest
from scipy import optimize

import lossnav as ln
from lossnav.rules.schedule import Schedule, schedule

H = np.logspace(-3, 0, 12)


def simulated(rates, h, V, P, Q, runs=200_000, seed=0):
    """Mean final loss of gradient descent, and its standard error."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(runs, len(h))) * np.sqrt(P)
    for a in rates:
        x = x - a * (h * x + np.sqrt(V) * rng.normal(size=x.shape))
        x = x + np.sqrt(Q) * rng.normal(size=x.shape)
    losses = (h * x * x).sum(1) / 2
    return losses.mean(), losses.std() / math.sqrt(runs)


@pytest.mark.parametrize("Q", [0.0, 0.01])
def test_the_expected_loss_is_that_of_simulated_runs(Q):
    h, V, P = np.array([0.1, 1.0, 1.5]), np.array([0.5, 0.1, 0.2]), np.array([2.0, 1.0, 0.5])
    plan = schedule(12, h, V, prior=P, wandering=Q)
    mean, error = simulated(plan.rates, h, V, P, np.full(3, Q))
    assert plan.loss == pytest.approx(mean, abs=4 * error)


@pytest.mark.parametrize("Q", [0.0, 0.05])
def test_one_direction_is_the_kalman_filter(Q):
    """Free motion on one coordinate: the gain of the filter divided by the curvature."""
    h, V, P, steps = 2.0, 3.0, 1.5, 40
    plan = schedule(steps, [h], V, prior=P, wandering=Q, limit=math.inf)
    gains = []
    for _ in range(steps):
        gain = P * h * h / (P * h * h + V)
        gains.append(gain / h)
        P = (1 - gain) * P + Q
    late = 30 if Q else 0  # what a wandering minimum forgets does not change the loss
    np.testing.assert_allclose(plan.rates[late:], gains[late:], rtol=1e-3)
    assert plan.loss == pytest.approx(h * P / 2, rel=1e-7)


def test_it_is_the_lqg_bound_for_one_direction():
    belief = ln.belief.Gaussian(noise=3.0, prior=1.5)
    rule = ln.learning_rule(ln.Objective(ln.Quadratic([2.0])), math.inf, belief=belief)
    plan = schedule(25, [2.0], 3.0, prior=1.5, limit=math.inf)
    assert plan.loss == pytest.approx(rule.least_loss(25, np.zeros(1)), rel=1e-7)


def test_no_general_minimiser_finds_better_rates():
    """Nelder and Mead, who know no gradient, on a loss that is computed direction by direction."""
    h, V, P = np.array([0.05, 0.3, 1.0]), np.array([0.02, 0.1, 0.3]), np.ones(3)

    def loss(rates):
        total = 0.0
        for curvature, noise, s in zip(h, V, P, strict=True):
            for a in rates:
                s = (1 - a * curvature) ** 2 * s + a * a * noise
            total += curvature * s / 2
        return total

    plan = schedule(4, h, V, prior=P)
    options = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 5000, "maxfev": 5000}
    bounds = [(0, 2.0)] * 4
    starts = [np.full(4, 0.3), np.full(4, 1.5), np.array([1.9, 1.0, 0.3, 0.1])]
    least = min(
        optimize.minimize(loss, x, method="Nelder-Mead", bounds=bounds, options=options).fun
        for x in starts
    )
    assert plan.loss == pytest.approx(loss(plan.rates), rel=1e-12)
    assert plan.loss <= least * (1 + 1e-8)


def test_small_steps_are_the_path_of_an_objective():
    """`solve` finds the same: progress A as a coordinate, noise as its metric, bias at the end."""
    j = np.arange(1.0, 9.0)
    h, V, P, N = 1 / j, 40 / j, np.ones(8), 300

    def decaying(weights):
        def value(A):
            if isinstance(A[0], float | np.floating):
                return float((weights * np.exp(-2 * h * A[0])).sum() / 2)
            import sympy

            return sum(w * sympy.exp(-2 * c * A[0]) for w, c in zip(weights, h, strict=True)) / 2

        return value

    noise = decaying(h * V)
    objective = ln.Objective(
        ln.Quadratic([0.0]), k=0.0, metric=ln.Metric(lambda A: [[2 * noise(A)]]),
        terminal=decaying(h * P),
    )  # fmt: skip
    path = ln.solve(objective, [0.0], horizon=float(N))
    plan = schedule(N, h, V, prior=P)
    progress = np.cumsum(plan.rates[::-1])
    # A rate of a few hundredths: the two differ by that times the curvature.
    np.testing.assert_allclose(
        progress[49::50], path.at(np.arange(50.0, N + 1, 50.0))[:, 0], rtol=2 * plan.rates.max()
    )
    assert plan.loss == pytest.approx(path.J, rel=2 * plan.rates.max())


@pytest.mark.parametrize("p", [0.75, 1.0])
def test_a_power_law_spectrum_gives_a_power_law_schedule(p):
    """h_j = j^-p and V proportional to h: the rate is the time left to the power 2p - 1."""
    j = np.unique(np.round(np.logspace(0, 4, 80)))
    count = np.gradient(j)  # directions that each of them stands for
    h = j**-p
    noise = {0.75: 10.0, 1.0: 1.0}[p]
    plan = schedule(600, h, noise * h * count, prior=count * j**-1.2 / h, limit=math.inf)
    left = 1 - np.arange(600) / 600
    power = np.polyfit(np.log(left[12:480]), np.log(plan.rates[12:480]), 1)[0]
    assert power == pytest.approx(2 * p - 1, abs=0.15)
    # Energy is conserved along the way, up to the size of a step.
    progress = np.cumsum(plan.rates[::-1])[::-1]
    K = (h * noise * h * count * np.exp(-2 * h * progress[:, None])).sum(1) / 2
    energy = plan.rates**2 * K
    assert np.ptp(energy) / energy.mean() < 0.05


@pytest.mark.parametrize(("noise", "cooldown"), [(1e-3, (0.005, 0.03)), (0.1, (0.1, 0.3))])
def test_a_bounded_rate_is_held_and_falls_at_the_end(noise, cooldown):
    """WSD: the more noise, the longer the cooldown; it beats every usual schedule at its best."""
    h = np.logspace(-4, 0, 30)
    plan = schedule(400, h, noise * h, prior=h**-0.5, limit=1.8)
    held = plan.factors > 0.99
    assert cooldown[0] < 1 - held.mean() < cooldown[1]
    assert held[: np.argmin(held)].all()
    left = 1 - np.arange(400) / 400
    for shape in (left, np.ones(400), (1 - np.cos(np.pi * left)) / 2, np.minimum(1, 5 * left)):
        assert plan.best(shape).loss > plan.loss


def test_a_minimum_that_wanders_needs_no_schedule():
    plan = schedule(300, [1.0], 1.0, wandering=0.01)
    assert np.ptp(plan.rates[50:]) < 1e-3 * plan.rates[-1]


def test_many_steps_have_knots_and_few_are_free():
    few, many = schedule(60, H, 0.1 * H), schedule(500, H, 0.1 * H)
    assert len(few.rates) == 60
    assert len(many.rates) == 500
    assert many.loss < few.loss
    assert many.expected_loss(many.rates) == many.loss


def test_torch_and_optax_have_the_same_factors():
    torch, optax = pytest.importorskip("torch"), pytest.importorskip("optax")
    plan = schedule(30, H, 0.1 * H)
    theta = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([theta], lr=0.5)
    scheduler = plan.torch(optimizer)
    seen = []
    for _ in range(32):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    wanted = 0.5 * np.append(plan.factors, [plan.factors[-1]] * 2)
    np.testing.assert_allclose(seen, wanted, rtol=1e-12)
    found = [float(plan.optax(0.5)(t)) for t in range(32)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert optax.sgd(plan.optax(0.5)) is not None


def test_it_draws_itself():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    ax = schedule(30, H, 0.1 * H).plot()
    assert len(ax.lines) == 2
    pyplot.close(ax.figure)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, H, 1.0), "steps is 0"),
        ((2.5, H, 1.0), "steps is 2.5"),
        ((5, [], 1.0), "curvature must be"),
        ((5, [1.0, -1.0], 1.0), "curvature must be"),
        ((5, H, [1.0, 2.0]), "noise has shape"),
        ((5, H, -1.0), "noise must be"),
        ((5, H, math.nan), "noise must be"),
    ],
)
def test_wrong_beliefs_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        schedule(*arguments)
    with pytest.raises(ValueError, match="limit is 0"):
        schedule(5, H, 1.0, limit=0)
    with pytest.raises(ValueError, match="factors must be"):
        schedule(3, H, 1.0).best([0.0, 0.0, 0.0])


def test_the_top_level_name():
    assert ln.schedule is schedule
    assert ln.Schedule is Schedule
