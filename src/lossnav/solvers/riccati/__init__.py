"""Riccati: the exact path where one exists (quadratic loss, constant metric, affine drift)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective, QuadraticForm
from lossnav.solvers.method import Method, PathProblem
from lossnav.solvers.riccati.feedback import EPS, Feedback, feedback, scale
from lossnav.solvers.riccati.two_point import TwoPoint, UnboundedError
from lossnav.solvers.trajectory import Status, Trajectory, within


@dataclass(frozen=True)
class Riccati(Method):
    r"""Exact solution of quadratic problems (paper Eqs. 6-10, App. E-G, in corrected form).

    Infinite horizon: the stable Riccati root. Finite horizon, with a free or a fixed end: exact
    doubling of short stretches. The Euler-Lagrange equations are never integrated forwards.

    Args:
        points: Number of times to report; `Trajectory.at` evaluates the path at any other.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> objective = Objective(Quadratic([4.0, 1.0]))
        >>> Riccati().feedback(objective).K  # minus the square root of H
        array([[-2.,  0.],
               [ 0., -1.]])
    """

    points: int = 201

    def feedback(self, objective: Objective) -> Feedback:
        """The optimal policy on an infinite horizon: velocity K x + d and value."""
        return feedback(_form(objective))

    def update(self, objective: Objective, theta: FloatArray, dt: float) -> FloatArray:
        r"""The exact optimal update :math:`\theta_{\Delta t}-\theta_0`; ``dt`` may be infinite.

        Examples:
            >>> from lossnav.problem.landscapes import Quadratic
            >>> Riccati().update(Objective(Quadratic(2.0)), np.array([3.0]), math.inf)  # Newton
            array([-3.])
        """
        policy = self.feedback(objective)
        if math.isinf(dt):
            if policy.end is None:
                raise ValueError("The optimal path does not settle, so dt must be finite.")
            return policy.end - theta
        return policy.displacement(theta, np.asarray(dt))

    def solve(self, problem: PathProblem) -> Trajectory:
        return self._finite(problem) if problem.is_finite else self._infinite(problem)

    def _infinite(self, problem: PathProblem) -> Trajectory:
        theta0, policy = problem.theta0, self.feedback(problem.objective)
        t = _display_time(policy.K) * np.linspace(0, 1, self.points) ** 2
        theta = theta0 + policy.displacement(theta0, t)
        velocity = policy.velocity(theta)
        # The terms of the velocity may cancel.
        terms = linalg.norm(policy.K, 2) * linalg.norm(theta0 - policy.center)
        growth = terms / max(linalg.norm(velocity[0]), 1e-300) + len(theta0)
        return Trajectory.along(
            problem.objective,
            t,
            theta,
            velocity,
            J=float(policy.value(theta0)),
            rest=policy.rest,
            status=Status.EXACT,
            error=policy.error + 10 * EPS * float(growth),
            end=_end(policy, theta0, t[-1]),
            interpolate=lambda times: theta0 + policy.displacement(theta0, times),
        )

    def _finite(self, problem: PathProblem) -> Trajectory:
        horizon, form = problem.horizon, _form(problem.objective)
        scaled = scale(form)
        inverse = linalg.inv(scaled.S)
        z0 = inverse @ (problem.theta0 - form.center)
        try:
            between = TwoPoint(scaled, horizon)
            if problem.end is None:
                z1 = between.free_end(z0)
            else:
                z1 = math.exp(-form.gamma * horizon / 2) * (inverse @ (problem.end - form.center))
        except UnboundedError as unbounded:
            low = float(linalg.eigh(form.H, form.G, eigvals_only=True)[0])
            raise ValueError(
                f"J is unbounded below within time {unbounded}: curvature {low:.6g} rewards "
                f"endless motion over a horizon of {horizon:.6g}. Use a shorter horizon or a "
                "larger gamma."
            ) from None

        def states(times: FloatArray) -> tuple[FloatArray, FloatArray]:
            y, velocity = (
                part.reshape(*times.shape, -1) for part in between.states(z0, z1, times.ravel())
            )
            return form.center + y @ scaled.S.T, velocity @ scaled.S.T

        t = np.linspace(0, horizon, self.points)
        theta, velocity = states(t)
        size = linalg.norm(between.whole.A, 2) * linalg.norm(z0) + linalg.norm(between.whole.a)
        error = 100 * EPS * len(z0) * (1 + size / max(linalg.norm(inverse @ velocity[0]), 1e-300))
        J = between.cost(z0, z1)
        return Trajectory.along(
            problem.objective,
            t,
            theta,
            velocity,
            J=J,
            status=Status.EXACT,
            error=float(max(error, between.rounding(z0, z1) / max(abs(J), 1e-300))),
            end=theta[-1],
            interpolate=within(horizon, lambda times: states(times)[0]),
        )


def _form(objective: Objective) -> QuadraticForm:
    form = objective.quadratic()
    if form is None:
        raise ValueError(
            "Riccati solves a quadratic loss with a constant metric, an affine drift, the discount "
            "exp(-gamma t) and no terminal cost; this objective has another shape: use Ritz."
        )
    return form


def _end(policy: Feedback, theta0: FloatArray, time: float) -> FloatArray | None:
    """The point where the path comes to rest, if it does; flat directions do not move."""
    rates = linalg.eigvals(policy.K)
    if policy.end is not None or rates.real.max() > 1e-12 * np.abs(rates).max():
        return policy.end
    far = theta0 + policy.displacement(theta0, np.asarray(100 * time))
    speed = linalg.norm(policy.velocity(far))
    return far if speed <= 1e-9 * max(linalg.norm(policy.velocity(theta0)), 1e-300) else None


def _display_time(K: FloatArray) -> float:
    """A time that shows the slowest decay without overflow of the fastest growth."""
    rates = linalg.eigvals(K).real
    moving = rates[np.abs(rates) > 1e-9 * max(float(np.abs(rates).max()), 1e-300)]
    growing, decaying = moving[moving > 0], -moving[moving < 0]
    if len(growing):
        return float(10.0 / growing.max())
    return float(10.0 / decaying.min()) if len(decaying) else 1.0
