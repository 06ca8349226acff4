"""learning_rule(): the right rule for each Objective, against optimal paths and the paper's equations."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import solve_discrete_are

import lossnav as ln
from lossnav.problem.belief import Adaptive, adaptive, belief_of, weight_uncertainty
from lossnav.rules.build import learning_rule
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.local import DriftedRule, LocalRule
from lossnav.rules.sources import OfLoss
from lossnav.solvers.curvature import decay_rate

H = np.array([[2.0, 0.5], [0.5, 1.0]])
G = np.array([[2.0, 0.3], [0.3, 1.0]])
LOSS = ln.Quadratic(H, minimum=[0.3, 0.2])
THETA = np.array([1.0, -2.0])


def step(rule, grad, theta):
    return rule.update(grad, rule.init(theta), theta)[0]


@pytest.mark.parametrize("dt", [0.1, 2.0, math.inf])
@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ({}, LocalRule),
        ({"gamma": 2.0}, LocalRule),
        ({"metric": G, "gamma": 1.0}, LocalRule),
        ({"metric": lambda x: [[2, 0.3], [0.3, 1]], "gamma": 1.0}, LocalRule),
        ({"drift": ln.Decay(0.7), "metric": G, "gamma": 1.0}, LocalRule),
        ({"drift": ln.Decay([0.7, 0.1]), "gamma": 1.0}, DriftedRule),
        ({"drift": ln.Rotation(2.0), "metric": G}, DriftedRule),
        ({"drift": lambda x: [x[1], -x[0] - x[1] + 1], "gamma": 1.0}, DriftedRule),
        (
            {"drift": ln.LinearDrift([[0.1, 1.0], [0.0, 0.2]], [1.0, 0.0]), "gamma": 0.3},
            DriftedRule,
        ),
    ],
)
def test_the_rule_of_a_quadratic_is_its_optimal_path(inputs, kind, dt):
    objective = ln.Objective(LOSS, eta=0.7, k=1.3, **inputs)
    rule = learning_rule(objective, dt)
    assert type(rule) is kind
    path = ln.solve(objective, THETA)
    best = path.end if math.isinf(dt) else path.at(dt)
    assert THETA + step(rule, LOSS.grad(THETA), THETA) == pytest.approx(best, rel=1e-9, abs=1e-9)
    said = dict(re.findall(r"^- (\w+): (.*)$", rule.assumptions, re.MULTILINE))
    assert said["loss"] == "a quadratic near theta, whose curvature is the Hessian at theta"
    assert said["discount"].startswith(
        f"gamma = {objective.gamma:g};" if objective.gamma else "none"
    )
    assert said["metric"].startswith("motion is priced" if "metric" in inputs else "Euclidean")
    assert (said["drift"] == "none") == ("drift" not in inputs)
    assert f"dt = {dt}, with eta = 0.7 and k = 1.3" in said["step"]


def test_every_rule_iterated_is_the_receding_horizon():
    for inputs in ({"gamma": 1.0}, {"drift": ln.Rotation(1.0), "gamma": 1.0}):
        objective = ln.Objective(ln.Rosenbrock(2), eta=0.1, **inputs)
        rule, theta = learning_rule(objective, 0.05), np.array([0.9, 0.75])
        for target in ln.navigate(objective, theta, 0.05, 10).theta[1:]:
            theta = theta + step(rule, objective.loss.grad(theta), theta)
            assert theta == pytest.approx(target, rel=1e-8)


@pytest.mark.parametrize("form", ["exact", "diagonal", "lanczos", "squares", "hutchinson"])
def test_every_form_of_curvature_goes_down(form):
    objective = ln.Objective(ln.Rosenbrock(4), eta=0.01, gamma=10.0)
    rule = learning_rule(objective, 0.5, curvature=form)
    theta = np.array([0.5, 0.4, 0.6, 0.2])
    state, start = rule.init(theta), objective.loss(theta)
    for _ in range(40):
        move, state = rule.update(objective.loss.grad(theta), state, theta)
        theta = theta + move
    assert objective.loss(theta) < start / 3


def test_other_curvatures_and_metrics():
    objective = ln.Objective(LOSS, gamma=1.0)
    grad = LOSS.grad(THETA)
    exact = step(learning_rule(objective), grad, THETA)
    for curvature in (H, H.tolist(), lambda theta: H, (H,), OfLoss(LOSS)):
        assert step(learning_rule(objective, curvature=curvature), grad, THETA) == pytest.approx(
            exact
        )
    inside = step(learning_rule(ln.Objective(LOSS, metric=G, gamma=1.0)), grad, THETA)
    assert step(learning_rule(objective, metric=G), grad, THETA) == pytest.approx(inside)
    open_ = ln.Objective(lambda x: (x**4).sum(), gamma=1.0)
    one = step(learning_rule(open_), 4 * THETA**3, THETA)
    assert one == pytest.approx(step(LocalRule(0.1, 12 * THETA**2, gamma=1.0), 4 * THETA**3, THETA))


def test_separate_decays_stay_elementwise():
    """So that they run at scale; the same step as by the Riccati equation."""
    h, j, m = np.array([2.0, 3.0]), [0.2, 0.9], np.array([1.0, 4.0])
    objective = ln.Objective(ln.Quadratic(h), metric=m, drift=ln.Decay(j), gamma=0.3)
    quick = learning_rule(objective, curvature="diagonal")
    assert isinstance(quick, LocalRule)
    assert isinstance(learning_rule(objective), DriftedRule)
    assert step(quick, h * THETA, THETA) == pytest.approx(
        step(learning_rule(objective), h * THETA, THETA), rel=1e-10
    )


def test_a_million_coordinates():
    """Diagonal curvature with decay, in PyTorch, without leaving it."""
    torch = pytest.importorskip("torch")
    theta = torch.linspace(-1, 1, 1_000_000)
    objective = ln.Objective(ln.TorchLoss(lambda x: (x**4).sum()), drift=ln.Decay(0.1), gamma=1.0)
    rule = learning_rule(objective, curvature=lambda x: 12 * x**2)
    move = step(rule, 4 * theta**3, theta)
    some = slice(None, None, 100_000)
    few = theta[some].double().numpy()
    expected = step(LocalRule(0.1, 12 * few**2, gamma=1.0, decay=0.1), 4 * few**3, few)
    assert move[some].numpy() == pytest.approx(expected, rel=1e-4, abs=1e-7)


# Beliefs


def test_adaptive_objectives_become_belief_rules():
    objective = adaptive(
        [0.3, 0.1],
        kappa=0.5,
        alpha=(0.0, 0.0),
        xi=(0.3, 0.1),
        sigma=(1.5, 2.0),
        eta=0.7,
        k=1.3,
        gamma=2.0,
    )
    rule = learning_rule(objective, 0.1)
    assert isinstance(rule, BeliefRule)
    assert (rule.eta, rule.k, rule.gamma, rule.kappa, rule.dt) == (0.7, 1.3, 2.0, 0.5, 0.1)
    assert 1 - rule.gain.beta1 == pytest.approx(0.3**2 / (2.0 * 1.5**2) * 0.1)
    assert 1 - rule.beta2 == pytest.approx(0.1**2 / (2.0 * 2.0**2) * 0.1)
    pulled = learning_rule(replace(objective, eta=0.2), 0.1)
    assert pulled.eta == 0.2  # settings survive a change of constants


@pytest.mark.parametrize("alpha", [(0.0, 0.0), (0.0, 0.02), (0.01, 0.02)])
def test_belief_rules_follow_the_slow_belief_equations(alpha):
    """Sec. 5 integrated as it stands, and the optimal step of its quadratic picture at the end."""
    c = {"kappa": 0.5, "xi": (0.4, 0.8), "sigma": (1.0, 2.0), "eta": 0.7, "k": 1.3, "gamma": 2.0}
    rule = learning_rule(adaptive(np.zeros(3), alpha=alpha, **c), 0.05)
    q = [c["xi"][i] ** 2 / (2.0 * c["sigma"][i] ** 2) for i in (0, 1)]
    rng = np.random.default_rng(0)
    theta, m, v = np.zeros(3), np.zeros(3), np.zeros(3)
    state = rule.init(theta)
    for _ in range(7_000):
        g = rng.normal([0.5, -0.3, 0.1], [1.0, 2.0, 0.5])
        m = m + 0.05 * (-alpha[0] * m + q[0] * (g - m))
        v = v + 0.05 * (-alpha[1] * v + q[1] * ((g - m) ** 2 - v))
        move, state = rule.update(g, state, theta)
    D = 1.0 + np.sqrt(1.0 + 0.91 * 0.5 * v)
    rho = 0.91 * 0.5 * v / D
    expected = -(1 - np.exp(-rho * 0.05)) / rho * 0.91 * m / D
    assert move == pytest.approx(expected, rel=1e-9 if alpha[0] == 0 else 0.02)


@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_a_straight_plan_with_look_ahead_is_navigator(shared):
    """The flagship at its first step, where what it takes for typical is what it sees."""
    torch = pytest.importorskip("torch")
    from lossnav.optim.torch import Navigator

    g, dt, eta, k, gamma, c = np.array([0.5, -2.0, 1.0]), 0.01, 0.7, 1.3, 0.1, 2.0
    belief = {"alpha": (0.0, 0.0), "xi": (1.0, 1.0), "sigma": (1.0, 1.0)}  # 1 - beta = dt / gamma
    typical = math.sqrt(np.mean((0.9 * g) ** 2))  # a surprise leaves 0.9 of itself
    # Of kappa: c = lr kappa typical, where lr = sqrt(eta k / kappa) dt.
    kappa = (c / (typical * dt)) ** 2 / (eta * k)
    objective = adaptive(np.zeros(3), kappa=kappa, eta=eta, k=k, gamma=gamma, **belief)
    rule = learning_rule(objective, dt, plan="straight", look_ahead=True, shared=shared)
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    Gamma = gamma / (2 * math.sqrt(eta * k * kappa))
    ours = Navigator(
        [theta], math.sqrt(eta * k / kappa) * dt / (1 + c), betas=(0.9, 0.9), gamma=Gamma, eps=0.0,
        centered=True, saturation=c, shared=shared,
    )  # fmt: skip
    theta.grad = torch.tensor(g)
    ours.step()
    np.testing.assert_allclose(theta.detach().numpy(), step(rule, g, np.zeros(3)), rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.4])
@pytest.mark.parametrize("dt", [0.01, 1.0, 20.0])
def test_without_discount_beliefs_are_filtered(alpha, dt):
    """The steady Kalman filter of the Ornstein-Uhlenbeck prior, by SciPy's Riccati solver."""
    xi, sigma = (0.3, 0.2), (1.5, 2.0)
    objective = adaptive(np.zeros(3), kappa=0.5, alpha=(alpha, alpha), xi=xi, sigma=sigma, eta=0.7)
    rule = learning_rule(objective, dt)
    for i, loss in ((0, 1 - rule.gain.beta1), (1, 1 - rule.beta2)):
        a, R = math.exp(-alpha * dt), sigma[i] ** 2 / dt
        spread = (1 - a**2) / (2 * alpha) if alpha else dt
        P = solve_discrete_are(a, 1.0, xi[i] ** 2 * spread, R).item()
        K = P / (P + R)
        assert 1 - loss == pytest.approx((1 - K) * a, rel=1e-10)
        share = rule.eta / 0.7 if i == 0 else rule.eta * rule.kappa / (0.7 * 0.5)
        assert share * loss == pytest.approx(K, rel=1e-10)
        if not alpha:
            assert loss == pytest.approx(
                2 / (1 + math.sqrt(1 + 4 * R / (xi[i] ** 2 * dt))), rel=1e-10
            )
            if dt < 0.1:  # the rate of the optimal path of m, whose curvature is 1/sigma**2
                rate = decay_rate(np.array(1 / sigma[i] ** 2), eta=xi[i] ** 2, k=1.0, gamma=0.0)
                assert loss == pytest.approx(rate * dt, rel=1e-2)


