"""The objective: the assumptions of a learner, and the cost J of a path (paper Eq. 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.geometry import Field, as_drift, as_metric
from lossnav.problem.landscapes import Loss, as_loss, coordinate_names

if TYPE_CHECKING:
    import sympy

_RESERVED = {"eta", "k", "gamma", "t"}


@dataclass(frozen=True)
class Objective:
    r"""The paper's objective, Eq. (1): four inputs and three constants.

    .. math:: J = \int \left[\frac{1}{2\eta}(\dot\theta-f)^T G(\theta)(\dot\theta-f)
              + k L(\theta)\right] D(t)\,dt, \qquad D(t) = e^{-\gamma t}.

    A ``terminal`` cost adds :math:`D(T)\,\Phi(\theta_T)` at the end of a finite horizon T (paper
    App. A: the loss only at the end).

    Args:
        loss: A landscape, or a callable ``theta -> scalar`` that works on symbols. A callable of
            ``(theta, t)``, or an `Expression` in ``t``, changes with time.
        metric: G: a metric, a positive definite array, or a callable; Euclidean by default.
        drift: f: a drift or a callable; none by default.
        eta: Learning rate, positive: the inverse cost of motion.
        k: Weight of the loss; zero leaves only the cost of motion (geodesics, least action).
        gamma: Discount rate, zero or more; a learner with a large one plans only the next moment.
        discount: Any positive D(t) in place of ``exp(-gamma t)``: a callable that works on symbols,
            or a formula in ``t`` as text.
        terminal: Cost Phi of the path's last point; a loss or a callable like ``loss``.
        names: Names of the coordinates, for a loss that has none.

    A belief about the landscape (the fourth input) is made of more coordinates: see `adaptive` and
    `weight_uncertainty` of `lossnav.problem.belief`, which return Objectives.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> objective = Objective(Quadratic([1.0, 4.0]), eta=0.5, gamma=2.0)
        >>> objective.dim, objective.names
        (2, ('theta1', 'theta2'))
        >>> t = np.linspace(0, 1, 5)
        >>> stay = np.ones((5, 2))
        >>> round(objective.J(t, stay), 6)  # 2.5 times the integral of exp(-2 t)
        1.080831
        >>> import lossnav as ln
        >>> at_end = Objective(Quadratic([1.0]), k=0, terminal=Quadratic([3.0]))
        >>> ln.solve(at_end, [1.0], horizon=2.0).end.round(6)  # 1/(1 + 3 T)
        array([0.142857])
    """

    loss: Loss
    metric: Field | None = None
    drift: Field | None = None
    eta: float = 1.0
    k: float = 1.0
    gamma: float = 0.0
    discount: Callable[[Any], Any] | None = None
    terminal: Loss | None = field(default=None, kw_only=True)
    names: tuple[str, ...] | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:  # the inputs have more types than the attributes

        def __init__(
            self,
            loss: Loss | Callable[..., Any],
            metric: Field | ArrayLike | Callable[..., Any] | None = None,
            drift: Field | Callable[..., Any] | None = None,
            eta: float = 1.0,
            k: float = 1.0,
            gamma: float = 0.0,
            discount: Callable[[Any], Any] | str | None = None,
            *,
            terminal: Loss | Callable[..., Any] | None = None,
            names: Sequence[str] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        constants = {
            "eta": checks.positive("eta", self.eta),
            "k": checks.non_negative("k", self.k),
            "gamma": checks.non_negative("gamma", self.gamma),
        }
        if self.discount is not None and self.gamma:
            raise ValueError("Give gamma or discount, not both: each is the whole of D(t).")
        if isinstance(self.discount, str):
            object.__setattr__(self, "discount", formula_of_time(self.discount))
        if self.discount is not None and not callable(self.discount):
            raise TypeError(
                f"The discount is a {type(self.discount).__name__}: pass a callable t -> D(t), or "
                'a formula such as "1/(1 + t)**2".'
            )
        loss, metric, drift = as_loss(self.loss), as_metric(self.metric), as_drift(self.drift)
        terminal = None if self.terminal is None else as_loss(self.terminal)
        if terminal is not None and terminal.timed:
            raise ValueError(
                "The terminal cost depends on t: it is the cost of a place, so leave t out."
            )
        names = self._named(loss, metric, drift, terminal)
        bound = {
            **constants,
            "loss": loss.bind(names=names, **constants),
            "terminal": None if terminal is None else terminal.bind(names=names, **constants),
            "metric": None if metric is None else metric.bind(**constants),
            "drift": None if drift is None else drift.bind(**constants),
            "names": names,
        }
        for name, value in bound.items():
            object.__setattr__(self, name, value)

    def _named(
        self, loss: Loss, metric: Field | None, drift: Field | None, terminal: Loss | None
    ) -> tuple[str, ...] | None:
        from lossnav._base.symbolic import default_names

        own = coordinate_names(self.names)
        dims = {
            "the loss": loss.dim,
            "the metric": getattr(metric, "dim", None),
            "the drift": getattr(drift, "dim", None),
            "the terminal cost": getattr(terminal, "dim", None),
            "names": None if own is None else len(own),
        }
        known = {part: dim for part, dim in dims.items() if dim is not None}
        if len(set(known.values())) > 1:
            sizes = ", ".join(f"{part} has {dim}" for part, dim in known.items())
            raise ValueError(f"The inputs disagree on the number of coordinates: {sizes}.")
        if not known:
            return None
        names = own or loss.names or default_names(next(iter(known.values())))
        clash = _RESERVED & set(names)
        if clash or len(set(names)) < len(names):
            raise ValueError(
                f"Coordinates cannot be named {list(names)}: names must differ from each other and "
                "from eta, k, gamma and t."
            )
        return tuple(names)

    def __repr__(self) -> str:
        fields = {"metric": self.metric, "drift": self.drift}
        parts = [f"{name}={field}" for name, field in fields.items() if field is not None]
        parts += [f"eta={self.eta:g}", f"k={self.k:g}"]
        parts += [] if self.terminal is None else [f"terminal={self.terminal!r}"]
        if self.discount is None:
            parts.append(f"gamma={self.gamma:g}")
        else:
            parts.append(f"discount={getattr(self.discount, '__name__', 'D')}")
        return f"Objective({', '.join([repr(self.loss), *parts])})"

    def _repr_latex_(self) -> str:
        """J with this loss, metric, drift and discount, for notebooks."""
        import sympy

        from lossnav._base.symbolic import aligned, coordinates

        move = r"\dot\theta" if self.drift is None else r"\dot\theta - f"
        cost = rf"\|{move}\|^2" if self.metric is None else rf"({move})^T G\,({move})"
        weight = sympy.latex(self.discount_expression())
        lines = [rf"J &= \int \left[\frac{{1}}{{2\eta}} {cost} + k L\right] {weight}\,dt"]
        if self.terminal is not None:
            lines[0] += r" + D(T)\,\Phi(\theta_T)"
        symbols = coordinates(self.names or (), self.loss.positive)
        if 0 < len(symbols) <= 8:  # more cannot be read
            for letter, part in (("L", self.loss), (r"\Phi", self.terminal)):
                if part is None:
                    continue
                try:
                    lines.append(f"{letter} &= {sympy.latex(part.expression(symbols))}")
                except TypeError:  # no formula
                    lines.append(rf"{letter} &= {letter}(\theta)")
            for letter, field in (("G", self.metric), ("f", self.drift)):
                if field is not None:
                    entries = sympy.Matrix(field.entries(symbols).tolist())
                    lines.append(f"{letter} &= {sympy.latex(entries)}")
        gamma = "" if self.discount else rf",\quad \gamma = {self.gamma:g}"
        lines.append(rf"\eta &= {self.eta:g},\quad k = {self.k:g}{gamma}")
        return aligned(lines)

    @property
    def dim(self) -> int | None:
        """Number of coordinates D, or None while a plain callable leaves it open."""
        return None if self.names is None else len(self.names)

    def at_dim(self, dim: int) -> Objective:
        """The same objective with ``dim`` coordinates.

        Examples:
            >>> Objective(lambda x: (x**2).sum()).at_dim(3).names
            ('theta1', 'theta2', 'theta3')
        """
        from lossnav._base.symbolic import default_names

        if self.dim is None:
            return replace(self, names=default_names(dim))
        if self.dim != dim:
            raise ValueError(f"theta has {dim} coordinates, but the objective has {self.dim}.")
        return self

    def metric_at(self, theta: ArrayLike) -> FloatArray:
        """G at points ``(..., D)``: shape ``(..., D, D)``."""
        points = np.asarray(theta, dtype=np.float64)
        if self.metric is None:
            return np.broadcast_to(np.eye(points.shape[-1]), (*points.shape, points.shape[-1]))
        return self.metric(points)

    def drift_at(self, theta: ArrayLike) -> FloatArray:
        """f at points ``(..., D)``, in the same shape."""
        points = np.asarray(theta, dtype=np.float64)
        return np.zeros_like(points) if self.drift is None else self.drift(points)

    def kinetic(self, theta: ArrayLike, velocity: ArrayLike) -> FloatArray:
        r"""The cost of motion :math:`\frac{1}{2\eta}(\dot\theta-f)^T G (\dot\theta-f)`."""
        u = np.asarray(velocity, dtype=np.float64) - self.drift_at(theta)
        momentum = u if self.metric is None else (self.metric(theta) @ u[..., None])[..., 0]
        return np.einsum("...i,...i->...", u, momentum) / (2 * self.eta)

    def potential(self, theta: ArrayLike, t: ArrayLike | None = None) -> FloatArray:
        """The cost of the loss, k L; a loss that changes with time needs the times ``t``."""
        if not self.loss.timed:
            return self.k * self.loss(theta)
        points = np.asarray(theta, dtype=np.float64)
        when = None if t is None else np.broadcast_to(t, points.shape[:-1])
        return self.k * self.loss.jet_in_time(points, when, 0)[0]

    def at_time(self, t: float) -> Objective:
        """The objective with the loss frozen at time ``t``."""
        if not self.loss.timed:
            return self
        cache: dict[float, Objective] = self.__dict__.setdefault("_frozen", {})
        if t not in cache:
            cache[t] = replace(self, loss=self.loss.at(t))
        return cache[t]

    def terminal_jet(
        self, theta: FloatArray, horizon: float, order: int = 2
    ) -> tuple[FloatArray, ...]:
        """The discounted terminal cost at one point with its derivatives; empty without one."""
        if self.terminal is None:
            return ()
        weight = float(self.discount_at(horizon))
        return tuple(weight * part for part in self.terminal.jet(theta, order))

    def steady(self, who: str, *, ends: bool = False) -> Objective:
        """The objective itself; a ValueError if its loss depends on time, which ``who`` excludes.

        A terminal cost is an error, too, unless time ``ends``.
        """
        if self.loss.timed:
            raise ValueError(f"The loss changes with time, but {who} needs one that does not.")
        if self.terminal is not None and not ends:
            raise ValueError(
                f"A terminal cost belongs to a finite horizon, but {who} has none: use "
                "solve(..., horizon=T) or learning_rule(..., horizon=T)."
            )
        return self

    def discount_at(self, t: ArrayLike) -> FloatArray:
        """D(t), in the shape of ``t``."""
        times = np.asarray(t, dtype=np.float64)
        if self.discount is None:
            return np.exp(-self.gamma * times)
        values = self._discount(times[..., None])[0]
        bad = times[~(np.isfinite(values) & (values > 0))]
        if bad.size:
            raise ValueError(
                f"The discount D(t) must be positive and finite, but it is not at t = {bad[0]:.6g}."
            )
        return values

    @cached_property
    def _discount(self) -> Any:
        from lossnav._base.jets import Jet
        from lossnav._base.symbolic import TIME

        return Jet(np.array(self.discount_expression(), dtype=object), [TIME], {}, "discount")

    def discount_expression(self) -> sympy.Expr:
        """D(t) as a formula in ``t``, with ``gamma`` as a letter where it is exponential."""
        import sympy

        from lossnav._base.symbolic import GAMMA, TIME, trace

        if self.discount is None:
            return sympy.exp(-GAMMA * TIME)
        fn = self.discount
        return trace(lambda t: fn(t[0]), [TIME], "discount").item()

    def J(self, t: ArrayLike, theta: ArrayLike) -> float:
        """The cost of the path that joins the points ``theta`` at times ``t`` by straight lines.

        Each piece is integrated by four Gauss points, so for a smooth path the error is that of
        the straight lines: second order in the spacing.

        Args:
            t: Increasing times ``(N,)``.
            theta: Points ``(N, D)``.
        """
        times = checks.finite_array("t", t, ndim=1)
        points = checks.finite_array("theta", theta, ndim=2)
        steps = np.diff(times)
        if len(times) != len(points) or len(times) < 2 or (steps <= 0).any():
            raise ValueError(
                f"A path needs two or more increasing times, one for each point; got {len(times)} "
                f"times and {len(points)} points."
            )
        nodes, weights = np.polynomial.legendre.leggauss(4)
        nodes = (nodes + 1) / 2
        moves = np.diff(points, axis=0)[:, None]
        at = points[:-1, None] + nodes[:, None] * moves
        velocity = np.broadcast_to(moves / steps[:, None, None], at.shape)
        when = times[:-1, None] + nodes * steps[:, None]
        running = self.kinetic(at, velocity) + self.potential(at, when)
        total = np.einsum("np,np,p,n->", running, self.discount_at(when), weights / 2, steps)
        return float(total + sum(self.terminal_jet(points[-1], times[-1], 0)))

    def quadratic(self) -> QuadraticForm | None:
        """The matrices of a problem with an exact solution, or None.

        That is a quadratic loss, a constant metric, an affine drift and exponential discount.
        """
        dim = self.dim
        if self.discount is not None or self.terminal is not None:
            return None
        if self.k == 0 and dim is not None:
            form: Any = np.zeros((dim, dim)), np.zeros(dim), 0.0, np.zeros(dim)
        else:
            form = self.loss.quadratic()
        if form is None:
            return None
        H, g, value, center = form
        dim = len(g)
        slope, c, G = np.zeros((dim, dim)), np.zeros(dim), np.eye(dim)
        if self.drift is not None:
            affine = self.drift.affine(dim)
            if affine is None:
                return None
            slope, c = affine
        if self.metric is not None:
            affine = self.metric.affine(dim)
            if affine is None or affine[0].any():
                return None
            G = checks.positive_definite("G", affine[1])
        constants = {"eta": self.eta, "k": self.k or 1.0, "gamma": self.gamma}
        c = slope @ center + c
        return QuadraticForm(H, g, value, G, slope, c, center, **constants)


def formula_of_time(text: str) -> Callable[[Any], Any]:
    """A function of t from a formula as text."""
    from lossnav._base.expressions import parse
    from lossnav._base.symbolic import TIME, substituted

    formula = parse(text, {"t": TIME})
    return lambda t: substituted(formula, [TIME], [t])


@dataclass(frozen=True)
class QuadraticForm:
    """L = value + g.x + x.H.x/2, G, f = J x + c, with x = theta - center."""

    H: FloatArray
    g: FloatArray
    value: float
    G: FloatArray
    J: FloatArray
    c: FloatArray
    center: FloatArray
    eta: float
    k: float
    gamma: float
