"""infer_path against paths written out here or solved, with known assumptions and errors."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

import lossnav as ln
from lossnav.inference.path.model import PathModel

H = np.array([1.0, 1 / 9])
T = np.linspace(0, 6, 15)
BENT = ln.Quadratic([[0.8, 0.6], [0.6, 0.8]], minimum=[1.0, 0.5])


def learner(gamma, t=T, h=H):
    """The optimal path from ones to the minimum at zero, and eta k; rate 1 along curvature 1."""
    if math.isinf(gamma):
        return np.exp(-np.outer(t, h)), math.inf
    a = 1 + gamma
    return np.exp(-np.outer(t, np.sqrt(gamma**2 / 4 + a * h) - gamma / 2)), a


def noisy(path, size, seed=0):
    return path + size * np.random.default_rng(seed).normal(size=path.shape)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 20.0, math.inf])
def test_a_path_without_errors_shows_its_constants(gamma):
    path, a = learner(gamma)
    found = ln.infer_path(T + 3, path, ln.Quadratic(H))
    if math.isinf(gamma):
        assert found.gamma.high > 1e4  # rounding hides what is beyond
        assert found.estimates["eta_k/gamma"].value == pytest.approx(1.0, rel=1e-4)
    else:
        # gamma is located to 1e-6 in z = 1/(1 + gamma), and dgamma/dz = (1 + gamma)**2.
        assert found.gamma.value == pytest.approx(gamma, abs=1e-5 * (1 + gamma) ** 2)
        assert found.eta_k.value == pytest.approx(a, abs=1e-4 * (1 + gamma) ** 2)
        assert found.farsighted
    assert np.abs(found.fitted - path).max() < 1e-5
    assert found.start == pytest.approx([1.0, 1.0], abs=1e-5)


def test_the_interval_ends_where_a_plain_search_finds_the_cut():
    """S(gamma) by a scalar search over eta k in the formula written out, with the start free."""
    path, _ = learner(1.0)
    y = noisy(path, 0.05)
    found = ln.infer_path(T, y, ln.Quadratic(H))

    def S(gamma):
        def squares(log_a):
            e = np.exp(-np.outer(T, np.sqrt(gamma**2 / 4 + np.exp(log_a) * H) - gamma / 2))
            start = (e * y).sum(0) / (e**2).sum(0)
            return ((y - e * start) ** 2).sum()

        near = math.log(1 + gamma)
        return optimize.minimize_scalar(squares, (near - 0.3, near), options={"xtol": 1e-10}).fun

    free = y.size - 4  # eta k, gamma and two starts
    best = optimize.minimize_scalar(S, bounds=(0.0, 10.0), method="bounded")
    cut = stats.f.ppf(0.95, 1, free) * best.fun / free
    assert found.gamma.value == pytest.approx(best.x, rel=1e-3)
    assert found.noise == pytest.approx(math.sqrt(best.fun / free), rel=1e-6)
    for end in (found.gamma.low, found.gamma.high):
        # The end is known to 1e-4 in z, where the deviance has a slope of order 10 to 100 cuts.
        assert S(end) - best.fun == pytest.approx(cut, rel=0.03)
    statistic = (S(1e5) - best.fun) * free / best.fun
    assert found.statistic == pytest.approx(statistic, rel=1e-3)
    assert found.p_value == pytest.approx(stats.f.sf(statistic, 1, free) / 2, rel=0.05)


def test_coverage_and_size():
    """15 repeats each: at 95 %, fewer than 11 hits have probability 6e-4."""
    loss, rng = ln.Quadratic(H), np.random.default_rng(1)
    for gamma in (1.0, math.inf):
        path, a = learner(gamma)
        hits = rejected = 0
        for _ in range(15):
            found = ln.infer_path(T, path + 0.1 * rng.normal(size=path.shape), loss)
            hits += found.gamma.holds(gamma) and found.eta_k.holds(a)
            rejected += found.farsighted
        assert hits >= 11
        assert rejected <= 4 if math.isinf(gamma) else rejected >= 4


@pytest.mark.parametrize("gamma", [0.0, 1.0, 30.0, math.inf])
def test_three_routes_to_the_same_path(gamma):
    """The closed form, the Riccati equation, and the solver with gradient flow beyond 20 rates."""
    model = PathModel(T, noisy(learner(1.0)[0], 0.1), BENT, None, "decay", None)
    x = np.array([-0.5, 0.6])
    values = model.values(x)
    closed = model._by_modes(gamma, values)
    riccati = model._by_riccati(gamma, values)
    # An infinite discount is 1e6 rates in closed forms; Riccati errors grow with the condition of E.
    assert np.abs(closed.path - riccati.path).max() < 1e-9
    solved = model._by_solve(gamma, values, closed.start)
    tolerance = 1e-7 if gamma <= 1 else 1e-4  # the parabola in 1/gamma
    assert np.abs(closed.path - solved.path).max() < tolerance


DRIFTS = {
    "decay": ({"drift": ln.Decay(0.15)}, {"drift": "decay"}, {"decay": 0.15}),
    "rotation": ({"drift": ln.Rotation(0.4)}, {"drift": ("rotation",)}, {"rotation": 0.4}),
    "metric": ({"metric": [1.0, 3.0]}, {"metric": "diagonal"}, {"metric theta2": 3.0}),
    "known": ({"metric": [1.0, 3.0], "drift": ln.Decay(0.1)},) * 2 + ({},),
}


@pytest.mark.parametrize("kind", DRIFTS)
def test_drift_and_metric(kind):
    given, asked, truth = DRIFTS[kind]
    objective = ln.Objective(BENT, eta=3.0, gamma=1.0, **given)
    t = np.linspace(0, 8, 20)
    path = ln.solve(objective, [-1.0, 1.0]).at(t)
    found = ln.infer_path(t, noisy(path, 0.002), BENT, **asked)
    for name, value in {"gamma": 1.0, "eta_k": 3.0, **truth}.items():
        assert found.estimates[name].holds(value)
        assert found.estimates[name].value == pytest.approx(value, rel=0.15)
    again = ln.solve(found.objective(), found.start).at(t)
    assert np.abs(again - found.fitted).max() < 1e-8
    assert found.unidentified == found.notes == ()


def test_what_one_path_does_not_identify():
    path, _ = learner(1.0)
    one = ln.infer_path(T, noisy(path[:, :1], 0.01), ln.Quadratic(1.0))
    assert (one.gamma.low, one.gamma.high) == (0.0, math.inf)
    assert one.rate.holds(1.0)
    assert "every gamma gives the same path" in one.unidentified[0]
    # One metric entry for each curvature: the rates are free, so gamma is not identified either.
    y = noisy(path, 0.01)
    both = ln.infer_path(T, y, ln.Quadratic(H), metric="diagonal")
    assert "every gamma gives the same path" in both.unidentified[0]
    # A coordinate that starts at its minimum shows nothing of its metric.
    y[:, 1] = 0.0
    still = ln.infer_path(T, y, ln.Quadratic(H), metric="diagonal")
    assert any(sentence.startswith("metric theta2") for sentence in still.unidentified)
    faint = ln.infer_path(T, noisy(path, 0.8), ln.Quadratic(H))
    assert "errors hide" in faint.unidentified[0]
    assert not faint.farsighted


def test_a_loss_that_is_not_quadratic_needs_one_coordinate_only():
    loss = ln.Expression("x**4/4 + x**2/8", ["x"])
    t = np.linspace(0, 4, 9)
    path = ln.solve(ln.Objective(loss, eta=1.0, gamma=0.5), [2.0]).at(t)
    found = ln.infer_path(t, noisy(path, 0.002), loss)
    assert found.gamma.holds(0.5)
    assert found.eta_k.holds(1.0)
    assert found.farsighted


def test_known_noise():
    """One standard deviation, or the same for each observation; and one that is too small."""
    y = noisy(learner(1.0)[0], 0.05)
    loss = ln.Quadratic(H)
    one = ln.infer_path(T, y, loss, noise=0.05)
    each = ln.infer_path(T, y, loss, noise=np.full(y.shape, 0.05))
    for name, e in one.estimates.items():
        other = each.estimates[name]
        assert (e.value, e.low, e.high) == pytest.approx((other.value, other.low, other.high), 0.01)
    assert one.noise == pytest.approx(ln.infer_path(T, y, loss).noise / 0.05, rel=1e-6)
    assert one.notes == ()
    assert "times as large" in ln.infer_path(T, y, loss, noise=0.02).notes[-1]


def test_correlated_residuals_are_reported():
    walk = np.cumsum(np.random.default_rng(3).normal(size=(40, 2)), axis=0)
    t = np.linspace(0, 6, 40)
    found = ln.infer_path(t, learner(1.0, t)[0] + 0.05 * walk, ln.Quadratic(H))
    assert "correlated" in found.notes[0]


def test_result_fits_one_screen_and_draws():
    found = ln.infer_path(T, noisy(learner(math.inf)[0], 0.05), ln.Quadratic(H))
    lines = repr(found).splitlines()
    assert len(lines) < 25
    assert max(map(len, lines)) <= 100
    assert "gradient descent  not rejected" in repr(found)
    assert "<table>" in found._repr_html_()
    assert found.objective().gamma <= 1000 * found.rate.value
    from matplotlib.figure import Figure

    axes = found.plot(Figure().subplots(1, 2))
    assert [len(ax.lines) for ax in axes] == [7, 2]


WRONG = {
    "t must increase": (np.r_[T[:5], T[3:13]], np.ones((15, 2)), {}),
    "must be (15, D)": (T, np.ones((14, 2)), {}),
    "theta is nan at index (2, 0)": (T, np.where(np.arange(30).reshape(15, 2) == 4, np.nan, 1), {}),
    "three or more are needed": (T[:2], np.eye(2), {}),
    "observe more times": (T[:3], np.eye(3)[:, :1], {"loss": ln.Quadratic(1.0)}),
    "does not move": (T, np.ones((15, 2)), {}),
    "3 coordinates, but the objective has 2": (T, noisy(np.ones((15, 3)), 1), {}),
    "did you mean 'rotation'": (T, noisy(np.ones((15, 2)), 1), {"drift": "rotatoin"}),
    "estimated in the plane": (T, noisy(np.ones((15, 1)), 1), {"drift": "rotation"}),
    "noise has shape (4,)": (T, noisy(np.ones((15, 2)), 1), {"noise": np.ones(4)}),
    "must be positive": (T, noisy(np.ones((15, 2)), 1), {"noise": 0.0}),
    "changes with time": (T, noisy(np.ones((15, 1)), 1), {"loss": ln.Expression("x**2*(1+t)", ["x"])}),
    "no finite slope": (T, noisy(np.ones((15, 1)), 1), {"loss": ln.Expression("x*0 + 1", ["x"])}),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_wrong_input_gets_one_sentence(message):
    t, theta, options = WRONG[message]
    loss = options.pop("loss", ln.Quadratic(H))
    with pytest.raises(ValueError) as error:
        ln.infer_path(t, theta, loss, **options)
    assert message.lower() in str(error.value).lower()
