"""docs/errata.md, item by item: the printed form fails and the corrected one holds."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import sympy
from scipy import linalg
from scipy.optimize import brentq, minimize_scalar

import lossnav as ln
from brute_force import minimise
from lossnav.equations import derive
from lossnav.problem.belief import adaptive
from lossnav.solvers.discrete import Discrete

ERRATA = Path(__file__).parents[2] / "docs" / "errata.md"
theta, m, v, g = (sympy.Symbol(x, real=True) for x in ("theta", "m", "v", "g"))


def letters(equations):
    """Symbols of a derivation, by name: coordinates, velocities and constants."""
    free = set(equations.lagrangian.free_symbols) | set(equations.velocities)
    return {s.name: s for s in free | set(equations.coordinates)}


def test_each_item_is_tested():
    """Every numbered item on the page names a test here, and every test here is named."""
    named = set(re.findall(r"test_\d\d\w*", ERRATA.read_text(encoding="utf-8")))
    here = {name for name in globals() if re.match(r"test_\d\d", name)}
    assert named == here


def test_01_decay_enters_as_j_times_j_plus_gamma():
    j, h, gamma = 1.5, 2.0, 1.0
    objective = ln.Objective(ln.Quadratic(h, minimum=[1.0]), drift=ln.Decay(j), gamma=gamma)
    brute = minimise(objective.quadratic(), np.zeros(1), 24.0, 120)
    limit = np.interp(8.0, brute.nodes, brute.theta[:, 0])
    printed, corrected = (h / (h + j * (j + sign * gamma)) for sign in (-1, 1))
    assert printed == pytest.approx(0.72727, abs=1e-5)
    assert corrected == pytest.approx(0.34783, abs=1e-5)
    assert limit == pytest.approx(corrected, abs=1e-6)
    rate = math.log(abs(brute.theta[12, 0] - limit) / abs(brute.theta[24, 0] - limit))
    rate /= brute.nodes[24] - brute.nodes[12]
    assert rate == pytest.approx(math.sqrt((gamma / 2 + j) ** 2 + h) - gamma / 2, rel=1e-4)
    assert abs(rate - (math.sqrt(gamma**2 / 4 + j * (j - gamma) + h) - gamma / 2)) > 0.5


def test_02_the_path_starts_where_it_starts():
    """phi(t) = phi0 - (g/lambda)(1 - exp(r t)): with a plus sign phi(0) is not phi0."""
    h, slope, gamma = 2.0, 0.7, 0.5
    r = gamma / 2 - math.sqrt(gamma**2 / 4 + h)
    path = ln.solve(ln.Objective(ln.Quadratic(h, g=[slope]), gamma=gamma), [0.0])
    corrected = -slope / h * (1 - np.exp(r * path.t))
    printed = -slope / h * (1 + np.exp(r * path.t))
    assert path.theta[:, 0] == pytest.approx(corrected, abs=1e-12)
    assert printed[0] == pytest.approx(-2 * slope / h)


def test_03_small_steps_go_downhill():
    """The three rules of App. E for small dt lack a minus sign."""
    loss = ln.Quadratic(2.0, g=[0.7])
    for gamma in (0.0, 1.0, 1000.0):
        path = ln.solve(ln.Objective(loss, gamma=gamma), [0.0])
        printed = (math.sqrt(gamma**2 / 4 + 2.0) - gamma / 2) / 2.0 * 0.7
        assert path.velocity0[0] == pytest.approx(-printed)
        assert path.velocity0[0] * loss.grad([0.0])[0] < 0


def test_04_sum_of_the_exponents():
    gamma, h = 0.8, 1.7
    plus = max(np.roots([1, -gamma, -h]))
    root = math.sqrt(gamma**2 / 4 + h)
    assert 2 * plus - gamma == pytest.approx(2 * root)
    assert 2 * plus - gamma != pytest.approx(root)


def test_05_covariance_of_the_noisy_weight():
    """App. H: the stationary covariance solves a Lyapunov equation and holds a factor tau."""
    H, sigma, tau = np.array([[2.0, 0.5], [0.5, 1.0]]), 0.7, 3.0
    covariance = linalg.solve_continuous_lyapunov(H / tau, sigma**2 * np.eye(2))
    printed = sigma**2 / 2 * np.linalg.inv(H)
    assert covariance == pytest.approx(tau * printed)
    gradient = H @ covariance @ H
    assert gradient == pytest.approx(sigma**2 * tau / 2 * H)
    assert gradient / tau**2 == pytest.approx(sigma**2 / (2 * tau) * H)
    assert not np.allclose(gradient, sigma**2 / (2 * tau**2) * H)


def beliefs(observation):
    """The accelerations of (theta, m, v), and the letters in them."""
    equations = derive(adaptive([0.3], observation=observation))
    return [sympy.expand(a) for a in equations.acceleration], letters(equations)


def common(s):
    """What the paper and the derivation agree on, for m and for v."""
    x = s["theta"] - s["theta_0"]
    m_side = s["gamma"] * (s["m'"] + s["alpha1"] * s["m"]) + s["alpha1"] ** 2 * s["m"]
    v_side = s["gamma"] * (s["v'"] + s["alpha2"] * s["v"]) + s["alpha2"] ** 2 * s["v"]
    return x, m_side, v_side


def test_06_gradient_belief_feels_the_second_observation():
    acceleration, s = beliefs("moments")
    x, side, _ = common(s)
    miss = s["g"] - s["m"]
    printed = side + s["xi1"] ** 2 * (s["k"] * x - miss / s["sigma1"] ** 2)
    missing = 2 * s["xi1"] ** 2 / s["sigma2"] ** 2 * miss * (s["v"] - miss**2)
    assert sympy.expand(acceleration[1] - printed - missing) == 0
    assert sympy.expand(missing) != 0


def test_07_variance_belief_of_the_fuller_model():
    acceleration, s = beliefs("gaussian")
    x, _, side = common(s)
    miss = s["g"] - s["m"]

    def form(divisor):
        bracket = (
            s["k"] * s["kappa"] / 2 * x**2 + 1 / (2 * s["v"]) - miss**2 / (divisor * s["v"] ** 2)
        )
        return sympy.expand(side + s["xi2"] ** 2 * bracket - acceleration[2])

    assert form(2) == 0
    assert form(4) != 0


def test_08_the_log_density_has_no_continuous_limit_in_v():
    """-log N(g; m, v/dt)/dt: its slope in v grows as 1/dt, so a term must be dropped to pass on."""
    dt, y = sympy.symbols("dt y", positive=True)
    log_p = -((g - m) ** 2) * dt / (2 * y) - sympy.log(2 * sympy.pi * y / dt) / 2
    slope = sympy.diff(-log_p / dt, y)
    assert sympy.limit(slope, dt, 0, "+") == sympy.oo
    other = sympy.limit(sympy.diff(-log_p / dt, m), dt, 0, "+")
    assert sympy.expand(other - (m - g) / y) == 0


def test_09_the_weight_follows_the_believed_gradient():
    for observation in ("moments", "gaussian"):
        acceleration, s = beliefs(observation)
        x, _, _ = common(s)
        right = s["gamma"] * s["theta'"] + s["eta"] * s["k"] * (s["m"] + s["kappa"] * s["v"] * x)
        assert sympy.expand(acceleration[0] - right) == 0
        assert s["g"] not in acceleration[0].free_symbols


def test_10_a_metric_that_changes_adds_terms():
    """Eq. (9) misses G'(theta) theta'^2 / (2 G); App. F's form has it."""
    G, L = sympy.Function("G"), sympy.Function("L")
    loss = ln.Function(lambda x: L(x[0]), names=["theta"])
    equations = derive(ln.Objective(loss, metric=ln.Metric(lambda x: [[G(x[0])]])))
    s = letters(equations)
    x, speed = s["theta"], s["theta'"]
    printed = s["gamma"] * speed + s["eta"] * s["k"] * sympy.diff(L(x), x) / G(x)
    full = printed - sympy.diff(G(x), x) / (2 * G(x)) * speed**2
    assert sympy.simplify(equations.acceleration[0] - full) == 0
    assert sympy.simplify(equations.acceleration[0] - printed) != 0


