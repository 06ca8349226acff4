"""PathAssumptions: what a learner assumes, estimated from its path."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate
from lossnav.solvers.trajectory import summary_table

if TYPE_CHECKING:
    from lossnav.inference.path.model import PathModel
    from lossnav.problem.objective import Objective

SHORT_SIGHTED = 1e3
"""A discount of this many rates stands for gradient descent in `PathAssumptions.objective`."""
_SHOWN = 6
"""The most coordinates that a plot shows."""
_MEANINGS = {
    "gamma": "discount rate",
    "eta_k": "eta times k",
    "eta_k/gamma": "speed of gradient descent",
    "rate": "at which the path closes on the minimum",
    "decay": "rate of weight decay",
    "rotation": "angular speed of the drift",
}


@dataclass(frozen=True, repr=False)
class PathAssumptions:
    r"""The assumptions of a learner: the result of `lossnav.infer_path`.

    Attributes:
        estimates: Each parameter with its 95 % interval, by name: ``"gamma"``, ``"eta_k"`` (the
            product), ``"eta_k/gamma"`` (the speed of gradient descent), ``"rate"`` (at which the
            path closes on a minimum of curvature ``curvature``), and where asked for ``"decay"``,
            ``"rotation"``, and ``"metric NAME"``, the ratio of a coordinate's metric to that of the
            first. A limit is infinite where the path gives no bound.
        statistic: Likelihood-ratio statistic of gradient descent (infinite gamma, ``eta_k/gamma``
            fixed) against a finite gamma: the fall of the sum of squares in units of the variance.
        p_value: Probability of a larger statistic if the learner is a gradient descent.
        unidentified: What this path does not identify, a sentence each.
        notes: Signs that the model or its errors are not as assumed, a sentence each.
        curvature: Reference curvature of ``rate``, a mean along the path.
        t, theta: The observations, ``(N,)`` and ``(N, D)``.
        start: Estimated position at the first time ``(D,)``.
        fitted: The best path at the same times ``(N, D)``.
        gradient_descent: The best path of gradient descent ``(N, D)``.
        noise: Standard deviation of the residuals; in units of the given noise if there is one.
        profile: Values of gamma, and how much worse the best fit of each is, as ``statistic``.
        cut: Where the profile ends the 95 % interval of gamma.

    Examples:
        >>> import lossnav as ln
        >>> t = np.linspace(0, 6, 20)
        >>> descent = np.exp(-np.outer(t, [1.0, 0.1]))  # rates in proportion to curvature
        >>> path = descent + 0.05 * np.random.default_rng(0).normal(size=(20, 2))
        >>> found = ln.infer_path(t, path, ln.Quadratic([1.0, 0.1]))
        >>> found.farsighted, found.gamma.high, found.estimates["eta_k/gamma"].holds(1.0)
        (False, inf, True)
    """

    estimates: Mapping[str, Estimate]
    statistic: float
    p_value: float
    unidentified: tuple[str, ...]
    notes: tuple[str, ...]
    curvature: float
    t: FloatArray
    theta: FloatArray
    start: FloatArray
    fitted: FloatArray
    gradient_descent: FloatArray
    noise: float
    profile: tuple[tuple[float, ...], tuple[float, ...]]
    cut: float
    model: PathModel = field(compare=False)

    @property
    def gamma(self) -> Estimate:
        """The discount rate; infinite for gradient descent."""
        return self.estimates["gamma"]

    @property
    def eta_k(self) -> Estimate:
        """The product eta k."""
        return self.estimates["eta_k"]

    @property
    def rate(self) -> Estimate:
        """The rate at which the path closes on a minimum of curvature ``curvature``."""
        return self.estimates["rate"]

    @property
    def farsighted(self) -> bool:
        """Whether gradient descent is rejected at the 5 % level."""
        return self.p_value < 0.05

    def objective(self) -> Objective:
        r"""The Objective with the estimates, and k = 1.

        Gradient descent has :math:`\gamma=1000\rho` in it, which its path differs from by 0.1 %.

        Examples:
            >>> import lossnav as ln
            >>> t = np.linspace(0, 4, 20)
            >>> path = np.exp(-np.outer(t, [1.0, 2.0]))  # rates grow as the root: no discount
            >>> ln.infer_path(t, path, ln.Quadratic([1.0, 4.0])).objective()
            Objective(Quadratic(H=[[1.0, 0.0], [0.0, 4.0]]), eta=1, k=1, gamma=0)
        """
        values = {name: e.value for name, e in self.estimates.items()}
        return self.model.objective(values, min(values["gamma"], SHORT_SIGHTED * values["rate"]))

    def plot(self, axes: Any = None) -> list[Any]:
        """Draw the observations with the fitted paths, and the profile of gamma.

        Args:
            axes: Two axes of matplotlib; new by default.

        Returns:
            The list of axes.
        """
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")[1]
        left, right = list(getattr(axes, "flat", axes))
        names = self.model.base.names or ()
        moved = np.argsort(-np.ptp(self.theta, axis=0), kind="stable")[:_SHOWN]
        for place, i in enumerate(np.sort(moved)):
            color = f"C{place}"
            left.plot(self.t, self.theta[:, i], "o", mfc="none", ms=4, color=color)
            left.plot(self.t, self.fitted[:, i], color=color, label=names[i])
            left.plot(self.t, self.gradient_descent[:, i], "--", lw=1, color=color)
        left.plot([], [], "k--", lw=1, label="gradient descent")
        left.set(xlabel="time t", ylabel="weights", title="observed (circles) and fitted (lines)")
        left.legend(frameon=False, fontsize="small")
        gammas, worse = (np.array(column) for column in self.profile)
        rate = self.rate.value
        right.plot(rate / (rate + gammas), worse, color="C0")
        right.axhline(self.cut, color="0.5", lw=1, ls=":", label="95 % interval")
        marks = np.array([math.inf, 10.0, 2.0, 1.0, 0.3, 0.0])
        labels = ["∞", *(f"{rate * m:.2g}" for m in marks[1:])]
        right.set_xticks(1 / (1 + marks), labels)
        right.set_ylim(-0.05 * self.cut, min(6 * self.cut, 1.1 * max(worse.max(), 2 * self.cut)))
        right.set(xlabel="discount rate γ", ylabel="deviance", title="profile likelihood")
        right.legend(frameon=False)
        return [left, right]

    def _verdict(self) -> str:
        p = "p < 0.0001" if self.p_value < 1e-4 else f"p = {self.p_value:.2g}"
        if self.farsighted:
            return f"rejected ({p}): the learner is farsighted"
        return f"not rejected ({p})"

    def _summary(self) -> dict[str, str]:
        rows = {}
        for name, e in self.estimates.items():
            rows[name] = f"{_shown(e):<28}{_MEANINGS.get(name, 'relative to the first')}"
        rows["gradient descent"] = self._verdict()
        rows["noise"] = f"{self.noise:.3g} (standard deviation of the residuals)"
        for title, sentences in (("not identified", self.unidentified), ("note", self.notes)):
            for i, sentence in enumerate(sentences):
                rows[title if not i else f"{title} {i + 1}"] = sentence
        return rows

    def __repr__(self) -> str:
        times, dim = self.theta.shape
        lines = [f"What the learner assumes, from {times} times of {dim} weights (95 % intervals)"]
        for name, text in self._summary().items():
            parts = textwrap.wrap(text, 78, drop_whitespace=False) if len(text) > 78 else [text]
            lines += [
                f"  {name if not i else '':<18}{part.strip()}" for i, part in enumerate(parts)
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return summary_table("What the learner assumes (95 % intervals)", self._summary())


def _shown(e: Estimate) -> str:
    """A number with its interval; words where there is no bound."""
    if all(map(math.isfinite, (e.value, e.low, e.high))):
        return str(e)
    value = "∞" if math.isinf(e.value) else f"{e.value:.3g}"
    if (e.low <= 0 and e.high == math.inf) or e.low == -math.inf:
        return f"{value} (no bounds)"
    return f"{value} (above {e.low:.3g})"
