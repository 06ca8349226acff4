r"""rank(): run rules on one landscape and compare the cost J of their paths with the optimal one.

J is defined for paths in continuous time. A rule's path visits its n-th point at time ``n * dt``
and joins the points by straight segments at constant speed; J is the integral of Eq. (1) along
them. Such a path is admissible, so the J of the optimal path is a lower bound for every rule,
whatever dt is, up to the estimated errors of the quadrature and of the solver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.adapters import Adapter, adapt, is_transformation
from lossnav.problem.belief import Adaptive, belief_of
from lossnav.problem.landscapes import Loss
from lossnav.problem.objective import Objective
from lossnav.ranking.table import Optimal, Ranking, Row
from lossnav.rules.base import Rule
from lossnav.rules.family import BeliefFamily
from lossnav.solvers import solve
from lossnav.solvers.trajectory import Trajectory

Noise = Callable[[np.random.Generator, FloatArray], FloatArray]
FAR = 1e10
"""A rule that is farther than this times ``1 + |theta0|`` from its start has diverged."""
_SEEDS = 10
_MOST_STEPS = 1_000_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


def rank(
    rules: Any,
    objective: Objective,
    theta0: ArrayLike,
    steps: int = 200,
    *,
    dt: float | None = None,
    noise: Any = None,
    seeds: int | Sequence[int] | None = None,
    reference: bool = True,
) -> Ranking:
    r"""Compare learning rules by the cost J of their paths.

    Each rule starts at ``theta0`` and runs for the time ``steps * dt``. Its points are joined by
    straight segments and J is integrated along them on the true loss, so that the J of the optimal
    path is a lower bound.

    J depends on speed, in the objective's units of time. A rule made by `learning_rule` keeps the
    time between its steps; every other rule (torch, optax, functions, the zoo, Newton) steps once
    every ``dt``. A learning rate is then a speed: tune it for each rule.

    Args:
        rules: A dict of names to rules, a sequence of rules, or one rule. A rule is a `Rule`, an
            optax transformation, a function ``params -> torch.optim.Optimizer``, or a function
            ``(grad, theta) -> step``.
        objective: Objective whose J is compared; rules get the gradient of its loss.
        theta0: Start ``(D,)``.
        steps: Steps of length ``dt``; a rule with another dt takes as many as fill the same time.
        dt: Time between steps; optional if the rules that have their own agree on it.
        noise: Gradient noise: a standard deviation (one, or one for each coordinate), a covariance
            ``(D, D)``, or a function ``(rng, theta) -> noise``. All rules get the same noise.
        seeds: With noise, the number of runs of each rule, or the seeds themselves; default 10.
        reference: Whether to solve for the optimal path, over the same time with a free end. Where
            there is none, the infinite-horizon path is used, and its J is then no bound.

    Returns:
        A `Ranking`: rows sorted by J, the optimal path, and all paths.

    Examples:
        >>> import lossnav as ln
        >>> objective = ln.Objective(ln.Quadratic([4.0, 1.0]), gamma=0.5)
        >>> rules = {"local": ln.learning_rule(objective, dt=0.1), "adam": ln.zoo.Adam(lr=0.1)}
        >>> ranking = rank(rules, objective, [1.0, 1.0], steps=100)
        >>> ranking.best.name, ranking.optimal.J < ranking["local"].J < ranking["adam"].J
        ('local', True)
        >>> print(ranking)  # doctest: +ELLIPSIS
        rule                        J   regret  final loss  kinetic  distance       rms
        optimal path (bound)  1.27317        0
        local                 1.27425  0.00108 ...
        adam                  1.63443    0.361 ...
        <BLANKLINE>
        horizon 10, a step every 0.1
        optimal path: J = 1.27317 (1.27425 in straight segments). Solved in closed form.
    """
    if not isinstance(objective, Objective):
        raise TypeError(
            f"rank takes an Objective, but a {type(objective).__name__} was given: wrap the loss "
            "in ln.Objective(loss)."
        )
    start = checks.point("theta0", theta0, objective.dim)
    objective = objective.at_dim(len(start)).steady("rank")
    if isinstance(belief_of(objective), Adaptive):
        raise ValueError(
            "An adaptive objective has beliefs among its coordinates, which rules keep in their "
            "memory: rank the rules under the objective of the weights alone."
        )
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ValueError(f"steps is {steps!r}, but it must be a whole number, one or more.")
    entries = _entries(rules, len(start))
    pace = _pace(entries, dt)
    horizon = pace * int(steps)
    draw = as_noise(noise, len(start))
    chosen = [0] if draw is None else _seeds(seeds)
    best, status = None, ""
    if reference:
        best, status = _reference(objective, start, horizon, int(steps))
    results: dict[str, list[_RulePath]] = {}
    for entry in entries:
        landscapes = (_Landscape(objective.loss, draw, seed) for seed in chosen)
        time = entry.dt or pace
        results[entry.name] = [
            _run(entry, land, objective, start, time, horizon, best) for land in landscapes
        ]
    first = min(results.values(), key=lambda runs: float(np.mean([run.J for run in runs])))
    rows = [_row(e.name, e.dt or pace, results[e.name], first, best) for e in entries]
    rows.sort(key=lambda row: row.J)
    paths = {
        name: (runs[0].t, np.stack([run.theta for run in runs])) for name, runs in results.items()
    }
    if best is not None and best.bound and _beaten(rows, best):
        status = "A rule's path costs less than the path of the solver, which is a local optimum."
        best = replace(best, bound=False, status=status)
    return Ranking(tuple(rows), best, status, paths, pace, horizon, draw is not None)


@dataclass(frozen=True)
class AsRow(Rule):
    """A rule for matrices, such as Muon, on a vector: theta is a matrix of one row.

    Examples:
        >>> from lossnav.rules import zoo
        >>> rule = AsRow(0.1, zoo.Muon(0.1, momentum=0.0, weight_decay=0.0, exact=True))
        >>> theta = np.zeros(2)
        >>> step, _ = rule.update(np.array([3.0, 4.0]), rule.init(theta), theta)
        >>> step.round(6)  # of length lr, down the gradient
        array([-0.06, -0.08])
    """

    inner: Rule

    def init(self, theta: Any) -> Any:
        return self.inner.init(theta[None])

    def update(self, grad: Any, state: Any, theta: Any) -> tuple[Any, Any]:
        step, state = self.inner.update(grad[None], state, theta[None])
        return step[0], state


def planner(
    objective: Objective, dt: float, theta0: ArrayLike
) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """A function ``(grad, theta) -> step`` that plans on the true loss, and follows the plan.

    These are the steps of `lossnav.navigate` with ``model="loss"``: on the optimal path a new plan
    is the rest of the old one, so it replans only if theta is off the plan.

    Args:
        objective: What the learner assumes.
        dt: Time between steps, positive.
        theta0: Start ``(D,)`` of the first plan.

    Examples:
        >>> from lossnav.problem.landscapes import DoubleWell
        >>> step = planner(Objective(DoubleWell(), gamma=0.1), 0.5, [-0.6, 0.55])
        >>> theta = np.array([-0.6, 0.55])
        >>> for _ in range(20):
        ...     theta = theta + step(np.zeros(2), theta)
        >>> theta.round(2)  # over the barrier
        array([1.06, 0.  ])
    """
    time = 0.0
    plan = solve(objective, theta0)

    def step(grad: FloatArray, theta: FloatArray) -> FloatArray:
        nonlocal plan, time
        if not np.allclose(plan.at(time), theta, rtol=0, atol=1e-9 * (1 + np.abs(theta).max())):
            plan, time = solve(objective, theta), 0.0
        time += dt
        return plan.at(time) - theta

    return step


@dataclass(frozen=True)
class _Entry:
    """A rule with its name and the time between its steps, if it has one."""

    name: str
    adapter: Adapter
    dt: float | None = None


def _entries(rules: Any, dim: int) -> list[_Entry]:
    if isinstance(rules, Mapping):
        named = [(str(name), rule) for name, rule in rules.items()]
    elif (
        isinstance(rules, Sequence) and not is_transformation(rules) and not isinstance(rules, str)
    ):
        named = [("", rule) for rule in rules]
    else:
        named = [("", rules)]
    if not named:
        raise ValueError("There is no rule to rank: give at least one.")
    counts: dict[str, int] = {}
    entries = []
    for label, rule in named:
        adapter = adapt(rule, (dim,), f"The rule {label!r}" if label else "A rule")
        name = label or adapter.name
        counts[name] = counts.get(name, 0) + 1
        suffix = f" {counts[name]}" if counts[name] > 1 else ""
        entries.append(_Entry(name + suffix, adapter, _own_time(rule)))
    return entries


def _own_time(rule: Any) -> float | None:
    """The time between a rule's steps, in the objective's units, if it has one.

    Newton's rule has an infinite dt, and the dt of a `BeliefFamily` (the zoo) is a learning rate.
    """
    if not isinstance(rule, Rule) or isinstance(getattr(rule, "inner", rule), BeliefFamily):
        return None
    dt = rule.dt
    valid = isinstance(dt, float | int | np.number) and math.isfinite(dt) and dt > 0
    return float(dt) if valid else None


def _pace(entries: Sequence[_Entry], dt: float | None) -> float:
    """The time between steps of rules without their own."""
    if dt is not None:
        return checks.positive("dt", dt)
    own = sorted({entry.dt for entry in entries if entry.dt is not None})
    if len(own) == 1:
        return own[0]
    if own:
        shown = ", ".join(f"{time:.6g}" for time in own)
        raise ValueError(
            f"dt is missing, and the rules step every {shown}: pass dt; the horizon is steps * dt."
        )
    raise ValueError(
        f"dt is missing: the steps of {', '.join(e.name for e in entries)} take no time of "
        "their own, and J prices speed. Pass dt, the time between two steps."
    )


def _seeds(seeds: int | Sequence[int] | None) -> list[int]:
    count = _SEEDS if seeds is None else seeds
    chosen = list(range(count)) if isinstance(count, int | np.integer) else list(count)
    if not chosen or not all(isinstance(s, int | np.integer) and s >= 0 for s in chosen):
        raise ValueError(
            f"seeds is {seeds!r}, but it must be how many runs to make, one or more, or a list of "
            "whole numbers."
        )
    return [int(s) for s in chosen]


def as_noise(noise: Any, dim: int) -> Noise | None:
    """A function that draws the noise of a gradient, from any form `rank` accepts."""
    if noise is None:
        return None
    if callable(noise):

        def drawn(rng: np.random.Generator, theta: FloatArray) -> FloatArray:
            values = np.asarray(noise(rng, theta.copy()), dtype=np.float64)
            if values.shape != theta.shape:
                raise TypeError(
                    f"noise(rng, theta) has shape {values.shape}, but theta has {theta.shape}."
                )
            return values

        return drawn
    size = checks.finite_array("noise", noise)
    if size.ndim == 2:
        values, vectors = np.linalg.eigh(checks.symmetric("noise", size, dim))
        if values[0] < -1e-12 * abs(values[-1]):
            raise ValueError(
                f"noise is not a covariance: its least eigenvalue is {values[0]:.6g}, but it must "
                "be zero or more."
            )
        root = vectors * np.sqrt(values.clip(min=0))
        return lambda rng, theta: root @ rng.standard_normal(dim)
    if size.shape not in ((), (dim,)):
        raise ValueError(
            f"noise has shape {size.shape}, but it must be one standard deviation, one for each of "
            f"the {dim} coordinates, a covariance, or a function (rng, theta) -> noise."
        )
    if (size < 0).any():
        raise ValueError(f"noise is {size.min():.6g}, but a standard deviation is zero or more.")
    return lambda rng, theta: size * rng.standard_normal(dim)


class _NotFinite(Exception):
    """Loss or gradient overflowed."""


@dataclass
class _Landscape:
    """The loss and its gradient, with the noise of one seed."""

    loss: Loss
    noise: Noise | None = None
    seed: int = 0
    step: int = 0
    looks: int = 0

    def look(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Loss and noisy gradient ``(1, D)``; within a step the noise is the same."""
        self.looks += 1
        value, grad = self.loss.jet(theta[0], 1)
        if self.noise is not None:
            # A generator for each step: more evaluations do not shift the noise of later steps.
            grad = grad + self.noise(np.random.default_rng([self.seed, self.step]), theta[0])
        if not (np.isfinite(value) and np.isfinite(grad).all()):
            raise _NotFinite
        return float(value), grad[None]

    def run_steps(self, entry: _Entry, theta0: FloatArray, steps: int) -> tuple[FloatArray, str]:
        """Points ``(n + 1, D)``, and a sentence if the rule ended before ``steps`` steps."""
        points = [theta0]
        limit = FAR * (1 + np.abs(theta0).max())
        with np.errstate(all="ignore"):
            go = entry.adapter.start(theta0[None].copy(), closure=True)
            for self.step in range(steps):
                try:
                    theta = points[-1] + go(self.look, points[-1][None])[0]
                except (_NotFinite, OverflowError):
                    theta = np.full_like(theta0, np.nan)
                except TypeError as error:
                    raise TypeError(f"The rule {entry.name!r} cannot be run: {error}") from error
                except (ValueError, ArithmeticError) as error:  # LinAlgError is a ValueError
                    if self.step == 0:
                        raise
                    return np.array(points), f"stopped at step {self.step + 1}: {error}"
                if not np.abs(theta - theta0).max() < limit:
                    return np.array(points), f"diverged at step {self.step + 1}"
                points.append(theta)
        return np.array(points), ""