def cost_to(minimum, gamma, T=12.0, steps=2400):
    """Least cost of Fig. 1's problem when the path ends, and then rests, at one minimum."""
    objective = ln.Objective(ln.DoubleWell(), gamma=gamma)
    plan = Discrete(objective, steps, T / steps, "midpoint")
    start, end = np.array([-0.6, 0.55]), np.array([minimum, 0.0])
    guess = end + np.exp(-2 * plan.t)[:, None] * (start - end)
    _, cost = plan.minimise(start, end, guess=guess)
    return cost + math.exp(-gamma * T) * float(objective.potential(end)) / gamma


def well(low, high):
    return brentq(lambda x: 4 * x * (x**2 - 1) - 0.5, low, high)


@pytest.mark.parametrize(("gamma", "wins"), [(0.1, "global"), (0.66, "global"), (0.67, "local")])
def test_11_the_best_end_need_not_be_the_global_minimum(gamma, wins):
    """From (-0.6, 0.55) the basin switches at gamma = 0.6646."""
    far, near = cost_to(well(0.5, 1.5), gamma), cost_to(well(-1.2, -0.8), gamma)
    assert ("global" if far < near else "local") == wins


def test_12_rotation_with_discount_does_not_end_at_the_least_effective_potential():
    h, target = 4.0, np.array([0.0, -0.5])
    for gamma, same in ((0.0, True), (1.0, False)):
        objective = ln.Objective(
            ln.Quadratic([h, h], minimum=target), drift=ln.Rotation(2.0), gamma=gamma
        )
        equations = derive(objective)
        potential = equations.effective_potential().xreplace(equations.values)
        slopes = [sympy.diff(potential, x) for x in equations.coordinates]
        lowest = sympy.solve(slopes, equations.coordinates)
        lowest = np.array([float(lowest[x]) for x in equations.coordinates])
        end = ln.solve(objective, [1.5, 1.5]).end
        assert np.allclose(end, lowest, atol=1e-9) is same


