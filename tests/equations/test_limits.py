"""Known learning rules as limits of the derived equations."""

import numpy as np
import pytest
import sympy

import lossnav as ln
from lossnav._base.symbolic import ETA, GAMMA, K
from lossnav.equations import derive
from lossnav.equations.limits import CURVATURE as h
from lossnav.equations.limits import DECAY as j
from lossnav.equations.limits import GRADIENT as g
from lossnav.equations.limits import STEP as dt
from lossnav.equations.limits import WIND as f0

rho = sympy.sqrt(GAMMA**2 / 4 + ETA * K * h) - GAMMA / 2


def same(a, b):
    return sympy.simplify(sympy.expand(a - b)) == 0


def rules(**inputs):
    return derive(ln.Objective(ln.Quadratic([1.0, 4.0]), **inputs)).limits()


@pytest.mark.parametrize("metric", [None, [[2.0, 0.5], [0.5, 1.0]]])
def test_three_rules(metric):
    """Eq. (6) and (7): Newton, gradient descent and ballistic, each with its minus sign."""
    found = rules(metric=metric)
    assert found.reason == ""
    assert same(found.rate, rho)
    assert same(found.update, -(1 - sympy.exp(-rho * dt)) * g / h)
    assert found.newton == -g / h
    assert same(found.continuous, -rho * g / h)
    assert found.gradient_descent == -ETA * K * g / GAMMA
    assert same(found.ballistic, -sympy.sqrt(ETA * K / h) * g)
    # Errata 2 and 3: App. E has 1 + exp(rt), which would not start at theta_0, and no minus signs.
    assert found.update.subs(dt, 0) == 0
    assert not same(found.continuous, rho * g / h)


def test_two_roots_are_twice_as_far_apart():
    """Erratum 4: 2 r_+ - gamma = 2 sqrt(gamma^2/4 + eta k h), as r_+ + r_- = gamma."""
    root = -rules().rate
    r_plus = GAMMA - root
    assert same(2 * r_plus - GAMMA, 2 * sympy.sqrt(GAMMA**2 / 4 + ETA * K * h))
    assert same(r_plus * root, -ETA * K * h)


def test_weight_decay():
    """Erratum 1: r = gamma/2 - sqrt((gamma/2 + j)^2 + eta k h), b = eta k h/(eta k h + j (j + gamma))."""
    found = rules(drift=ln.Decay(0.25))
    assert found.decay == sympy.Rational(1, 4)
    assert same(-found.rate, GAMMA / 2 - sympy.sqrt((GAMMA / 2 + j) ** 2 + ETA * K * h))
    theta0 = sympy.Symbol("theta0", real=True)
    end = (theta0 + found.newton).subs(f0, -j * theta0)
    b = ETA * K * h / (ETA * K * h + j * (j + GAMMA))
    assert same(end, b * (theta0 - g / h))
    printed = ETA * K * h / (ETA * K * h + j * (j - GAMMA))
    assert not same(end, printed * (theta0 - g / h))
    assert same(found.gradient_descent, f0 - ETA * K * g / GAMMA)


def test_decay_reduces_to_none():
    with_decay, without = rules(drift=ln.Decay(1.0)), rules()
    plain = {f0: 0, j: 0}
    for name in ("update", "newton", "continuous", "ballistic", "gradient_descent"):
        assert same(getattr(with_decay, name).subs(plain), getattr(without, name))