@dataclass(frozen=True)
class _RulePath:
    """One path of one rule: points, cost, and distance from the optimal path."""

    t: FloatArray
    theta: FloatArray
    looks: int
    status: str = ""
    J: float = math.inf
    kinetic: float = math.nan
    error: float = math.nan
    loss: float = math.nan
    distance: float = math.nan
    rms: float = math.nan


def _run(
    entry: _Entry,
    land: _Landscape,
    objective: Objective,
    start: FloatArray,
    time: float,
    horizon: float,
    best: Optimal | None,
) -> _RulePath:
    count = math.ceil(horizon / time * (1 - 1e-12))
    if count > _MOST_STEPS:
        raise ValueError(
            f"The rule {entry.name!r} steps every {time:.6g}, so it needs {count} steps for the "
            f"horizon {horizon:.6g}: the most is {_MOST_STEPS}."
        )
    points, status = land.run_steps(entry, start, count)
    t = np.minimum(time * np.arange(count + 1), horizon)
    t[-1] = horizon
    theta = np.full((count + 1, len(start)), np.nan)
    theta[: len(points)] = points
    if status:
        return _RulePath(t, theta, land.looks, status)
    # The last step of a rule whose dt does not divide the horizon is cut at the horizon.
    part = (horizon - t[-2]) / time
    if part < 1 - 1e-9:
        theta[-1] = theta[-2] + part * (theta[-1] - theta[-2])
    with np.errstate(all="ignore"):
        try:
            J, kinetic, error = path_cost(objective, t, theta)
            loss = float(objective.loss(theta[-1]))
        except ValueError as problem:
            return _RulePath(t, theta, land.looks, f"has no cost: {problem}")
    if not (math.isfinite(J) and math.isfinite(loss)):
        return _RulePath(t, theta, land.looks, "has no cost: J is not finite along its path")
    distance = rms = math.nan
    if best is not None:
        gap = np.linalg.norm(theta - best.path.at(t), axis=1)
        distance, rms = float(gap.max()), math.sqrt(float(np.trapezoid(gap**2, t)) / t[-1])
    return _RulePath(t, theta, land.looks, "", J, kinetic, error, loss, distance, rms)


