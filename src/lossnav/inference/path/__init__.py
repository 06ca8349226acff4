r"""infer_path(): what a learner assumes, from its observed path, by profile likelihood.

Observations are the path of a learner plus independent normal errors, so the likelihood is a sum of
squares. It is profiled over gamma: for each value from zero to infinity all other parameters are
fitted, and the least sums of squares S(gamma) give

- the estimate of gamma and its interval, where S exceeds its minimum by less than the 95 %
  point of F(1, n - p) times the variance;
- the test of gradient descent, S(infinity) against the minimum. Infinity is the end of the range,
  where half of the probability lies at zero, so the p-value is half of F's;
- the intervals of all other parameters: at each gamma they are those of a linear model, and their
  union over gamma is the interval. It follows the bent ridge along which gamma and eta k trade off;
- what cannot be identified: the profile is flat, or the information matrix of the others singular.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate
from lossnav.inference.path.model import PathModel
from lossnav.inference.path.result import PathAssumptions

_GRID = (0.0, 0.02, 0.06, 0.13, 0.25, 0.4, 0.55, 0.7, 0.82, 0.9, 0.95, 0.98, 1.0)
"""Nodes of the profile, in z = r / (r + gamma) with r the rate of gradient descent."""
_ROUNDING = 1e-9
"""Least standard deviation of the errors, relative to the motion."""
_SAME = 1e-5
"""Fitted paths that differ by less than this, relative to the motion, are the same."""
_SINGULAR = 1e-6
_UNION = 7
"""Values of gamma inside its interval at which the intervals of the others are united."""


class _Fit(NamedTuple):
    """The best fit for one gamma; ``v`` has variances in units of the noise's."""

    z: float
    gamma: float
    x: FloatArray
    S: float
    v: FloatArray


def infer_path(
    t: ArrayLike,
    theta: ArrayLike,
    loss: Any,
    *,
    noise: ArrayLike | None = None,
    drift: Any = None,
    metric: Any = None,
) -> PathAssumptions:
    r"""Estimate what a learner assumes from its observed path and a loss.

    The model is the optimal path of an `Objective` on an infinite horizon (paper Eq. 1), observed
    with independent normal errors of one unknown variance:
    :math:`y_i = \theta(t_i) + \epsilon_i`. The start :math:`\theta(t_0)` is a parameter.

    The path depends on :math:`\eta, k` and the scale of the metric only through :math:`\eta k`.
    Near a minimum of a quadratic loss, each curvature h shows one rate,
    :math:`\rho(h) = \sqrt{\gamma^2/4+\eta k h}-\gamma/2`, so that two or more curvatures, or a
    loss that is not quadratic, identify :math:`\gamma`. For gradient descent
    :math:`\gamma\to\infty` with :math:`\eta k/\gamma` fixed. The result says what this path does
    not identify.

    Args:
        t: Increasing times ``(N,)``, in any unit; rates are per that unit.
        theta: Observed weights ``(N, D)``, of a network, an animal or a person.
        loss: The loss that the learner is assumed to minimise, as in `Objective`.
        noise: Known standard deviations of the errors: one, one for each coordinate, or ``(N, D)``.
            By default one unknown value for all, estimated from the residuals.
        drift: What to estimate: ``"decay"``, ``"rotation"`` (in the plane), or both in a tuple; or
            a known drift. None by default.
        metric: ``"diagonal"`` estimates the ratios of a diagonal metric to its first entry; or a
            known metric. Euclidean by default.

    Returns:
        `PathAssumptions`: estimates with 95 % intervals, a test of gradient descent, what cannot be
        identified, and the fitted path.

    Raises:
        ValueError: Times that do not increase, shapes that disagree, NaN, or fewer observations
            than unknowns.

    A quadratic loss takes a fraction of a second; any other one calls `solve` a few hundred times.

    Examples:
        >>> import lossnav as ln
        >>> loss = ln.Quadratic([1.0, 1 / 9])
        >>> t = np.linspace(0, 6, 30)
        >>> path = ln.solve(ln.Objective(loss, eta=2.0, gamma=1.0), [3.0, 3.0]).at(t)
        >>> errors = 0.02 * np.random.default_rng(1).normal(size=path.shape)
        >>> found = infer_path(t, path + errors, loss)
        >>> found.gamma.holds(1.0), found.eta_k.holds(2.0), found.farsighted
        (True, True, True)
        >>> one = infer_path(t, path[:, 0] + errors[:, 0], ln.Quadratic(1.0))
        >>> one.gamma.low, one.gamma.high, one.rate.holds(1.0)  # only the rate is identified
        (0.0, inf, True)
    """
    model = PathModel(t, theta, loss, noise, drift, metric)
    profile = _Profile(model)
    best = profile.best
    free = model.theta.size - model.count
    if noise is None:
        variance = max(best.S / free, (_ROUNDING * model.moved) ** 2)
        cut, tail = float(stats.f.ppf(0.95, 1, free)), stats.f(1, free)
    else:
        variance, cut, tail = 1.0, float(stats.chi2.ppf(0.95, 1)), stats.chi2(1)
    limit = best.S + cut * variance
    inside = list(profile.within(limit))
    statistic = max(profile.at(0.0).S - best.S, 0.0) / variance
    fitted = model.predict(best.gamma, best.x)
    gap = (fitted.path - model.theta) * model.weight
    moved = model.moved * float(np.max(model.weight))
    unit = np.sqrt(variance) if noise is None else np.sqrt(best.S / free)
    estimates = _estimates(model, best, inside, limit)
    nodes = [profile.at(z) for z in profile.grid]
    apart = max(abs(model.residuals(fit.gamma, fit.x) - gap.ravel()).max() for fit in nodes)
    return PathAssumptions(
        estimates=estimates,
        statistic=statistic,
        p_value=float(tail.sf(statistic)) / 2 if statistic > 1e-12 else 1.0,
        unidentified=tuple(_unidentified(estimates, same=apart <= _SAME * moved)),
        notes=tuple(_notes(gap, moved, best.S / free, noise is not None)),
        curvature=model.curvature,
        t=model.t + float(np.asarray(t, dtype=np.float64)[0]),
        theta=model.theta,
        start=fitted.start,
        fitted=fitted.path,
        gradient_descent=model.predict(math.inf, profile.at(0.0).x).path,
        noise=float(unit),
        profile=(
            tuple(fit.gamma for fit in profile.points()),
            tuple((fit.S - best.S) / variance for fit in profile.points()),
        ),
        cut=cut,
        model=model,
    )