@pytest.mark.parametrize("gamma", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_update_against_the_riccati_equation(gamma, decay):
    """Against the value function P x^2/2 + s x, with P the stable root of its Riccati equation."""
    eta, k, curvature, slope, start, step = 0.6, 1.7, 2.3, -1.1, 0.8, 0.9
    found = rules(drift=ln.Decay(decay) if decay else None)
    J, c = -decay, -decay * start
    P = np.roots([eta, -2 * (J - gamma / 2), -k * curvature]).max()
    s = -(k * slope + P * c) / ((J - gamma) - eta * P)
    pull, push = J - eta * P, c - eta * s
    expected = push * np.expm1(pull * step) / pull
    numbers = {ETA: eta, K: k, GAMMA: gamma, h: curvature, g: slope, dt: step, f0: c, j: decay}
    assert float(found.update.subs(numbers)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("drift", "words"),
    [
        (ln.Rotation(2.0), "mixes directions"),
        (ln.Decay([1.0, 2.0]), "treats them unequally"),
        (lambda x: [x[0] ** 2, 0], "mixes directions"),
        (lambda x: [x[0] * x[1], x[0] * x[1]], "mixes directions"),
    ],
)
def test_drifts_that_do_not_decouple(drift, words):
    found = rules(drift=drift)
    assert words in found.reason
    assert found.update is found.newton is found.ballistic is None
    assert len(found.overdamped.velocities) == 2


def test_other_reasons():
    one = derive(ln.Objective(ln.Quadratic(1.0), drift=lambda x: [-(x[0] ** 3)])).limits()
    assert "not linear" in one.reason
    equations = derive(ln.Objective(ln.Quadratic(1.0), discount=lambda t: 1 / (1 + t)))
    assert "not exponential" in equations.limits().reason
    with pytest.raises(ValueError, match=r"rate is 1/\(t \+ 1\).*leave discount out"):
        equations.overdamped()
    equations = derive(ln.Objective(ln.Quadratic(1.0)))
    with pytest.raises(ValueError, match=r"no coordinate named 'theta1'. Did you mean 'theta'\?"):
        equations.overdamped(["theta1"])


def test_overdamped_is_natural_gradient_descent():
    loss = ln.Function(lambda x: sympy.Function("L")(*x), names=["x", "y"])
    equations = derive(ln.Objective(loss, metric=lambda x: [[1 + x[1] ** 2, x[0]], [x[0], 3]]))
    x = equations.coordinates
    slope = sympy.Matrix([equations.system.loss.diff(s) for s in x])
    expected = -ETA * K / GAMMA * equations.mass.inv() * slope
    for s, entry in zip(x, expected, strict=True):
        assert same(equations.overdamped().velocities[s], entry)


def test_overdamped_solves_the_equations_to_its_order():
    """Put v = phi into mass a - forcing, with a = (d phi/d theta) phi: what is left is O(1/gamma)."""
    objective = ln.Objective(
        ln.DoubleWell(),
        metric=lambda x: [[1 + x[1] ** 2, x[0] / 3], [x[0] / 3, 2]],
        drift=lambda x: [x[1], x[0] * x[1]],
    )
    equations = derive(objective)
    phi = sympy.Matrix([equations.overdamped().velocities[x] for x in equations.coordinates])
    moving = dict(zip(equations.velocities, phi, strict=True))
    a = phi.jacobian(list(equations.coordinates)) * phi
    gap = equations.mass * a - equations.forcing.xreplace(moving)
    point = dict(
        zip(equations.coordinates, (sympy.Rational(3, 7), sympy.Rational(-2, 5)), strict=True)
    )
    point |= {ETA: sympy.Rational(2, 3), K: sympy.Rational(5, 4)}
    near, far = (gap.subs(point).subs(GAMMA, size) for size in (10**6, 10**7))
    for one, other in zip(near, far, strict=True):
        assert 0 < abs(one) < 1e-4
        assert float(one / other) == pytest.approx(10, rel=1e-3)


def test_overdamped_is_the_path_at_large_gamma():
    """The stable solution of a quadratic problem starts along the slow manifold, to O(1/gamma^2)."""

    def gap(gamma):
        objective = ln.Objective(ln.Quadratic([1.0, 3.0]), drift=ln.Rotation(0.5), gamma=gamma)
        equations = derive(objective)
        x = dict(zip(equations.coordinates, (1.0, -2.0), strict=True))
        slow = [
            v.xreplace(equations.values).subs(x) for v in equations.overdamped().velocities.values()
        ]
        state = [*equations.coordinates, *equations.velocities]
        move = sympy.lambdify(state, [*equations.velocities, *equations.numeric()])
        jacobian = np.array([move(*row) for row in np.eye(4)]).T
        values, vectors = np.linalg.eig(jacobian)
        stable = vectors[:, np.argsort(values.real)[:2]]
        exact = (stable[2:] @ np.linalg.solve(stable[:2], [1.0, -2.0])).real
        return np.abs(exact - np.array(slow, float)).max()

    assert np.log2(gap(100.0) / gap(200.0)) == pytest.approx(2, abs=0.1)


def test_slow_beliefs_with_ballistic_parameters():
    """Sec. 5's reduced equations (with the term of erratum 6), from the full ones."""
    kappa, a1, a2, x1, x2, s1, s2 = sympy.symbols(
        "kappa alpha1 alpha2 xi1 xi2 sigma1 sigma2", positive=True
    )
    seen, theta0 = sympy.symbols("g theta_0", real=True)
    equations = derive(ln.belief.adaptive([0.3]))
    theta, m, v = equations.coordinates
    found = equations.overdamped(["m", "v"])
    shift, excess = theta - theta0, v - (seen - m) ** 2
    missing = 2 * (seen - m) * excess / s2**2
    pull = K * shift + (m - seen) / s1**2 + missing
    assert same(found.velocities[m], -a1 * m - x1**2 / GAMMA * pull)
    pull = K * kappa / 2 * shift**2 + excess / s2**2
    assert same(found.velocities[v], -a2 * v - x2**2 / GAMMA * pull)
    assert list(found.accelerations) == [theta]
    ballistic = found.accelerations[theta] - GAMMA * equations.velocities[0]
    assert same(ballistic, ETA * K * (m + kappa * v * shift))


def test_overdamped_weight_uncertainty():
    """App. I: mu' = -(eta k v/gamma)[g + H (mu - mu_0)], v' = (eta/gamma)(v - k H v^2)."""
    slope, bend, start = sympy.symbols("g H mu_0", real=True)

    def loss(theta):
        return slope * (theta[0] - start) + bend / 2 * (theta[0] - start) ** 2

    equations = derive(ln.belief.weight_uncertainty(loss, names=["theta"]))
    mu, v = equations.coordinates
    found = equations.overdamped().velocities
    assert same(found[mu], -ETA * K * v / GAMMA * (slope + bend * (mu - start)))
    assert same(found[v], ETA / GAMMA * (v - K * bend * v**2))
    assert sympy.solve(found[v], v) == [1 / (K * bend)]
    # With inertia left to mu, the moving mean adds to the variance.
    partly = equations.overdamped(["v"])
    dmu = equations.velocities[0]
    assert same(partly.velocities[v], ETA / GAMMA * (v - K * bend * v**2) + dmu**2 / GAMMA)
    assert list(partly.accelerations) == [mu]


def test_coupled_coordinates_cannot_be_parted():
    equations = derive(ln.Objective(ln.Quadratic([1.0, 1.0]), metric=[[2.0, 1.0], [1.0, 2.0]]))
    with pytest.raises(ValueError, match=r"couples \['theta1'\] to the other"):
        equations.overdamped(["theta1"])