def path_cost(
    objective: Objective, t: FloatArray, theta: FloatArray, tol: float = 1e-10
) -> tuple[float, float, float]:
    """J of straight segments, its kinetic part, and the estimated error of both.

    Four Gauss points on each segment, then on halves, quarters and so on, until two values agree.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> bowl = Objective(Quadratic(1.0))
        >>> J, kinetic, error = path_cost(bowl, np.arange(2.0), np.array([[1.0], [0.0]]))
        >>> round(J, 12), kinetic, error < 1e-12  # 1/2 for the motion, 1/6 for the loss
        (0.666666666667, 0.5, True)
    """
    steps, moves = np.diff(t), np.diff(theta, axis=0)
    velocity = (moves / steps[:, None])[:, None]
    before = None
    for parts in (1, 2, 4, 8, 16, 32, 64):
        share = ((_NODES + 1) / 2 + np.arange(parts)[:, None]).ravel() / parts
        weight = np.tile(_WEIGHTS / 2, parts) / parts * steps[:, None]
        at = theta[:-1, None] + share[:, None] * moves[:, None]
        price = weight * objective.discount_at(t[:-1, None] + share * steps[:, None])
        motion = price * objective.kinetic(at, np.broadcast_to(velocity, at.shape))
        place = price * objective.potential(at)
        both = np.array([motion.sum() + place.sum(), motion.sum()])
        if before is not None:
            error = float(np.abs(both - before).max())
            if error <= tol * (np.abs(motion).sum() + np.abs(place).sum()):
                break
        before = both
    return float(both[0]), float(both[1]), error


