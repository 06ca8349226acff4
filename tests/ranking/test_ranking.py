"""rank(): J of a rule's path, the optimal path below it, and every kind of rule."""

import csv
import functools
import io
import itertools
import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import integrate

import lossnav as ln
from lossnav.ranking import comparison, rank

OBJECTIVE = ln.Objective(ln.Quadratic([[4.0, 1.0], [1.0, 1.0]]), eta=0.7, k=1.3, gamma=0.5)
START = np.array([1.0, -2.0])


def descent(lr):
    return lambda grad, theta: -lr * grad


class Visit:
    """A rule that goes through given points, whatever it sees."""

    def __init__(self, points):
        self.points = points

    def __call__(self, grad, theta):
        here = np.abs(self.points - theta).sum(axis=1).argmin()
        return self.points[min(here + 1, len(self.points) - 1)] - theta


def test_J_is_the_integral_along_straight_pieces():
    """Against adaptive quadrature of the running cost, written out by hand for this problem."""
    objective = ln.Objective(
        ln.Expression("(x**2 - 1)**2 + y**2 - x/2", ["x", "y"]), metric=[2.0, 0.5],
        drift=ln.Rotation(3.0), eta=0.4, k=1.7, gamma=0.9,
    )  # fmt: skip
    dt, lr, steps = 0.3, 0.05, 6
    points = [np.array([-0.6, 0.55])]
    for _ in range(steps):
        x, y = points[-1]
        points.append(points[-1] - lr * np.array([4 * x * (x**2 - 1) - 0.5, 2 * y]))

    def running(t, part):
        n = min(int(t / dt), steps - 1)
        v = (points[n + 1] - points[n]) / dt
        x, y = points[n] + (t - n * dt) * v
        J = objective.drift.affine(2)[0]
        u = v - J @ [x, y]
        motion = (2.0 * u[0] ** 2 + 0.5 * u[1] ** 2) / (2 * 0.4)
        return (motion + part * 1.7 * ((x**2 - 1) ** 2 + y**2 - x / 2)) * math.exp(-0.9 * t)

    def total(part):
        pieces = [
            integrate.quad(running, n * dt, (n + 1) * dt - 1e-15, (part,)) for n in range(steps)
        ]
        return sum(value for value, _ in pieces)

    row = rank([descent(lr)], objective, points[0], steps, dt=dt).best
    assert row.J == pytest.approx(total(1), rel=1e-11)
    assert row.kinetic == pytest.approx(total(0), rel=1e-11)
    assert row.share == pytest.approx(total(0) / total(1), rel=1e-11)
    assert row.loss == pytest.approx(float(objective.loss(points[-1])), rel=1e-13)
    assert row.gradients == steps


def test_a_strong_discount_within_one_step_is_integrated_too():
    """Four Gauss points would be 4 % off here; J of standing still is known."""
    objective = ln.Objective(ln.Quadratic(2.0), gamma=30.0)
    row = rank([descent(0.0)], objective, [3.0], 4, dt=1.0).best
    exact = 9.0 * -math.expm1(-120.0) / 30
    assert abs(row.J - exact) <= max(row.quadrature, 1e-12) <= 1e-8
    assert row.J == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 4.0])