def test_without_discount_the_rule_is_that_of_navigator():
    """At every step, if kappa is stated such that z of a typical coordinate is c."""
    dt, c, shared, lr = 1.0, 4.0, 0.5, 0.01
    xi = tuple(math.sqrt(K**2 / (1 - K)) for K in (0.1, 0.001))  # sigma = dt = 1
    settings = {"plan": "straight", "look_ahead": True, "shared": shared}
    practical = BeliefRule.practical(
        lr, betas=(0.9, 0.999), eps=0.0, saturation=c, shared=shared, nesterov=True,
        second="centered",
    )  # fmt: skip
    rng, theta = np.random.default_rng(0), np.zeros(5)
    state = other = None
    scales = np.array([0.1, 0.5, 1.0, 2.0, 5.0])
    for t in range(1, 31):
        g = scales * rng.normal(0.5, 1.0, 5)
        mean = np.mean(state["v"]) / (1 - 0.999 ** (t - 1)) if state else np.mean((0.9 * g) ** 2)
        kappa = c / ((1 + c) * lr * math.sqrt(mean))
        # eta such that sqrt(eta k / kappa) dt is the longest step
        eta = kappa * ((1 + c) * lr) ** 2
        objective = adaptive(np.zeros(5), kappa=kappa, alpha=(0.0, 0.0), xi=xi, eta=eta, gamma=0.0)
        rule = learning_rule(objective, dt, **settings)
        state = state or rule.init(theta)
        other = other or practical.init(theta)
        ours, state = rule.update(g, state, theta)
        theirs, other = practical.update(g, other, theta)
        assert ours == pytest.approx(theirs, rel=1e-10)


