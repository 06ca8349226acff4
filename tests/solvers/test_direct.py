"""The discretised J and its minimisers: order, agreement, and how a run may end (paper App. B)."""

import numpy as np
import pytest

import lossnav as ln
from lossnav.problem.landscapes import Loss

WELL = ln.Objective(ln.DoubleWell(), gamma=0.1)
START, MINIMUM = [-0.6, 0.55], [1.0574538, 0.0]
PAPER = {"rule": "left", "optimizer": "gradient-descent"}


@pytest.mark.parametrize("gamma", [0.0, 1.0, 10.0])
def test_closed_form_path_minimises_J(gamma):
    """Eq. (6) against a minimiser of Eq. (2) that has never heard of it."""
    loss = ln.Quadratic([[2.0, 0.5], [0.5, 1.0]])
    objective = ln.Objective(loss, eta=0.7, k=1.3, gamma=gamma)
    exact = ln.solve(objective, [1.0, -2.0], horizon=2.0, method=ln.Riccati())

    def gap(steps):
        method = ln.Direct(steps=steps, end=exact.theta[-1])
        path = ln.solve(objective, [1.0, -2.0], horizon=2.0, method=method)
        return np.abs(path.theta - exact.at(path.t)).max()

    assert np.log2(gap(50) / gap(100)) == pytest.approx(2.0, abs=0.1)  # second order


@pytest.mark.parametrize("end", [None, [0.5, 0.5]])
@pytest.mark.parametrize(("rule", "order"), [("left", 1), ("midpoint", 2)])
@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"gamma": 3.0},
        {"drift": ln.Rotation(2.0), "gamma": 0.5},
        {
            "drift": ln.LinearDrift([[0.3, -1.0], [0.5, -0.2]], [0.4, 0.1]),
            "metric": [[2.0, 0.3], [0.3, 1.0]],
        },
    ],
)
def test_stated_error_is_honest(inputs, rule, order, end):
    """The true error is within the estimate, and falls at the order of the rule."""
    loss = ln.Quadratic([[2.0, 0.5], [0.5, 1.0]], minimum=[0.3, 0.2])
    objective = ln.Objective(loss, eta=0.7, k=1.3, **inputs)
    exact = ln.solve(objective, [1.0, -2.0], horizon=2.0, end=end)
    errors = []
    for steps in (100, 201):
        path = ln.solve(objective, [1.0, -2.0], 2.0, end, ln.Direct(steps=steps, rule=rule))
        off = np.linalg.norm(path.velocity0 - exact.velocity0) / np.linalg.norm(exact.velocity0)
        off = max(off, abs(path.J - exact.J) / abs(exact.J))
        assert path.status is ln.Status.CONVERGED
        assert 0.1 * path.error <= off <= 1.5 * path.error
        errors.append(off)
    assert np.log2(errors[0] / errors[1]) >= order - 0.1


def test_paper_figure_1():
    """The paper's own grid, and the true J that it is a tenth away from."""
    paper = ln.solve(WELL, START, 4.0, MINIMUM, ln.Direct(rule="left"))
    assert paper.J == pytest.approx(0.6771, abs=1e-4)
    fine = [ln.solve(WELL, START, 4.0, MINIMUM, ln.Direct(steps=n)) for n in (400, 800)]
    J = fine[1].J + (fine[1].J - fine[0].J) / 3
    assert J == pytest.approx(0.61943561774, abs=1e-9)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_gradient_descent_finds_what_newton_finds(backend):
    method = ln.Direct(steps=20, backend=backend, **PAPER)
    path = ln.solve(WELL, START, 4.0, MINIMUM, method, tol=1e-9)
    best = ln.solve(WELL, START, 4.0, MINIMUM, ln.Direct(steps=20, rule="left"))
    assert path.status is ln.Status.CONVERGED
    assert path.J == pytest.approx(best.J, rel=1e-9)
    assert path.theta == pytest.approx(best.theta, abs=1e-4)
    assert path.error == pytest.approx(best.error, rel=1e-2)