def test_13_the_wells_differ_in_the_quartic_term_too():
    """(theta^2 - theta_*^2)^2 is not the same at both minima; the lower one is still theta_+."""
    h, q, star = 1.0, 0.4, 1.0
    plus, minus = (q / (2 * h) + sign * math.sqrt(star**2 + q**2 / (4 * h**2)) for sign in (1, -1))
    quartic = [h / 4 * (x**2 - star**2) ** 2 for x in (plus, minus)]
    assert quartic[0] != pytest.approx(quartic[1], rel=0.1)
    assert quartic[0] - q / 3 * plus**3 < quartic[1] - q / 3 * minus**3


def test_14_numbers_of_the_published_notebooks():
    wrong = brentq(lambda x: 2 * x * (x**2 - 1) - 0.5, -1.2, -0.7)  # gradient with 2a for 4a
    assert wrong == pytest.approx(-0.838, abs=1e-3)
    loss = ln.DoubleWell()
    local, best = well(-1.2, -0.8), well(0.5, 1.5)
    assert local == pytest.approx(-0.930, abs=1e-3)
    assert best == pytest.approx(1.05745, abs=1e-5)
    assert loss.grad([[local, 0.0], [best, 0.0]]) == pytest.approx(np.zeros((2, 2)), abs=1e-9)
    assert abs(loss.grad([1.0625, 0.0])[0]) > 0.04
    fig3c = ln.Objective(ln.Quadratic([4.0, 4.0], minimum=[0.0, -0.5]), drift=ln.Rotation(10.0))
    assert ln.solve(fig3c, [1.5, 1.5]).end == pytest.approx([0.0, -0.5 * 4 / 104], abs=1e-12)


