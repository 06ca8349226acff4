"""Each displayed Euler-Lagrange equation of the paper, from a plain Objective, in corrected form.

The paper's side of each comparison is typed in from the paper and differentiated along functions of
time; the other side is derived. Where the paper has a slip, both forms are held against the result.
"""

import pytest
import sympy
from sympy import Derivative, Matrix, Rational, Symbol

import lossnav as ln
from lossnav._base.symbolic import ETA, GAMMA, K
from lossnav.equations import derive

kappa, alpha1, alpha2, xi1, xi2, sigma1, sigma2, h, q, j = sympy.symbols(
    "kappa alpha1 alpha2 xi1 xi2 sigma1 sigma2 h q j", positive=True
)
g, theta_0 = sympy.symbols("g theta_0", real=True)


def unknown(name, symbols):
    return sympy.Function(name)(*symbols)


def generic(names=("theta1", "theta2"), **inputs):
    return derive(ln.Objective(ln.Function(lambda x: unknown("L", x), names=names), **inputs))


def generic_metric(x):
    return [[unknown("G11", x), unknown("G12", x)], [unknown("G12", x), unknown("G22", x)]]


def generic_drift(x):
    return [unknown("f1", x), unknown("f2", x)]


def parts(equations):
    """theta, its velocity, its acceleration and the gradient of L, as columns."""
    theta, v = Matrix(equations.coordinates), Matrix(equations.velocities)
    L = unknown("L", equations.coordinates)
    return theta, v, Matrix(equations.accelerations), gradient(L, theta)


def gradient(expr, theta):
    return Matrix([sympy.diff(expr, x) for x in theta])


def d_dt(column, equations):
    """The time derivative, found on functions of time rather than by a chain rule of ours."""
    t = Symbol("t")
    paths = [sympy.Function(f"path{i}")(t) for i in range(len(equations.coordinates))]
    there = dict(zip(equations.velocities, [p.diff(t) for p in paths], strict=True))
    there |= dict(zip(equations.coordinates, paths, strict=True))
    back = dict(zip([p.diff(t, 2) for p in paths], equations.accelerations, strict=True))
    back_velocity = dict(zip([p.diff(t) for p in paths], equations.velocities, strict=True))
    back_path = dict(zip(paths, equations.coordinates, strict=True))
    moved = column.subs(there, simultaneous=True).diff(t).doit()
    return moved.subs(back).subs(back_velocity).subs(back_path).doit()


def agrees(equations, left, right):
    """Whether ``left = right`` is ``mass a = forcing``."""
    a = Matrix(equations.accelerations)
    gap = equations.mass * a - equations.forcing - (Matrix(left) - Matrix(right))
    return all(sympy.simplify(sympy.expand(entry)) == 0 for entry in gap)


def test_momentum():
    """Sec. 3 and App. E: theta'' - gamma theta' = eta k grad L."""
    equations = generic(("theta1", "theta2", "theta3"))
    _, v, a, slope = parts(equations)
    assert agrees(equations, a - GAMMA * v, ETA * K * slope)
    left, right = equations.equations[0].lhs, equations.equations[0].rhs
    assert left == a[0] - GAMMA * v[0]
    assert right == ETA * K * slope[0]


def test_metric():
    """App. F holds for G(theta); Sec. 4's form only for a constant metric (erratum 10)."""
    equations = generic(metric=generic_metric)
    theta, v, a, slope = parts(equations)
    G = Matrix(generic_metric(theta))
    energy = (v.T * G * v)[0] / 2
    left = d_dt(G * v, equations) - GAMMA * G * v
    assert agrees(equations, left, ETA * K * slope + gradient(energy, theta))
    assert not agrees(equations, G * (a - GAMMA * v), ETA * K * slope)

    constant = generic(metric=[[2.0, 0.5], [0.5, 1.0]])
    _, v, a, slope = parts(constant)
    G = Matrix([[2, Rational(1, 2)], [Rational(1, 2), 1]])
    assert agrees(constant, G * (a - GAMMA * v), ETA * K * slope)
    assert constant.acceleration.equals(GAMMA * v + ETA * K * G.inv() * slope)


def test_metric_and_drift():
    """App. C's explicit form and App. G's first equation, with all inputs undefined functions."""
    equations = generic(metric=generic_metric, drift=generic_drift)
    theta, v, _, slope = parts(equations)
    G, u = Matrix(generic_metric(theta)), v - Matrix(generic_drift(theta))
    left = d_dt(G * u, equations) - GAMMA * G * u
    right = ETA * K * slope + gradient((u.T * G * u)[0] / 2, theta)
    assert agrees(equations, left, right)


