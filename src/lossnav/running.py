r"""The running cost, the integrand of J before discount, with its derivatives.

.. math:: \ell(\theta, v) = \tfrac{1}{2\eta}(v-f)^T G(\theta)(v-f) + kL(\theta).

Solvers that minimise a discretised J need its gradient and Hessian in the 2D numbers (theta, v).
They are put together here from the derivatives of the loss, the metric and the drift, so any of
the three may be a formula, an array or an autodiff model.
"""

from __future__ import annotations

import numpy as np

from lossnav._checks import FloatArray
from lossnav.geometry import Field
from lossnav.objective import Objective


def running_jet(
    objective: Objective, theta: FloatArray, velocity: FloatArray, order: int = 2
) -> tuple[FloatArray, ...]:
    """The running cost and its derivatives up to ``order``.

    Args:
        objective: What the learner assumes.
        theta: Points ``(..., D)``.
        velocity: Velocities ``(..., D)``.
        order: 0, 1 or 2.

    Returns:
        Value ``(...)``, gradient ``(..., 2D)`` and Hessian ``(..., 2D, 2D)`` in (theta, velocity).

    Examples:
        >>> from lossnav.landscapes import Quadratic
        >>> cost = Objective(Quadratic(3.0), eta=0.5)
        >>> running_jet(cost, np.array([1.0]), np.array([1.0]))[1]
        array([3., 2.])
    """
    dim = theta.shape[-1]
    loss = objective.loss.jet(theta, order)
    G = _field(objective.metric, theta, order, np.eye(dim))
    f = _field(objective.drift, theta, order, np.zeros(dim))
    u = velocity - f[0]
    push = np.einsum("...ij,...j->...i", G[0], u) / objective.eta
    value = np.einsum("...i,...i->...", u, push) / 2 + objective.k * loss[0]
    if order == 0:
        return (value,)
    turned = np.einsum("...ija,...j->...ia", G[1], u) / objective.eta  # (d_a G) u / eta
    by_theta = (
        np.einsum("...i,...ia->...a", u, turned) / 2
        - np.einsum("...ia,...i->...a", f[1], push)
        + objective.k * loss[1]
    )
    gradient = np.concatenate([by_theta, push], axis=-1)
    if order == 1:
        return value, gradient
    hessian = np.empty((*theta.shape[:-1], 2 * dim, 2 * dim))
    pulled = np.einsum("...ij,...ja->...ia", G[0], f[1]) / objective.eta  # G (d_a f) / eta
    cross = np.einsum("...ia,...ib->...ab", f[1], turned)
    hessian[..., dim:, dim:] = G[0] / objective.eta
    hessian[..., dim:, :dim] = turned - pulled
    hessian[..., :dim, dim:] = np.swapaxes(turned - pulled, -1, -2)
    hessian[..., :dim, :dim] = (
        np.einsum("...i,...ijab,...j->...ab", u, G[2], u) / (2 * objective.eta)
        - cross
        - np.swapaxes(cross, -1, -2)
        - np.einsum("...iab,...i->...ab", f[2], push)
        + np.einsum("...ia,...ib->...ab", f[1], pulled)
        + objective.k * loss[2]
    )
    return value, gradient, hessian


def _field(
    field: Field | None, theta: FloatArray, order: int, constant: FloatArray
) -> list[FloatArray]:
    """A field's derivatives at each point; those of an absent one are broadcast zeros."""
    if field is not None:
        return list(field.jet(theta, order))
    dim = theta.shape[-1]
    zeros = [np.zeros(constant.shape + (dim,) * n) for n in range(1, order + 1)]
    return [np.broadcast_to(a, theta.shape[:-1] + a.shape) for a in [constant, *zeros]]