def test_settings_of_beliefs_can_be_found_again():
    objective = adaptive([0.3], observation="gaussian", kappa=2.0, alpha=(0.1, 0.2))
    assert belief_of(objective) == Adaptive("gaussian", 2.0, (0.1, 0.2), (1.0, 1.0), (1.0, 1.0))
    assert belief_of(replace(objective, eta=3.0)) == belief_of(objective)
    assert belief_of(weight_uncertainty(LOSS)).variance == "plain"
    assert belief_of(ln.Objective(LOSS)) is None


# Refusals


@pytest.mark.parametrize(
    ("objective", "kwargs", "sentence"),
    [
        (ln.Objective(LOSS), {"dt": -0.1}, r"dt is -0\.1, but it must be greater than zero"),
        (ln.Objective(LOSS), {"dt": 0.0}, "dt is 0, but it must be greater than zero"),
        (ln.Objective(LOSS), {"dt": math.nan}, "dt is nan"),
        (ln.Objective(LOSS), {"dt": -math.inf}, "dt is -inf"),
        (ln.Objective(LOSS), {"curvature": "diag"}, "no form of the curvature named 'diag'"),
        (ln.Objective(LOSS), {"curvature": np.eye(3)}, r"shape \(3, 3\), but theta has shape \(2,\)"),
        (ln.Objective(LOSS), {"curvature": (np.eye(2), np.eye(2))}, "for 4 coordinates, but the objective has 2"),
        (ln.Objective(LOSS), {"negative": "flip"}, "no policy for negative curvature"),
        (ln.Objective(LOSS, metric=G), {"metric": G}, "metric of its own"),
        (ln.Objective(LOSS, discount=lambda t: 1 / (1 + t)), {}, "needs the discount exp"),
        (ln.Objective(LOSS, drift=ln.Rotation(1.0)), {"curvature": "lanczos"}, "cannot be \"lanczos\""),
        (weight_uncertainty(LOSS), {"metric": G}, "have the metric of Fisher"),
        (adaptive([0.3], gamma=1.0), {"plan": "curved"}, "plan"),
        (ln.Objective(LOSS), {"plan": "straight"}, "a learner who averages gradients"),
        (adaptive([0.3], gamma=1.0), {"dt": 1.0}, r"1 - beta1 .* is 1\.1.*dt <= 0\.909"),
        (adaptive([0.3], gamma=1.0, observation="gaussian"), {}, 'observation="gaussian"'),
        (adaptive([0.3], gamma=1.0), {"curvature": "diagonal"}, "leave curvature and metric out"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(objective, kwargs, sentence):
    with pytest.raises(ValueError, match=sentence):
        learning_rule(objective, **kwargs)


def test_a_loss_alone_is_not_an_objective():
    with pytest.raises(TypeError, match=r"wrap the loss in ln\.Objective"):
        learning_rule(LOSS)
    rule = learning_rule(ln.Objective(LOSS))
    with pytest.raises(ValueError, match="theta has 3 coordinates, but the objective has 2"):
        step(rule, np.ones(3), np.ones(3))