class _Profile:
    """The least sum of squares at each gamma, by fits that start from the nearest one known."""

    def __init__(self, model: PathModel) -> None:
        self.model = model
        self._guess = guess = model.first_guess()
        starts = [guess + shift * (np.arange(len(guess)) == 0) for shift in (0.0, 1.4, -1.4)]
        self.rate = math.exp(guess[0])
        first = min((self._fit(0.0, x) for x in starts), key=lambda fit: fit.S)
        self.rate = math.exp(min(max(first.x[0], guess[0] - 7), guess[0] + 7))
        self._known = {0.0: first}
        self.grid = _GRID if model.linear else _GRID[::2]
        for z in self.grid[1:]:
            self.at(z)
        if model.linear:  # a later node may give a better start
            for z in self.grid[-2::-1]:
                again = self._fit(z, self._nearest(z, above=True).x)
                self._known[z] = min(self._known[z], again, key=lambda fit: fit.S)
        self.best = self._minimum()

    def points(self) -> list[_Fit]:
        """All fits, from gamma = infinity to zero."""
        return [self._known[z] for z in sorted(self._known)]

    def at(self, z: float) -> _Fit:
        if z not in self._known:
            self._known[z] = self._fit(z, self._nearest(z).x)
        return self._known[z]

    def _nearest(self, z: float, above: bool = False) -> _Fit:
        near = min((y for y in self._known if y > z or not above), key=lambda y: abs(y - z))
        return self._known[near]

    def _fit(self, z: float, x: FloatArray) -> _Fit:
        gamma = math.inf if z == 0 else self.rate * (1 - z) / z
        model = self.model
        # Closed forms are exact to rounding, paths of the solver to 1e-8.
        step, tol = (1e-6, 1e-9) if model.linear else (1e-4, 1e-5)

        def residuals(x: FloatArray) -> FloatArray:
            return model.residuals(gamma, self._bounded(x))

        def slopes(x: FloatArray) -> FloatArray:
            here = residuals(x)
            moved = [(residuals(x + step * e) - here) / step for e in np.eye(len(x))]
            return np.stack(moved, axis=-1)

        found = optimize.least_squares(
            residuals, x, slopes, method="lm", xtol=tol, ftol=tol, gtol=1e-15, max_nfev=60
        )
        return _Fit(z, gamma, self._bounded(found.x), 2 * float(found.cost), _variances(found.jac))

    def _bounded(self, x: FloatArray) -> FloatArray:
        """A parameter that the path does not show may run away."""
        return np.clip(x, self._guess - 30, self._guess + 30)

    def _minimum(self) -> _Fit:
        """The best fit of all, refined between the neighbours of the best node."""
        nodes = sorted(self._known)
        place = min(range(len(nodes)), key=lambda i: self._known[nodes[i]].S)
        bounds = nodes[max(place - 1, 0)], nodes[min(place + 1, len(nodes) - 1)]
        tol = 1e-6 if self.model.linear else 1e-3
        optimize.minimize_scalar(
            lambda z: self.at(float(z)).S, bounds=bounds, method="bounded", options={"xatol": tol}
        )
        best = min(self._known.values(), key=lambda fit: fit.S)
        ends = [fit for fit in (self.at(0.0), self.at(1.0)) if fit.S <= (1 + 1e-7) * best.S]
        return ends[0] if ends else best  # rounding decides between equals: the simplest one

    def within(self, limit: float) -> Iterator[_Fit]:
        """Fits across the values of z with S up to ``limit``, the two ends among them.

        The likelihood may have several modes, so each stretch between the known ends is included.
        """
        inner = [fit.z for fit in self.points() if fit.S <= limit]
        low, high = self._edge(inner[0], -1, limit), self._edge(inner[-1], +1, limit)
        for z in np.linspace(low, high, _UNION if self.model.linear else 3).tolist():
            fit = self.at(z)
            if fit.S <= limit:
                yield fit
        yield from (fit for fit in self.points() if fit.S <= limit)

    def _edge(self, inner: float, side: int, limit: float) -> float:
        """Where S reaches the limit, by bisection; the end of the range where it does not."""
        outer = [z for z in self._known if (z - inner) * side > 0]
        if not outer:
            return inner
        far = min(outer, key=lambda z: abs(z - inner))
        root = optimize.brentq(lambda z: self.at(z).S - limit, inner, far, xtol=1e-4)
        # Near the root S may be on either side of the limit: the outermost value inside it.
        inside = [fit.z for fit in self.points() if fit.S <= limit]
        return max((z for z in inside if (z - root) * side <= 1e-4), key=lambda z: z * side)


