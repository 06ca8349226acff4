"""The policy on a grid against exact values, minimised paths and the paths that it traces."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import linalg

import lossnav as ln
from lossnav.solvers import plane
from lossnav.solvers.discrete import Discrete
from lossnav.solvers.plane import grid, sweeps

BOX = [(-1.6, 1.8), (-1.2, 1.2)]
H, CENTER = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([0.1, -0.05])
TILTED = np.array([[1.0, 0.8], [0.8, 1.0]])
TURN = np.array([[0.0, -1.0], [1.0, 0.0]])


def without_numba(monkeypatch):
    """Run the kernels and the functions that they call as plain Python."""
    for name, function in vars(sweeps).items():
        monkeypatch.setattr(sweeps, name, getattr(function, "py_func", function))


def exact(G, J, *, eta, k, gamma):
    """Value and velocity of the quadratic problem, from the stable subspace of its flow.

    No Riccati equation is solved: the state x and the slope p of the value follow a linear flow,
    and the optimal pairs (x, p) are the eigenvectors of its two lowest rates.
    """
    inverse = eta * np.linalg.inv(G)
    flow = np.block([[J, -inverse], [-k * H, gamma * np.eye(2) - J.T]])
    still = np.linalg.solve(flow, np.concatenate([np.zeros(2), -k * H @ CENTER]))
    rates, vectors = np.linalg.eig(flow)
    low = vectors[:, np.argsort(rates.real)[:2]]
    P = np.real(low[2:] @ np.linalg.inv(low[:2]))

    def rest(x):
        f = x @ J.T
        cost = np.einsum("...i,ij,...j->...", x - CENTER, H, x - CENTER) * k / 2
        return cost + np.einsum("...i,ij,...j->...", f, G, f) / (2 * eta)

    def value(x):
        d = x - still[:2]
        start = rest(still[:2]) / gamma if gamma else 0.0
        return start + d @ still[2:] + np.einsum("...i,ij,...j->...", d, P, d) / 2

    def velocity(x):
        return x @ J.T - (still[2:] + (x - still[:2]) @ P) @ inverse

    return value, velocity


def errors(objective, value, velocity, n, to_flat=lambda x: x, inner=0.6):
    """Largest and mean errors of value and velocity where no path feels the edge of the box."""
    found = ln.policy(objective, [(-1, 1), (-1, 1)], n)
    points = np.stack(np.meshgrid(found.x, found.y, indexing="ij"), axis=-1)
    inside = (np.abs(points) <= inner).all(axis=-1)
    beyond = found.rest / objective.gamma if objective.gamma else 0.0
    gap = np.abs(found.value + beyond - value(to_flat(points)))[inside]
    speed = np.linalg.norm(found.velocity - velocity(points), axis=-1)[inside]
    assert found.status is ln.Status.CONVERGED
    assert found.residual <= 1e-12
    assert gap.max() <= 2 * found.value_error[inside].max()
    assert speed.max() <= 2 * found.velocity_error[inside].max()
    return np.array([gap.max(), gap.mean(), speed.max(), speed.mean()])


@pytest.mark.parametrize(
    ("G", "J", "gamma"),
    [
        (np.eye(2), 0 * TURN, 0.0),
        (np.eye(2), 0 * TURN, 1.0),
        (np.eye(2), 0 * TURN, 10.0),
        (np.eye(2), TURN, 0.0),
        (np.eye(2), 0.5 * TURN, 1.0),
        (np.eye(2), -np.eye(2), 0.5),
        (np.diag([0.2, 1.0]), 0 * TURN, 0.1),
        (TILTED, 0 * TURN, 0.0),
        (TILTED, 0.5 * TURN, 0.5),
    ],
)
def test_quadratic_problems_converge_to_the_exact_value(G, J, gamma):
    constants = {"eta": 0.7, "k": 1.3, "gamma": gamma}
    objective = ln.Objective(
        ln.Quadratic(H, minimum=CENTER), metric=G, drift=ln.LinearDrift(J), **constants
    )
    value, velocity = exact(G, J, **constants)
    wide, narrow = (errors(objective, value, velocity, n) for n in (51, 201))
    assert narrow[0] < 1e-4
    order = np.log2(wide / narrow) / 2
    assert order[1] > 1.3  # second order, but for lines where the upwind side changes
    assert order[3] > 1.3


def test_a_metric_and_a_drift_that_change_from_place_to_place():
    """The quadratic problem in curved coordinates u = (x + y^2/4, y): the value is the same."""
    constants = {"eta": 0.7, "k": 1.3, "gamma": 0.5}

    def flat(x):
        return np.stack([x[..., 0] + x[..., 1] ** 2 / 4, x[..., 1]], axis=-1)

    def loss(x):
        u, v = x[0] + x[1] ** 2 / 4 - CENTER[0], x[1] - CENTER[1]
        return (H[0, 0] * u**2 + 2 * H[0, 1] * u * v + H[1, 1] * v**2) / 2

    def metric(x):
        return [[1, x[1] / 2], [x[1] / 2, 1 + x[1] ** 2 / 4]]

    def drift(x):
        u, v = -x[1] / 2, (x[0] + x[1] ** 2 / 4) / 2  # half a turn in u, brought back to x
        return [u - x[1] / 2 * v, v]

    objective = ln.Objective(loss, metric=metric, drift=drift, names=["x", "y"], **constants)
    value, flat_velocity = exact(np.eye(2), 0.5 * TURN, **constants)

    def velocity(x):
        move = flat_velocity(flat(x))
        return np.stack([move[..., 0] - x[..., 1] / 2 * move[..., 1], move[..., 1]], axis=-1)

    wide, narrow = (errors(objective, value, velocity, n, flat, 0.5) for n in (51, 201))
    assert narrow[0] < 1e-4
    order = np.log2(wide / narrow) / 2
    assert order[1] > 1.3
    assert order[3] > 1.3


@pytest.mark.parametrize("n", [201, 160])
@pytest.mark.parametrize(("gamma", "end"), [(0.6, 1.0574537707), (0.73, -0.9304029266)])
def test_the_best_basin_switches_with_the_discount(gamma, end, n):
    """From (-0.6, 0.55) the local minimum wins above gamma = 0.6646."""
    found = ln.policy(ln.Objective(ln.DoubleWell(), gamma=gamma), BOX, n)
    node = np.abs(found.x + 0.6).argmin(), np.abs(found.y - 0.55).argmin()
    assert found.minima[found.basin[node]] == pytest.approx([end, 0.0], abs=1e-9)
    assert found.trace([-0.6, 0.55]).end == pytest.approx([end, 0.0], abs=1e-9)


def best_of(objective, start, ends, T=12.0, steps=1200):
    """Least cost of a path from ``start`` to rest at one of ``ends``, by minimising over paths."""
    plan = Discrete(objective, steps, T / steps, "midpoint")
    costs = []
    for end in ends:
        guess = end + np.exp(-2 * plan.t)[:, None] * (start - end)
        cost = plan.minimise(start, end, guess=guess)[1]
        costs.append(
            cost + math.exp(-objective.gamma * T) * objective.potential(end) / objective.gamma
        )
    return min(costs)


@pytest.mark.parametrize("gamma", [0.3, 0.73, 3.0])
def test_values_of_the_double_well_against_minimised_paths(gamma):
    objective = ln.Objective(ln.DoubleWell(), gamma=gamma)
    found = ln.policy(objective, BOX)
    for start in ([-0.6, 0.55], [0.4, -0.8], [-0.2, 0.1], [-1.2, -0.3]):
        cost = best_of(objective, np.array(start), found.minima)
        value = float(found.at(start)[0]) + found.rest / gamma
        assert value == pytest.approx(cost, abs=2e-4)


def test_without_discount_only_the_global_minimum_is_an_end():
    found = ln.policy(ln.Objective(ln.DoubleWell()), BOX)
    assert len(found.minima) == 2
    assert (found.basin == 0).all()
    assert found.watershed().shape == (0, 2)
    assert found.at(found.minima[0])[0] == pytest.approx(0.0, abs=1e-5)
    assert found.at(found.minima[1])[0] > 0.5  # the way out, not the cost of staying
    assert found.trace(found.minima[1]).end == pytest.approx(found.minima[0])


def test_on_the_watershed_both_ends_cost_the_same():
    objective = ln.Objective(ln.DoubleWell(), gamma=1.0)
    found = ln.policy(objective, BOX)
    edge = found.watershed()
    assert len(edge) >= 200
    for start in edge[:: len(edge) // 4]:
        far, near = (best_of(objective, start, [end]) for end in found.minima)
        assert far == pytest.approx(near, abs=1e-3)
    shifted = {tuple(found.trace(edge[60] + [move, 0.0]).end) for move in (-0.05, 0.05)}
    assert len(shifted) == 2


def test_four_equal_minima_share_the_plane():
    found = ln.policy(ln.Objective(ln.Himmelblau()), [(-5, 5), (-5, 5)], 101)
    assert found.minima.tolist() == sorted(found.minima.tolist())  # rounding does not order them
    assert set(np.unique(found.basin)) == {0, 1, 2, 3}
    for number, minimum in enumerate(found.minima):
        node = np.abs(found.x - minimum[0]).argmin(), np.abs(found.y - minimum[1]).argmin()
        assert found.basin[node] == number


CASES = {
    "plain": (ln.Objective(ln.DoubleWell(), gamma=0.7), BOX),
    "no discount": (ln.Objective(ln.Himmelblau()), [(-5, 5), (-5, 5)]),
    "drift": (ln.Objective(ln.DoubleWell(), drift=ln.Rotation(0.5)), BOX),
    "metric": (ln.Objective(ln.DoubleWell(), metric=TILTED, gamma=1.0), BOX),
    "all": (
        ln.Objective(
            ln.DoubleWell(),
            metric=ln.Metric(lambda x: [[1 + x[1] ** 2, x[0] / 4], [x[0] / 4, 1]]),
            drift=ln.Decay(0.3),
            gamma=0.4,
        ),
        BOX,
    ),
}


@pytest.mark.parametrize("n", [41, 60])
@pytest.mark.parametrize("case", CASES)
def test_numpy_and_numba_agree(case, n, monkeypatch):
    pytest.importorskip("numba")
    objective, box = CASES[case]
    quick = ln.policy(objective, box, n)
    without_numba(monkeypatch)
    plain = ln.policy(objective, box, n)
    assert np.abs(quick.value - plain.value).max() <= 1e-10 * np.abs(plain.value).max()
    assert np.abs(quick.velocity - plain.velocity).max() <= 1e-8 * np.abs(plain.velocity).max()
    assert (quick.basin == plain.basin).all()


def test_numba_is_loaded_only_when_a_policy_is_solved():
    program = (
        "import sys, lossnav as ln; ln.solve, ln.policy; print('numba' in sys.modules);"
        "ln.policy(ln.Objective(ln.Quadratic([1.0, 1.0])), [(-1, 1), (-1, 1)], 21)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_a_machine_without_numba_still_has_a_policy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "lossnav.solvers.plane.sweeps")
    monkeypatch.delattr("lossnav.solvers.plane.sweeps")
    found = ln.policy(ln.Objective(ln.Quadratic([1.0, 4.0])), [(-1, 1), (-1, 1)], 41)
    assert not hasattr(plane.sweeps.relax, "py_func")
    assert found.at([0.5, 0.5])[0] == pytest.approx(0.375, abs=1e-3)


@pytest.mark.parametrize("metric", [np.eye(2), TILTED], ids=["plain", "tilted"])
def test_paths_slide_along_the_edge_of_the_box(metric):
    """A drift that would carry the path out: the value is the cost of the best path inside."""
    objective = ln.Objective(
        ln.Quadratic([0.5, 0.5]), metric=metric, drift=ln.Rotation(2.0), gamma=0.2
    )
    small, large = (ln.policy(objective, [(-b, b), (-b, b)], 161) for b in (0.5, 1.5))
    start = [0.5, 0.5]
    path = small.trace(start)
    assert np.count_nonzero(np.isclose(np.abs(path.theta), 0.5)) > 20
    assert (np.abs(path.theta) <= 0.5).all()
    assert np.linalg.norm(path.theta[-1]) < 0.01
    assert path.J == pytest.approx(objective.J(path.t, path.theta), rel=2e-3)
    assert path.J > 1.1 * large.at(start)[0]


@pytest.mark.parametrize("case", ["plain", "drift", "metric"])
def test_a_traced_path_costs_the_value(case):
    objective, box = CASES[case]
    found = ln.policy(objective, box)
    path = found.trace([-0.6, 0.55])
    assert path.status is ln.Status.CONVERGED
    assert path.t[0] == 0
    assert path.theta[0] == pytest.approx([-0.6, 0.55])
    assert path.end in found.minima
    beyond = objective.kinetic(path.theta, np.gradient(path.theta, path.t, axis=0))
    beyond = (beyond + objective.potential(path.theta) - found.rest) * objective.discount_at(path.t)
    last, _ = found.at(path.theta[-1])
    cost = np.trapezoid(beyond, path.t) + float(last * objective.discount_at(path.t[-1]))
    assert float(found.at([-0.6, 0.55])[0]) == pytest.approx(cost, rel=5e-3)
    assert path.at(path.t[3]) == pytest.approx(path.theta[3])


@pytest.mark.parametrize("case", ["plain", "metric", "all"])
def test_polish_finds_the_path_that_the_policy_names(case):
    objective, box = CASES[case]
    found = ln.policy(objective, box)
    traced, polished = found.trace([-0.6, 0.55]), found.polish([-0.6, 0.55])
    assert polished.status.ok
    assert polished.error < 1e-9
    assert polished.end == pytest.approx(traced.end, abs=1e-8)
    assert polished.J == pytest.approx(traced.J, abs=1e-3)
    speed = np.linalg.norm(polished.velocity0)
    assert np.linalg.norm(polished.velocity0 - traced.velocity0) <= 0.02 * speed


def test_polish_of_a_quadratic_is_exact():
    objective = ln.Objective(ln.Quadratic([1.0, 4.0]))
    path = ln.policy(objective, [(-1, 1), (-1, 1)], 41).polish([0.5, 0.5])
    assert path.velocity0 == pytest.approx([-0.5, -1.0], abs=1e-12)


def test_polish_refuses_a_path_that_costs_more_than_the_policy(monkeypatch):
    """Straight towards a steep hill both ways round are equal; a path over it must not pass."""

    def loss(x):
        return (x[0] ** 2 + x[1] ** 2) / 2 + 4 * np.exp(-20 * ((x[0] - 0.8) ** 2 + x[1] ** 2))

    found = ln.policy(ln.Objective(loss, gamma=0.1), [(-0.6, 2), (-1.2, 1.2)], 101)
    beside = found.polish([1.6, 0.05])
    assert beside.velocity0 == pytest.approx(found.at([1.6, 0.05])[1], abs=0.01)
    over = replace(beside, J=1.889)  # the best path on the axis
    monkeypatch.setattr(plane, "solve", lambda *args, **kwargs: over)
    with pytest.raises(ValueError, match=r"costs 1.889, .* two ways are equally good"):
        found.polish([1.6, 0.0])


def test_a_flat_minimum_is_still_one():
    """L = x^4/4 + y^2/2 without discount: W = sqrt(2)/6 |x|^3 + y^2/2."""
    objective = ln.Objective(lambda x: x[0] ** 4 / 4 + x[1] ** 2 / 2)
    found = ln.policy(objective, [(-1, 1), (-1, 1)])
    x, y = np.meshgrid(found.x, found.y, indexing="ij")
    assert found.value == pytest.approx(np.abs(x) ** 3 / math.sqrt(18) + y**2 / 2, abs=1e-4)


def test_interpolation_up_to_the_edge():
    found = ln.policy(ln.Objective(ln.Quadratic([1.0, 1.0])), [(-1, 1), (-1, 1)], 41)
    points = np.random.default_rng(0).uniform(-1, 1, (50, 3, 2))
    value, velocity = found.at(points)
    assert value.shape == (50, 3)
    assert velocity.shape == (50, 3, 2)
    assert value == pytest.approx((points**2).sum(-1) / 2, abs=2e-3)
    assert found.at([1.0, 1.0])[0] == pytest.approx(found.value[-1, -1], rel=1e-12)
    with pytest.raises(ValueError, match=r"theta2 = 1.5, but the policy is known from -1 to 1"):
        found.at([0.0, 1.5])
    with pytest.raises(ValueError, match="its last axis must hold 2"):
        found.at([0.0, 0.5, 0.5])


def test_a_drift_that_cycles_for_less_than_rest_is_refused_or_unlabelled(monkeypatch):
    def moat(x):
        r2 = x[0] ** 2 + x[1] ** 2
        return r2 * (r2 - 1) ** 2 - r2 / 10  # rides the drift at r = 1 for -0.1 each moment

    box = [(-1.5, 1.5), (-1.5, 1.5)]
    endless = ln.Objective(moat, drift=ln.Rotation(1.0))
    with pytest.raises(ValueError, match=r"Going round with the drift .* Use gamma > 0"):
        ln.policy(endless, box, 41)
    found = ln.policy(ln.Objective(moat, drift=ln.Rotation(1.0), gamma=0.05), box, 101)
    assert found.basin[80, 50] == -1
    assert found.trace([0.9, 0.0]).status is ln.Status.ITERATIONS
    without_numba(monkeypatch)
    with pytest.raises(ValueError, match="Going round"):
        ln.policy(endless, box, 41)


@pytest.mark.parametrize(
    ("objective", "box", "n", "error", "message"),
    [
        (ln.Objective(ln.Quadratic([1.0] * 3)), BOX, 201, ValueError, "has 3 coordinates"),
        (
            ln.Objective(ln.DoubleWell()),
            BOX,
            5,
            ValueError,
            "n is 5, but a grid has from 21 to 2001",
        ),
        (ln.Objective(ln.DoubleWell()), BOX, 3000, ValueError, "n is 3000"),
        (ln.Objective(ln.DoubleWell()), BOX, 50.5, TypeError, "must be a whole number"),
        (ln.Objective(ln.DoubleWell()), [(1, -1), (0, 1)], 41, ValueError, "Side 1 of the box"),
        (ln.Objective(ln.DoubleWell()), [(0, 1)], 41, ValueError, "box has shape"),
        (ln.Objective(ln.DoubleWell()), [(0, math.nan), (0, 1)], 41, ValueError, "box is nan"),
        (ln.Objective(ln.DoubleWell()), [(0.1, 0.5), (0, 1)], 41, ValueError, "no minimum inside"),
        (ln.Objective(ln.DoubleWell()), [(-1.5, 0.5), (-1, 1)], 41, ValueError, "Resting at"),
        (ln.Objective(lambda x: x[0] ** 2), BOX, 41, ValueError, "no minimum inside"),
        (
            ln.Objective(lambda x: np.log(x[0]) + x[1] ** 2),
            BOX,
            41,
            ValueError,
            "loss is not finite",
        ),
        (
            ln.Objective(ln.DoubleWell(), metric=lambda x: [[x[0], 0], [0, 1]]),
            BOX,
            41,
            ValueError,
            "metric is not positive definite at",
        ),
        (
            ln.Objective(ln.DoubleWell(), discount=lambda t: 1 / (1 + t)),
            BOX,
            41,
            ValueError,
            "needs the discount exp",
        ),
    ],
)
def test_bad_input_is_refused(objective, box, n, error, message):
    with pytest.raises(error, match=message):
        ln.policy(objective, box, n)


def test_selling_writes_a_metric_as_a_sum_over_grid_steps():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(200, 2, 2)) * np.array([1.0, 30.0])
    D = root @ root.transpose(0, 2, 1)
    rho, ways = grid._selling(D)
    assert (rho >= 0).all()
    assert np.einsum("pd,pdi,pdj->pij", rho, ways, ways) == pytest.approx(D, rel=1e-9, abs=1e-9)
    for steps in ways:
        assert abs(linalg.det(steps[:2].astype(float))) == pytest.approx(1.0)
