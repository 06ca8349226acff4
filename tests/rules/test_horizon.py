"""HorizonRule against the optimal path over the time that is left, by a solver that does not know its formula."""

import math
from dataclasses import replace

import numpy as np
import pytest

import lossnav as ln
from lossnav.rules.horizon import HorizonRule
from lossnav.rules.local import LocalRule
from lossnav.solvers.curvature import horizon_gain, step_gain

H = np.array([[2.0, 0.5], [0.5, 1.0]])
G = np.array([[2.0, 0.3], [0.3, 1.0]])
LOSS = ln.Quadratic(H, minimum=[0.3, 0.2])
END = ln.Quadratic([[1.0, -0.4], [-0.4, 3.0]], minimum=[-1.0, 0.5])
THETA = np.array([1.0, -2.0])
C = {"eta": 0.7, "k": 1.3}


def at_time(rule, t, theta):
    return rule.init(theta) | {"t": np.array(t, dtype=np.int32)}


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"gamma": 1.5},
        {"gamma": 0.4, "metric": G},
        {"k": 0, "terminal": END},
        {"k": 0, "terminal": END, "gamma": 0.8, "metric": G},
        {"terminal": END},
        {"terminal": END, "gamma": 0.8, "metric": G},
        {"drift": ln.Rotation(2.0), "gamma": 0.5},
        {"drift": ln.LinearDrift([[0.1, 1.0], [0.0, 0.2]], [1.0, 0.0]), "k": 0, "terminal": END},
        {"drift": ln.Decay(0.7), "metric": G, "terminal": END, "gamma": 1.0},
    ],
)
def test_each_step_is_the_optimal_path_of_the_time_left(inputs):
    objective = ln.Objective(LOSS, **(C | inputs))
    seen = objective.loss if objective.k else objective.terminal
    rule = ln.learning_rule(objective, 0.25, horizon=2.0)
    assert type(rule) is HorizonRule
    for t in (0, 3, 7):
        path = ln.solve(objective, THETA, horizon=2.0 - 0.25 * t, method=ln.Ritz())
        step, state = rule.update(seen.grad(THETA), at_time(rule, t, THETA), THETA)
        assert THETA + step == pytest.approx(path.at(0.25), rel=1e-8, abs=1e-8)
        assert state["t"] == t + 1
        short = replace(rule, dt=1e-6, horizon=2.0 - 0.25 * t)
        velocity = short.update(seen.grad(THETA), rule.init(THETA), THETA)[0] / 1e-6
        assert velocity == pytest.approx(path.velocity0, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("left", [0.1, 1.0, 5.0])
def test_closed_forms_in_one_dimension(left):
    h, x = 3.0, 1.7
    root = math.sqrt(0.7 * 1.3 * h)
    for inputs, rate in (
        ({"k": 1.3}, root * math.tanh(root * left)),
        ({"k": 0, "terminal": ln.Quadratic([1.3 * h])}, 1 / (left + 1 / (0.7 * 1.3 * h))),
    ):
        objective = ln.Objective(ln.Quadratic([h]), eta=0.7, **inputs)
        rule = ln.learning_rule(objective, 1e-7, horizon=left)
        theta = np.array([x])
        grad = (objective.loss if objective.k else objective.terminal).grad(theta)
        step, _ = rule.update(grad, rule.init(theta), theta)
        assert step / 1e-7 == pytest.approx(-rate * x, rel=1e-5)


def test_a_whole_run_is_the_optimal_path_and_ends_there():
    objective = ln.Objective(LOSS, terminal=END, gamma=0.3, **C)
    path = ln.solve(objective, THETA, horizon=1.1)
    rule = ln.learning_rule(objective, 0.2, horizon=1.1)  # the sixth step is half as long
    theta, state = THETA, rule.init(THETA)
    for t in range(8):
        step, state = rule.update(LOSS.grad(theta), state, theta)
        theta = theta + step
        assert theta == pytest.approx(path.at(min(0.2 * (t + 1), 1.1)), rel=1e-7, abs=1e-8)
        assert step.any() == (t < 6)
    plain = ln.learning_rule(ln.Objective(LOSS), 0.1, horizon=0.3)  # 0.3 / 0.1 rounds down
    steps = [plain.update(np.ones(2), at_time(plain, t, THETA), THETA)[0] for t in range(5)]
    assert [step.any() for step in steps] == [True, True, True, False, False]
    assert plain.update(np.ones(2), at_time(plain, 2, THETA), THETA)[0] == pytest.approx(
        replace(plain, horizon=0.1).update(np.ones(2), plain.init(THETA), THETA)[0], rel=1e-12
    )


def test_a_long_horizon_is_an_open_end():
    h = np.array([0.0, 1e-9, 1e-3, 1.0, 50.0])
    for gamma in (0.5, 10.0):
        c = {"eta": 0.7, "k": 1.3, "gamma": gamma, "dt": 0.3}
        assert horizon_gain(h, left=1e6, **c) == pytest.approx(step_gain(h, **c), rel=1e-12)


def test_curvature_may_be_flat_or_negative():
    """Flat and straight: eta k (tau dt - dt^2/2) per unit of slope."""
    rule = HorizonRule(0.5, np.array([0.0, 1e-13]), 2.0, **C)
    step, _ = rule.update(np.ones(2), rule.init(np.zeros(2)), np.zeros(2))
    assert step == pytest.approx(-0.91 * (2.0 * 0.5 - 0.125), rel=1e-9)
    down = np.array([-1.0, 2.0])
    for at_end in (False, True):
        local = HorizonRule(0.5, down, 2.0, at_end=at_end, **C)
        raised = HorizonRule(0.5, np.array([0.2, 2.0]), 2.0, at_end=at_end, **C)
        dense = HorizonRule(0.5, np.diag(down), 2.0, ln.ConstantMetric(np.eye(2)), at_end=at_end,
                            drift=ln.LinearDrift(np.zeros((2, 2)), np.zeros(2)), **C)  # fmt: skip
        expected = raised.update(THETA, raised.init(THETA), THETA)[0]
        for rule in (local, dense):
            step, _ = rule.update(THETA, rule.init(THETA), THETA)
            assert step == pytest.approx(expected, rel=1e-9)
    free = HorizonRule(0.5, down, 2.0, gamma=2.0, **C)  # above -gamma**2/(4 eta k): exact
    path = ln.solve(ln.Objective(ln.Quadratic(np.diag(down)), gamma=2.0, **C), THETA, horizon=2.0)
    step, _ = free.update(down * THETA, free.init(THETA), THETA)
    assert THETA + step == pytest.approx(path.at(0.5), rel=1e-9)


@pytest.mark.parametrize("form", ["exact", "diagonal", "lanczos", "squares"])
def test_every_form_of_curvature_runs_to_the_end(form):
    objective = ln.Objective(ln.Rosenbrock(3), eta=0.01, gamma=1.0)
    rule = ln.learning_rule(objective, 0.5, horizon=10.0, curvature=form)
    theta = np.array([0.5, 0.4, 0.6])
    state, start = rule.init(theta), objective.loss(theta)
    for _ in range(20):
        step, state = rule.update(objective.loss.grad(theta), state, theta)
        theta = theta + step
    assert objective.loss(theta) < start / 3
    assert not rule.update(objective.loss.grad(theta), state, theta)[0].any()


def test_frameworks_agree():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    h, theta = np.array([0.0, 0.5, 40.0]), np.array([1.0, -2.0, 0.3])
    for at_end in (False, True):
        rule = HorizonRule(0.1, h, 0.4, gamma=0.3, at_end=at_end, **C)
        expected = [rule.update(theta, at_time(rule, t, theta), theta)[0] for t in (0, 3, 4)]
        for array, jit in ((torch.tensor, lambda f: f), (jax.numpy.asarray, jax.jit)):
            x = array(theta.astype(np.float32))
            state, update = rule.init(x), jit(rule.update)
            for t in range(5):
                step, state = update(x, state, x)
                if t in (0, 3, 4):
                    close = pytest.approx(expected[(0, 3, 4).index(t)], rel=1e-5, abs=1e-12)
                    assert np.asarray(step) == close
            assert int(state["t"]) == 5


def test_it_says_what_it_assumes():
    objective = ln.Objective(LOSS, terminal=END, drift=ln.Rotation(1.0))
    said = ln.learning_rule(objective, 0.1, horizon=3.0).assumptions
    assert "- horizon: 3 units of time; the loss counts all the time, and the end has" in said
    assert "- discount: none\n" in said
    assert "Rotation, linear near theta" in said
    late = ln.learning_rule(ln.Objective(LOSS, k=0, terminal=END), 0.1, horizon=3.0).assumptions
    assert "the loss counts only at the end" in late
    assert type(ln.learning_rule(ln.Objective(LOSS), 0.1, horizon=math.inf)) is LocalRule


@pytest.mark.parametrize(
    ("inputs", "kwargs", "sentence"),
    [
        ({}, {"horizon": 0.0}, "horizon is 0, but it must be greater than zero"),
        ({}, {"horizon": math.nan}, "horizon is nan"),
        ({}, {"horizon": 2.0, "dt": math.inf}, "dt is infinite, but steps are counted"),
        ({"terminal": END}, {}, r"learning_rule\(\.\.\., horizon=T\)"),
        ({"k": 0}, {"horizon": 2.0}, "no loss is left to learn from"),
        ({"terminal": END}, {"horizon": 2.0, "curvature": "lanczos"}, "a terminal cost besides"),
        ({}, {"horizon": 2.0, "negative": -1.0}, "stand-in for curvature must be above"),
    ],
)
def test_refusals(inputs, kwargs, sentence):
    with pytest.raises(ValueError, match=sentence):
        ln.learning_rule(ln.Objective(LOSS, **inputs), **kwargs)


def test_endless_rewards_are_refused():
    """A terminal cost that falls faster than motion costs."""
    objective = ln.Objective(LOSS, terminal=ln.Quadratic([-9.0, 1.0]))
    rule = ln.learning_rule(objective, 0.1, horizon=2.0)
    with pytest.raises(ValueError, match="J is unbounded below within the time 2"):
        rule.update(THETA, rule.init(THETA), THETA)
    with pytest.raises(ValueError, match="beliefs of its own"):
        ln.learning_rule(ln.belief.weight_uncertainty(LOSS), horizon=2.0)
