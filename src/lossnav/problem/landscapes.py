"""Losses: value, gradient and Hessian at many points, and a formula if there is one.

Derivatives are never written by hand: a callable is traced with symbols (`Function`), text is
parsed with a whitelist (`Expression`), and models without a formula use automatic differentiation
(`lossnav.problem.autodiff`).
"""

from __future__ import annotations

import abc
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray

if TYPE_CHECKING:
    import sympy

    from lossnav._base.jets import Jet


class Loss(abc.ABC):
    """A function of the parameters with exact first and second derivatives.

    Attributes:
        names: Names of the coordinates, or ``None`` while the dimension is open.
        positive: The names of coordinates that are positive by definition.
        timed: Whether the loss changes with time. It is then evaluated by `jet_in_time`.
    """

    names: tuple[str, ...] | None = None
    positive: tuple[str, ...] = ()
    timed: bool = False

    @property
    def dim(self) -> int | None:
        """Number of coordinates D, or ``None`` if it is open."""
        return None if self.names is None else len(self.names)

    @abc.abstractmethod
    def jet(self, theta: ArrayLike, order: int = 2) -> tuple[FloatArray, ...]:
        """Value ``(...)``, gradient ``(..., D)`` and Hessian ``(..., D, D)`` up to ``order``."""

    def jet_at(self, theta: FloatArray, order: int = 2) -> tuple[FloatArray, ...]:
        """The same at one point ``(D,)``; a subclass may do this faster."""
        return self.jet(theta, order)

    def jet_in_time(
        self, theta: FloatArray, t: FloatArray | None, order: int = 2
    ) -> tuple[FloatArray, ...]:
        """The same at points ``(..., D)`` and times ``t`` ``(...)``, ignored by most losses."""
        return self.jet(theta, order)

    def at(self, t: float) -> Loss:
        """The loss at one time."""
        return self

    def __call__(self, theta: ArrayLike) -> FloatArray:
        """The loss at points ``theta`` of shape ``(..., D)``."""
        return self.jet(theta, 0)[0]

    def grad(self, theta: ArrayLike) -> FloatArray:
        """The gradient at points ``(..., D)``, in the same shape."""
        return self.jet(theta, 1)[1]

    def hess(self, theta: ArrayLike) -> FloatArray:
        """The Hessian at points ``(..., D)``: shape ``(..., D, D)``."""
        return self.jet(theta, 2)[2]

    def hessian_pattern(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the Hessian's upper triangle that may differ from zero."""
        return np.triu_indices(dim)

    def hessian_constants(self, dim: int) -> FloatArray:
        """The constant entries of `hessian_pattern`; NaN for the others."""
        return np.full(dim * (dim + 1) // 2, np.nan)

    def sparse_jet(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Value, gradient and the `hessian_pattern` entries ``(M, entries)`` at ``(M, D)``."""
        value, g, H = self.jet(theta)
        return value, g, H[:, *self.hessian_pattern(theta.shape[1])]

    def expression(self, symbols: Sequence[sympy.Symbol]) -> sympy.Expr:
        """The loss as a formula in ``symbols``."""
        raise TypeError(
            f"{type(self).__name__} has no formula, so nothing can be derived from it "
            "symbolically: write the loss as a callable of theta or as an Expression."
        )

    def quadratic(self) -> tuple[FloatArray, FloatArray, float, FloatArray] | None:
        """``(H, g, value, center)`` if the loss is a quadratic about ``center``, else None."""
        return None

    def bind(self, *, names: Sequence[str] | None = None, **constants: float) -> Self:
        """The same loss with its dimension or named constants filled in."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._summary()})"

    def _summary(self) -> str:
        """The arguments, in short."""
        return "" if self.names is None else f"names={_listed(self.names)}"


class Function(Loss):
    """A loss given by any callable that works on symbols; traced once.

    Args:
        fn: Maps an array of D coordinates to a scalar with arithmetic, NumPy's elementary functions
            or SymPy's. A callable ``fn(theta, t)`` is a loss that changes with time.
        names: Names of the coordinates. May be left open; `solve` then takes D from ``theta0``.
        constants: Numbers for named constants (SymPy symbols) that ``fn`` uses.
        positive: Names of coordinates that are positive by definition.

    Examples:
        >>> import numpy as np
        >>> loss = Function(lambda x: np.sum(x**4) + np.exp(-x[0]), names=["x", "y"])
        >>> loss.grad([[0.0, 1.0], [0.0, 2.0]])
        array([[-1.,  4.],
               [-1., 32.]])
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        names: Sequence[str] | None = None,
        *,
        constants: Mapping[str, float] | None = None,
        positive: Sequence[str] = (),
    ) -> None:
        if not callable(fn):
            raise TypeError(f"A loss must be callable, but a {type(fn).__name__} was given.")
        self.fn = fn
        self.timed = _takes_time(fn)
        self.names = coordinate_names(names)
        self.constants = dict(constants or {})
        self.positive = tuple(positive)

    def bind(self, *, names: Sequence[str] | None = None, **constants: float) -> Self:
        merged = self.constants | constants
        if (names is None or self.names is not None) and merged == self.constants:
            return self
        bound = copy.copy(self)
        if "_jet" in self.__dict__ and self._jet.constants:
            del bound.__dict__["_jet"]  # compiled with the old constants
        if self.names is None and names is not None:
            bound.names = tuple(names)
        bound.constants = merged
        return bound

    def expression(self, symbols: Sequence[sympy.Symbol]) -> sympy.Expr:
        from lossnav._base.symbolic import TIME, trace

        if self.timed:
            traced = trace(lambda x: self.fn(x[:-1], x[-1]), [*symbols, TIME], "loss")
        else:
            traced = trace(self.fn, symbols, "loss")
        if traced.size != 1:
            raise TypeError(f"The loss returned an array of shape {traced.shape}, not a scalar.")
        return traced.item()

    def kinks(self, theta: ArrayLike) -> FloatArray:
        """The arguments of the absolute values in the formula at one point, in any order."""
        from sympy import Abs

        from lossnav._base.symbolic import compiled

        symbols, formula = self._jet.symbols, self._jet.entries.item()
        inner = [node.args[0] for node in formula.atoms(Abs)]
        if not inner:
            return np.zeros(0)
        values = compiled(symbols, inner)(*np.asarray(theta, dtype=np.float64))
        return np.array(values, dtype=np.float64)

    def smoothed(self, width: float) -> Function:
        """The loss with sqrt(u^2 + width^2) for each absolute value abs(u)."""
        import sympy

        symbols, formula = self._jet.symbols, self._jet.entries.item()
        return self._rewritten(
            symbols, formula.replace(sympy.Abs, lambda u: sympy.sqrt(u**2 + width**2))
        )

    @cached_property
    def _jet(self) -> Jet:
        from lossnav._base.jets import Jet
        from lossnav._base.symbolic import TIME, coordinates

        if self.names is None:
            raise ValueError(
                "The loss is a plain callable, which does not say how many coordinates it has: "
                'pass names=["x", "y"] to Objective or Function.'
            )
        symbols = coordinates(self.names, self.positive)
        entry = np.array(self.expression(symbols), dtype=object)
        return Jet(entry, [*symbols, TIME] if self.timed else symbols, self.constants, "loss")

    def jet(self, theta: ArrayLike, order: int = 2) -> tuple[FloatArray, ...]:
        if self.timed:
            raise ValueError(
                "The loss changes with time: use loss.at(t), the loss at one time, or "
                "loss.jet_in_time(theta, t)."
            )
        return self._jet(checks.points(theta, len(self._jet.symbols)), order)

    def jet_in_time(
        self, theta: FloatArray, t: FloatArray | None, order: int = 2
    ) -> tuple[FloatArray, ...]:
        if not self.timed or t is None:
            return self.jet(theta, order)
        parts = self._jet(np.concatenate([theta, np.asarray(t)[..., None]], axis=-1), order)
        return in_theta(parts, theta.shape[-1])

    def at(self, t: float) -> Loss:
        if not self.timed:
            return self
        from lossnav._base.symbolic import TIME, exact

        symbols, formula = self._jet.symbols[:-1], self._jet.entries.item()
        return self._rewritten(symbols, formula.xreplace({TIME: exact(float(t))}))

    def _rewritten(self, symbols: Sequence[sympy.Symbol], formula: sympy.Expr) -> Function:
        """A loss with another formula in the same coordinates."""
        from lossnav._base.symbolic import substituted

        fn = functools.partial(substituted, formula, symbols)
        return Function(fn, self.names, constants=self.constants, positive=self.positive)

    def hessian_pattern(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        return self._jet.hessian_pattern

    def hessian_constants(self, dim: int) -> FloatArray:
        return self._jet.hessian_constants

    def sparse_jet(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self._jet.sparse(theta)

    def quadratic(self) -> tuple[FloatArray, FloatArray, float, FloatArray] | None:
        if self.timed or self._jet.degree is None:
            return None
        origin = np.zeros(len(self._jet.symbols))
        value, g, H = self.jet(origin)
        return H, g, float(value), origin


class Expression(Function):
    """A loss typed as text, in declared variables; safe for input from files or a web page.

    Args:
        text: A formula with ``+ - * / **``, brackets, ``pi`` and elementary functions; ``t`` is
            the time.
        variables: The coordinates, in order.

    Examples:
        >>> Expression("(x**2 - 1)**2 + y**2 - x/2", ["x", "y"])([1.0, 2.0]).item()
        3.5
        >>> Expression("x.__class__", ["x"])
        Traceback (most recent call last):
        ...
        lossnav._base.expressions.ExpressionError: 'x.__class__' is not allowed in a formula.
    """

    def __init__(self, text: str, variables: Sequence[str]) -> None:
        from lossnav._base.expressions import check_names, parse
        from lossnav._base.symbolic import TIME, coordinates, substituted

        self.text = text
        variables = check_names(variables)
        symbols = coordinates(variables)
        formula = parse(text, {"t": TIME} | dict(zip(variables, symbols, strict=True)))

        def loss(theta: Any) -> sympy.Expr:
            return substituted(formula, symbols, theta)

        def timed_loss(theta: Any, t: Any) -> sympy.Expr:
            return loss(theta)  # the time is a symbol already

        super().__init__(timed_loss if formula.has(TIME) else loss, variables)

    def _summary(self) -> str:
        return f"{self.text!r:.70}, {_listed(self.names or ())}"


class Quadratic(Loss):
    r"""A quadratic loss (paper Sec. 3).

    With ``minimum``: :math:`L = \tfrac12(\theta-\theta_*)^T H (\theta-\theta_*)`; with ``g``:
    :math:`L = g^T\theta + \tfrac12\theta^T H\theta`, where H may be singular or indefinite.

    Args:
        H: Symmetric ``(D, D)``; a number means D = 1 and a vector is a diagonal.
        g: Gradient at the origin ``(D,)``.
        minimum: Where the gradient vanishes ``(D,)``; zero by default.

    Examples:
        >>> loss = Quadratic([[2.0, 0.5], [0.5, 1.0]], minimum=[1.0, 0.0])
        >>> loss.grad([0.0, 0.0])
        array([-2. , -0.5])
    """

    def __init__(
        self, H: ArrayLike, *, g: ArrayLike | None = None, minimum: ArrayLike | None = None
    ) -> None:
        from lossnav._base.symbolic import default_names

        self.H = checks.symmetric("H", H)
        dim = len(self.H)
        if g is not None and minimum is not None:
            raise ValueError("Give g or minimum, not both: each fixes the linear part of the loss.")
        zero = np.zeros(dim)
        self.g = zero if g is None else checks.point("g", g, dim)
        self.center = zero if minimum is None else checks.point("minimum", minimum, dim)
        self.names = default_names(dim)

    def _summary(self) -> str:
        parts = {"H": self.H, "g": self.g, "minimum": self.center}
        shown = {name: a for name, a in parts.items() if name == "H" or a.any()}
        return ", ".join(f"{name}={checks.brief(a)}" for name, a in shown.items())

    def jet(self, theta: ArrayLike, order: int = 2) -> tuple[FloatArray, ...]:
        x = checks.points(theta, len(self.g)) - self.center
        slope = x @ self.H
        value = x @ self.g + np.einsum("...i,...i->...", x, slope) / 2
        hess = np.broadcast_to(self.H, (*x.shape, x.shape[-1]))
        return (value, slope + self.g, hess)[: order + 1]

    def quadratic(self) -> tuple[FloatArray, FloatArray, float, FloatArray]:
        return self.H, self.g, 0.0, self.center

    def expression(self, symbols: Sequence[sympy.Symbol]) -> sympy.Expr:
        from lossnav._base.symbolic import exact

        x = [s - exact(c) for s, c in zip(symbols, self.center, strict=True)]
        rows, g = [[exact(h) for h in row] for row in self.H], [exact(v) for v in self.g]
        square = sum(x[i] * x[j] * rows[i][j] for i in range(len(x)) for j in range(len(x)))
        return sum(a * b for a, b in zip(g, x, strict=True)) + square / 2


class DoubleWell(Function):
    r"""Fig. 1 of the paper: :math:`L = a(\theta_1^2-b)^2 + c\,\theta_2^2 + d\,\theta_1`.

    Examples:
        >>> DoubleWell()([-0.6, 0.55]).round(4).item()
        1.0121
    """

    def __init__(self, a: float = 1, b: float = 1, c: float = 1, d: float = -0.5) -> None:
        numbers = {"a": a, "b": b, "c": c, "d": d}
        self.a, self.b, self.c, self.d = (checks.number(*item) for item in numbers.items())
        super().__init__(self._formula, ("theta1", "theta2"))

    def _summary(self) -> str:
        return f"a={self.a:g}, b={self.b:g}, c={self.c:g}, d={self.d:g}"

    def _formula(self, theta: Any) -> Any:
        x, y = theta
        return self.a * (x**2 - self.b) ** 2 + self.c * y**2 + self.d * x


class Rosenbrock(Function):
    r"""The curved valley :math:`\sum_i 100(\theta_{i+1}-\theta_i^2)^2 + (1-\theta_i)^2`.

    Examples:
        >>> Rosenbrock(3)([1.0, 1.0, 1.0]).item()
        0.0
    """

    def __init__(self, D: int = 2) -> None:
        from lossnav._base.symbolic import default_names

        if not isinstance(D, int | np.integer):
            raise TypeError(f"D must be a whole number, but it is {D!r}.")
        if D < 2:
            raise ValueError(f"Rosenbrock needs two or more coordinates, but D is {D}.")
        super().__init__(self._formula, default_names(D))

    @staticmethod
    def _formula(theta: Any) -> Any:
        head, tail = theta[:-1], theta[1:]
        return np.sum(100 * (tail - head**2) ** 2 + (1 - head) ** 2)


class Himmelblau(Function):
    r"""Four equal minima: :math:`(x^2+y-11)^2 + (x+y^2-7)^2`.

    Examples:
        >>> Himmelblau()([3.0, 2.0]).item()
        0.0
    """

    def __init__(self) -> None:
        super().__init__(self._formula, ("theta1", "theta2"))

    @staticmethod
    def _formula(theta: Any) -> Any:
        x, y = theta
        return (x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2


class MuellerBrown(Function):
    """A test surface of chemistry: three minima joined by two curved passes.

    Examples:
        >>> MuellerBrown()([-0.558, 1.442]).round(2).item()
        -146.7
    """

    A = (-200.0, -100.0, -170.0, 15.0)
    a = (-1.0, -1.0, -6.5, 0.7)
    b = (0.0, 0.0, 11.0, 0.6)
    c = (-10.0, -10.0, -6.5, 0.7)
    x0 = (1.0, 0.0, -0.5, -1.0)
    y0 = (0.0, 0.5, 1.5, 1.0)

    def __init__(self) -> None:
        super().__init__(self._formula, ("theta1", "theta2"))

    @classmethod
    def _formula(cls, theta: Any) -> Any:
        x, y = theta
        wells = zip(cls.A, cls.a, cls.b, cls.c, cls.x0, cls.y0, strict=True)
        return sum(
            A * np.exp(a * (x - p) ** 2 + b * (x - p) * (y - q) + c * (y - q) ** 2)
            for A, a, b, c, p, q in wells
        )


def in_theta(jet: tuple[FloatArray, ...], dim: int) -> tuple[FloatArray, ...]:
    """A value and its derivatives, of which only those in the first ``dim`` arguments are kept."""
    kept: tuple[Any, ...] = ..., np.s_[..., :dim], np.s_[..., :dim, :dim]
    return tuple(part[place] for part, place in zip(jet, kept, strict=False))


def _takes_time(fn: Callable[..., Any]) -> bool:
    """Whether a callable must be given two arguments, theta and t."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # built in
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD]
    return len(needed) == 2


def coordinate_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names for the coordinates as a tuple, all different; None leaves the dimension open."""
    if names is None:
        return None
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be a list such as ['x', 'y']; got {names!r:.80}.")
    if len(set(names)) < len(names):
        raise ValueError(f"A coordinate is named twice in {list(names)!r:.80}.")
    if not names:
        raise ValueError("names is empty: a loss has at least one coordinate.")
    return tuple(names)


def as_loss(loss: Any) -> Loss:
    """A `Loss` from a Loss or any callable."""
    if isinstance(loss, Loss):
        return loss
    if "torch" in sys.modules and isinstance(loss, sys.modules["torch"].nn.Module):
        raise TypeError(
            f"The loss is a torch module ({type(loss).__name__}), not a function of theta: use "
            "ln.TorchLoss(fn), where fn maps a tensor of coordinates to a scalar tensor."
        )
    if callable(loss):
        return Function(loss)
    raise TypeError(
        f"The loss is a {type(loss).__name__}: pass a landscape such as ln.Quadratic(H), or a "
        "callable theta -> scalar."
    )


def _listed(names: Sequence[str]) -> str:
    return f"{list(names)}" if len(names) <= 6 else f"{len(names)} coordinates"
