r"""The running cost, the integrand of J before discount, with its derivatives.

.. math:: \ell(\theta, v) = \tfrac{1}{2\eta}(v-f)^T G(\theta)(v-f) + kL(\theta).

Solvers that minimise a discretised J need its gradient and Hessian in the 2D numbers (theta, v).
They are assembled from the derivatives of the loss, the metric and the drift, each of which may be
a formula, an array or an autodiff model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.geometry import ConstantMetric, Field
from lossnav.problem.objective import Objective


def running_jet(
    objective: Objective,
    theta: FloatArray,
    velocity: FloatArray,
    order: int = 2,
    t: FloatArray | None = None,
) -> tuple[FloatArray, ...]:
    """The running cost and its derivatives up to ``order``.

    Args:
        objective: The assumptions.
        theta: Points ``(..., D)``.
        velocity: Velocities ``(..., D)``.
        order: 0, 1 or 2.
        t: Times ``(...)``, for a loss that changes with time.

    Returns:
        Value ``(...)``, gradient ``(..., 2D)`` and Hessian ``(..., 2D, 2D)`` in (theta, velocity).
    """
    dim = theta.shape[-1]
    if objective.loss.timed:
        loss = objective.loss.jet_in_time(theta, t, order)
    else:
        jet = objective.loss.jet_at if theta.ndim == 1 else objective.loss.jet
        loss = jet(theta, order)
    G = _derivatives(objective.metric, theta, order, np.eye(dim))
    f = _derivatives(objective.drift, theta, order, None)
    u = velocity if f is None else velocity - f[0]
    if objective.metric is None:
        momentum = u / objective.eta
    else:
        momentum = (G[0] @ u[..., None])[..., 0] / objective.eta
    value = np.einsum("...i,...i->...", u, momentum) / 2 + objective.k * loss[0]
    value = np.where(_outside(objective, theta, G[0]), np.inf, value)
    if order == 0:
        return (value,)
    gradient = np.concatenate([objective.k * loss[1], momentum], axis=-1)
    if order == 2:
        hessian = np.zeros((*theta.shape[:-1], 2 * dim, 2 * dim))
        hessian[..., dim:, dim:] = G[0] / objective.eta
        hessian[..., :dim, :dim] = objective.k * loss[2]
    if len(G) > 1:  # the metric depends on theta
        metric_slope = np.einsum("...ija,...j->...ia", G[1], u) / objective.eta  # (d_a G) u / eta
        gradient[..., :dim] += np.einsum("...i,...ia->...a", u, metric_slope) / 2
        if order == 2:
            metric_bend = np.einsum("...i,...ijab,...j->...ab", u, G[2], u) / (2 * objective.eta)
            hessian[..., :dim, :dim] += metric_bend
            hessian[..., dim:, :dim] += metric_slope
    if f is not None:
        gradient[..., :dim] -= np.einsum("...ia,...i->...a", f[1], momentum)
        if order == 2:
            # G (d_a f) / eta
            drift_slope = np.einsum("...ij,...ja->...ia", G[0], f[1]) / objective.eta
            hessian[..., dim:, :dim] -= drift_slope
            corner = np.einsum("...ia,...ib->...ab", f[1], drift_slope)
            corner -= np.einsum("...iab,...i->...ab", f[2], momentum)
            if len(G) > 1:
                cross = np.einsum("...ia,...ib->...ab", f[1], metric_slope)
                corner -= cross + np.swapaxes(cross, -1, -2)
            hessian[..., :dim, :dim] += corner
    if order == 1:
        return value, gradient
    if len(G) > 1 or f is not None:
        hessian[..., :dim, dim:] = np.swapaxes(hessian[..., dim:, :dim], -1, -2)
    return value, gradient, hessian


def _outside(objective: Objective, theta: FloatArray, G: FloatArray) -> Any:
    """Whether points leave the domain: positive coordinates, a positive definite metric."""
    names = objective.names or ()
    outside: Any = False
    if positive := [names.index(name) for name in objective.loss.positive if name in names]:
        outside = (theta[..., positive] <= 0).any(-1)
    if objective.metric is not None and not isinstance(objective.metric, ConstantMetric):
        try:
            np.linalg.cholesky(G)
        except np.linalg.LinAlgError:
            finite = np.where(np.isfinite(G), G, 0.0)
            outside = outside | (np.linalg.eigvalsh(finite)[..., 0] <= 0)
    return outside


def _derivatives(
    field: Field | None, theta: FloatArray, order: int, absent: FloatArray | None
) -> Any:
    """The field and its derivatives; of a constant metric only the value."""
    if field is None:
        return absent if absent is None else (absent,)
    if isinstance(field, ConstantMetric):
        return (field.G,)
    return field.jet(theta, order)


def is_plain(objective: Objective) -> bool:
    """Constant metric, time-independent loss with positive k, no drift, no terminal cost."""
    constant = objective.drift is None and isinstance(objective.metric, ConstantMetric | None)
    return constant and bool(objective.k) and not is_extended(objective)


def is_extended(objective: Objective) -> bool:
    """Whether the loss changes with time or the end of the path has a cost."""
    return objective.loss.timed or objective.terminal is not None


def dips(
    objective: Objective, theta: FloatArray, velocity: FloatArray, t: FloatArray | None = None
) -> FloatArray:
    """Minus the most negative curvature of the running cost at each point, or zero.

    Args:
        objective: The assumptions.
        theta: Points ``(M, D)``.
        velocity: Velocities ``(M, D)``.
        t: Times ``(M,)``, for a loss that changes with time.

    Examples:
        >>> from lossnav.problem.landscapes import DoubleWell
        >>> dips(Objective(DoubleWell()), np.array([[0.0, 0.0], [1.0, 0.0]]), np.zeros((2, 2)))
        array([4., 0.])
    """
    dim = theta.shape[1]
    if is_plain(objective):
        places = objective.loss.hessian_pattern(dim)
        entries = objective.k * objective.loss.sparse_jet(theta)[2]
    else:
        hessian = running_jet(objective, theta, velocity, 2, t)[2]
        mixed = hessian[:, dim:, :dim]
        saved = np.swapaxes(mixed, 1, 2) @ np.linalg.solve(hessian[:, dim:, dim:], mixed)
        places = np.triu_indices(dim)
        entries = (hessian[:, :dim, :dim] - saved)[:, *places]
    return np.maximum(0.0, -lowest(entries, *places, dim))


def lowest(entries: FloatArray, rows: np.ndarray, columns: np.ndarray, dim: int) -> FloatArray:
    """A lower bound of the eigenvalues of each symmetric matrix; exact for small ones."""
    if not np.isfinite(entries).all():
        return np.zeros(len(entries))
    if dim <= 16:
        A = np.zeros((len(entries), dim, dim))
        A[:, rows, columns] = A[:, columns, rows] = entries
        return np.asarray(np.linalg.eigvalsh(A)[:, 0], dtype=np.float64)
    beside = rows != columns  # Gershgorin: the diagonal minus the other entries
    low = np.zeros((dim, len(entries)))
    low[rows[~beside]] = entries[:, ~beside].T
    size = np.abs(entries[:, beside]).T
    np.subtract.at(low, rows[beside], size)
    np.subtract.at(low, columns[beside], size)
    return low.min(axis=0)
