"""Where a rule gets its curvature from: the loss, the user, or (`lossnav.rules.averages`) a running belief.

A `Source` is to curvature what a rule is to steps: constants, with a memory that is passed in and
out. What it returns is a symmetric operator that can apply a scalar function of itself.
"""

from __future__ import annotations

import abc
import math
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace, is_jax_array, is_torch_array

from lossnav._base import checks
from lossnav.problem.autodiff import JaxLoss, TorchLoss
from lossnav.problem.geometry import Field
from lossnav.problem.landscapes import Loss
from lossnav.rules.arrays import like, to_numpy
from lossnav.rules.base import Array, State
from lossnav.rules.operators import Kronecker, operator
from lossnav.solvers.curvature import Curvature, Diagonal, Lanczos


class Source(abc.ABC):
    """A way to know the curvature at theta.

    Attributes:
        words: What it takes the curvature to be, for `Rule.assumptions`.
    """

    words: str = "a curvature"

    def init(self, theta: Array) -> State:
        """The memory held before the first gradient; empty for most."""
        return {}

    @abc.abstractmethod
    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        """The curvature at ``theta``, and the memory to keep."""


class Given(Source):
    """Curvature that a user gives: one for all time, or a callable of theta.

    Args:
        value: A `lossnav.solvers.curvature.Curvature`, an array, a tuple of Kronecker factors, or a callable
            theta -> one of these.

    Examples:
        >>> H, _ = Given(lambda theta: 12 * theta**2).observe(None, {}, np.array([1.0, 2.0]))
        >>> H.h
        array([12., 48.])
    """

    def __init__(self, value: Any, words: str | None = None) -> None:
        self.value = value
        default = "given by a function" if callable(value) else "given, the same everywhere"
        self.words = words or getattr(value, "words", None) or default
        matrix: tuple[int, ...] = tuple(getattr(value, "shape", ()))
        # Decomposed once; which meaning a square array has shows when theta is known.
        self._dense = Kronecker(value) if len(matrix) == 2 and matrix[0] == matrix[1] else None
        if isinstance(value, tuple | list) and all(hasattr(part, "shape") for part in value):
            self.value = Kronecker(*value)

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        if self._dense is not None and tuple(theta.shape) != tuple(self.value.shape):
            return operator(self._dense, theta), {}
        value = self.value(theta) if callable(self.value) else self.value
        return operator(value, theta), {}


