"""Which paths are worth working out: nothing that could have won is given up."""

from dataclasses import replace

import numpy as np
import pytest

import lossnav as ln
from lossnav.solvers.ritz import finite
from lossnav.solvers.ritz.assembly import Functional
from lossnav.solvers.ritz.finite import better_than, contenders, distinct
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.ritz.newton import PATIENCE, Minimum, minimise
from lossnav.solvers.trajectory import Status


def rough(J, shift=0.0):
    mesh = Mesh(np.array([0.0, 1.0, 2.0]), 3)
    points = np.stack([mesh.t + shift * mesh.t, mesh.t**2], axis=1)
    functional = Functional(ln.Objective(ln.Quadratic([1.0, 1.0])), points[0])
    return Minimum(functional, mesh, points, J, np.zeros(2), Status.CONVERGED, 1)


@pytest.mark.parametrize("floor", [-5.0, 0.0, 1.5])
@pytest.mark.parametrize("margin", [0.0, 0.1, 0.4])
def test_no_path_is_given_up_that_its_error_could_make_the_best(floor, margin):
    """Every true cost that the rough ones allow, by brute force."""
    rng = np.random.default_rng(int(10 * margin))
    found = [rough(J) for J in sorted(floor + rng.uniform(0.5, 2.0, size=8))]
    kept = contenders(found, margin, floor)
    for one in found:
        least = (1 - margin) * (one.J - floor)
        others = [(1 + margin) * (other.J - floor) for other in found if other is not one]
        could_win = all(least <= other for other in others)
        assert any(one is other for other in kept) == (could_win or one is found[0])


def test_below_the_floor_nothing_is_given_up():
    found = [rough(-1.0), rough(5.0)]
    assert len(contenders(found, 0.1, 0.0)) == 2
    assert contenders([], 0.1, 0.0) == []


def test_paths_side_by_side_are_one():
    found = [rough(1.0), rough(1.01, shift=0.005), rough(1.1, shift=0.3)]
    assert [one.J for one in distinct(found)] == [1.0, 1.1]


def test_a_rival_leaves_only_what_is_elsewhere_and_may_be_cheaper():
    objective = ln.Objective(ln.Quadratic([1.0, 1.0]))
    rival = ln.solve(objective, [0.0, 0.0], horizon=2.0, end=[2.0, 4.0])
    same = rough(rival.J)
    same.points = rival.at(same.mesh.t)
    elsewhere, dear = rough(0.9 * rival.J, shift=0.5), rough(2.0 * rival.J, shift=0.5)
    assert better_than([same, elsewhere, dear], rival, 0.1, 0.0, 2.0) == [elsewhere]


def test_what_another_found_path_does_is_not_worked_out_again():
    objective = ln.Objective(ln.Quadratic([1.0, 1.0]))
    ways = [ln.solve(objective, [0.0, 0.0], horizon=2.0, end=[2.0, 4.0 + more]) for more in (0, 1)]
    rival = replace(ways[0], candidates=(ways[1],))
    same = rough(0.9 * rival.J)
    same.points = ways[1].at(same.mesh.t)
    assert better_than([same], ways[0], 0.1, 0.0, 2.0) == [same]
    assert better_than([same], rival, 0.1, 0.0, 2.0) == []


def test_a_hopeless_path_is_given_up_after_a_few_steps():
    objective = ln.Objective(ln.Himmelblau(), k=0.05, gamma=0.5)
    functional = Functional(objective, np.array([-0.5, -1.0]))
    mesh = Mesh(np.linspace(0.0, 6.0, 9), 3)
    still = np.tile(functional.theta0, (len(mesh.t), 1))
    whole = minimise(functional, mesh, still, 100)
    asked = []
    given_up = minimise(
        functional, mesh, still, 100, should_prune=lambda one: asked.append(one.J) or True
    )
    assert given_up.iterations == PATIENCE < whole.iterations
    assert given_up.status is Status.ITERATIONS
    assert asked == [given_up.J]


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.6, 3.0])
@pytest.mark.parametrize("start", [(-0.6, 0.55), (-1.2, 0.1), (0.4, -0.9)])
def test_a_margin_changes_how_much_is_worked_out_and_not_what_is_best(gamma, start):
    objective = ln.Objective(ln.DoubleWell(), gamma=gamma)
    whole = ln.solve(objective, start, tol=1e-8)
    quick = ln.solve(objective, start, method=ln.Ritz(margin=0.1), tol=1e-8)
    assert quick.J == pytest.approx(whole.J, rel=1e-8)
    np.testing.assert_allclose(quick.velocity0, whole.velocity0, rtol=1e-7)
    # A rival is given up if it could not win were both costs, above the lower bound of all paths,
    # off by a tenth; without discount, rest at the higher minimum costs infinitely more.
    lowest = ln.DoubleWell()([1.0574537707386316, 0.0])
    kept = [
        one.J
        for one in whole.candidates
        if gamma and 0.9 * (one.J - lowest / gamma) <= 1.1 * (whole.J - lowest / gamma)
    ]
    assert [one.J for one in quick.candidates] == pytest.approx(kept, rel=1e-6)
    if gamma == 0 or start == (-0.6, 0.55):
        assert (len(whole.candidates), len(kept)) == (gamma < 1, gamma == 0.6)


