"""Energy and Noether's quantities: symbolic rates, and a path integrated by SciPy."""

import numpy as np
import pytest
import sympy
from scipy.integrate import solve_ivp

import lossnav as ln
from lossnav._base.symbolic import ETA, GAMMA, TIME, K
from lossnav.equations import derive

SPIN = [[0, -1], [1, 0]]


def rate_along(equations, quantity):
    """d/dt by the chain rule with the solved accelerations; the library avoids solving for them."""
    moving = [*equations.coordinates, *equations.velocities]
    changes = [*equations.velocities, *equations.acceleration]
    slopes = (sympy.diff(quantity, x) * dx for x, dx in zip(moving, changes, strict=True))
    return sympy.simplify(sympy.diff(quantity, TIME) + sum(slopes))


def curved(**inputs):
    return derive(
        ln.Objective(
            ln.Function(lambda x: x[0] ** 2 * x[1] + x[1] ** 2, names=["x", "y"]),
            metric=lambda x: [[1 + x[1] ** 2, 0], [0, 2]],
            drift=lambda x: [x[1], x[0] * x[1]],
            **inputs,
        )
    )


def test_energy_formula():
    """E = (v.G v - f.G f) / (2 eta) - k L: the drift enters only through its own cost."""
    equations = curved()
    (x, y), (dx, dy) = equations.coordinates, equations.velocities
    moving = (1 + y**2) * dx**2 + 2 * dy**2
    drifting = (1 + y**2) * y**2 + 2 * (x * y) ** 2
    expected = (moving - drifting) / (2 * ETA) - K * (x**2 * y + y**2)
    assert sympy.expand(equations.energy().quantity - expected) == 0


def test_energy_grows_with_the_discount_alone():
    equations = curved()
    energy = equations.energy()
    momentum = sympy.Matrix([sympy.diff(equations.system.running, v) for v in equations.velocities])
    work = sympy.Matrix(equations.velocities).dot(momentum)
    assert sympy.simplify(energy.rate - GAMMA * work) == 0
    assert sympy.simplify(energy.rate - rate_along(equations, energy.quantity)) == 0
    assert energy.rate.subs(GAMMA, 0) == 0
    assert energy.is_conserved
    assert not curved(gamma=0.5).energy().is_conserved


def test_energy_under_any_discount():
    equations = curved(discount=lambda t: 1 / (1 + t))
    energy = equations.energy()
    assert sympy.simplify(energy.rate - rate_along(equations, energy.quantity)) == 0
    assert not energy.is_conserved


def test_energy_of_undefined_functions():
    loss = ln.Function(lambda x: sympy.Function("L")(*x), names=["x", "y"])
    equations = derive(ln.Objective(loss, drift=lambda x: [sympy.Function("f")(*x), 0]))
    (dx, dy), (f, _) = equations.velocities, equations.system.drift
    assert sympy.expand(equations.energy().rate - GAMMA / ETA * (dx * (dx - f) + dy**2)) == 0


def test_double_well_rule_of_appendix_c():
    """At gamma = 0 and level zero, v = +-sqrt(2 eta k L), with L_min subtracted from L."""
    h, q, star, low = sympy.symbols("h q theta_star L_min", positive=True)

    def loss(x):
        return h / 4 * (x[0] ** 2 - star**2) ** 2 - q / 3 * x[0] ** 3 - low

    equations = derive(ln.Objective(ln.Function(loss, names=["theta"])))
    L = loss(equations.coordinates)
    up, down = equations.energy().velocity(0)
    assert sympy.simplify(up - sympy.sqrt(2 * ETA * K * L)) == 0
    assert sympy.simplify(up + down) == 0
    level = sympy.Symbol("E", real=True)  # the paper's v^2 = 2 eta k L + 2 eta E
    for v in equations.energy().velocity(level):
        assert sympy.expand(v**2 - 2 * ETA * (K * L + level)) == 0


