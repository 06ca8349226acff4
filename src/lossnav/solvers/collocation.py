r"""Collocation: the derived Euler-Lagrange equations as a boundary-value problem (App. C, D).

The unknowns are the point and its velocity, :math:`\dot\theta = v,\ G\dot v = F(\theta, v, t)`, with
G and F from `lossnav.derive`. SciPy's ``solve_bvp`` fits cubics to them. At the far end the path
either stops at a given point, or is free, where :math:`\partial\ell/\partial v = 0`, so
:math:`v = f`; or it goes on for ever, and then it must lie on the stable manifold of the point that
it approaches, which near that point is the optimal policy of the quadratic problem there.

This is a check on solvers that minimise J: it knows the equations and nothing of J.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.base import Method
from lossnav.solvers.chain import solve_chain
from lossnav.solvers.discrete import Discrete
from lossnav.solvers.riccati.feedback import Feedback, feedback
from lossnav.solvers.ritz.ends import quadratic_around
from lossnav.solvers.trajectory import Status, Trajectory


@dataclass(frozen=True)
class Collocation(Method):
    """Solve the Euler-Lagrange equations with SciPy's ``solve_bvp``; the loss needs a formula.

    On an infinite horizon the path is followed until it is close to the point it approaches: ``end``,
    or else where descent from the start leads; other ends may cost less.

    The status is ``solve_bvp``'s own. ``error`` compares the initial velocity with that on every
    second node of the final mesh, divided by 15 as the method is of fourth order; if the residuals
    did not get below ``tol`` it is no less than the largest of them.

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
                f"nodes is {self.nodes} and max_nodes {self.max_nodes}: there must be three or more "
                "nodes, and no more than max_nodes."
            )

    def solve(
        self,
        objective: Objective,
        theta0: FloatArray,
        *,
        horizon: float,
        end: FloatArray | None,
        tol: float,
    ) -> Trajectory:
        system = _System(objective)
        policy = None
        if math.isinf(horizon):
            policy = _approached(system, theta0, end)
            rates = -linalg.eigvals(policy.K).real
            # The policy is wrong to second order in the distance that is left, and so is the path.
            horizon = (math.log(1 / tol) / 2 + 3) / float(rates.min())
            end = policy.end
        problem = _Problem(system, theta0, horizon, end, policy)
        best: Any = None
        status = Status.ITERATIONS
        try:
            for guess in problem.guesses(self.nodes):
                found = problem.solve(guess, tol, self.max_nodes)
                best = found if best is None or _rank(found) < _rank(best) else best
                if best.success and problem.is_minimum(best):
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
                "The path found obeys the Euler-Lagrange equations but is no minimum of J: a path "
                "nearby costs less. Use the method Ritz or Direct, or another end."
            )
        return problem.trajectory(best, status, tol)


def _rank(found: Any) -> tuple[bool, float]:
    """Solutions before failures, and among failures the least residual first."""
    residual = float(found.rms_residuals.max())
    return not found.success, residual if math.isfinite(residual) else math.inf


