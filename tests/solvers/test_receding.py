"""Plan, take a step, plan again: exact where it should be, at a measured order elsewhere."""

from dataclasses import replace

import numpy as np
import pytest

import lossnav as ln

WELL = ln.Objective(ln.DoubleWell(), gamma=0.1)
START, MINIMUM = [-0.6, 0.55], [1.05745377, 0.0]
TRUE = {"model": "loss", "end": MINIMUM, "method": ln.Collocation(), "tol": 1e-9}


@pytest.mark.parametrize("dt", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    "inputs",
    [
        {"gamma": 1.0},
        {"gamma": 0.0},
        {"drift": ln.Rotation(3.0), "gamma": 0.5},
        {
            "drift": ln.LinearDrift([[0.3, -1.0], [0.5, -0.2]], [0.4, 0.1]),
            "metric": [[2.0, 0.3], [0.3, 1.0]],
        },
    ],
)
def test_quadratic_losses_are_exact_at_any_step(inputs, dt):
    """Re-planning changes nothing when the local picture is the whole truth."""
    loss = ln.Quadratic([[2.0, 0.5], [0.5, 1.0]], minimum=[0.3, 0.2])
    objective = ln.Objective(loss, eta=0.7, k=1.3, **inputs)
    best = ln.solve(objective, [1.0, -2.0])
    gone = ln.navigate(objective, [1.0, -2.0], dt, 5)
    assert gone.status is ln.Status.EXACT
    assert gone.theta == pytest.approx(best.at(gone.t), abs=1e-12)
    between = np.linspace(0, 5 * dt, 37)
    assert gone.at(between) == pytest.approx(best.at(between), abs=1e-12)
    assert gone.velocity0 == pytest.approx(best.velocity0, rel=1e-12)


def test_cost_gone_plus_cost_to_go_is_the_whole_cost():
    """Bellman's equation, with the costs integrated along the path."""
    objective = ln.Objective(ln.Quadratic([1.0, 9.0], minimum=[1.0, 0.0]), gamma=0.5, eta=0.7)
    policy = ln.Riccati().feedback(objective)
    for dt in (0.2, 4.0):
        gone = ln.navigate(objective, [-1.0, 2.0], dt, 3)
        to_go = np.exp(-0.5 * gone.t[-1]) * policy.value(gone.theta[-1])
        assert gone.J + to_go == pytest.approx(policy.value(np.array([-1.0, 2.0])), rel=1e-12)


def test_energy_is_kept_without_discount():
    """E = kinetic - potential is constant along an optimal path when gamma is zero."""
    objective = ln.Objective(ln.Quadratic([1.0, 9.0]), eta=0.7, k=2.0)
    gone = ln.navigate(objective, [-1.0, 2.0], 0.1, 20)
    assert gone.kinetic == pytest.approx(gone.potential, rel=1e-10)
    speed = objective.kinetic(gone.theta[0], gone.velocity0)
    assert gone.kinetic[0] == pytest.approx(speed, rel=1e-14)


@pytest.mark.parametrize("dt", [0.4, 0.1])
def test_plans_from_the_true_loss_follow_the_optimal_path(dt):
    best = ln.solve(WELL, START, end=MINIMUM, method=ln.Collocation(), tol=1e-9)
    gone = ln.navigate(WELL, START, dt, round(1.2 / dt), **TRUE)
    assert gone.status is ln.Status.CONVERGED
    assert gone.theta == pytest.approx(best.at(gone.t), abs=1e-9)
    rest = ln.solve(WELL, gone.theta[-1], end=MINIMUM, method=ln.Collocation(), tol=1e-9)
    assert gone.J + np.exp(-0.1 * gone.t[-1]) * rest.J == pytest.approx(best.J, abs=1e-8)


def test_held_velocities_converge_at_first_order():
    """A learning rule that keeps its velocity for dt tends to the optimal path as dt falls."""
    best = ln.solve(WELL, START, end=MINIMUM, method=ln.Collocation(), tol=1e-9)
    method, gaps = ln.Ritz(ends=[MINIMUM]), []
    for steps in (8, 16, 32):
        gone = ln.navigate(WELL, START, 0.8 / steps, steps, "loss", hold=True, method=method)
        gaps.append(np.abs(gone.theta - best.at(gone.t)).max())
    assert np.log2(np.array(gaps[:-1]) / gaps[1:]) == pytest.approx([1.0, 1.0], abs=0.2)


def test_the_default_method_plans_too():
    best = ln.solve(WELL, START)
    gone = ln.navigate(WELL, START, 0.5, 2, "loss")
    assert gone.theta == pytest.approx(best.at(gone.t), abs=1e-8)


