r"""HorizonRule: the optimal step when learning ends at a known time.

Near theta the loss is L = g.x + x.H.x/2, and a time tau is left. The optimal velocity depends on
tau: at a distance x from the minimum, in one dimension and without discount,

.. math:: \dot x=-\sqrt{\eta kh}\,\tanh(\sqrt{\eta kh}\,\tau)\,x, \qquad
          \dot x=-\frac{x}{\tau+1/(\eta kh)},

for a running loss, and for a loss at the end only: the step size follows a schedule. Both are
scalar functions of curvature (`lossnav.solvers.curvature.horizon_gain` and `terminal_gain`); with
drift, or with a loss of both kinds, the step is that of the exact path of
`lossnav.solvers.riccati.two_point`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import device
from scipy import linalg

from lossnav._base import checks
from lossnav.problem.geometry import as_drift
from lossnav.problem.landscapes import Loss
from lossnav.rules.base import Array, State, array_namespace, known, like
from lossnav.rules.local import QuadraticRule, admitted, lower_bound, with_curvatures
from lossnav.rules.operators import in_metric
from lossnav.solvers.curvature import horizon_gain, terminal_gain
from lossnav.solvers.riccati.feedback import scale
from lossnav.solvers.riccati.two_point import TwoPoint, UnboundedError


@dataclass(frozen=True)
class HorizonRule(QuadraticRule):
    r"""The optimal step for a quadratic model of the loss and a finite horizon.

    The state counts the steps, so that step t plans for the time ``horizon - t * dt`` that is left;
    ``dt`` must stay the same. The last step is shortened to end at the horizon. **Steps beyond the
    horizon are zero**, as there is nothing left to gain.

    Without drift and ``terminal`` the step is elementwise, or one eigendecomposition, and can be
    traced; with either, each step solves dense equations in float64, for up to some hundred
    coordinates.

    Args:
        dt, curvature, metric, eta, k, gamma: As in `LocalRule`; ``dt`` is finite.
        horizon: Time from the first step to the end, positive.
        drift: As in `DriftedRule`; none by default.
        negative: Policy for curvature below :math:`-\gamma^2/(4\eta k)`, or below zero for a loss
            at the end, as in `LocalRule`.
        at_end: Whether the loss counts only at the end, not all the time.
        terminal: A cost of the last point besides the loss.

    Examples:
        >>> rule = HorizonRule(0.5, curvature=np.array([4.0]), horizon=1.0, at_end=True)
        >>> theta = np.array([1.0])
        >>> state = rule.init(theta)
        >>> for _ in range(3):
        ...     step, state = rule.update(4 * theta, state, theta)
        ...     theta = theta + step
        ...     print(theta.round(4))  # straight to 1/(1 + 4 T), and no further
        [0.6]
        [0.2]
        [0.2]
    """

    curvature: Any
    horizon: float
    metric: Any = None
    drift: Any = None
    eta: float = 1.0
    k: float = 1.0
    gamma: float = 0.0
    negative: str | float = "lift"
    at_end: bool = False
    terminal: Loss | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "horizon", checks.positive("horizon", self.horizon))
        if known(self.dt) and math.isinf(self.dt):
            raise ValueError(
                f"dt is infinite, but steps are counted up to the horizon {self.horizon:.6g}: use "
                "dt=horizon to go there in one step."
            )
        object.__setattr__(self, "drift", as_drift(self.drift))

    @property
    def bound(self) -> float:
        """As in `DriftedRule`; zero for a loss at the end."""
        return lower_bound(self.eta, self.k, 0.0 if self.at_end else self.gamma, 1.0)

    def init(self, theta: Array) -> State:
        xp = array_namespace(theta)
        return super().init(theta) | {"t": xp.zeros((), dtype=xp.int32, device=device(theta))}

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        H, G, memory = self._observe(grad, state, theta)
        left = self._left(state["t"], theta)
        new_state = memory | {"t": state["t"] + 1}
        if self.drift is not None or self.terminal is not None:
            return self._planned(H, G, grad, theta, float(left)), new_state
        xp = array_namespace(left)
        dt = xp.minimum(left, self.dt * xp.ones_like(left))

        def gain(h: Array) -> Array:
            times = {"dt": like(dt, h), "left": like(left, h)}
            form = terminal_gain if self.at_end else horizon_gain
            return form(self._admitted(h), eta=self.eta, k=self.k, gamma=self.gamma, **times)

        return -in_metric(H, G, gain, grad), new_state

    def _left(self, t: Array, theta: Array) -> Array:
        """Time until the end; a whole number of steps is free of rounding error."""
        xp = array_namespace(theta)
        steps = self.horizon / self.dt if not known(self.dt) or self.dt else math.inf
        if known(steps) and math.isfinite(steps) and abs(steps - round(steps)) <= 1e-9 * steps:
            steps = round(steps)
        if known(steps) and math.isinf(steps):
            return xp.full((), self.horizon, dtype=theta.dtype, device=device(theta))
        return xp.clip(steps - xp.astype(t, theta.dtype), min=0) * self.dt

    def _admitted(self, h: Array) -> Array:
        gamma = 0.0 if self.at_end else self.gamma
        raised = admitted(h, self.negative, self.eta, self.k, gamma, 1.0)
        return array_namespace(h).where(h < self.bound, raised, h)

    def _planned(self, H: Any, G: Any, grad: Array, theta: Array, left: float) -> Array:
        """The exact step in dense matrices, with drift or a terminal cost."""
        form = self._form(H, G, grad, theta)
        if not left:
            return like(np.zeros(theta.shape), theta)
        h, Q = linalg.eigh(form.H, form.G)  # Q.T G Q = 1
        if (h < self.bound).any():
            form = with_curvatures(form, self._admitted(h), Q)
        slope, bend, end = form.g, form.H, None
        if self.at_end:
            form = replace(form, H=0 * bend, g=0 * slope)
        S = scale(form).S
        if self.at_end:
            end = self.k * S.T @ slope, self.k * S.T @ bend @ S
        elif self.terminal is not None:
            _, g, curvature = self.terminal.jet(form.center)
            end = S.T @ g, S.T @ curvature @ S
        try:
            between = TwoPoint(scale(form), left)
            last = between.free_end(0 * form.center, end)
        except UnboundedError as time:
            raise ValueError(
                f"J is unbounded below within the time {time}: curvature {h[0]:.6g} rewards "
                f"endless motion in the time {left:.6g} that is left. Use a shorter horizon or a "
                "larger gamma."
            ) from None
        moved, _ = between.states(0 * form.center, last, np.array([min(float(self.dt), left)]))
        return like((S @ moved[0]).reshape(theta.shape), theta)

    @property
    def assumptions(self) -> str:
        when = "the loss counts only at the end" if self.at_end else "the loss counts all the time"
        if self.terminal is not None:
            when += ", and the end has a cost of its own"
        return f"{self._in_words()}\n- horizon: {self.horizon:.6g} units of time; {when}"