class OfLoss(Source):
    """The Hessian of a loss at theta: whole, its diagonal, or by products alone.

    The Hessian of a quadratic is decomposed once. A `TorchLoss` at a tensor and a `JaxLoss` at a
    JAX array are differentiated in their own framework; other losses in float64.

    Args:
        loss: The loss.
        form: ``"exact"``, ``"diagonal"``, or ``"lanczos"`` for very many coordinates.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> H, _ = OfLoss(Quadratic([[2.0, 1.0], [1.0, 3.0]]), "diagonal").observe(None, {}, np.ones(2))
        >>> H.h
        array([2., 3.])
    """

    def __init__(self, loss: Loss, form: Literal["exact", "diagonal", "lanczos"] = "exact") -> None:
        checks.choice("form of the curvature", form, ["exact", "diagonal", "lanczos"])
        self.loss, self.form = loss, form
        self.words = {
            "exact": "the Hessian at theta",
            "diagonal": "the diagonal of the Hessian at theta (coordinates bend on their own)",
            "lanczos": "the Hessian at theta, through products with vectors",
        }[form]
        self._constant: dict[int, Any] = {}

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        if self.form == "lanczos":
            exact = theta.dtype == array_namespace(theta).float64
            return Lanczos(lambda v: self.product(theta, v), tol=1e-8 if exact else 1e-4), {}
        constant = self._quadratic(math.prod(theta.shape))
        if constant is not None and self.form == "exact":
            return constant, {}
        H = self.matrix(theta) if constant is None else constant.factors[0]
        if self.form == "exact":
            return Kronecker(H), {}
        xp = array_namespace(H)
        return Diagonal(like(xp.reshape(xp.linalg.diagonal(H), theta.shape), theta)), {}

    def matrix(self, theta: Array) -> Array:
        """The Hessian ``(D, D)`` over all coordinates."""
        flat = array_namespace(theta).reshape(theta, (-1,))
        if isinstance(self.loss, TorchLoss) and is_torch_array(theta):
            import torch

            return torch.func.jacrev(torch.func.grad(self.loss.fn))(flat.detach())
        if isinstance(self.loss, JaxLoss) and is_jax_array(theta):
            import jax

            return jax.hessian(self.loss.fn)(flat)
        return self._settled(flat.shape[0]).hess(to_numpy(flat))

    def product(self, theta: Array, v: Array) -> Array:
        """The Hessian at theta times ``v``, both in any shape."""
        xp = array_namespace(theta)
        flat, along = xp.reshape(theta, (-1,)), xp.reshape(v, (-1,))
        if isinstance(self.loss, TorchLoss) and is_torch_array(theta):
            import torch

            slope = torch.func.grad(self.loss.fn)
            result = torch.func.vjp(slope, flat.detach())[1](along)[0]  # H is symmetric
        elif isinstance(self.loss, JaxLoss) and is_jax_array(theta):
            import jax

            result = jax.jvp(jax.grad(self.loss.fn), (flat,), (along,))[1]
        else:
            constant = self._quadratic(flat.shape[0])
            H = self.matrix(theta) if constant is None else constant.factors[0]
            result = like(H, along) @ along
        return xp.reshape(result, v.shape)

    def _settled(self, dim: int) -> Loss:
        from lossnav._base.symbolic import default_names

        if self.loss.dim is None:
            return self.loss.bind(names=default_names(dim))
        if self.loss.dim != dim:
            raise ValueError(f"theta has {dim} coordinates, but the objective has {self.loss.dim}.")
        return self.loss

    def _quadratic(self, dim: int) -> Kronecker | None:
        if dim not in self._constant:
            form = self._settled(dim).quadratic()
            self._constant[dim] = None if form is None else Kronecker(form[0])
        return self._constant[dim]


class OfMetric(Source):
    """A metric G at the current theta, from an Objective's `Field`.

    Examples:
        >>> from lossnav.problem.geometry import Metric
        >>> G, _ = OfMetric(Metric(lambda x: [[1 + x[0]**2, 0], [0, 1]])).observe(None, {}, np.ones(2))
        >>> G.h
        array([2., 1.])
    """

    words = "the metric at theta"

    def __init__(self, metric: Field) -> None:
        self.metric = metric
        self._constant: dict[int, Any] = {}

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        size = math.prod(theta.shape)
        if size not in self._constant:
            affine = self.metric.affine(size)
            varies = affine is None or affine[0].any()
            self._constant[size] = None if varies else Kronecker(_metric(affine[1]))  # type: ignore[index]
        G = self._constant[size]
        if G is None:
            G = Kronecker(_metric(self.metric(to_numpy(theta).ravel())))
        return _as_diagonal(G, theta), {}


def as_source(value: Any) -> Source:
    """A source from a source, a curvature, an array, Kronecker factors or a callable."""
    if isinstance(value, Source):
        return value
    if isinstance(value, Field):
        return OfMetric(value)
    if isinstance(value, str):
        raise TypeError(
            f"{value!r} names a form of a loss's curvature, and no loss is known here: use "
            "learning_rule(objective, ...), or give an array or a callable."
        )
    if isinstance(value, Curvature | tuple) or callable(value) or hasattr(value, "shape"):
        return Given(value)
    return Given(np.asarray(value, dtype=np.float64))


def _metric(G: Any) -> Any:
    return checks.positive_definite("G", G)


def _as_diagonal(G: Kronecker, theta: Array) -> Curvature:
    """A diagonal metric as such, so that it may stand beside a diagonal curvature."""
    matrix = G.factors[0]
    h = np.diagonal(matrix)
    if (matrix != np.diag(h)).any():
        return G
    return Diagonal(like(h.reshape(theta.shape), theta))
