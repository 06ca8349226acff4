"""Pointwise: a formula and its derivatives at one point, in plain numbers.

What is followed step by step (a flow, a root, a rule) is asked for one point at a time. There an array of one number
costs more than the sum that it holds, ten times over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import sympy
from sympy.printing.pycode import PythonCodePrinter

from lossnav._base.checks import FloatArray
from lossnav._base.templates import without_kinks

_PRINTED = {
    "fully_qualified_modules": False,
    "inline": True,
    "allow_unknown_functions": True,
    "order": "none",
}


class Pointwise:
    """The value, gradient and Hessian of a formula at one point.

    Args:
        formula: In ``symbols`` alone.
        symbols: The D coordinates.

    Examples:
        >>> x, y = sympy.symbols("x y")
        >>> Pointwise(x**2 * y, [x, y])(np.array([1.0, 3.0]), 1)
        (np.float64(3.0), array([6., 1.]))
    """

    def __init__(self, formula: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> None:
        self.dim = len(symbols)
        slope = [without_kinks(formula.diff(s)) for s in symbols]
        bends = [without_kinks(part.diff(s)) for part in slope for s in symbols]
        self._program: Callable[..., list[float]] = sympy.lambdify(
            list(symbols),
            [formula, *slope, *bends],
            modules="math",
            printer=PythonCodePrinter(_PRINTED),
            cse=lambda sums: sympy.cse(sums, order="none", list=False),
            docstring_limit=0,
        )

    def __call__(self, theta: FloatArray, order: int = 2) -> tuple[FloatArray, ...]:
        """The value, the gradient ``(D,)`` and the Hessian ``(D, D)`` up to ``order``.

        Raises:
            ArithmeticError, ValueError, TypeError: There is no real number, or none that can be held.
            NameError: Python has no such function.
        """
        flat = np.array(self._program(*theta.tolist()), dtype=np.float64)
        split = self.dim + 1
        return (flat[0], flat[1:split], flat[split:].reshape(self.dim, -1))[: order + 1]