def test_drift():
    """Sec. 4: theta'' - [gamma + J - J^T] theta' = [J^T - gamma] f + eta k grad L."""
    equations = generic(drift=generic_drift)
    theta, v, a, slope = parts(equations)
    f = Matrix(generic_drift(theta))
    J = f.jacobian(theta)
    left = a - (GAMMA * sympy.eye(2) + J - J.T) * v
    assert agrees(equations, left, (J.T - GAMMA * sympy.eye(2)) * f + ETA * K * slope)


def test_linear_drift_and_quadratic_loss():
    """App. G with f = J theta and a quadratic picture of the loss."""
    H = Matrix(2, 2, [Symbol("H11"), Symbol("H12"), Symbol("H12"), Symbol("H22")])
    J = Matrix(2, 2, sympy.symbols("J11 J12 J21 J22"))
    gs, start = Matrix(sympy.symbols("g1 g2")), Matrix(sympy.symbols("a1 a2"))

    def loss(x):
        d = Matrix(list(map(sympy.sympify, x))) - start
        return (gs.T * d + d.T * H * d / 2)[0]

    def drift(x):
        return list(J * Matrix(list(map(sympy.sympify, x))))

    equations = derive(ln.Objective(ln.Function(loss, names=["theta1", "theta2"]), drift=drift))
    theta, v, a, _ = parts(equations)
    left = a - (GAMMA * sympy.eye(2) + J - J.T) * v
    right = (J.T - GAMMA * sympy.eye(2)) * J * theta + ETA * K * (gs + H * (theta - start))
    assert agrees(equations, left, right)

    turn = {J[0, 0]: 0, J[1, 1]: 0, J[0, 1]: -q, J[1, 0]: q}  # App. G, rotation
    S = J.subs(turn)
    forcing = (GAMMA * sympy.eye(2) + 2 * S) * v - (S**2 + GAMMA * S) * theta
    forcing += ETA * K * (gs + H * (theta - start))
    assert (equations.forcing.subs(turn) - forcing).expand() == sympy.zeros(2, 1)


def test_weight_decay_has_gamma_plus_j():
    """Erratum 1: the drift -j theta gives j (j + gamma) theta, not j (j - gamma) theta."""
    equations = generic(drift=lambda x: [-j * x[0], -j * x[1]])
    theta, v, a, slope = parts(equations)
    assert agrees(equations, a - GAMMA * v, j * (j + GAMMA) * theta + ETA * K * slope)
    assert not agrees(equations, a - GAMMA * v, j * (j - GAMMA) * theta + ETA * K * slope)


def test_one_dimensional_quadratic():
    """App. C: theta'' - gamma theta' = eta k h (theta - theta_*)."""
    star = Symbol("theta_star", real=True)
    loss = ln.Function(lambda x: h / 2 * (x[0] - star) ** 2, names=["theta"])
    equations = derive(ln.Objective(loss))
    (x,), (v,), (a,) = equations.coordinates, equations.velocities, equations.accelerations
    assert agrees(equations, [a - GAMMA * v], [ETA * K * h * (x - star)])


def test_one_dimensional_double_well():
    """App. C: theta'' - gamma theta' = eta k h theta (theta - theta_+)(theta - theta_-)."""
    star = Symbol("theta_star", positive=True)
    loss = ln.Function(
        lambda x: h / 4 * (x[0] ** 2 - star**2) ** 2 - q / 3 * x[0] ** 3, names=["theta"]
    )
    equations = derive(ln.Objective(loss))
    (x,), (v,), (a,) = equations.coordinates, equations.velocities, equations.accelerations
    spread, middle = sympy.sqrt(star**2 + q**2 / (4 * h**2)), q / (2 * h)
    right = ETA * K * h * x * (x - middle - spread) * (x - middle + spread)
    assert agrees(equations, [a - GAMMA * v], [right])


def adaptive(observation):
    return derive(ln.belief.adaptive([0.3], theta0=[0.1], observation=observation))


def agrees_normalised(equations, index, left, right):
    gap = equations.accelerations[index] - equations.acceleration[index] - (left - right)
    return sympy.simplify(sympy.expand(gap)) == 0


@pytest.mark.parametrize("observation", ["moments", "gaussian"])
def test_adaptive_theta_follows_m(observation):
    """Erratum 9: the theta-equation holds the belief m, not the observed gradient g."""
    equations = adaptive(observation)
    theta, m, v = equations.coordinates
    left = equations.accelerations[0] - GAMMA * equations.velocities[0]
    right = ETA * K * (m + kappa * v * (theta - theta_0))
    assert agrees_normalised(equations, 0, left, right)
    assert not agrees_normalised(equations, 0, left, right.subs(m, g))


