"""Riccati: the exact path where one exists (quadratic loss, constant metric, affine drift)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective, QuadraticForm
from lossnav.solvers.base import Method
from lossnav.solvers.riccati.feedback import Feedback, feedback, scale
from lossnav.solvers.riccati.two_point import TwoPoint, UnboundedError
from lossnav.solvers.trajectory import Status, Trajectory

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Riccati(Method):
    r"""Exact solution of quadratic problems (paper Eqs. 6-10, App. E-G, in corrected form).

    Infinite horizon: the stable Riccati root. Finite horizon, with a free or a fixed end: exact
    doubling of short stretches. The Euler-Lagrange equations are never integrated forwards.

    Args:
        points: How many times to report; `Trajectory.at` gives any other.

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
        r"""The exact optimal update :math:`\theta_{\Delta t}-\theta_0` over any ``dt``, even infinite.

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

    def solve(
        self,
        objective: Objective,
        theta0: FloatArray,
        *,
        horizon: float,
        end: FloatArray | None,
        tol: float,
    ) -> Trajectory:
        form = _form(objective)
        if math.isfinite(horizon):
            return self._finite(objective, form, theta0, horizon, end)
        if end is not None:
            raise ValueError(
                "A fixed end needs a finite horizon: pass horizon=T, or leave end out."
            )
        return self._infinite(objective, form, theta0)

    def _infinite(
        self, objective: Objective, form: QuadraticForm, theta0: FloatArray
    ) -> Trajectory:
        policy = feedback(form)
        t = _display_time(policy.K) * np.linspace(0, 1, self.points) ** 2
        theta = theta0 + policy.displacement(theta0, t)
        velocity = policy.velocity(theta)
        error = policy.error + 10 * _EPS * _growth(
            policy.P, policy.K, theta0 - form.center, velocity[0]
        )
        return Trajectory(
            t=t,
            theta=theta,
            velocity0=velocity[0],
            J=float(policy.value(theta0)),
            rest=policy.rest,
            kinetic=objective.kinetic(theta, velocity),
            potential=objective.potential(theta),
            status=Status.EXACT,
            error=error,
            end=_end(policy, theta0, t[-1]),
            interpolate=lambda times: theta0 + policy.displacement(theta0, times),
            names=objective.names or (),
        )

    def _finite(
        self,
        objective: Objective,
        form: QuadraticForm,
        theta0: FloatArray,
        horizon: float,
        end: FloatArray | None,
    ) -> Trajectory:
        problem = scale(form)
        inverse = linalg.inv(problem.S)
        z0 = inverse @ (theta0 - form.center)
        try:
            between = TwoPoint(problem, horizon)
            if end is None:
                z1 = between.free_end(z0)
            else:
                z1 = math.exp(-problem.gamma * horizon / 2) * (inverse @ (end - form.center))
        except UnboundedError as unbounded:
            low = float(linalg.eigh(form.H, form.G, eigvals_only=True)[0])
            raise ValueError(
                f"J is unbounded below within time {unbounded}: curvature {low:.6g} rewards endless "
                f"motion over a horizon of {horizon:.6g}. Use a shorter horizon or a larger gamma."
            ) from None

        def states(times: FloatArray) -> tuple[FloatArray, FloatArray]:
            if (times > horizon * (1 + 1e-12)).any():
                raise ValueError(
                    f"The path ends at the horizon {horizon:.6g}; t is {times.max():.6g}."
                )
            y, velocity = (
                part.reshape(*times.shape, -1) for part in between.states(z0, z1, times.ravel())
            )
            return form.center + y @ problem.S.T, velocity @ problem.S.T

        t = np.linspace(0, horizon, self.points)
        theta, velocity = states(t)
        size = linalg.norm(between.whole.A, 2) * linalg.norm(z0) + linalg.norm(between.whole.a)
        error = 100 * _EPS * len(z0) * (1 + size / max(linalg.norm(inverse @ velocity[0]), 1e-300))
        J = between.cost(z0, z1)
        error = max(error, between.lost(z0, z1) / max(abs(J), 1e-300))
        return Trajectory(
            t=t,
            theta=theta,
            velocity0=velocity[0],
            J=J,
            kinetic=objective.kinetic(theta, velocity),
            potential=objective.potential(theta),
            status=Status.EXACT,
            error=float(error),
            end=theta[-1],
            interpolate=lambda times: states(times)[0],
            names=objective.names or (),
        )


def _form(objective: Objective) -> QuadraticForm:
    form = objective.quadratic()
    if form is None:
        raise ValueError(
            "Riccati solves a quadratic loss with a constant metric, an affine drift and the "
            "discount exp(-gamma t); this objective has another shape."
        )
    return form


def _end(policy: Feedback, theta0: FloatArray, time: float) -> FloatArray | None:
    """Where the path comes to rest, if it does; flat directions stay where they are."""
    rates = linalg.eigvals(policy.K)
    if policy.end is not None or rates.real.max() > 1e-12 * np.abs(rates).max():
        return policy.end
    far = theta0 + policy.displacement(theta0, np.asarray(100 * time))
    speed = linalg.norm(policy.velocity(far))
    return far if speed <= 1e-9 * max(linalg.norm(policy.velocity(theta0)), 1e-300) else None


def _display_time(K: FloatArray) -> float:
    """Long enough to see the slowest decay, short enough that nothing that grows overflows."""
    rates = linalg.eigvals(K).real
    moving = rates[np.abs(rates) > 1e-9 * max(float(np.abs(rates).max()), 1e-300)]
    growing, decaying = moving[moving > 0], -moving[moving < 0]
    if len(growing):
        return float(10.0 / growing.max())
    return float(10.0 / decaying.min()) if len(decaying) else 1.0


def _growth(P: FloatArray, K: FloatArray, x: FloatArray, velocity: FloatArray) -> float:
    """How much larger the terms of the velocity are than the velocity itself."""
    return float((linalg.norm(K, 2) * linalg.norm(x)) / max(linalg.norm(velocity), 1e-300) + len(x))