def test_the_learning_rule_has_the_least_J(gamma):
    objective = replace(OBJECTIVE, gamma=gamma)
    dt = 0.05
    rules = {
        "ours": ln.learning_rule(objective, dt),
        "newton": ln.learning_rule(objective, math.inf),
    }
    rules |= {f"sgd {lr}": ln.zoo.SGD(lr) for lr in (0.01, 0.03, 0.1, 0.3)}
    rules |= {f"momentum {lr}": ln.zoo.SGD(lr, momentum=0.9) for lr in (0.003, 0.01)}
    rules |= {f"adam {lr}": ln.zoo.Adam(lr) for lr in (0.03, 0.1)}
    rules |= {f"rmsprop {lr}": ln.zoo.RMSprop(lr) for lr in (0.003, 0.01)}
    rules["lion"] = ln.zoo.Lion(0.05)
    rules["other discount"] = ln.learning_rule(replace(objective, gamma=gamma + 2.0), dt)
    rules["diagonal"] = ln.learning_rule(objective, dt, curvature="diagonal")
    ranking = rank(rules, objective, START, 200)
    assert ranking.best.name == "ours"
    assert [row.J for row in ranking] == sorted(row.J for row in ranking)
    assert ranking.optimal.J < ranking.best.J
    assert ranking["ours"].rms < 0.1 * min(row.rms for row in ranking.rows[1:])
    # What is left is the pieces' doing.
    assert ranking.best.J == pytest.approx(ranking.optimal.sampled, rel=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_learning_rules_J_tends_to_the_optimum_at_second_order(gamma):
    objective = replace(OBJECTIVE, gamma=gamma)

    def regret(dt):
        rule = ln.learning_rule(objective, dt)
        return rank([rule], objective, START, round(30 / dt)).best.regret

    errors = [regret(dt) for dt in (0.2, 0.1, 0.05)]
    assert errors[-1] > 0
    for coarse, fine in itertools.pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(2.0, abs=0.05)


numbers = functools.partial(st.floats, allow_nan=False, allow_subnormal=False)


@settings(max_examples=8, deadline=None, phases=[Phase.reuse, Phase.generate])
@given(data=st.data())
def test_no_rule_is_below_the_optimal_path(data):
    """The strongest challenger is the best chain of straight pieces, found without the equations."""
    dim = data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    roots = rng.normal(size=(2, dim, dim))
    H, G = (a @ a.T + 0.1 * np.eye(dim) for a in roots)
    bowl = ln.Quadratic(H, minimum=rng.normal(size=dim))
    quartic = ln.Function(lambda x: (x**4).sum() + x[0] ** 2 - x[-1])
    objective = ln.Objective(
        data.draw(st.sampled_from([bowl, quartic])), metric=data.draw(st.sampled_from([None, G])),
        drift=data.draw(st.sampled_from([None, ln.Decay(0.5)])), eta=data.draw(numbers(0.1, 5.0)),
        k=data.draw(numbers(0.1, 5.0)), gamma=data.draw(numbers(0.0, 3.0)), names=list("abc"[:dim]),
    )  # fmt: skip
    start, dt, steps = rng.normal(size=dim), data.draw(numbers(0.02, 0.5)), 12
    points, _ = ln.Discrete(objective, steps, dt, rule="midpoint").minimise(start)
    rules = {
        "ours": ln.learning_rule(objective, dt),
        "pieces": Visit(points),
        "still": descent(0.0),
        "sgd": ln.zoo.SGD(data.draw(numbers(1e-4, 0.3))),
        "adam": ln.zoo.Adam(data.draw(numbers(1e-3, 0.3))),
    }
    ranking = rank(rules, objective, start, steps, dt=dt)
    assert ranking.optimal.bound
    for row in ranking:
        blur = ranking.optimal.error + (0 if row.status else row.quadrature)
        assert row.J >= ranking.optimal.J - blur
    assert ranking.optimal.sampled >= ranking.optimal.J - 1e-8 * abs(ranking.optimal.J)


def torch_and_optax():
    torch, optax = pytest.importorskip("torch"), pytest.importorskip("optax")
    return torch.optim, optax


@pytest.mark.parametrize("noise", [None, 0.5])
def test_the_same_rule_in_another_library_has_the_same_J(noise):
    optim, optax = torch_and_optax()
    versions = {
        "sgd": [ln.zoo.SGD(0.05), functools.partial(optim.SGD, lr=0.05), optax.sgd(0.05), descent(0.05)],
        "adam": [ln.zoo.Adam(0.1), lambda p: optim.Adam(p, lr=0.1), optax.adam(0.1)],
        "rmsprop": [ln.zoo.RMSprop(0.02), lambda p: optim.RMSprop(p, lr=0.02)],
    }  # fmt: skip
    rules = {f"{name} {i}": x for name, all_ in versions.items() for i, x in enumerate(all_)}
    ranking = rank(rules, OBJECTIVE, START, 60, dt=0.1, noise=noise, seeds=2, reference=False)
    for name, all_ in versions.items():
        for i in range(1, len(all_)):
            assert ranking[f"{name} {i}"].each == pytest.approx(
                ranking[f"{name} 0"].each, rel=1e-12
            )


def test_a_rule_as_an_optimizer_has_the_same_J():
    torch_and_optax()
    from lossnav.optim import optax as ours_optax
    from lossnav.optim import torch as ours_torch

    rule = ln.learning_rule(OBJECTIVE, 0.1)
    rules = [rule, lambda p: ours_torch.from_rule(rule, p), ours_optax.from_rule(rule)]
    ranking = rank(rules, OBJECTIVE, START, 20)
    assert len(ranking) == 3
    assert {row.name for row in ranking} == {"LocalRule", "RuleOptimizer", "optax"}
    assert ranking.best.J == pytest.approx(ranking.rows[-1].J, rel=1e-12)


def test_an_optimizer_that_looks_many_times():
    """LBFGS calls its closure again and again: the rows say so."""
    optim, _ = torch_and_optax()
    ranking = rank([optim.LBFGS, ln.zoo.Adam(0.1)], OBJECTIVE, START, 5, dt=0.1)
    assert ranking["LBFGS"].gradients > 1.5 * ranking["Adam"].gradients == 7.5


def test_noise_by_a_plain_loop():
    """Mean, standard errors and paired differences, from paths walked here."""
    dt, steps, seeds = 0.1, 30, [3, 7, 8, 20]

    def walk(lr, seed):
        points = [START]
        for n in range(steps):
            noise = 0.4 * np.random.default_rng([seed, n]).standard_normal(2)
            points.append(points[-1] - lr * (OBJECTIVE.loss.grad(points[-1]) + noise))
        return np.array(points)

    t = dt * np.arange(steps + 1)
    J = {lr: np.array([OBJECTIVE.J(t, walk(lr, s)) for s in seeds]) for lr in (0.05, 0.2)}
    rules = {"slow": descent(0.05), "fast": descent(0.2)}
    ranking = rank(rules, OBJECTIVE, START, steps, dt=dt, noise=0.4, seeds=seeds)
    best, other = ranking.rows
    assert (best.name, other.name, best.seeds) == ("slow", "fast", 4)
    gap = J[0.2] - J[0.05]
    for row, lr in ((best, 0.05), (other, 0.2)):
        assert row.each == pytest.approx(J[lr], rel=1e-9)
        assert row.J == pytest.approx(J[lr].mean(), rel=1e-9)
        assert row.spread == pytest.approx(J[lr].std(ddof=1), rel=1e-7)
        assert row.J_error == pytest.approx(J[lr].std(ddof=1) / 2, rel=1e-7)
    assert other.behind == pytest.approx(gap.mean(), rel=1e-7)
    assert other.behind_error == pytest.approx(gap.std(ddof=1) / 2, rel=1e-6)
    assert (best.behind, best.behind_error) == (0.0, 0.0)
    times, points = ranking.paths["fast"]
    assert times == pytest.approx(t)
    assert points[2] == pytest.approx(walk(0.2, 8))
    again = rank(rules, OBJECTIVE, START, steps, dt=dt, noise=0.4, seeds=seeds)
    assert again.to_json() == ranking.to_json()
    assert rank(rules, OBJECTIVE, START, steps, dt=dt, noise=0.4, seeds=[1, 2]).best.J != best.J
    # Every seed's path is a path: the bound holds for each.
    assert all((row.each > ranking.optimal.J).all() for row in ranking)


@pytest.mark.parametrize("kind", ["number", "vector", "covariance", "function"])
def test_kinds_of_noise(kind):
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    noise, expected = {
        "number": (0.3, 0.09 * np.eye(2)),
        "vector": ([0.3, 2.0], np.diag([0.09, 4.0])),
        "covariance": (covariance, covariance),
        "function": (lambda rng, x: x * rng.uniform(-1, 1), np.outer(START, START) / 3),
    }[kind]
    seen = []

    def watch(grad, theta):
        seen.append(grad - OBJECTIVE.loss.grad(theta))
        return np.zeros(2)

    rank([watch], OBJECTIVE, START, 2000, dt=0.01, noise=noise, seeds=1, reference=False)
    found = np.cov(np.array(seen).T)
    assert found == pytest.approx(expected, abs=0.08 * np.abs(expected).max())


def test_a_rule_that_diverges_is_a_result():
    objective = ln.Objective(ln.Function(lambda x: (x**4).sum()), gamma=1.0)
    rules = {"wild": descent(1.0), "tame": ln.zoo.SGD(0.01)}
    ranking = rank(rules, objective, [2.0, 1.0], 50, dt=0.1)
    wild = ranking.rows[-1]
    assert (wild.name, wild.J, wild.diverged, ranking.best.diverged) == ("wild", math.inf, 1, 0)
    assert wild.status.startswith("diverged at step ")
    assert wild.gradients < 10
    assert math.isnan(wild.loss)
    assert ranking.regret["wild"] == math.inf
    assert json.loads(ranking.to_json())["rows"][1]["J"] is None
    assert "diverged at step" in str(ranking)
    points = ranking.paths["wild"][1][0]
    assert np.isfinite(points[0]).all()
    assert np.isnan(points[-1]).all()
    noisy = rank(rules, objective, [2.0, 1.0], 50, dt=0.1, noise=1.0, seeds=3, reference=False)
    assert (noisy["wild"].diverged, noisy["wild"].behind) == (3, math.inf)
    assert "3 of 3 seeds: diverged at step" in str(noisy)
    alone = rank([descent(1.0)], objective, [2.0], 50, dt=0.1)
    assert alone.best.J == math.inf


def test_a_rule_that_gives_up_later_is_a_result():
    """It bends down too far only at the second point; at the first the mistake would be the caller's."""
    objective = ln.Objective(ln.Function(lambda x: (x**2 - 1) ** 2), gamma=0.1, names=["x"])
    rule = ln.learning_rule(objective, 0.5, negative="refuse")
    ranking = rank({"strict": rule, "still": descent(0.0)}, objective, [0.59], 20, dt=0.5)
    assert ranking["strict"].status == ""
    with pytest.raises(ValueError, match="J is unbounded below"):
        rank([rule], objective, [0.1], 20)

    def push(grad, theta):
        return np.linalg.cholesky(-np.eye(1))[0] if theta[0] < 0.5 else np.array([-0.2])

    ranking = rank({"push": push, "still": descent(0.0)}, objective, [0.59], 20, dt=0.5)
    assert ranking["push"].status.startswith("stopped at step 2: Matrix is not positive definite")
    assert (ranking["push"].J, ranking.best.name) == (math.inf, "still")


def test_a_rule_keeps_its_own_time_and_all_have_the_same_horizon():
    rules = {
        name: ln.learning_rule(OBJECTIVE, dt) for name, dt in (("a", 0.1), ("b", 0.03), ("c", 0.25))
    }
    ranking = rank(rules, OBJECTIVE, START, 11, dt=0.1)
    for name, rule in rules.items():
        t, (points,) = ranking.paths[name]
        assert ranking[name].dt == rule.dt
        assert t[-1] == ranking.horizon == pytest.approx(1.1)
        assert np.diff(t)[:-1] == pytest.approx(rule.dt)
        assert len(t) == len(points) == math.ceil(1.1 / rule.dt) + 1
        assert ranking[name].J == pytest.approx(OBJECTIVE.J(t, points), rel=1e-9)
    assert "a step every 0.1 unless a rule has its own dt" in str(ranking)
    # The optimal path for ever, stepped exactly: where time is over within a step, the piece is cut.
    t, (points,) = ranking.paths["c"]
    endless = ln.solve(OBJECTIVE, START)
    whole = endless.at([1.0, 1.25])
    assert points[-1] == pytest.approx(whole[0] + 0.4 * (whole[1] - whole[0]), rel=1e-9)
    assert [ranking[name].J for name in "bac"] == sorted(row.J for row in ranking)


def test_distance_from_the_optimal_path():
    """For a rule that stays: how far the closed form has gone."""
    objective = ln.Objective(ln.Quadratic(1.0))
    row = rank([descent(0.0)], objective, [2.0], 4000, dt=0.001).best
    t = np.linspace(0, 4, 100_001)
    gap = 2 - 2 * np.cosh(4 - t) / np.cosh(4)  # free end: velocity zero at the horizon
    assert row.distance == pytest.approx(gap.max(), rel=1e-9)
    assert row.rms == pytest.approx(math.sqrt(np.mean(gap**2)), rel=1e-4)
    assert row.regret == pytest.approx(4 * 2 - 2 * math.tanh(4), rel=1e-9)


def test_without_an_optimal_path():
    saddle = ln.Objective(ln.Quadratic([1.0, -1.0]))
    ranking = rank([ln.zoo.SGD(0.01)], saddle, [1.0, 0.1], 50, dt=0.1)
    assert ranking.optimal is None
    assert "unbounded" in ranking.status
    assert math.isnan(ranking.best.regret)
    assert f"no optimal path to compare with: {ranking.status}" in str(ranking)
    assert rank([ln.zoo.SGD(0.01)], saddle, [1.0, 0.1], 50, dt=0.1, reference=False).status == ""


def test_the_endless_path_stands_in(monkeypatch):
    def solve(objective, theta0, horizon=math.inf):
        if math.isfinite(horizon):
            raise ValueError("not at this horizon.")
        return ln.solve(objective, theta0)

    monkeypatch.setattr(comparison, "solve", solve)
    ranking = rank([ln.learning_rule(OBJECTIVE, 0.1)], OBJECTIVE, START, 20)
    assert not ranking.optimal.bound
    assert ranking.best.distance < 1e-12
    assert ranking.optimal.sampled == pytest.approx(ranking.best.J, rel=1e-12)
    assert ranking.optimal.J == pytest.approx(ranking.best.J, rel=1e-3)
    assert "no bound" in ranking.status


def test_a_solver_that_is_beaten_says_so(monkeypatch):
    def solve(objective, theta0, horizon):
        path = ln.solve(objective, theta0, horizon)
        return replace(path, J=path.J + 1.0)

    monkeypatch.setattr(comparison, "solve", solve)
    ranking = rank([ln.learning_rule(OBJECTIVE, 0.1)], OBJECTIVE, START, 20)
    assert not ranking.optimal.bound
    assert (
        ranking.status
        == "A rule's path costs less than the path of the solver, which is a local optimum."
    )


def test_names():
    optim, optax = torch_and_optax()
    rules = [
        ln.zoo.Adam(0.1),
        ln.zoo.Adam(0.2),
        lambda p: optim.Adagrad(p),
        optax.sgd(0.1),
        descent(0.1),
    ]
    names = set(rank(rules, OBJECTIVE, START, 2, dt=0.1, reference=False).regret)
    assert names == {"Adam", "Adam 2", "Adagrad", "optax", "<lambda>"}
    assert rank(optax.sgd(0.1), OBJECTIVE, START, 2, dt=0.1).best.name == "optax"
    assert rank(ln.learning_rule(OBJECTIVE), OBJECTIVE, START, 2).best.name == "LocalRule"


def test_what_is_shown():
    rules = {"a <b>": ln.zoo.SGD(0.05), "ours": ln.learning_rule(OBJECTIVE, 0.1)}
    ranking = rank(rules, OBJECTIVE, START, 50)
    lines = str(ranking).splitlines()
    assert lines[0].split() == [
        "rule",
        "J",
        "regret",
        "final",
        "loss",
        "kinetic",
        "distance",
        "rms",
    ]
    assert lines[1].split() == ["optimal", "path", "(bound)", f"{ranking.optimal.J:.6g}", "0"]
    assert lines[2].startswith("ours   ")
    assert len({len(line) for line in (lines[0], *lines[2:4])}) == 1  # aligned
    assert ranking["ours"] is ranking.best is next(iter(ranking))
    with pytest.raises(KeyError):
        ranking["nosuch"]
    page = ElementTree.fromstring(f"<div>{ranking._repr_html_().replace('<br>', '')}</div>")
    assert [cell.text for cell in page.iter("td")][::7] == [
        "optimal path (bound)",
        "ours",
        "a <b>",
    ]
    table = list(csv.DictReader(io.StringIO(ranking.to_csv())))
    assert [(row["name"], float(row["J"])) for row in table] == [
        (row.name, row.J) for row in ranking
    ]
    found = json.loads(ranking.to_json())
    assert found["optimal"]["J"] == ranking.optimal.J
    assert found["rows"][0]["each"] == [ranking.best.J]
    noisy = str(rank(rules, OBJECTIVE, START, 50, noise=0.1, seeds=3))
    assert "behind the best" in noisy.splitlines()[0]
    assert "3 seeds, mean ± standard error" in noisy


def test_a_loss_that_is_negative_has_no_share():
    objective = ln.Objective(ln.Expression("x**2 - 5", ["x"]), gamma=1.0)
    ranking = rank([ln.zoo.SGD(0.1)], objective, [1.0], 20, dt=0.1)
    assert ranking.best.J < 0 < ranking.best.kinetic
    assert math.isnan(ranking.best.share)
    assert " - " in str(ranking).splitlines()[2]


@pytest.mark.parametrize(
    ("rules", "options", "sentence"),
    [
        ([], {}, "There is no rule to rank: give at least one."),
        ({"x": 3}, {}, "The rule 'x' is a int, but it must be a lossnav Rule, an optax transformation"),
        (["adam"], {}, "A rule is a str, but it must be"),
        ([ln.zoo.Adam], {}, "A rule is a Member, but it must be"),
        ([ln.LocalRule], {}, "A rule is <class 'lossnav.rules.local.LocalRule'>, but it must be"),
        ([ln.zoo.Adam(0.1)], {}, "dt is missing: the steps of Adam take no time of their own"),
        ([ln.learning_rule(OBJECTIVE, 0.1), ln.learning_rule(OBJECTIVE, 0.2)], {}, "dt is missing, and the rules step every 0.1, 0.2"),
        ([ln.zoo.Adam(0.1)], {"dt": -1}, "dt is -1, but it must be greater than zero."),
        ([ln.zoo.Adam(0.1)], {"dt": 1, "steps": 0}, "steps is 0, but it must be a whole number, one or more."),
        ([ln.zoo.Adam(0.1)], {"dt": 1, "theta0": [1.0]}, "theta0 has 1 coordinates, but the problem has 2."),
        ([ln.zoo.Adam(0.1)], {"dt": 1, "noise": [1.0, 2.0, 3.0]}, "noise has shape (3,), but it must be one standard deviation"),
        ([ln.zoo.Adam(0.1)], {"dt": 1, "noise": -1}, "noise is -1, but a standard deviation is zero or more."),
        ([ln.zoo.Adam(0.1)], {"dt": 1, "noise": [[1, 2], [2, 1]]}, "noise is not a covariance: its least eigenvalue is -1"),
        ([ln.zoo.Adam(0.1)], {"dt": 1, "noise": lambda rng, x: 1.0}, "noise(rng, theta) has shape (), but theta has (2,)."),
        ([ln.zoo.Adam(0.1)], {"dt": 1, "noise": 1, "seeds": 0}, "seeds is 0, but it must be how many runs to make"),
        ([ln.zoo.Adam(0.1)], {"dt": 1, "noise": 1, "seeds": [-1]}, "seeds is [-1], but it must be"),
        ([ln.learning_rule(OBJECTIVE, 1e-9)], {"dt": 1}, "so it needs 200000000000 steps"),
        ([lambda g, x: np.zeros(3)], {"dt": 1}, "The rule '<lambda>' cannot be run: The step has shape (3,), but theta has (2,)."),
        ([ln.zoo.Adam(0.1)], {"dt": 1, "objective": ln.Quadratic(1.0)}, "rank takes an Objective, but a Quadratic was given"),
        ([ln.zoo.Adam(0.1)], {"dt": 1, "objective": ln.belief.adaptive([0.3], gamma=1.0), "theta0": [0, 0, 1]}, "An adaptive objective has beliefs among its coordinates"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_sentence(rules, options, sentence):
    given = {"objective": OBJECTIVE, "theta0": START} | options
    with pytest.raises((ValueError, TypeError)) as caught:
        rank(rules, **given)
    assert sentence in str(caught.value)


def test_a_function_of_one_argument_must_make_an_optimizer():
    torch_and_optax()
    with pytest.raises(TypeError, match="must return a torch optimizer, but it returned a list"):
        rank([lambda params: params], OBJECTIVE, START, dt=0.1)


def test_costs_are_the_objectives():
    """The quadrature with halved pieces against `Objective.J`, on an uneven path."""
    rng = np.random.default_rng(0)
    t = np.cumsum(rng.uniform(0.01, 0.1, 12))
    t -= t[0]
    theta = rng.normal(size=(12, 2))
    J, _, error = comparison.path_cost(OBJECTIVE, t, theta)
    assert pytest.approx(OBJECTIVE.J(t, theta), rel=1e-10) == J
    assert error < 1e-9


def test_the_figure_has_a_bar_for_each_rule_and_a_line_for_the_optimum():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    rules = {"slow": descent(0.01), "good": descent(0.1), "wild": descent(1e3)}
    ranking = rank(rules, OBJECTIVE, START, 50, dt=0.1)
    ax = ranking.plot()
    lengths = {tick.get_text(): bar.get_width() for tick, bar in zip(
        ax.get_yticklabels(), ax.patches, strict=True
    )}  # fmt: skip
    assert lengths == pytest.approx(
        {"good": ranking["good"].J, "slow": ranking["slow"].J, "wild": 0}
    )
    assert [text.get_text() for text in ax.texts] == [ranking["wild"].status]
    assert ax.lines[0].get_xdata()[0] == pytest.approx(ranking.optimal.J)
    assert ranking.plot(ax) is ax
    assert repr(ranking) == str(ranking)
    pyplot.close(ax.figure)
