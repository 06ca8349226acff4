"""Sources of a rule's curvature: the loss, the user, or a running average.

Like a rule, a `Source` holds constants, and its state is passed in and out. It returns a symmetric
operator that can apply a scalar function of itself.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from array_api_compat import device, is_jax_array, is_torch_array

from lossnav._base import checks
from lossnav.problem.autodiff import JaxLoss, TorchLoss
from lossnav.problem.geometry import Field
from lossnav.problem.landscapes import Loss
from lossnav.rules.base import Array, State, array_namespace, like, one_minus_power, to_numpy
from lossnav.rules.operators import Kronecker, operator
from lossnav.solvers.curvature import Curvature, Diagonal, Lanczos


class Source(abc.ABC):
    """A source of the curvature at theta.

    Attributes:
        words: Description of the curvature, for `Rule.assumptions`.
    """

    words: str = "a curvature"

    def __repr__(self) -> str:
        return f"<{self.words}>"

    def init(self, theta: Array) -> State:
        """The state before the first gradient; empty for most sources."""
        return {}

    @abc.abstractmethod
    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        """The curvature at ``theta``, and the state to keep."""


class Given(Source):
    """Curvature given by the user: constant, or a callable of theta.

    Args:
        value: A `lossnav.solvers.curvature.Curvature`, an array, a tuple of Kronecker factors, or a
            callable theta -> one of these.
        words: Description for `Rule.assumptions`.
    """

    def __init__(self, value: Any, words: str | None = None) -> None:
        self.value = value
        default = "given by a function" if callable(value) else "given, the same everywhere"
        self.words = words or getattr(value, "words", None) or default
        shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
        # Decomposed once; the shape of theta decides whether it is a matrix or a diagonal.
        self._dense = Kronecker(value) if len(shape) == 2 and shape[0] == shape[1] else None
        if isinstance(value, tuple | list) and all(hasattr(part, "shape") for part in value):
            self.value = Kronecker(*value)

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        if self._dense is not None and tuple(theta.shape) != tuple(self.value.shape):
            return operator(self._dense, theta), {}
        value = self.value(theta) if callable(self.value) else self.value
        return operator(value, theta), {}


class OfLoss(Source):
    """The Hessian of a loss at theta: as a matrix, its diagonal, or through products.

    The Hessian of a quadratic is decomposed once. A `TorchLoss` at a tensor and a `JaxLoss` at a
    JAX array are differentiated in their own framework; other losses in float64.

    Args:
        loss: The loss.
        form: ``"exact"``, ``"diagonal"``, or ``"lanczos"`` for very many coordinates.
    """

    def __init__(self, loss: Loss, form: Literal["exact", "diagonal", "lanczos"] = "exact") -> None:
        checks.choice("form of the curvature", form, ["exact", "diagonal", "lanczos"])
        self.loss, self.form = loss, form
        self.words = {
            "exact": "the Hessian at theta",
            "diagonal": "the diagonal of the Hessian at theta (coordinates are independent)",
            "lanczos": "the Hessian at theta, through products with vectors",
        }[form]
        self._constant: dict[int, Any] = {}

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        if self.form == "lanczos":
            exact = theta.dtype == array_namespace(theta).float64
            return Lanczos(lambda v: self.product(theta, v), tol=1e-8 if exact else 1e-4), {}
        constant = self._quadratic(math.prod(theta.shape))
        if self.form == "exact":
            return Kronecker(self.matrix(theta)) if constant is None else constant, {}
        H = self.matrix(theta) if constant is None else constant.factors[0]
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
        return self._bound(flat.shape[0]).hess(to_numpy(flat))

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

    def _bound(self, dim: int) -> Loss:
        from lossnav._base.symbolic import default_names

        if self.loss.dim is None:
            return self.loss.bind(names=default_names(dim))
        if self.loss.dim != dim:
            raise ValueError(f"theta has {dim} coordinates, but the objective has {self.loss.dim}.")
        return self.loss

    def _quadratic(self, dim: int) -> Kronecker | None:
        if dim not in self._constant:
            form = self._bound(dim).quadratic()
            self._constant[dim] = None if form is None else Kronecker(form[0])
        return self._constant[dim]


class OfMetric(Source):
    """A metric G at the current theta, from an Objective's `Field`."""

    words = "the metric at theta"

    def __init__(self, metric: Field) -> None:
        self.metric = metric
        self._constant: dict[int, Any] = {}

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        size = math.prod(theta.shape)
        if size not in self._constant:
            affine = self.metric.affine(size)
            constant = affine is not None and not affine[0].any()
            self._constant[size] = self._checked(affine[1]) if affine and constant else None
        G = self._constant[size]
        if G is None:
            G = self._checked(self.metric(to_numpy(theta).ravel()))
        matrix = G.factors[0]
        h = np.diagonal(matrix).copy()  # PyTorch wants arrays that can be written
        if (matrix != np.diag(h)).any():
            return G, {}
        return Diagonal(like(h.reshape(theta.shape), theta)), {}

    @staticmethod
    def _checked(G: Any) -> Kronecker:
        return Kronecker(checks.positive_definite("G", G))