class _System:
    """The derived equations as numbers: accelerations, and their slopes in (theta, v)."""

    def __init__(self, objective: Objective) -> None:
        from lossnav._base.jets import Jet
        from lossnav._base.symbolic import TIME
        from lossnav.equations.derivation import derive

        self.objective = objective
        equations = derive(objective)
        self.dim = len(equations.coordinates)
        symbols = [*equations.coordinates, *equations.velocities, TIME]
        values = {letter.name: float(value) for letter, value in equations.values.items()}
        self._mass, self._force = (
            Jet(np.array(entries, dtype=object), symbols, values, "equation of motion")
            for entries in (equations.mass.tolist(), list(equations.forcing))
        )

    def acceleration(self, t: FloatArray, y: FloatArray) -> FloatArray:
        """Accelerations ``(D, N)`` at states ``y`` ``(2D, N)``."""
        at = np.vstack([y, t]).T
        mass, force = self._mass(at)[0], self._force(at)[0]
        return np.asarray(np.linalg.solve(mass, force[..., None])[..., 0].T, dtype=np.float64)

    def slopes(self, t: FloatArray, y: FloatArray) -> FloatArray:
        """Derivatives ``(D, 2D, N)`` of the accelerations."""
        at = np.vstack([y, t]).T
        mass, turn = self._mass(at, 1)
        force, bend = self._force(at, 1)
        a = np.linalg.solve(mass, force[..., None])[..., 0]
        right = bend - np.einsum("nijs,nj->nis", turn, a)
        return np.moveaxis(np.linalg.solve(mass, right)[..., : 2 * self.dim], 0, -1)

    def at_rest(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The acceleration of a path that stands still at ``theta``, and its slope there."""
        t, y = np.zeros(1), np.concatenate([theta, np.zeros(self.dim)])[:, None]
        return self.acceleration(t, y)[:, 0], self.slopes(t, y)[:, : self.dim, 0]


def _approached(system: _System, theta0: FloatArray, end: FloatArray | None) -> Feedback:
    """The optimal policy near the point of rest at ``end``, or near where descent leads."""
    from scipy import optimize

    objective = system.objective
    if objective.discount is not None:
        raise ValueError(
            "With a discount of its own the equations change for ever, so no point of rest is "
            "approached: pass horizon=T."
        )
    loss = objective.loss
    near = end
    if near is None:
        reach = 0.1 * (1 + float(np.abs(theta0).max()))  # short steps stay in the valley
        descent = optimize.minimize(
            loss, theta0, jac=loss.grad, hess=loss.hess, method="trust-exact",
            options={"gtol": 1e-8, "initial_trust_radius": reach / 2, "max_trust_radius": reach},
        )  # fmt: skip
        near = descent.x
    with np.errstate(all="ignore"):
        rest = optimize.root(system.at_rest, near, jac=True, tol=1e-14).x
        residual = linalg.norm(system.at_rest(rest)[0])
    size = 1 + linalg.norm(near)
    if not residual <= 1e-8 * size * (1 + linalg.norm(system.at_rest(rest)[1])):
        raise ValueError(
            f"No point of rest was found near {np.array2string(near, precision=6)}: pass end=..., or "
            "a finite horizon."
        )
    if end is not None and linalg.norm(rest - end) > 1e-2 * size:
        raise ValueError(
            f"A path cannot come to rest at end = {np.array2string(end, precision=6)}; the nearest "
            f"point of rest is {np.array2string(rest, precision=6)}."
        )
    policy = feedback(quadratic_around(objective, rest))
    rates = linalg.eigvals(policy.K).real
    if rates.max() >= -1e-9 * np.abs(rates).max():
        raise ValueError(
            f"The path does not settle at {np.array2string(rest, precision=6)} (rate {rates.max():.3g}), "
            "so it cannot be followed for ever: pass horizon=T."
        )
    return policy


class _Problem:
    """One boundary-value problem: start, horizon and what holds at the far end."""

    def __init__(
        self,
        system: _System,
        theta0: FloatArray,
        horizon: float,
        end: FloatArray | None,
        policy: Feedback | None,
    ) -> None:
        self.system, self.theta0, self.horizon = system, theta0, horizon
        self.end, self.policy = end, policy

    def guesses(self, nodes: int) -> Any:
        """First paths to try: the policy's, and the minimum of a sum over steps."""
        t = np.linspace(0, self.horizon, nodes)
        if self.policy is not None:
            t = self.horizon * np.linspace(0, 1, nodes) ** 2
            theta = self.theta0 + self.policy.displacement(self.theta0, t)
            yield t, np.vstack([theta.T, self.policy.velocity(theta).T])
        objective, gamma = self.system.objective, self.system.objective.gamma
        # A sum over steps has to feel every step of it: what the discount hides is left to the policy.
        span = min(self.horizon, 30 / gamma) if self.policy is not None and gamma else self.horizon
        plan = Discrete(objective, nodes - 1, span / (nodes - 1), "midpoint")
        points, _ = plan.minimise(self.theta0, self.end)
        theta = np.stack([np.interp(t, plan.t, x) for x in points.T])
        yield t, np.vstack([theta, np.gradient(theta, t, axis=1)])
        if self.policy is not None and self.horizon > 2 / -linalg.eigvals(self.policy.K).real.max():
            # From a shorter stretch, which is easier, the policy leads on.
            short = _Problem(self.system, self.theta0, self.horizon / 2, self.end, self.policy)
            for guess in short.guesses(nodes):
                found = short.solve(guess, 1e-6, 20 * nodes)
                if found.success:
                    t = np.append(found.x, np.linspace(short.horizon, self.horizon, nodes)[1:])
                    last = found.y[: self.system.dim, -1]
                    later = last + self.policy.displacement(last, t[len(found.x) :] - short.horizon)
                    more = np.vstack([later.T, self.policy.velocity(later).T])
                    yield t, np.hstack([found.y, more])
                    break

    def solve(self, guess: tuple[FloatArray, FloatArray], tol: float, max_nodes: int) -> Any:
        from scipy.integrate import solve_bvp

        system, dim = self.system, self.system.dim

        def flow(t: FloatArray, y: FloatArray) -> FloatArray:
            return np.vstack([y[dim:], system.acceleration(t, y)])

        def slopes(t: FloatArray, y: FloatArray) -> FloatArray:
            result = np.zeros((2 * dim, 2 * dim, len(t)))
            result[:dim, dim:] = np.eye(dim)[..., None]
            result[dim:] = system.slopes(t, y)
            return result

        with np.errstate(all="ignore"):
            return solve_bvp(
                flow, self._ends, *guess, fun_jac=slopes, bc_jac=self._end_slopes,
                tol=max(tol, 1e-12), max_nodes=max_nodes,
            )  # fmt: skip

    def _ends(self, first: FloatArray, last: FloatArray) -> FloatArray:
        dim, objective = self.system.dim, self.system.objective
        if self.policy is not None:
            far = last[dim:] - self.policy.velocity(last[:dim])
        elif self.end is not None:
            far = last[:dim] - self.end
        else:
            far = last[dim:] - objective.drift_at(last[:dim])
        return np.concatenate([first[:dim] - self.theta0, far])

    def _end_slopes(self, first: FloatArray, last: FloatArray) -> tuple[FloatArray, FloatArray]:
        dim, drift = self.system.dim, self.system.objective.drift
        near, far = np.zeros((2 * dim, 2 * dim)), np.zeros((2 * dim, 2 * dim))
        near[:dim, :dim] = np.eye(dim)
        if self.policy is None and self.end is not None:
            far[dim:, :dim] = np.eye(dim)
            return near, far
        far[dim:, dim:] = np.eye(dim)
        if self.policy is not None:
            far[dim:, :dim] = -self.policy.K
        elif drift is not None:
            far[dim:, :dim] = -drift.jet(last[:dim], 1)[1]
        return near, far

    def is_minimum(self, found: Any) -> bool:
        """Whether J bends up around the path, in each direction that a fine grid can show."""
        if not np.isfinite(found.y).all():
            return False
        objective, gamma = self.system.objective, self.system.objective.gamma
        # Beyond thirty times 1/gamma the discount leaves nothing to see.
        span = min(self.horizon, 30 / gamma) if gamma else self.horizon
        steps = 400
        plan = Discrete(objective, steps, span / steps, "midpoint")
        fixed = self.policy is not None or self.end is not None
        blocks = plan.jet(found.sol(plan.t)[: self.system.dim].T, 2)[2]
        scale = 1 / np.sqrt(objective.discount_at(plan.t))
        pairs = np.repeat(np.stack([scale[:-1], scale[1:]], 1), self.system.dim, axis=1)
        blocks = blocks * pairs[:, :, None] * pairs[:, None, :]
        try:
            side = np.ones((steps + 1, self.system.dim))
            solve_chain(blocks, side, slice(1, -1 if fixed else None))
        except linalg.LinAlgError:
            return False
        return True

    def trajectory(self, found: Any, status: Status, tol: float) -> Trajectory:
        dim, objective, policy = self.system.dim, self.system.objective, self.policy
        theta, velocity = found.y[:dim].T, found.y[dim:].T

        def at(times: FloatArray) -> FloatArray:
            inside = np.minimum(times, self.horizon)
            points = np.moveaxis(found.sol(inside)[:dim], 0, -1)
            beyond = times > self.horizon * (1 + 1e-12)
            if beyond.any():
                if policy is None:
                    raise ValueError(
                        f"The path ends at the horizon {self.horizon:.6g}; t is {times.max():.6g}."
                    )
                points[beyond] += policy.displacement(theta[-1], times[beyond] - self.horizon)
            return points

        return Trajectory(
            t=found.x,
            theta=theta,
            velocity0=velocity[0],
            J=self._cost(found),
            kinetic=objective.kinetic(theta, velocity),
            potential=objective.potential(theta),
            status=status,
            error=self._error(found, tol),
            end=theta[-1] if policy is None else policy.end,
            rest=0.0 if policy is None else policy.rest,
            interpolate=at,
            names=objective.names or (),
        )

    def _cost(self, found: Any) -> float:
        objective, dim, policy = self.system.objective, self.system.dim, self.policy
        nodes, weights = np.polynomial.legendre.leggauss(5)
        steps = np.diff(found.x)
        t = (found.x[:-1, None] + (nodes + 1) / 2 * steps[:, None]).ravel()
        y = found.sol(t)
        running = objective.kinetic(y[:dim].T, y[dim:].T) + objective.potential(y[:dim].T)
        running = running - (0.0 if policy is None else policy.rest)
        pieces = (running * objective.discount_at(t)).reshape(len(steps), -1)
        total = float(np.einsum("np,p,n->", pieces, weights / 2, steps))
        if policy is not None:
            last = found.y[:dim, -1]
            total += float(objective.discount_at(self.horizon) * policy.value(last))
        return total

    def _error(self, found: Any, tol: float) -> float:
        dim = self.system.dim
        v = found.y[dim:, 0]
        keep = np.unique(np.append(np.arange(0, len(found.x), 2), len(found.x) - 1))
        if len(keep) < 3 or not np.isfinite(found.y).all():
            return math.inf
        coarse = self.solve((found.x[keep], found.y[:, keep]), tol, len(keep))
        gap = linalg.norm(coarse.y[dim:, 0] - v) / 15
        if self.policy is not None:  # the policy at the far end is a straight line for a curved one
            gap += tol * linalg.norm(v)
        residual = float(found.rms_residuals.max())
        size = max(linalg.norm(v), 1e-12 * float(np.abs(found.y[dim:]).max()), 1e-300)
        error = max(gap / size, residual if residual > tol else 0.0, 1e-15)
        return float(error) if math.isfinite(error) else math.inf