@pytest.mark.parametrize("rule", ["left", "midpoint"])
def test_torch_differentiates_the_same_sum(rule):
    """Automatic differentiation against the assembled gradient, with metric, drift and discount."""
    torch = pytest.importorskip("torch")
    curved = ln.Metric(lambda x: [[1 + x[1] ** 2, 0.3 * x[0]], [0.3 * x[0], 2 + np.sin(x[0])]])
    inputs = {
        "metric": curved,
        "drift": lambda x: [x[1] - 0.2 * x[0] ** 3, -np.sin(x[0])],
        "eta": 0.7,
        "discount": lambda t: 1 / (1 + t) ** 2,
    }
    written = ln.Objective(ln.MuellerBrown(), k=0.01, **inputs)
    method = {"steps": 6, "iterations": 40, "rate": 1e-3, "rule": rule}
    method |= {"optimizer": "gradient-descent"}
    paths = [
        ln.solve(written, [-0.8, 0.6], 1.0, method=ln.Direct(backend=backend, **method))
        for backend in ("numpy", "torch")
    ]
    assert paths[0].theta == pytest.approx(paths[1].theta, abs=1e-13)
    model = ln.Objective(ln.TorchLoss(lambda x: (x**4).sum() + torch.exp(-x[0])), **inputs)
    paths = [
        ln.solve(model, [0.5, 0.6], 1.0, method=ln.Direct(backend=backend, **method))
        for backend in ("numpy", "torch")
    ]
    assert paths[0].theta == pytest.approx(paths[1].theta, abs=1e-13)


def test_starting_on_a_maximum():
    """Standing still between two wells is stationary and no minimum: the path must leave."""
    objective = ln.Objective(ln.DoubleWell(d=0.0), gamma=0.1)
    path = ln.solve(objective, [0.0, 0.0], 8.0, method=ln.Direct(steps=100))
    assert path.status is ln.Status.CONVERGED
    assert abs(path.theta[-1, 0]) == pytest.approx(1.0, abs=0.01)
    assert path.J < 0.5 * objective.J(path.t, np.zeros_like(path.theta))


def test_the_iteration_limit_is_reported_with_the_best_path():
    path = ln.solve(WELL, START, 4.0, MINIMUM, ln.Direct(iterations=5000, **PAPER))
    best = ln.solve(WELL, START, 4.0, MINIMUM, ln.Direct(rule="left"))
    assert path.status is ln.Status.ITERATIONS
    assert best.J < path.J < 1.0
    off = np.linalg.norm(path.velocity0 - best.velocity0) / np.linalg.norm(best.velocity0)
    assert path.error > off / 2  # what descent left undone is part of the estimate


class Troubled(Loss):
    """A bowl that does something else after some calls."""

    names = ("x",)

    def __init__(self, calls, trouble):
        self.calls, self.trouble = calls, trouble

    def jet(self, theta, order=2):
        self.calls -= 1
        value, slope, bend = ln.Quadratic(1.0).jet(theta)
        if self.calls < 0:
            value = value + self.trouble()
        return (value, slope, bend)[: order + 1]


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("optimizer", ["newton", "gradient-descent"])
@pytest.mark.parametrize(
    ("trouble", "status"),
    [(lambda: np.nan, ln.Status.NOT_FINITE), (interrupt, ln.Status.INTERRUPTED)],
)
def test_trouble_on_the_way_leaves_the_best_path(optimizer, trouble, status, monkeypatch):
    """Nothing is evaluated again afterwards: the loss would only fail once more."""
    monkeypatch.setattr(ln.Direct, "_error", lambda *_: 1.0)
    monkeypatch.setattr(ln.Objective, "potential", lambda self, theta, t: theta[..., 0])
    monkeypatch.setattr("lossnav.solvers.direct._velocity0", lambda plan, points: points[0])
    # Newton's method is done with a bowl after two calls.
    objective = ln.Objective(Troubled(1 if optimizer == "newton" else 2, trouble))
    path = ln.solve(objective, [2.0], 1.0, method=ln.Direct(steps=8, optimizer=optimizer))
    assert path.status is status
    assert not path.status.ok
    assert np.isfinite(path.theta).all()
    assert path.theta[0] == pytest.approx([2.0])


def test_a_loss_that_is_nan_at_once():
    objective = ln.Objective(ln.Function(lambda x: np.log(x[0]), names=["x"]))
    for optimizer in ("newton", "gradient-descent"):
        path = ln.solve(objective, [1.0], 1.0, [-1.0], ln.Direct(optimizer=optimizer))
        assert path.status is ln.Status.NOT_FINITE
        assert path.error == np.inf


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ln.Direct(steps=1), "steps is 1"),
        (lambda: ln.Direct(rule="rigth"), "no rule named 'rigth'"),
        (lambda: ln.Direct(backend="torch"), "Newton's method .* has no backend"),
        (lambda: ln.solve(WELL, START, method=ln.Direct()), "pass horizon=T"),
        (
            lambda: ln.solve(WELL, START, 1.0, [0.0, 0.0], ln.Direct(end=[1.0, 0.0])),
            "give one of them",
        ),
        (
            lambda: ln.solve(WELL, START, 1.0, method=ln.Direct(rate=0.2, **PAPER)),
            "rate is 0.2, but .* diverges above 0.0",
        ),
        (
            lambda: ln.solve(WELL, START, 1.0, method=ln.Direct()).at(1.5),
            "The path ends at the horizon 1; t is 1.5",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