def test_adaptive_simplified_model():
    """Sec. 5's equations, with the term that its m-equation lacks (erratum 6)."""
    equations = adaptive("moments")
    (theta, m, v), (_, dm, dv) = equations.coordinates, equations.velocities
    _, ddm, ddv = equations.accelerations
    shift, excess = theta - theta_0, v - (g - m) ** 2
    left = ddm - GAMMA * (dm + alpha1 * m)
    printed = alpha1**2 * m + xi1**2 * (K * shift + (m - g) / sigma1**2)
    assert not agrees_normalised(equations, 1, left, printed)
    missing = xi1**2 * 2 * (g - m) * excess / sigma2**2
    assert agrees_normalised(equations, 1, left, printed + missing)
    left = ddv - GAMMA * (dv + alpha2 * v)
    right = alpha2**2 * v + xi2**2 * (K * kappa / 2 * shift**2 + excess / sigma2**2)
    assert agrees_normalised(equations, 2, left, right)


def test_adaptive_fuller_model():
    """App. H: the v-equation has (g - m)^2 / (2 v^2), not / (4 v^2) (erratum 7)."""
    equations = adaptive("gaussian")
    (theta, m, v), (_, dm, dv) = equations.coordinates, equations.velocities
    _, ddm, ddv = equations.accelerations
    shift = theta - theta_0
    left = ddm - GAMMA * (dm + alpha1 * m)
    assert agrees_normalised(equations, 1, left, alpha1**2 * m + xi1**2 * (K * shift + (m - g) / v))
    left = ddv - GAMMA * (dv + alpha2 * v)
    common = K * kappa / 2 * shift**2 + 1 / (2 * v)
    for factor, right in [(2, True), (4, False)]:
        bracket = common - (g - m) ** 2 / (factor * v**2)
        assert agrees_normalised(equations, 2, left, alpha2**2 * v + xi2**2 * bracket) is right
    regrouped = K * kappa / 2 * shift**2 + (v - (g - m) ** 2) / (2 * v**2)
    assert agrees_normalised(equations, 2, left, alpha2**2 * v + xi2**2 * regrouped)


def uncertain(loss):
    names = ["mu1", "mu2", "v1", "v2"]

    def with_entropy(x):
        v1, v2 = map(sympy.sympify, x[2:])
        entropy = sympy.log(2 * sympy.pi * sympy.E * v1) + sympy.log(2 * sympy.pi * sympy.E * v2)
        return loss(*map(sympy.sympify, x)) - entropy / (2 * K)

    picture = ln.Function(with_entropy, names=names, positive=names[2:])
    return derive(ln.Objective(picture, metric=ln.FisherGaussian(2)))


def test_weight_uncertainty():
    """App. I, for any L(mu, v): both displayed forms."""
    equations = uncertain(sympy.Function("L"))
    (m1, m2, v1, v2), (dm, _, dv, _) = equations.coordinates, equations.velocities
    ddm, _, ddv, _ = equations.accelerations
    L = sympy.Function("L")(m1, m2, v1, v2)
    slope_m, slope_v = Derivative(L, m1), Derivative(L, v1)
    assert agrees_normalised(equations, 0, ddm - (dv / v1 + GAMMA) * dm, ETA * K * v1 * slope_m)
    right = 2 * ETA * (K * v1**2 * slope_v - v1 / 2) + dv**2 / v1 - dm**2
    assert agrees_normalised(equations, 2, ddv - GAMMA * dv, right)

    momenta = d_dt(Matrix([dm / v1, dv / (2 * v1**2)]), equations)
    row = equations.mass * Matrix(equations.accelerations) - equations.forcing
    first = momenta[0] - GAMMA * dm / v1 - ETA * K * slope_m
    second = momenta[1] - GAMMA * dv / (2 * v1**2) - ETA * K * slope_v + ETA / (2 * v1)
    second += dm**2 / (2 * v1**2) + dv**2 / (2 * v1**3)
    assert sympy.simplify(row[0] - first) == 0
    assert sympy.simplify(row[2] - second) == 0


def test_weight_uncertainty_quadratic_loss():
    """Eq. (15) and (16) of the main text."""
    H11, H12, H22, g1, g2, a1, a2 = sympy.symbols("H11 H12 H22 g1 g2 a1 a2", real=True)

    def loss(theta):
        x, y = theta[0] - a1, theta[1] - a2
        return g1 * x + g2 * y + (H11 * x**2 + 2 * H12 * x * y + H22 * y**2) / 2

    equations = derive(ln.belief.weight_uncertainty(loss, names=["theta1", "theta2"]))
    (m1, m2, v1, _), (dm, _, dv, _) = equations.coordinates, equations.velocities
    ddm, _, ddv, _ = equations.accelerations
    pull = ETA * K * v1 * (g1 + H11 * (m1 - a1) + H12 * (m2 - a2))
    assert agrees_normalised(equations, 0, ddm - (dv / v1 + GAMMA) * dm, pull)
    right = 2 * ETA * (K / 2 * H11 * v1**2 - v1 / 2) + dv**2 / v1 - dm**2
    assert agrees_normalised(equations, 2, ddv - GAMMA * dv, right)
