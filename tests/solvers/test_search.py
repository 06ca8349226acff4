"""Paths that straight first guesses miss, time shared out, and Hessians of few coupled coordinates."""

import math

import numpy as np
import pytest
import sympy

import lossnav as ln
from lossnav.solvers.banded import SparseBlocks, solve_elements
from lossnav.solvers.ritz import assembly, refinement
from lossnav.solvers.ritz.assembly import AffineAssembly, Functional, SparseAssembly
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.ritz.newton import Minimum


def test_a_way_round_to_the_same_end_is_found():
    """Number 166 of benchmarks/random_problems.py, whose reference knows a path of 3.60771255."""
    text = (
        "-1.34*exp(-(x - 0.427)**2 - (y - 0.951)**2)"
        " - 1.39*exp(-((x - 0.482)**2 + (y - 1.14)**2)/1.5)"
        " + 0.252*(x + 0.105)**2 + 0.0235*(y - 0.922)**2"
    )
    objective = ln.Objective(
        ln.Expression(text, ["x", "y"]),
        metric=lambda z: [[1 + 1.88 * z[1] ** 2, 0], [0, 1 + 0.954 * z[1] ** 2]],
        drift=lambda z: [z[0] - z[0] ** 3 + 0.68 * z[1], 1.23 * z[1] - z[1] ** 3],
        eta=0.377,
        k=0.444,
    )
    path = ln.solve(objective, [2.38, -1.01])
    assert path.status.ok
    assert path.J <= 3.60771255


def test_a_narrow_well_on_the_way_is_found_in_four_dimensions():
    """To wait in the well for most of the time costs less than to pass it by."""
    center = np.array([1.3, 0.8, -0.8, -0.9])
    objective = ln.Objective(
        lambda x: -3 * sympy.exp(-sum((a - b) ** 2 for a, b in zip(x, center, strict=True))), k=0.4
    )
    start, end, T = np.array([-1.0, -0.9, 1.0, 1.3]), np.array([2.4, 0.0, 1.0, -0.4]), 10.0
    path = ln.solve(objective, start, T, end)
    legs = np.square(center - start).sum() + np.square(end - center).sum()
    waiting = legs / (2 * 2.5) - 0.4 * 3 * (T - 5.0)  # 2.5 for each leg, without the well's help
    assert path.status.ok
    assert path.J < waiting


def test_excursions_that_cost_ever_less_are_reported():
    """A wavy metric makes local minima, while the loss falls faster than motion costs."""
    objective = ln.Objective(
        ln.Expression("-1.21*x - 2.345*x**2", ["x"]),
        metric=lambda x: [[sympy.exp(-0.633 * sympy.sin(0.677 * x[0]))]],
        drift=lambda x: [-0.769 * x[0] - 0.341],
        eta=0.595,
        k=1.81,
        gamma=0.175,
    )
    with pytest.raises(ValueError, match="unbounded below"):
        ln.solve(objective, [0.304])


def test_layers_under_a_discount_of_many_orders_of_magnitude():
    """Ackerberg and O'Malley, e y'' - x y' - y = 0: J is (1 + 4)/2 up to exp(-1/(2 e))."""
    e = sympy.Rational(1, 100)
    objective = ln.Objective(
        lambda x: x[0] ** 2 / 2,
        metric=lambda x: [[e]],
        discount=lambda t: sympy.exp((1 - (t - 1) ** 2) / (2 * e)),
    )
    path = ln.solve(objective, [1.0], 2.0, [2.0])
    assert path.status.ok
    assert path.J == pytest.approx(2.5, rel=1e-9)


def test_time_is_shared_out_at_one_energy():
    """Where the time of a curve is best shared out, kinetic minus potential is the same."""
    objective = ln.Objective(lambda x: (x[0] ** 2 - 1) ** 2).at_dim(1)
    functional = Functional(objective, np.array([-0.9]), stop=np.array([0.9]))
    mesh = Mesh(np.linspace(0, 3, 9) ** 1.3, 4)
    points = (-0.9 + 1.8 * mesh.t / mesh.t[-1])[:, None]
    J = float(functional.on(mesh).cost(points - functional.base, 0)[0])
    before = Minimum(functional, mesh, points, J, np.zeros(1), ln.Status.ITERATIONS, 0)
    edges = refinement._equal_energy_edges(before)
    assert edges[-1] == pytest.approx(mesh.edges[-1], rel=1e-12)
    after = functional.on(Mesh(edges, 4))
    moves = points - functional.base
    assert float(after.cost(moves, 0)[0]) < J
    at, pace = after.states(moves)
    energy = (objective.kinetic(at, pace) - objective.potential(at, 0.0)) @ mesh.reference.weights
    assert np.ptp(energy) <= 1e-8 * np.abs(energy).max()


@pytest.mark.parametrize("fixed", [False, True])
def test_coupled_pairs_give_the_same_equations_as_full_blocks(fixed, monkeypatch):
    dim, rng = 40, np.random.default_rng(0)
    G = np.diag(rng.uniform(1, 2, dim))
    G[3, 7] = G[7, 3] = 0.3

    def loss(x):
        links = zip(x[1:], x[:-1], strict=True)
        return sum((a**2 - 1) ** 2 / 4 for a in x) + sum(
            (a - b) ** 2 * (5 + a * b**2) for a, b in links
        )

    objective, theta0 = ln.Objective(loss, metric=G).at_dim(dim), rng.normal(size=dim)
    functional = Functional(objective, theta0, stop=theta0 + 1 if fixed else None)
    mesh = Mesh(np.linspace(0, 2, 5), 5)
    moves, side = 0.1 * rng.normal(size=(2, len(mesh.t), dim))
    few = functional.on(mesh)
    monkeypatch.setattr(assembly, "_MANY", math.inf)
    full = functional.on(mesh)
    assert type(few) is SparseAssembly
    assert type(full) is AffineAssembly
    values, expected = few.cost(moves, 2), full.cost(moves, 2)
    assert isinstance(values[2], SparseBlocks)
    assert values[0] == pytest.approx(expected[0], rel=1e-14)
    np.testing.assert_allclose(values[1], expected[1], rtol=1e-12, atol=1e-12)
    local = mesh.local(side)
    product = (expected[2] @ local.reshape(*expected[2].shape[:2], 1)).reshape(local.shape)
    np.testing.assert_allclose(values[2].times(local), product, rtol=1e-10, atol=1e-10)
    solved = [
        solve_elements(one.lifted(found[2], moves, 200.0), side, functional.free)
        for one, found in ((few, values), (full, expected))
    ]
    np.testing.assert_allclose(*solved, rtol=1e-9, atol=1e-12)