class _RunningDiagonal(Source):
    """A running average of estimates of the diagonal, with Adam's bias correction.

    The prior is diffuse, so its gain is :math:`(1-\\beta)/(1-\\beta^t)`.
    """

    decay: float

    def init(self, theta: Array) -> State:
        xp = array_namespace(theta)
        count = xp.zeros((), dtype=xp.int32, device=device(theta))
        return {"mean": xp.zeros_like(theta), "count": count}

    def _averaged(self, state: State, estimate: Array) -> State:
        xp = array_namespace(estimate)
        count = state["count"] + 1
        t = xp.astype(xp.asarray(count), estimate.dtype)
        gain = 1 / t if self.decay == 1 else (1 - self.decay) / one_minus_power(self.decay, t)
        return {"mean": state["mean"] + gain * (estimate - state["mean"]), "count": count}


class SquaredGradients(_RunningDiagonal):
    """Curvature as ``kappa`` times the average squared gradient (paper Sec. 5)."""

    words = "kappa times a running average of squared gradients"

    def __init__(self, decay: float = 0.999, *, kappa: float = 1.0) -> None:
        self.decay, self.kappa = checks.fraction("decay", decay), checks.positive("kappa", kappa)

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        average = self._averaged(state, grad * grad)
        return Diagonal(self.kappa * average["mean"]), average


class Hutchinson(_RunningDiagonal):
    r"""The Hessian's diagonal by Hutchinson's estimator, one Hessian-vector product a step.

    With random signs z, :math:`\mathbb E[z\odot Hz]` is the diagonal. The signs are a fixed
    function of seed and step, the same in each framework, so a run can be repeated and traced.

    Args:
        product: Maps ``(theta, v)`` to H v.
        decay: Decay rate of the average, in [0, 1); 1 is the plain average of all products.
        seed: Any whole number.
    """

    words = "a running average of Hutchinson's estimate of the Hessian's diagonal"

    def __init__(
        self, product: Callable[[Array, Array], Array], decay: float = 0.99, *, seed: int = 0
    ) -> None:
        self.product, self.seed = product, int(seed)
        self.decay = 1.0 if decay == 1 else checks.fraction("decay", decay)

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        z = signs(state["count"], theta, self.seed)
        average = self._averaged(state, z * self.product(theta, z))
        return Diagonal(average["mean"]), average


def signs(count: Array, theta: Array, seed: int = 0) -> Array:
    """Signs -1 and 1 in the shape of theta: a hash of seed, step and index."""
    xp = array_namespace(theta)
    # 32-bit integers wrap around in each framework; one axis, as scalars would warn.
    step = xp.reshape(xp.astype(count, xp.int32), (1,)) + (seed % 2**31)
    place = xp.arange(math.prod(theta.shape), dtype=xp.int32, device=device(theta))
    bits = _hashed(place ^ _hashed(step)) & 1
    return xp.reshape(xp.astype(1 - 2 * bits, theta.dtype), theta.shape)


def _hashed(x: Array) -> Array:
    for shift, factor in ((16, 0x45D9F3B), (15, 0x2C1B3C6D), (16, 0x297A2D39)):
        x = (x ^ ((x >> shift) & (2 ** (32 - shift) - 1))) * factor
    return x ^ ((x >> 16) & 0xFFFF)


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
