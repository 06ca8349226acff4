"""Losses that change with time, terminal costs and k = 0, against routes that know nothing of them."""

import numpy as np
import pytest
import sympy
from scipy.integrate import solve_ivp

import lossnav as ln
from lossnav.solvers.discrete import Discrete

MOVING = ln.Expression("(x - sin(t))**2/2 + (y - cos(2*t))**4/4", ["x", "y"])


def moving(**more):
    phi = ln.Expression("(x - 1)**2 + y**2 + x*y/2", ["x", "y"])
    settings = {"gamma": 0.3, "drift": ln.Rotation(0.5), "terminal": phi} | more
    return ln.Objective(MOVING, **settings)


def test_a_terminal_cost_is_that_of_the_riccati_equation():
    """P' = P P/eta... - k H backwards from P(T) = the terminal curvature, by an ODE solver."""
    H, M = np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([[1.0, -0.4], [-0.4, 3.0]])
    eta, k, gamma, T = 0.7, 1.3, 0.4, 1.5

    def backwards(_, P):
        P = P.reshape(2, 2)
        return (k * H - eta * P @ P - gamma * P).ravel()

    P = solve_ivp(backwards, (0, T), M.ravel(), rtol=1e-12, atol=1e-13).y[:, -1].reshape(2, 2)
    start = np.array([1.0, -2.0])
    objective = ln.Objective(ln.Quadratic(H), eta=eta, k=k, gamma=gamma, terminal=ln.Quadratic(M))
    path = ln.solve(objective, start, horizon=T)
    assert path.status.ok
    assert path.J == pytest.approx(start @ P @ start / 2, rel=1e-10)
    assert path.velocity0 == pytest.approx(-eta * P @ start, rel=1e-9)


@pytest.mark.parametrize("metric", [None, lambda x: np.diag([1 + x[0] ** 2, 2 + np.sin(x[1])])])
def test_the_three_methods_agree_on_a_moving_loss_with_a_cost_of_the_end(metric):
    objective = moving(metric=metric)
    ritz = ln.solve(objective, [1.0, 0.0], horizon=3.0)
    equations = ln.solve(objective, [1.0, 0.0], horizon=3.0, method=ln.Collocation(), tol=1e-9)
    assert ritz.status.ok
    assert ritz.J == pytest.approx(equations.J, rel=1e-8)
    assert ritz.velocity0 == pytest.approx(equations.velocity0, rel=1e-6)
    gaps = []
    for steps in (100, 200):
        sums = ln.solve(objective, [1.0, 0.0], horizon=3.0, method=ln.Direct(steps=steps))
        gaps.append(abs(sums.J - ritz.J))
    assert np.log2(gaps[0] / gaps[1]) == pytest.approx(2.0, abs=0.1)


def test_the_cost_of_a_given_path_has_all_its_parts():
    """J of a line, integrated by SymPy."""
    t = sympy.Symbol("t")
    x, y = 1 + t, 2 - t
    running = (1 / sympy.Integer(2)) * ((1 + y / 2) ** 2 + (-1 - x / 2) ** 2)
    running += (x - sympy.sin(t)) ** 2 / 2 + (y - sympy.cos(2 * t)) ** 4 / 4
    exact = sympy.Integral(running * sympy.exp(-sympy.Rational(3, 10) * t), (t, 0, 1)).evalf(15)
    last = (2 - 1) ** 2 + 1 + 2 * 1 / 2
    times = np.linspace(0, 1, 9)
    line = np.stack([1 + times, 2 - times], axis=1)
    assert moving().J(times, line) == pytest.approx(float(exact) + np.exp(-0.3) * last, rel=1e-10)


def test_a_terminal_cost_that_curves_down_is_no_obstacle():
    """A cosine at the end: the best of its minima, with the speed that the distance asks for."""
    phi = ln.Expression("3*cos(2*x) + (x - 1)**2/4", ["x"])
    objective = ln.Objective(ln.Expression("0*x", ["x"]), k=0, terminal=phi)
    path = ln.solve(objective, [0.05], horizon=1.0)
    ends = np.linspace(-6, 6, 240_001)
    costs = (ends - 0.05) ** 2 / 2 + 3 * np.cos(2 * ends) + (ends - 1) ** 2 / 4
    assert path.status.ok
    assert path.J == pytest.approx(costs.min(), rel=1e-8)


def test_without_weight_of_the_loss_paths_are_geodesics():
    """The hyperbolic plane: half the squared distance."""
    plane = ln.Objective(ln.DoubleWell(), k=0, metric=lambda x: np.diag([x[1] ** -2, x[1] ** -2]))
    path = ln.solve(plane, [-1.0, 1.0], horizon=2.0, end=[1.0, 0.5])
    distance = np.arccosh(1 + (4 + 0.25) / (2 * 1.0 * 0.5))
    assert path.J == pytest.approx(distance**2 / (2 * 2.0), rel=1e-9)