def _reference(
    objective: Objective, start: FloatArray, horizon: float, steps: int
) -> tuple[Optimal | None, str]:
    """The optimal path over the horizon or the infinite one, and its status."""
    t = np.linspace(0.0, horizon, steps + 1)
    refusals = (ValueError, ArithmeticError)  # LinAlgError is a ValueError
    try:
        path = solve(objective, start, horizon)
        cost, bound, status = path.J, path.status.ok, path.status.value
    except refusals as refusal:
        try:
            path = solve(objective, start)
            fine = np.linspace(0.0, horizon, 8 * steps + 1)
            cost, bound = path_cost(objective, fine, path.at(fine))[0], False
            status = f"Endless, and no bound, as with a free end at this horizon: {refusal}"
        except refusals:
            return None, str(refusal)
    error = max(path.error, 1e-13) * _size(objective, path, horizon)
    sampled = path_cost(objective, t, path.at(t))[0]
    return Optimal(cost, error, sampled, bound, status, path), status


def _size(objective: Objective, path: Trajectory, horizon: float) -> float:
    """J with the absolute value of the loss, so that its terms cannot cancel."""
    t = path.t[path.t <= horizon]
    running = (path.kinetic + np.abs(path.potential))[: len(t)]
    return float(np.trapezoid(running * objective.discount_at(t), t))