def test_local_plans_reach_a_minimum_of_the_loss():
    """Through negative curvature, where the local picture alone has no best path."""
    assert np.linalg.eigvalsh(WELL.loss.hess([0.3, 0.5]))[0] < -(0.1**2) / 4
    gone = ln.navigate(WELL, [0.3, 0.5], 0.2, 60)
    assert gone.status is ln.Status.CONVERGED
    assert gone.theta[-1] == pytest.approx(MINIMUM, abs=1e-4)


def test_the_floor_sets_the_speed_on_a_saddle():
    """A curvature beyond the bound is replaced by the floor and nothing else is."""
    objective = ln.Objective(ln.Quadratic([-4.0, 1.0]), gamma=1.0)
    gone = ln.navigate(objective, [1.0, 1.0], 1e-6, 1, floor=-0.2)
    expected = [4 / (0.5 + np.sqrt(0.25 - 0.2)), -1 / (0.5 + np.sqrt(1.25))]
    assert gone.velocity0 == pytest.approx(expected, rel=1e-12)
    lifted = -0.25 + 0.1 * (0.25 + 4.0)
    default = ln.navigate(objective, [1.0, 1.0], 1e-6, 1)
    assert default.velocity0[0] == pytest.approx(4 / (0.5 + np.sqrt(0.25 + lifted)), rel=1e-12)


def test_bounded_negative_curvature_is_left_alone():
    objective = ln.Objective(ln.Quadratic([-0.2, 1.0]), gamma=1.0)
    best, gone = ln.solve(objective, [1.0, 1.0]), ln.navigate(objective, [1.0, 1.0], 0.3, 5)
    assert gone.theta == pytest.approx(best.at(gone.t), abs=1e-12)


def test_a_drift_that_asks_for_more_than_the_bound():
    objective = ln.Objective(ln.Quadratic([-0.2, 1.0]), drift=ln.LinearDrift([2.0, 0.0]), gamma=1.0)
    with pytest.raises(ValueError, match="unbounded"):
        ln.solve(objective, [1.0, 1.0])
    # A plan then has a tenth of the largest curvature instead of the lowest, and the same slope.
    gone = ln.navigate(objective, [1.0, 1.0], 0.1, 5)
    plan = replace(objective, loss=ln.Quadratic([0.1, 1.0], minimum=[3.0, 0.0]))
    assert plan.loss.grad([1.0, 1.0]) == pytest.approx(objective.loss.grad([1.0, 1.0]))
    assert gone.theta[1] == pytest.approx(ln.solve(plan, [1.0, 1.0]).at(0.1), rel=1e-9)
    assert len(gone.t) == 6


def test_a_loss_that_ends_on_the_way():
    """Beyond the edge of the logarithm there is no loss; what was gone before is kept."""
    objective = ln.Objective(ln.Function(lambda x: np.log(x[0]), names=["x"]), gamma=1.0)
    gone = ln.navigate(objective, [1.0], 0.2, 50)
    assert gone.status is ln.Status.NOT_FINITE
    assert 1 < len(gone.t) < 51
    assert np.isfinite(gone.theta).all()
    with pytest.raises(ValueError, match="not finite at theta0"):
        ln.navigate(objective, [-1.0], 0.2, 50)


def test_an_interrupt_keeps_what_was_gone(monkeypatch):
    import lossnav.solvers.receding as receding

    calls = iter(range(3))

    def around(objective, theta, original=receding.quadratic_around):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return original(objective, theta)

    monkeypatch.setattr(receding, "quadratic_around", around)
    gone = ln.navigate(WELL, START, 0.1, 10)
    assert gone.status is ln.Status.INTERRUPTED
    assert len(gone.t) == 4


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((0.0, 3), {}, "dt is 0"),
        ((0.1, 0), {}, "steps is 0"),
        ((0.1, 3, "cubic"), {}, "no model named 'cubic'"),
        ((0.1, 3), {"floor": -1.0}, r"floor is -1, but it must be above -gamma\*\*2/4 = -0.0025"),
    ],
)
def test_bad_input(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        ln.navigate(WELL, START, *arguments, **keywords)
    with pytest.raises(ValueError, match="discount exp"):
        ln.navigate(ln.Objective(ln.DoubleWell(), discount=lambda t: 1 / (1 + t)), START, 0.1, 1)
    gone = ln.navigate(WELL, START, 0.1, 1)
    with pytest.raises(ValueError, match=r"The path ends at the horizon 0.1; t is 1"):
        gone.at(1.0)