def test_15_adam_has_the_square_root_of_kappa():
    """With H = kappa V the ballistic rule is -sqrt(eta k/kappa) V^(-1/2) m."""
    eta, k, kappa, V, slope = 0.7, 1.3, 4.0, 2.5, 0.3
    path = ln.solve(ln.Objective(ln.Quadratic(kappa * V, g=[slope]), eta=eta, k=k), [0.0])
    assert path.velocity0[0] == pytest.approx(-math.sqrt(eta * k / kappa) / math.sqrt(V) * slope)
    assert path.velocity0[0] != pytest.approx(-math.sqrt(eta * k) / math.sqrt(V) * slope)


def test_16_costs_that_are_counted_once():
    """Motion costs |theta'|^2, not |theta|^2, and k E[L] is outside the sum over coordinates."""
    one, two = adaptive([0.3], theta0=[1.0]), adaptive([0.3, 0.3], theta0=[1.0, 1.0])
    still, split = np.array([0.5, 0.2, 0.9]), np.array([0.5, 0.5, 0.2, 0.2, 0.9, 0.9])
    assert one.kinetic(still, np.zeros(3)) == pytest.approx(
        (0.1 * 0.2) ** 2 / 2 + (0.1 * 0.9) ** 2 / 2
    )
    assert two.potential(split) == pytest.approx(2 * one.potential(still))


def test_17_one_step_with_a_drift_prices_the_step():
    """App. A prints [theta - f] in one factor for [Delta theta - f]."""
    from lossnav.solvers.discrete import one_step

    objective = ln.Objective(
        ln.Quadratic(0.0, g=[1e-9]), drift=ln.LinearDrift(0.0, c=[0.3]), eta=0.1
    )
    assert one_step(objective, [5.0]) == pytest.approx([0.3])  # a step along the drift is free


def test_18_the_exponent_has_a_time():
    """App. E's Q(I - exp(R t))Q^T equals I - exp{-[...] t}; without t it holds at t = 1 alone."""
    objective = ln.Objective(ln.Quadratic(2.0), gamma=0.5)
    rate = math.sqrt(0.25**2 + 2.0) - 0.25
    path = ln.solve(objective, [1.0])
    assert path.at([1.0, 2.0])[:, 0] == pytest.approx([math.exp(-rate), math.exp(-2 * rate)])


def test_19_the_sum_of_appendix_b_and_its_mean():
    """N terms 0..N-1; the printed S = 0.16957 is the mean, J/T, of the optimum on 50 points."""
    objective = ln.Objective(ln.DoubleWell(), gamma=0.1)
    plan = Discrete(objective, 49, 4 / 49)
    path, cost = plan.minimise([-0.6, 0.55], [1.0625, 0.0])
    terms = [
        (np.sum((path[j + 1] - path[j]) ** 2) / (2 * plan.dt**2) + objective.loss(path[j]))
        * math.exp(-0.1 * plan.t[j])
        for j in range(49)
    ]
    assert sum(terms) * plan.dt == pytest.approx(cost)
    assert cost == pytest.approx(0.67829, abs=1e-5)
    assert np.mean(terms) == pytest.approx(0.16957, abs=1e-5)


def test_20_the_double_well_is_raised_to_zero():
    """Without the constant, a longer stay at the minimum lowers J without bound at gamma = 0."""
    h, q, star = 1.3, 0.6, 0.9

    def loss(x):
        return h / 4 * (x**2 - star**2) ** 2 - q / 3 * x**3

    low = minimize_scalar(loss, bounds=(0.5, 3.0), method="bounded", options={"xatol": 1e-12})

    def cost(lift, horizon):
        objective = ln.Objective(lambda theta: loss(theta[0]) - lift)
        return ln.solve(objective, [0.2], horizon=horizon, end=[low.x]).J

    printed, raised = ([cost(lift, T) for T in (10.0, 20.0)] for lift in (0.0, low.fun))
    assert printed[1] - printed[0] == pytest.approx(10 * low.fun, rel=1e-4)
    assert low.fun < -0.1
    assert raised[1] == pytest.approx(raised[0], rel=1e-4)