def test_without_weight_of_the_loss_an_endless_path_rests():
    path = ln.solve(ln.Objective(ln.DoubleWell(), k=0), [0.3, 0.4])
    assert path.J == 0
    assert path.end == pytest.approx([0.3, 0.4])


def test_the_sum_over_steps_has_the_cost_of_the_end():
    """App. A with the loss only at the end, by hand."""
    objective = ln.Objective(ln.Quadratic(1.0), k=0, eta=0.5, gamma=1.0, terminal=ln.Quadratic(2.0))
    J = Discrete(objective, steps=2, dt=1.0).J([[1.0], [0.5], [0.25]])
    assert J == pytest.approx(0.25 + np.exp(-1) * 0.0625 + np.exp(-2) * 0.0625)


def test_a_discount_may_be_text():
    said = ln.Objective(ln.DoubleWell(), discount="1/(1 + t)**3")
    coded = ln.Objective(ln.DoubleWell(), discount=lambda t: 1 / (1 + t) ** 3)
    both = [ln.solve(objective, [-0.6, 0.55], horizon=4.0).J for objective in (said, coded)]
    assert both[0] == both[1]
    with pytest.raises(ValueError, match="'s'"):
        ln.Objective(ln.DoubleWell(), discount="1/(1 + s)")


@pytest.mark.parametrize(
    "call",
    [
        lambda objective: ln.solve(objective, [0.0, 0.0]),
        lambda objective: ln.learning_rule(objective, dt=0.1),
        lambda objective: ln.policy(objective, [(-1, 1), (-1, 1)], n=21),
        lambda objective: ln.rank({"sgd": ln.zoo.SGD(lr=0.1)}, objective, [0.0, 0.0], steps=3),
        lambda objective: ln.solve(objective, [0.0, 0.0], 1.0, method=ln.MatrixFree()),
    ],
)
@pytest.mark.parametrize(
    "objective",
    [ln.Objective(MOVING, gamma=1.0), ln.Objective(ln.DoubleWell(), terminal=MOVING.at(0))],
)
def test_what_cannot_change_with_time_says_so(call, objective):
    with pytest.raises(ValueError, match=r"The loss changes with time|terminal cost belongs"):
        call(objective)


def test_wrong_inputs_are_named():
    with pytest.raises(ValueError, match="k is 0, so no loss is left"):
        ln.learning_rule(ln.Objective(ln.DoubleWell(), k=0), dt=0.1)
    with pytest.raises(ValueError, match="terminal cost depends on t"):
        ln.Objective(ln.DoubleWell(), terminal=MOVING)
    with pytest.raises(ValueError, match="disagree on the number of coordinates"):
        ln.Objective(ln.DoubleWell(), terminal=ln.Quadratic(1.0))
    with pytest.raises(ValueError, match=r"changes with time: use loss\.at"):
        MOVING.grad([0.0, 0.0])


def test_equations_know_of_time_and_of_the_end():
    """The derived energy changes at the rate that a solved path shows."""
    objective = moving(gamma=0.0)
    equations = ln.derive(objective)
    path = ln.solve(objective, [1.0, 0.0], horizon=3.0)
    t = np.linspace(0.5, 2.5, 2001)
    theta = path.at(t)
    velocity = np.gradient(theta, t, axis=0, edge_order=2)
    symbols = [*equations.coordinates, *equations.velocities, sympy.Symbol("t", real=True)]
    E = equations.energy()
    energy, rate = (
        sympy.lambdify(symbols, part.xreplace(equations.values))(*theta.T, *velocity.T, t)
        for part in (E.quantity, E.rate)
    )
    assert np.gradient(energy, t)[2:-2] == pytest.approx(rate[2:-2], rel=1e-3, abs=1e-4)
    last = path.at(3.0)
    slope = (last - path.at(3.0 - 1e-5)) / 1e-5
    for condition in equations.end_conditions():
        gap = (condition.lhs - condition.rhs).xreplace(equations.values)
        values = dict(zip(symbols, [*last, *slope, 3.0], strict=True))
        assert float(gap.subs(values)) == pytest.approx(0.0, abs=1e-3)


def test_a_file_may_have_a_terminal_cost_and_a_loss_in_time(tmp_path):
    from lossnav.problem.builtin import read

    file = tmp_path / "late.toml"
    file.write_text(
        'k = 0\ntheta0 = [1.0]\n[loss]\nexpression = "x**2*t"\nvariables = ["x"]\n'
        '[terminal]\nexpression = "3*x**2/2"\nvariables = ["x"]\n'
    )
    objective, theta0, _ = read(file)
    assert ln.solve(objective, theta0, horizon=2.0).end == pytest.approx([1 / 7])
