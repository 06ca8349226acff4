r"""rank(): run rules on one landscape and hold their paths against the optimal one.

J belongs to paths in continuous time, so a rule must be given one: it is at the n-th point that it
visits at time n dt, and goes from one to the next in a straight line at constant speed. J is the
integral of Eq. (1) along these pieces. A path of straight pieces is a path like any other, so the J of the
optimal path is below every rule's, with no allowance for the size of dt: only the error of the integral
and that of the solver, both estimated, can blur it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.belief import Adaptive, belief_of
from lossnav.problem.objective import Objective
from lossnav.ranking.learners import Learner, learners
from lossnav.ranking.observation import Landscape, as_noise
from lossnav.ranking.paths import Run, reference_path, run_once
from lossnav.ranking.table import Optimal, Ranking, Row

_SEEDS = 10


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

    Each rule starts at ``theta0`` and has the time ``steps * dt``. Its path joins the points it visits by
    straight pieces, one for each step, and J is integrated along them on the true loss, so that the J of the
    optimal path is a lower bound. **Time.** J prices speed, in the objective's units of time. A rule made by
    `learning_rule` knows its time between steps and keeps it; every other rule (torch, optax, functions, the
    zoo, Newton) steps once every ``dt``. So a learning rate is a speed: twice the rate is another path, with
    another J, and a fair comparison tunes it for each rule.

    Args:
        rules: A dict of names to rules, a sequence of rules, or one rule. A rule is a `Rule`, an optax
            transformation, a function ``params -> torch.optim.Optimizer``, or a function ``(grad, theta) -> step``.
        objective: What the rules are judged by; they see the gradient of its loss.
        theta0: Start ``(D,)``.
        steps: Steps of length ``dt``; a rule with another dt of its own takes as many as fill the same time.
        dt: Time between steps; may be left out if the rules that have their own agree on it.
        noise: Noise of each gradient seen: a standard deviation (one, or one for each coordinate), a covariance
            ``(D, D)``, or a function ``(rng, theta) -> noise``. The n-th step of every rule has the same noise.
        seeds: With noise, how many runs of each rule, or the seeds themselves; 10 by default.
        reference: Whether to solve for the optimal path, over the same time with a free end. Where there is
            none, the endless optimal path is taken, and its J is then no bound.

    Returns:
        A `Ranking`: rows from the lowest J up, the optimal path, and all paths.

    Examples:
        >>> import lossnav as ln
        >>> objective = ln.Objective(ln.Quadratic([4.0, 1.0]), gamma=0.5)
        >>> rules = {"ours": ln.learning_rule(objective, dt=0.1), "adam": ln.zoo.Adam(lr=0.1)}
        >>> ranking = rank(rules, objective, [1.0, 1.0], steps=100)
        >>> ranking.best.name, ranking.optimal.J < ranking["ours"].J < ranking["adam"].J
        ('ours', True)
        >>> print(ranking)  # doctest: +ELLIPSIS
        rule        J   regret  final loss  kinetic  distance       rms
        ours  1.27425  0.00108 ...
        adam  1.63443    0.361 ...
        <BLANKLINE>
        horizon 10, a step every 0.1
        optimal path: J = 1.27317 (1.27425 in straight pieces). Solved in closed form.
    """
    if not isinstance(objective, Objective):
        raise TypeError(
            f"rank takes an Objective, but a {type(objective).__name__} was given: wrap the loss in "
            "ln.Objective(loss)."
        )
    start = checks.point("theta0", theta0, objective.dim)
    objective = objective.at_dim(len(start))
    if isinstance(belief_of(objective), Adaptive):
        raise ValueError(
            "An adaptive objective has beliefs among its coordinates, which rules keep in their memory: "
            "rank the rules under the objective of the weights alone."
        )
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ValueError(f"steps is {steps!r}, but it must be a whole number, one or more.")
    found = learners(rules, len(start))
    pace = _pace(found, dt)
    horizon = pace * int(steps)
    draw = as_noise(noise, len(start))
    runs = [0] if draw is None else _seeds(seeds)
    best, status = (
        reference_path(objective, start, horizon, int(steps)) if reference else (None, "")
    )
    results = {}
    for learner in found:
        time = learner.dt or pace
        results[learner.name] = [
            run_once(
                learner,
                Landscape(objective.loss, draw, seed),
                objective,
                start,
                time,
                horizon,
                best,
            )
            for seed in runs
        ]
    first = min(results.values(), key=lambda all_: float(np.mean([run.J for run in all_])))
    rows = [_row(one.name, one.dt or pace, results[one.name], first, best) for one in found]
    rows.sort(key=lambda row: row.J)
    paths = {
        name: (all_[0].t, np.stack([run.theta for run in all_])) for name, all_ in results.items()
    }
    if best is not None and best.bound and _beaten(rows, best):
        status = "A rule's path costs less than the path found, which is a local optimum."
        best = Optimal(best.J, best.error, best.sampled, False, status, best.path)
    return Ranking(tuple(rows), best, status, paths, pace, horizon, draw is not None)


