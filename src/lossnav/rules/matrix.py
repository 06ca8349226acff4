r"""PolarRule: a belief about a matrix; Muon as the step of the family in each singular value.

The step is that of `lossnav.rules.family`, :math:`-\ell\,\phi\,(\Gamma+\sqrt{\Gamma^2+V})^{-1}M`,
for a gradient matrix with mean M and the belief :math:`V=MM^T` about its covariance. Without
discount, :math:`(MM^T)^{-1/2}M` is the polar factor of M: Muon's orthogonal step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lossnav._base import checks
from lossnav.rules.base import Array, State, array_namespace, lerp, memory_dtype
from lossnav.rules.family import BeliefFamily, decayed, quotient, speed_limit

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Muon's quintic: singular values rise quickly to about one, then fluctuate."""


def newton_schulz(
    M: Array,
    *,
    steps: int = 5,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    eps: float = 1e-7,
    half: bool = False,
) -> Array:
    r"""A polynomial of M whose singular values are near one, by matrix products only.

    Each iteration is :math:`X\leftarrow aX+(bA+cA^2)X` with :math:`A=XX^T`, from
    :math:`X=M/\lVert M\rVert`.

    Args:
        M: A matrix.
        steps: Number of iterations.
        coefficients: a, b, c. Muon's do not converge: singular values end between 0.7 and 1.2.
            ``(15/8, -5/4, 3/8)`` converge to the polar factor, but slower.
        eps: Lower bound of the norm to divide by.
        half: Compute in bfloat16, as Muon does (PyTorch and JAX arrays).

    Examples:
        >>> import numpy as np
        >>> M = np.array([[2.0, 0.0], [0.0, -0.5]])
        >>> newton_schulz(M, steps=12, coefficients=(15 / 8, -5 / 4, 3 / 8)).round(6)
        array([[ 1.,  0.],
               [ 0., -1.]])
    """
    xp = array_namespace(M)
    if half and not hasattr(xp, "bfloat16"):
        raise TypeError("NumPy has no bfloat16: use half=False, or PyTorch or JAX arrays.")
    a, b, c = coefficients
    X = xp.astype(M, xp.bfloat16) if half else M
    tall = M.shape[0] > M.shape[1]
    X = X.T if tall else X
    norm = xp.linalg.vector_norm(X)
    X = X / xp.maximum(norm, eps * xp.ones_like(norm))
    for _ in range(steps):
        A = X @ X.T
        X = _blend(a, X, 1.0, _blend(b, A, c, A, A), X)
    return xp.astype(X.T if tall else X, M.dtype)


def _blend(p: float, A: Array, q: float, B: Array, C: Array) -> Array:
    """``p A + q B C``, fused if the framework can, for accuracy in half precision."""
    native = getattr(array_namespace(A), "addmm", None)
    return native(A, B, C, beta=p, alpha=q) if native is not None else p * A + q * (B @ C)


@dataclass(frozen=True)
class PolarRule(BeliefFamily):
    r"""The optimal step under :math:`V=MM^T`: the mean gradient with normalized singular values.

    Args:
        dt, eta, k, gamma, kappa, finite, implicit, decay: As in `BeliefFamily`.
        beta1: Decay rate of the mean, which starts from zero.
        nesterov: Use look-ahead momentum, ``beta1 * m + (1 - beta1) * g``.
        method: ``"svd"`` for the exact factor; ``"newton-schulz"`` for Muon's polynomial, without
            discount and in the limit of a short step only.
        steps, coefficients, eps, half: Settings of `newton_schulz`.
        scale: Factor of the step for a matrix of A rows and B columns: ``"original"``
            ``sqrt(max(1, A/B))``, ``"match_rms_adamw"`` ``0.2 sqrt(max(A, B))``, or ``"none"``.

    A parameter with more than two axes is taken as a matrix of its first axis and the rest.

    Examples:
        >>> import numpy as np
        >>> rule = PolarRule(dt=0.1, finite=False)
        >>> theta = np.zeros((2, 2))
        >>> step, state = rule.update(np.array([[3.0, 0.0], [0.0, -0.2]]), rule.init(theta), theta)
        >>> step
        array([[-0.1, -0. ],
               [-0. ,  0.1]])
    """

    beta1: float = 0.95
    nesterov: bool = True
    method: Literal["svd", "newton-schulz"] = "svd"
    steps: int = 5
    coefficients: tuple[float, float, float] = COEFFICIENTS
    eps: float = 1e-7
    half: bool = False
    scale: Literal["original", "match_rms_adamw", "none"] = "original"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("method", self.method, ["svd", "newton-schulz"])
        checks.choice("scale", self.scale, ["original", "match_rms_adamw", "none"])
        if self.method == "newton-schulz" and (self.gamma or self.finite):
            raise ValueError(
                "Newton-Schulz levels all singular values, so it holds for gamma = 0 and "
                'finite=False only: use method="svd" otherwise.'
            )

    def init(self, theta: Array) -> State:
        if theta.ndim < 2:
            raise ValueError(
                f"theta has shape {tuple(theta.shape)}, but a belief about a matrix needs two axes "
                "or more: use a diagonal rule such as Adam for it."
            )
        xp = array_namespace(theta)
        return {"m": xp.zeros_like(theta, dtype=memory_dtype(theta))}

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        xp = array_namespace(theta)
        dtype = memory_dtype(theta)
        g = xp.astype(grad, dtype)
        m = lerp(state["m"], g, 1 - self.beta1)
        used = lerp(g, m, self.beta1) if self.nesterov else m
        M = xp.reshape(used, (theta.shape[0], -1))
        lr = self.lr * self._factor(*M.shape)
        if self.method == "svd":
            U, s, Vt = xp.linalg.svd(M, full_matrices=False)
            # A direction without gradients has no optimal speed, and does not move.
            s = xp.where(s > xp.finfo(dtype).eps * max(M.shape) * xp.max(s), s, xp.zeros_like(s))
            D = speed_limit(s, self.Gamma)
            length = quotient(s, D)
            if self.finite:
                length = length * self.share(lr * self.kappa * quotient(s * s, D))
            level = (U * length) @ Vt
        else:
            level = newton_schulz(
                M, steps=self.steps, coefficients=self.coefficients, eps=self.eps, half=self.half
            )
        move = -lr * xp.reshape(level, theta.shape)
        if self.decay:
            move = decayed(xp.astype(theta, dtype), self.decay * self.dt) + move
        return xp.astype(move, theta.dtype), {"m": m}

    def _factor(self, rows: int, columns: int) -> float:
        if self.scale == "original":
            return math.sqrt(max(1.0, rows / columns))
        return 1.0 if self.scale == "none" else 0.2 * math.sqrt(max(rows, columns))

    def _belief(self) -> list[str]:
        return [
            "- loss: tr(M^T X) + kappa/2 tr(X^T V X) near here, a matrix X at a time",
            "- gradients: their covariance over rows is V = M M^T, noise as large as the signal "
            "in every direction; curvature is kappa V",
            f"- mean M: one gain, 1 - beta1 = {1 - self.beta1:.6g}; the prior is at zero",
        ] + (["- look-ahead: the mean is taken where the step will land"] if self.nesterov else [])