def _variances(jac: FloatArray) -> FloatArray:
    """The diagonal of the inverse information; infinite where the Jacobian is singular."""
    _, sizes, rows = np.linalg.svd(jac, full_matrices=False)
    shown = sizes > _SINGULAR * sizes[0]
    hidden = (rows[~shown] ** 2).sum(axis=0) > 1e-8
    v = ((rows[shown] / sizes[shown, None]) ** 2).sum(axis=0)
    return np.where(hidden, math.inf, v)


def _estimates(
    model: PathModel, best: _Fit, inside: list[_Fit], limit: float
) -> dict[str, Estimate]:
    """Every parameter with its interval, the union over all gamma of the interval."""
    spans: dict[str, list[float]] = {}
    point = _derived(model, best.gamma, best.x)
    for fit in inside:
        half = np.sqrt(fit.v * max(limit - fit.S, 0.0))
        for side in (-half, half):
            for name, value in _derived(model, fit.gamma, fit.x + side).items():
                spans.setdefault(name, []).append(value)
    return {
        name: Estimate(value, min(value, *spans[name]), max(value, *spans[name]))
        for name, value in point.items()
    }


def _derived(model: PathModel, gamma: float, x: FloatArray) -> dict[str, float]:
    """The parameters with eta k and eta k / gamma, infinite in their limits."""
    with np.errstate(over="ignore"):
        values = model.values(x)
    rate = values.pop("rate")
    a = math.inf if math.isinf(gamma) else model.eta_k(rate, gamma)
    speed = math.inf if gamma == 0 else rate * (1 + rate / gamma) / model.curvature
    return {"gamma": gamma, "eta_k": a, "eta_k/gamma": speed, "rate": rate, **values}


def _unidentified(estimates: dict[str, Estimate], *, same: bool) -> Iterator[str]:
    gamma = estimates["gamma"]
    if same:
        yield (
            "gamma and eta_k: every gamma gives the same path, with the same rate. Only the rate "
            "is identified. A path across several curvatures would separate them."
        )
    elif gamma.low == 0 and math.isinf(gamma.high):
        yield (
            "gamma and eta_k: the errors hide the difference between all values of gamma. Fewer "
            "errors or more times would show it."
        )
    elif math.isinf(gamma.high):
        yield "eta_k has no upper bound, since gamma has none; eta_k/gamma has."
    elif gamma.low == 0:
        yield "eta_k/gamma has no upper bound, since gamma may be zero; eta_k has."
    for name, e in estimates.items():
        if name in ("gamma", "eta_k", "eta_k/gamma"):
            continue
        wide = e.low == 0 or math.isinf(e.high) or (name == "rate" and e.high > 1e3 * e.low)
        if math.isinf(e.low) or wide or (name.startswith("metric") and e.high > 1e3 * e.low):
            yield f"{name}: this path does not bound it."


def _notes(gap: FloatArray, moved: float, ratio: float, known: bool) -> Iterator[str]:
    """Signs that the errors are not as assumed."""
    n = gap.size
    echo = float((gap[1:] * gap[:-1]).sum() / max((gap**2).sum(), 1e-300))
    if echo * math.sqrt(n) > 3 and np.abs(gap).max() > _SAME * moved:
        yield (
            f"Residuals at successive times are correlated ({echo:.2f}): the model misses "
            "something or errors are not independent, and the intervals are too narrow."
        )
    if known and ratio > 1 + 4 * math.sqrt(2 / n):
        yield (
            f"Residuals are {math.sqrt(ratio):.2g} times as large as the given noise: the path is "
            "not one of this family, or the noise is larger."
        )