def test_with_a_drift_too(monkeypatch):
    """And a path that need not come to rest is still looked for."""
    objective = ln.Objective(ln.DoubleWell(), drift=ln.Rotation(0.8), gamma=0.5)
    looked, solve = [], finite.minimise
    monkeypatch.setattr(finite, "minimise", lambda *given: looked.append(1) or solve(*given))
    whole = ln.solve(objective, [-0.6, 0.55], tol=1e-8)
    before = len(looked)
    quick = ln.solve(objective, [-0.6, 0.55], method=ln.Ritz(margin=0.1), tol=1e-8)
    assert quick.J == pytest.approx(whole.J, rel=1e-8)
    assert quick.theta[-1] == pytest.approx(whole.theta[-1], abs=1e-6)
    assert 0 < len(looked) - before < before


@pytest.mark.parametrize("margin", [-0.1, 1.5, float("nan")])
def test_a_margin_is_a_part(margin):
    with pytest.raises(ValueError, match=r"margin is .* it must be from 0 to 1"):
        ln.Ritz(margin=margin)


def test_where_circling_costs_less_than_rest_no_path_is_best():
    """A ring of low loss in a rotation: with the drift, one goes round it for nothing but its loss."""
    r2 = "(x**2 + y**2)"
    loss = ln.Expression(f"0.5 + 0.1*{r2} - 0.0318*{r2}**2 + 0.0018*{r2}**3", ["x", "y"])
    assert loss([3.0, 0.0]) < 0.2 < 0.5 == loss([0.0, 0.0])
    turning = ln.Objective(loss, drift=ln.Rotation(1.0))
    s = np.roots([3 * 0.0018, -2 * 0.0318, 0.1]).max()  # r^2 of the ring
    least = 0.5 + 0.1 * s - 0.0318 * s**2 + 0.0018 * s**3
    for start in ([0.5, 0.0], [-1.0, 0.3]):
        with pytest.raises(ValueError, match=r"less than the 0\.5 of the best rest") as refused:
            ln.solve(turning, start)
        assert f"going round (0, 0) with the drift costs {least:.6g} per" in str(refused.value)
    # The longer the path, the less it costs beyond rest: there is no least.
    beyond = [
        ln.solve(turning, [0.5, 0.0], horizon=T, end=[0.5, 0.0]).J - 0.5 * T for T in (30.0, 60.0)
    ]
    assert beyond[1] < beyond[0] - 5
    assert ln.solve(ln.Objective(loss, drift=ln.Rotation(1.0), gamma=0.5), [0.5, 0.0]).status.ok
    assert ln.solve(ln.Objective(loss, drift=ln.Decay(1.0)), [0.5, 0.0]).status.ok  # a gradient


def test_a_narrow_well_in_four_dimensions_is_found():
    """Its slope vanishes a few widths away, so a descent must start within."""
    names = ["x0", "x1", "x2", "x3"]
    well = "-6*exp(-((x0-3)**2 + (x1-0.5)**2 + (x2+0.5)**2 + (x3-1)**2))"
    loss = ln.Expression(f"{well} + 0.2*(x0**2+x1**2+x2**2+x3**2)", names)
    path = ln.solve(ln.Objective(loss, gamma=0.05), [0.3] * 4)
    assert path.end == pytest.approx([2.9, 0.48, -0.48, 0.97], abs=0.01)
    assert path.J < -70


def test_many_weak_couplings_do_not_hide_that_all_go_together():
    """A chain of double wells: together they cost what one does, times their number."""
    dim = 12
    names = [f"x{i}" for i in range(dim)]
    loss = ln.Function(
        lambda x: np.sum((x**2 - 1) ** 2) / 4 + np.sum((x[1:] - x[:-1]) ** 2) / 2, names=names
    )
    path = ln.solve(ln.Objective(loss), [-1.0] * dim, 24.0, [1.0] * dim)
    one = ln.solve(ln.Objective(ln.Expression("(x**2-1)**2/4", ["x"])), [-1.0], 24.0, [1.0])
    assert path.status.ok
    assert one.status.ok
    assert path.J == pytest.approx(dim * one.J, rel=1e-9)
    assert one.J == pytest.approx(2 * np.sqrt(2) / 3, rel=1e-9)  # the kink's closed form