def _pace(found: Sequence[Learner], dt: float | None) -> float:
    """The time between steps for rules without their own."""
    if dt is not None:
        return checks.positive("dt", dt)
    own = sorted({learner.dt for learner in found if learner.dt is not None})
    if len(own) == 1:
        return own[0]
    if own:
        shown = ", ".join(f"{time:.6g}" for time in own)
        raise ValueError(
            f"dt is missing, and the rules step every {shown}: pass dt, of which the horizon is steps."
        )
    raise ValueError(
        f"dt is missing: the steps of {', '.join(one.name for one in found)} take no time of their own, and J "
        "prices speed. Pass dt, the time between two steps."
    )


def _seeds(seeds: int | Sequence[int] | None) -> list[int]:
    count = _SEEDS if seeds is None else seeds
    chosen = list(range(count)) if isinstance(count, int | np.integer) else list(count)
    if not chosen or not all(isinstance(s, int | np.integer) and s >= 0 for s in chosen):
        raise ValueError(
            f"seeds is {seeds!r}, but it must be how many runs to make, one or more, or a list of whole numbers."
        )
    return [int(s) for s in chosen]


def _beaten(rows: Sequence[Row], best: Optimal) -> bool:
    return any(
        row.each.min() < best.J - best.error - row.quadrature
        for row in rows
        if row.diverged < row.seeds
    )


def _row(name: str, dt: float, runs: list[Run], first: list[Run], best: Optimal | None) -> Row:
    each, leader = (np.array([run.J for run in some]) for some in (runs, first))
    done = [run for run in runs if not run.status]
    J, J_error = _mean(each)
    behind, behind_error = _mean(each - leader if np.isfinite(leader).all() else each * math.nan)
    if first is runs:
        behind, behind_error = 0.0, 0.0
    loss, loss_error = _mean(np.array([run.loss for run in runs]))
    kinetic = _mean(np.array([run.kinetic for run in runs]))[0]
    distance, rms = (
        _mean(np.array([getattr(run, what) for run in runs]))[0] for what in ("distance", "rms")
    )
    lost = len(runs) - len(done)
    status = next((run.status for run in runs if run.status), "")
    if lost and len(runs) > 1:
        status = f"{lost} of {len(runs)} seeds: {status}"
    return Row(
        name=name, J=J, J_error=J_error, spread=J_error * math.sqrt(len(runs)),
        quadrature=max((run.error for run in done), default=math.nan),
        regret=math.nan if best is None else J - best.J, behind=behind, behind_error=behind_error,
        loss=loss, loss_error=loss_error, kinetic=kinetic,
        share=kinetic / J if 0 < J < math.inf and kinetic <= J else math.nan,
        distance=distance, rms=rms, dt=dt, gradients=sum(run.looks for run in runs) / len(runs),
        diverged=lost, seeds=len(runs), status=status, each=each,
    )  # fmt: skip


def _mean(values: FloatArray) -> tuple[float, float]:
    """The mean and its standard error, zero for a single value."""
    if len(values) == 1 or not np.isfinite(values).all():
        return float(values.mean()), 0.0 if len(values) == 1 else math.nan
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
