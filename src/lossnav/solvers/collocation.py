r"""Collocation: the derived Euler-Lagrange equations as a boundary-value problem (App. C, D).

The unknowns are the point and its velocity, :math:`\dot\theta = v,\ G\dot v = F(\theta, v, t)`,
with G and F from `lossnav.derive`, solved with SciPy's ``solve_bvp``. The condition at the far end
is one of three: a given point; a free end, where :math:`\partial\ell/\partial v = 0`, so
:math:`v = f` (with a terminal cost, dl/dv is minus its slope); or, on an infinite horizon, the
stable manifold of the point approached, which near that point is the optimal policy of the
quadratic problem there.

This is an independent check of the solvers that minimise J: it uses the equations and not J.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.banded import solve_elements
from lossnav.solvers.discrete import Discrete
from lossnav.solvers.method import Method, PathProblem
from lossnav.solvers.riccati.feedback import Feedback, feedback
from lossnav.solvers.ritz.ends import quadratic_around, rest_point
from lossnav.solvers.trajectory import Status, Trajectory, brief, path_cost, within


@dataclass(frozen=True)
class Collocation(Method):
    """Solve the Euler-Lagrange equations with SciPy's ``solve_bvp``; the loss needs a formula.

    On an infinite horizon the path is followed until it is close to ``end``, or to the minimum that
    descent from the start reaches; other ends may cost less.

    The status is that of ``solve_bvp``. ``error`` compares the initial velocity with that on every
    second node of the final mesh, divided by 15 as the method is of fourth order; it is at least
    the largest residual if that exceeds ``tol``.

    Args:
        nodes: Nodes of the first mesh.
        max_nodes: The most nodes to refine to.

    Examples:
        >>> import lossnav as ln
        >>> objective = ln.Objective(ln.Quadratic([1.0, 4.0]), gamma=1.0)
        >>> path = ln.solve(objective, [1.0, 1.0], method=Collocation(), tol=1e-8)
        >>> exact = ln.solve(objective, [1.0, 1.0])
        >>> bool(np.abs(path.velocity0 - exact.velocity0).max() < 1e-8)
        True
    """

    nodes: int = 101
    max_nodes: int = 20_000

    def __post_init__(self) -> None:
        if not 3 <= self.nodes <= self.max_nodes:
            raise ValueError(
                f"nodes is {self.nodes} and max_nodes {self.max_nodes}: there must be three or "
                "more nodes, and no more than max_nodes."
            )

    def solve(self, problem: PathProblem) -> Trajectory:
        bvp = _BoundaryProblem.of(problem)
        best: Any = None
        status = Status.ITERATIONS
        try:
            for guess in bvp.guesses(self.nodes):
                solution = bvp.solve(guess, problem.tol, self.max_nodes)
                best = solution if best is None or _rank(solution) < _rank(best) else best
                if best.success and bvp.is_minimum(best):
                    status = Status.CONVERGED
                    break
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        if best is None:
            raise KeyboardInterrupt
        if not np.isfinite(best.y).all():
            status = Status.NOT_FINITE
        elif best.success and status is Status.ITERATIONS:
            raise ValueError(
                "The path obeys the Euler-Lagrange equations but is no minimum of J: a nearby path "
                "costs less. Use the method Ritz or Direct, or another end."
            )
        return bvp.trajectory(best, status, problem.tol)


def _rank(solution: Any) -> tuple[bool, float]:
    """Solutions before failures, and failures by their residual."""
    residual = float(solution.rms_residuals.max())
    return not solution.success, residual if math.isfinite(residual) else math.inf


class _System:
    """The derived equations as a flow of the states (theta, v)."""

    def __init__(self, objective: Objective) -> None:
        from lossnav._base.jets import Jet
        from lossnav._base.symbolic import TIME
        from lossnav.equations import derive

        equations = derive(objective)
        self.dim = len(equations.coordinates)
        symbols = [*equations.coordinates, *equations.velocities, TIME]
        values = {letter.name: float(value) for letter, value in equations.values.items()}
        self._mass, self._force = (
            Jet(np.array(entries, dtype=object), symbols, values, "equation of motion")
            for entries in (equations.mass.tolist(), list(equations.forcing))
        )

    def flow(self, t: FloatArray, y: FloatArray) -> FloatArray:
        """Rates of change ``(2D, N)`` of the states ``y`` ``(2D, N)``."""
        at = np.vstack([y, t]).T
        mass, force = self._mass(at)[0], self._force(at)[0]
        return np.vstack([y[self.dim :], np.linalg.solve(mass, force[..., None])[..., 0].T])

    def slopes(self, t: FloatArray, y: FloatArray) -> FloatArray:
        """Derivatives ``(2D, 2D, N)`` of the flow."""
        dim, at = self.dim, np.vstack([y, t]).T
        mass, turn = self._mass(at, 1)
        force, bend = self._force(at, 1)
        a = np.linalg.solve(mass, force[..., None])[..., 0]
        right = bend - np.einsum("nijs,nj->nis", turn, a)
        result = np.zeros((2 * dim, 2 * dim, len(t)))
        result[:dim, dim:] = np.eye(dim)[..., None]
        result[dim:] = np.moveaxis(np.linalg.solve(mass, right)[..., : 2 * dim], 0, -1)
        return result


def _end_policy(objective: Objective, theta0: FloatArray, end: FloatArray | None) -> Feedback:
    """The optimal policy near the point of rest at ``end``, or near where descent leads."""
    from scipy.optimize import minimize

    if objective.discount is not None:
        raise ValueError(
            "With a general discount the equations change with time, so no point of rest is "
            "approached: pass horizon=T."
        )
    near, loss = end, objective.steady("an infinite horizon").loss
    if near is None:
        reach = 0.1 * (1 + float(np.abs(theta0).max()))  # short steps stay in the valley
        options = {"gtol": 1e-8, "initial_trust_radius": reach / 2, "max_trust_radius": reach}
        near = minimize(
            loss, theta0, jac=loss.grad, hess=loss.hess, method="trust-exact", options=options
        ).x
    rest = rest_point(objective, near)
    if end is not None and linalg.norm(rest - end) > 1e-2 * (1 + linalg.norm(end)):
        raise ValueError(
            f"A path cannot come to rest at end = {brief(end)}; the nearest point of rest is "
            f"{brief(rest)}."
        )
    policy = feedback(quadratic_around(objective, rest))
    rates = linalg.eigvals(policy.K).real
    if rates.max() >= -1e-9 * np.abs(rates).max():
        raise ValueError(
            f"The path does not settle at {brief(rest)} (rate {rates.max():.3g}), so it cannot "
            "be followed for ever: pass horizon=T."
        )
    return policy


@dataclass(frozen=True)
class _BoundaryProblem:
    """One boundary-value problem: start, horizon and the condition at the far end."""

    objective: Objective
    system: _System
    theta0: FloatArray
    horizon: float
    end: FloatArray | None
    policy: Feedback | None = None

    @classmethod
    def of(cls, problem: PathProblem) -> _BoundaryProblem:
        objective, theta0 = problem.objective, problem.theta0
        system = _System(objective)
        if math.isfinite(problem.horizon):
            return cls(objective, system, theta0, problem.horizon, problem.end)
        policy = _end_policy(objective, theta0, problem.end)
        slow = float(-linalg.eigvals(policy.K).real.max())
        # The policy is wrong to second order in the remaining distance, and so is the path.
        horizon = (math.log(1 / problem.tol) / 2 + 3) / slow
        return cls(objective, system, theta0, horizon, policy.end, policy)

    @property
    def span(self) -> float:
        """The part of the horizon where the discount is above rounding, exp(-30)."""
        gamma = self.objective.gamma
        return min(self.horizon, 30 / gamma) if gamma else self.horizon

    def guesses(self, nodes: int) -> Any:
        """First paths to try: the policy's, and the minimum of a sum over steps."""
        t = np.linspace(0, self.horizon, nodes)
        if self.policy is not None:
            t = self.horizon * np.linspace(0, 1, nodes) ** 2
            theta = self.theta0 + self.policy.displacement(self.theta0, t)
            yield t, np.vstack([theta.T, self.policy.velocity(theta).T])
        # Steps that the discount hides would not matter to the sum: they are left to the policy.
        span = self.horizon if self.policy is None else self.span
        plan = Discrete(self.objective, nodes - 1, span / (nodes - 1), "midpoint")
        points, _ = plan.minimise(self.theta0, self.end)
        theta = np.stack([np.interp(t, plan.t, x) for x in points.T])
        yield t, np.vstack([theta, np.gradient(theta, t, axis=1)])
        if self.policy is not None and self.horizon > 2 / -linalg.eigvals(self.policy.K).real.max():
            # A shorter horizon is easier; the policy continues its path.
            short = replace(self, horizon=self.horizon / 2)
            for guess in short.guesses(nodes):
                half = short.solve(guess, 1e-6, 20 * nodes)
                if half.success:
                    t = np.append(half.x, np.linspace(short.horizon, self.horizon, nodes)[1:])
                    last = half.y[: self.system.dim, -1]
                    later = last + self.policy.displacement(last, t[len(half.x) :] - short.horizon)
                    more = np.vstack([later.T, self.policy.velocity(later).T])
                    yield t, np.hstack([half.y, more])
                    break

    def solve(self, guess: tuple[FloatArray, FloatArray], tol: float, max_nodes: int) -> Any:
        from scipy.integrate import solve_bvp

        system, dim = self.system, self.system.dim

        def ends(first: FloatArray, last: FloatArray) -> FloatArray:
            return np.concatenate([first[:dim] - self.theta0, self._end_condition(last)[0]])

        def end_slopes(first: FloatArray, last: FloatArray) -> tuple[FloatArray, FloatArray]:
            near, far = np.zeros((2, 2 * dim, 2 * dim))
            near[:dim, :dim], far[dim:] = np.eye(dim), np.hstack(self._end_condition(last)[1:])
            return near, far

        jacobians = {"fun_jac": system.slopes, "bc_jac": end_slopes}
        with np.errstate(all="ignore"):
            return solve_bvp(
                system.flow, ends, *guess, **jacobians, tol=max(tol, 1e-12), max_nodes=max_nodes
            )

    def _end_condition(self, last: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The condition at the far end, and its slopes in the point and in the velocity."""
        (theta, v), objective = np.split(last, 2), self.objective
        unit, zero = np.eye(len(v)), np.zeros((len(v), len(v)))
        if self.policy is not None:
            return v - self.policy.velocity(theta), -self.policy.K, unit
        if self.end is not None:
            return theta - self.end, unit, zero
        slope = zero if objective.drift is None else -objective.drift.jet(theta, 1)[1]
        excess = v - objective.drift_at(theta)
        if objective.terminal is None:
            return excess, slope, unit
        _, slope_end, bend = objective.terminal.jet(theta)
        G = objective.metric_at(theta) / objective.eta  # d l/dv + d Phi/d theta = 0
        turn = 0.0
        if objective.metric is not None:
            turn = np.einsum("ija,j->ia", objective.metric.jet(theta, 1)[1], excess)
        return G @ excess + slope_end, G @ slope + turn / objective.eta + bend, G

    def is_minimum(self, solution: Any) -> bool:
        """Whether J is convex around the path, on a fine grid of times."""
        if not np.isfinite(solution.y).all():
            return False
        steps, dim = 400, self.system.dim
        plan = Discrete(self.objective, steps, self.span / steps, "midpoint")
        blocks = plan.jet(solution.sol(plan.t)[:dim].T, 2)[2]
        scale = 1 / np.sqrt(self.objective.discount_at(plan.t))
        pairs = np.repeat(np.stack([scale[:-1], scale[1:]], 1), dim, axis=1)
        blocks = blocks * pairs[:, :, None] * pairs[:, None, :]
        fixed = self.policy is not None or self.end is not None
        try:
            solve_elements(blocks, np.ones((steps + 1, dim)), slice(1, -1 if fixed else None))
        except linalg.LinAlgError:
            return False
        return True

    def trajectory(self, solution: Any, status: Status, tol: float) -> Trajectory:
        objective, dim, policy = self.objective, self.system.dim, self.policy
        theta, velocity = solution.y[:dim].T, solution.y[dim:].T
        last = theta[-1]
        later = None if policy is None else lambda t: last + policy.displacement(last, t)
        rest = 0.0 if policy is None else policy.rest
        J = path_cost(
            objective, solution.x, lambda t: tuple(np.split(solution.sol(t).T, 2, axis=1)), rest, 5
        )
        if policy is not None:
            J += float(objective.discount_at(self.horizon) * policy.value(last))
        return Trajectory.along(
            self.objective,
            solution.x,
            theta,
            velocity,
            J=J + float(sum(objective.terminal_jet(last, self.horizon, 0))),
            status=status,
            error=self._error(solution, tol),
            end=last if policy is None else policy.end,
            rest=rest,
            interpolate=within(
                self.horizon, lambda t: np.moveaxis(solution.sol(t)[:dim], 0, -1), later
            ),
        )

    def _error(self, solution: Any, tol: float) -> float:
        dim = self.system.dim
        v = solution.y[dim:, 0]
        keep = np.unique(np.append(np.arange(0, len(solution.x), 2), len(solution.x) - 1))
        if len(keep) < 3 or not np.isfinite(solution.y).all():
            return math.inf
        coarse = self.solve((solution.x[keep], solution.y[:, keep]), tol, len(keep))
        gap = linalg.norm(coarse.y[dim:, 0] - v) / 15
        if self.policy is not None:  # the policy at the far end is a linear approximation
            gap += tol * linalg.norm(v)
        residual = float(solution.rms_residuals.max())
        size = max(linalg.norm(v), 1e-12 * float(np.abs(solution.y[dim:]).max()), 1e-300)
        error = max(gap / size, residual if residual > tol else 0.0, 1e-15)
        return float(error) if math.isfinite(error) else math.inf
