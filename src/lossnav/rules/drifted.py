r"""DriftedRule: the optimal step when something else moves the weights too (paper Eq. 11, App. G).

Around theta the loss is L = g.x + x.H.x/2 and the drift is f = J x + c, with c = f(theta) and J its
Jacobian there: exact for any affine drift. One Riccati equation
(`lossnav.solvers.riccati.feedback`) gives the optimal velocity K x + d, and the step over dt is

.. math:: \Delta\theta = \Delta t\,\varphi_1(K\Delta t)\,d, \qquad \varphi_1(Z) = Z^{-1}(e^Z-1).

Decay at one rate needs none of this: see `lossnav.rules.local`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from lossnav.problem.geometry import as_drift
from lossnav.problem.objective import QuadraticForm
from lossnav.rules.base import Array, State, like, to_numpy
from lossnav.rules.local import QuadraticRule, admitted
from lossnav.rules.operators import dense
from lossnav.solvers.receding import MARGIN
from lossnav.solvers.riccati.feedback import Feedback, feedback, scale, stabilising


@dataclass(frozen=True)
class DriftedRule(QuadraticRule):
    r"""The optimal step for a quadratic model of the loss and a linear model of the drift.

    Each step solves a dense Riccati equation in float64, so the rule is for up to some hundred
    coordinates and cannot be traced; arrays are returned in the caller's framework. With an affine
    drift and a constant metric, iterating it is `navigate`.

    Args:
        dt: Step size (time between steps), zero or more; infinite goes to the end of the path.
        curvature: As in `LocalRule`; a matrix, a diagonal or Kronecker factors.
        drift: A drift of `lossnav.problem.geometry`, or a callable theta -> velocity that works on
            symbols.
        metric: G, as in `LocalRule`; Euclidean by default.
        eta: Learning rate, positive.
        k: Weight of the loss, positive.
        gamma: Discount rate, zero or more.
        negative: Policy for curvature without an optimal path, as in `LocalRule`. With a growing
            drift even a curvature above the bound may have none; ``"lift"`` then raises it further.

    Examples:
        >>> from lossnav.problem.geometry import Rotation
        >>> rule = DriftedRule(math.inf, np.eye(2), Rotation(1.0))
        >>> theta = np.array([1.0, 0.0])
        >>> step, _ = rule.update(theta - [0.0, 1.0], {}, theta)
        >>> step.round(6)  # to rest, off the minimum (0, 1)
        array([-1. ,  0.5])
    """

    curvature: Any
    drift: Any
    metric: Any = None
    eta: float = 1.0
    k: float = 1.0
    gamma: float = 0.0
    negative: str | float = "lift"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "drift", as_drift(self.drift))
        if self.drift is None:
            raise ValueError("DriftedRule needs a drift; without one, use LocalRule.")

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        H, G, memory = self._observe(grad, state, theta)
        point = to_numpy(theta).ravel()
        metric = np.eye(len(point)) if G is None else dense(G)
        c, J = self.drift.jet(point, 1)
        form = QuadraticForm(
            H=dense(H), g=to_numpy(grad).ravel(), value=0.0, G=metric, J=J, c=c, center=point,
            eta=self.eta, k=self.k, gamma=self.gamma,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a nearly singular Riccati equation
            policy = self._policy(form)
        if math.isinf(self.dt):
            if policy.end is None:
                raise ValueError("The optimal path does not settle, so dt must be finite.")
            move = policy.end - point
        else:
            move = policy.displacement(point, np.asarray(float(self.dt)))
        return like(move.reshape(theta.shape), theta), memory

    def _policy(self, form: QuadraticForm) -> Feedback:
        """The policy, with the lowest curvatures raised if there is none."""
        if self.negative == "refuse":
            return feedback(form)
        h, Q = linalg.eigh(form.H, form.G)  # Q.T G Q = 1
        c = {"eta": self.eta, "k": self.k, "gamma": self.gamma, "dt": 1.0}
        raised = admitted(h, self.negative, **c)
        further = np.where(h <= 0, np.maximum(raised, 0) + MARGIN * np.abs(h).max(), h)
        for values in (h, raised, further):
            if values is not h:
                H = form.G @ (Q * values) @ Q.T @ form.G
                form = replace(form, H=(H + H.T) / 2)
            try:
                if values is further or not _surely_unbounded(form, values):
                    return feedback(form)
            except ValueError as error:
                reason = error
        raise ValueError(f"Even with curvature raised to {further.min():.3g}: {reason}") from None

    @property
    def assumptions(self) -> str:
        name = type(self.drift).__name__
        return self._in_words(f"{name}, linear near theta; only motion beside it has a price")


def _surely_unbounded(form: QuadraticForm, h: np.ndarray) -> bool:
    """Whether J has no lower bound; without the search for a sufficient gamma."""
    size = float(np.abs(h).max())
    if h.min() >= 0 or float(np.abs(h).min()) <= 1e-9 * size:  # flat directions need more care
        return False
    problem = scale(form)
    return stabilising(problem.F - problem.gamma / 2 * np.eye(len(h)), problem.H) is None