def _beaten(rows: Sequence[Row], best: Optimal) -> bool:
    finished = (row for row in rows if row.diverged < row.seeds)
    return any(row.each.min() < best.J - best.error - row.quadrature for row in finished)


def _row(
    name: str, dt: float, runs: list[_RulePath], first: list[_RulePath], best: Optimal | None
) -> Row:
    each, leader = (np.array([run.J for run in paths]) for paths in (runs, first))
    done = [run for run in runs if not run.status]
    J, J_error = _mean(each)
    behind, behind_error = _mean(each - leader if np.isfinite(leader).all() else each * math.nan)
    if first is runs:
        behind, behind_error = 0.0, 0.0
    (loss, loss_error), (kinetic, _), (distance, _), (rms, _) = (
        _mean(np.array([getattr(run, key) for run in runs]))
        for key in ("loss", "kinetic", "distance", "rms")
    )
    lost = len(runs) - len(done)
    status = next((run.status for run in runs if run.status), "")
    if lost and len(runs) > 1:
        status = f"{lost} of {len(runs)} seeds: {status}"
    return Row(
        name=name,
        J=J,
        J_error=J_error,
        spread=J_error * math.sqrt(len(runs)),
        quadrature=max((run.error for run in done), default=math.nan),
        regret=math.nan if best is None else J - best.J,
        behind=behind,
        behind_error=behind_error,
        loss=loss,
        loss_error=loss_error,
        kinetic=kinetic,
        share=kinetic / J if 0 < J < math.inf and kinetic <= J else math.nan,
        distance=distance,
        rms=rms,
        dt=dt,
        gradients=sum(run.looks for run in runs) / len(runs),
        diverged=lost,
        seeds=len(runs),
        status=status,
        each=each,
    )


def _mean(values: FloatArray) -> tuple[float, float]:
    """The mean and its standard error, zero for a single value."""
    if len(values) == 1 or not np.isfinite(values).all():
        return float(values.mean()), 0.0 if len(values) == 1 else math.nan
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
