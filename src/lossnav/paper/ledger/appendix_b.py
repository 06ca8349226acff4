"""Checks of App. B: the experiments."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.comparison import Evidence, approached, check, corrected, defined, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import integrand_of, local, random, same_cost
from lossnav.problem.landscapes import DoubleWell
from lossnav.problem.objective import Objective
from lossnav.rules import BeliefRule
from lossnav.rules.gains import Betas
from lossnav.solvers import Ritz, solve
from lossnav.solvers.discrete import Discrete
from lossnav.solvers.trajectory import Trajectory

START, MINIMUM, T = (-0.6, 0.55), (1.0574537707386316, 0.0), 4.0
ETA, K, GAMMA = 0.8, 1.2, 0.1
OBJECTIVE = Objective(DoubleWell(), eta=ETA, k=K, gamma=GAMMA)


def wells(x: Any, y: Any, a: float = 1, b: float = 1, c: float = 1, d: float = -0.5) -> Any:
    """The displayed loss, at two numbers."""
    return Form.of("B.2").side(0, 1, theta1=x, theta2=y, a=a, b=b, c=c, d=d)


@check("B.1")
def double_well_objective(form: Form) -> Evidence:
    """Both displayed integrals are the library's J of Fig. 1's problem, on a random path."""
    eta, k, gamma = 0.7, 1.4, 0.3
    objective = Objective(DoubleWell(), eta=eta, k=k, gamma=gamma)
    constants = {"eta": eta, "k": k, "gamma": gamma}
    by_norm = integrand_of(form, 1, loss=lambda x: wells(*x), **constants)

    def by_coordinate(t: float, x: FloatArray, v: FloatArray) -> Any:
        letters = {"theta1": x[0], "theta2": x[1], "dtheta1": v[0], "dtheta2": v[1], "Loss": wells}
        return form.side(0, 2, t=t, **constants, **letters)

    return same_cost("B.1", objective, by_norm).also(same_cost("B.1", objective, by_coordinate))


@check("B.2")
def double_well(form: Form) -> Evidence:
    """The displayed loss is the library's DoubleWell, at random points with random constants."""
    rng = random("B.2")
    constants, points = rng.normal(size=4), rng.normal(size=(20, 2))
    letters = dict(zip("abcd", constants, strict=True))
    shown = [form.side(0, 1, theta1=x, theta2=y, **letters) for x, y in points]
    return defined((DoubleWell(*constants)(points), shown))


def optimal() -> Trajectory:
    """The path of Fig. 1."""
    return solve(OBJECTIVE, START, horizon=T, end=MINIMUM)


def at_times(theta: FloatArray, n: int) -> dict[str, Any]:
    """Values for the letters of a display about the points of a path with n steps up to T."""
    places = {"theta1": lambda j: theta[int(j), 0], "theta2": lambda j: theta[int(j), 1]}
    return {"eta": ETA, "k": K, "Dt": T / n, "Loss": wells, **places}


@check("B.3")
def discretised(form: Form) -> Evidence:
    """The least sum against the least J: order 1 over 0..N-1; over 1..N no term has the start."""
    exact, counts = optimal().J, [50, 100, 200, 400]

    def total(version: Form, theta: FloatArray, n: int) -> tuple[Any, int]:
        """The sum, and its first index. The path rests beyond its last point."""
        begins = []

        def add(at: Any, low: int, high: int) -> Any:
            begins.append(low)
            times = [{"t_k": j, "t_k+1": j + 1} for j in range(low, high + 1)]
            return sum(at(gamma=GAMMA * T / n, **own) for own in times)

        letters = at_times(np.vstack([theta, theta[-1]]), n)
        return version.side(0, 1, **letters, N=n, sum=add), begins[0]

    def shown(version: Form) -> Evidence:
        costs, pairs = [], []
        for n in counts:
            plan = Discrete(OBJECTIVE, n, T / n)
            best, least = plan.minimise(START, MINIMUM)
            cost, first = total(version, best, n)
            pairs.append((least, cost))
            if first > 0:  # the first step is free: go to the minimum at once and stay
                cost, _ = total(version, np.vstack([START, np.tile(MINIMUM, (n, 1))]), n)
            costs.append(cost)
        limit = approached([T / n for n in counts], [abs(J - exact) for J in costs], order=1)
        return limit.also(numeric(*pairs))

    return corrected(form, shown)


@check("B.4")
def kinetic_energy(form: Form) -> Evidence:
    """The displayed cost of forward differences is the library's; its error is of order 1."""
    path, counts = optimal(), (80, 160, 320)
    paths = [path.at(T / n * np.arange(n + 1)) for n in counts]

    def shown(theta: FloatArray, n: int) -> Any:
        return form.side(0, 1, **at_times(theta, len(theta) - 1), **{"t_k": n, "t_k+1": n + 1})

    ours = OBJECTIVE.kinetic(paths[0][:-1], np.diff(paths[0], axis=0) / (T / 80))
    true = path.velocity0 @ path.velocity0 / (2 * ETA)
    gaps = [abs(shown(theta, 0) - true) for theta in paths]
    same = defined((ours, [shown(paths[0], n) for n in range(80)]))
    return same.also(approached([T / n for n in counts], gaps, order=1))


@check("B.5")
def potential_energy(form: Form) -> Evidence:
    """The displayed k L along the optimal path is the library's potential, also in its solution."""
    path = optimal()
    theta = path.at(T / 80 * np.arange(81))

    def shown(theta: FloatArray) -> list[Any]:
        return [form.side(0, 1, **at_times(theta, 1), t_k=n) for n in range(len(theta))]

    return defined((OBJECTIVE.potential(theta), shown(theta)), (path.potential, shown(path.theta)))


@check("B.6")
def ballistic_direction(form: Form) -> Evidence:
    """The initial direction of the path of least J at gamma = 0, against the displayed one."""
    p = local("B.6", gamma=0.0)
    ours = solve(p.objective(), p.theta0, method=Ritz()).velocity0
    printed = form.side(0, 1, **p.letters)
    return numeric((ours / linalg.norm(ours), printed / linalg.norm(printed)))


@check("B.7")
def ballistic_updates(form: Form) -> Evidence:
    """Fifty displayed updates are those of the library's rule without discount and momentum."""
    eta, beta2 = 0.02, 0.95
    rng = random("B.7")
    rule = BeliefRule(dt=eta, gain=Betas(0.0), beta2=beta2, diffuse=False, finite=False)
    theta = rng.normal(size=3)
    state, v = rule.init(theta), np.zeros(3)
    ours, printed = [], []
    for g in rng.normal(size=(50, 3)):
        step, state = rule.update(g, state, theta)
        letters = {"g": g, "beta2": beta2, "eta": eta, "dim": 3}
        v = form.side(0, 1, v=v, **letters)
        ours.append(step)
        printed.append(form.side(1, 1, v=v, **letters))
    return defined((np.array(ours), np.array(printed)))