def test_velocity_with_metric_and_drift_solves_the_level():
    objective = ln.Objective(
        ln.Quadratic(2.0), metric=lambda x: [[1 + x[0] ** 2]], drift=ln.Decay(0.5)
    )
    equations = derive(objective)
    energy = equations.energy()
    for v in energy.velocity(0.25):
        back = energy.quantity.subs(equations.velocities[0], v)
        assert sympy.simplify(back - sympy.Rational(1, 4)) == 0


def test_velocity_needs_one_coordinate():
    with pytest.raises(ValueError, match="cannot give 2 velocities"):
        curved().energy().velocity(0)


@pytest.mark.parametrize("symmetry", [SPIN, np.array(SPIN), lambda x: [-x[1], x[0]]])
@pytest.mark.parametrize("discount", [None, lambda t: 1 / (1 + t)])
def test_rotation_of_an_isotropic_quadratic(symmetry, discount):
    equations = derive(ln.Objective(ln.Quadratic([3.0, 3.0]), discount=discount))
    found = equations.conserved(symmetry)
    (x, y), (dx, dy) = equations.coordinates, equations.velocities
    D = equations.system.discount
    assert sympy.simplify(found.quantity - D * (x * dy - y * dx) / ETA) == 0
    assert found.rate == 0
    assert found.is_conserved
    assert rate_along(equations, found.quantity) == 0


def test_translation_along_a_flat_direction():
    equations = derive(ln.Objective(ln.Quadratic([1.0, 0.0]), gamma=2.0))
    found = equations.conserved(lambda x: [0, 1])
    dy = equations.velocities[1]
    assert found.quantity == sympy.exp(-GAMMA * TIME) * dy / ETA
    assert found.is_conserved
    assert rate_along(equations, found.quantity) == 0


def test_symmetry_of_a_curved_metric():
    """Scaling (mu, v) -> (c mu, c^2 v) is an isometry of the normals, and of L = mu^2 / v."""
    loss = ln.Function(lambda x: x[0] ** 2 / x[1], names=["mu", "v"], positive=["v"])
    equations = derive(ln.Objective(loss, metric=ln.FisherGaussian(1), gamma=1.0))
    found = equations.conserved(lambda x: [x[0], 2 * x[1]])
    assert rate_along(equations, found.quantity) == 0


def test_rotation_with_a_rotating_drift():
    equations = derive(ln.Objective(ln.Quadratic([1.0, 1.0]), drift=ln.Rotation(2.0), gamma=0.3))
    assert rate_along(equations, equations.conserved(SPIN).quantity) == 0


def test_conserved_along_a_computed_path():
    """The quantities on a path that SciPy integrates from the derived accelerations."""
    loss = ln.Function(lambda x: (x[0] ** 2 + x[1] ** 2) ** 2 / 4, names=["x", "y"])
    equations = derive(ln.Objective(loss, eta=0.8, k=1.2))
    state = [*equations.coordinates, *equations.velocities]
    move = sympy.lambdify(state, [*equations.velocities, *equations.numeric()])
    start = [1.0, 0.2, -0.9, 0.5]
    path = solve_ivp(lambda t, y: move(*y), (0, 1), start, rtol=1e-11, atol=1e-12)
    for found in (equations.energy(), equations.conserved(SPIN)):
        values = sympy.lambdify([TIME, *state], found.quantity.xreplace(equations.values))
        along = values(path.t, *path.y)
        assert np.ptp(along) < 1e-9 < abs(along[0])


def test_not_a_symmetry():
    equations = derive(ln.Objective(ln.Quadratic([1.0, 2.0])))
    with pytest.raises(ValueError, match=r"rate k\*theta1\*theta2, which must be zero"):
        equations.conserved(SPIN)
    with pytest.raises(ValueError, match=r"shape \(3, 3\).*2 x 2"):
        equations.conserved(np.eye(3))
    with pytest.raises(ValueError, match=r"shape \(3,\).*2 entries"):
        equations.conserved(lambda x: [0, 0, 1])
