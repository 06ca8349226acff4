"""A minimiser of J that knows no formula: polynomials on a mesh, and one linear solve.

It writes J of a piecewise polynomial path as a quadratic form of the unknown points, straight from
the definition of the objective, and minimises that. Nothing of Riccati, Euler-Lagrange or of any
closed form enters.
"""

from dataclasses import dataclass

import numpy as np
from numpy.polynomial import legendre
from scipy import sparse
from scipy.sparse.linalg import splu


@dataclass
class Brute:
    J: float
    velocity0: np.ndarray
    nodes: np.ndarray
    theta: np.ndarray


def lobatto(p):
    """The p + 1 Lobatto points on [0, 1], and matrices that evaluate and differentiate at Gauss points."""
    inner = legendre.legroots(legendre.legder([0] * p + [1]))
    x = np.concatenate([[-1.0], inner, [1.0]])
    gauss, weights = legendre.leggauss(p + 2)
    fit = np.linalg.inv(legendre.legvander(x, p))
    slopes = np.stack(
        [legendre.legval(gauss, legendre.legder(np.eye(p + 1)[i])) for i in range(p + 1)], 1
    )
    slope0 = np.array(
        [legendre.legval(-1.0, legendre.legder(np.eye(p + 1)[i])) for i in range(p + 1)]
    )
    value = legendre.legvander(gauss, p) @ fit
    return (x + 1) / 2, (gauss + 1) / 2, weights / 2, value, 2 * slopes @ fit, 2 * slope0 @ fit


def minimise(form, theta0, T, elements, end=None, p=10):
    """Least J over [0, T]; free end unless ``end`` is given."""
    D = len(theta0)
    x, q, w, N, dN, slope0 = lobatto(p)
    h = T / elements
    local = (p + 1) * D
    A = np.zeros((local, local))
    b = np.zeros(local)
    const = 0.0
    for a in range(len(q)):
        point = np.kron(N[a], np.eye(D))
        u = np.kron(dN[a] / h, np.eye(D)) - form.J @ point
        weight = w[a] * h * np.exp(-form.gamma * q[a] * h)
        A += weight * (u.T @ form.G @ u / form.eta + form.k * point.T @ form.H @ point)
        b += weight * (-u.T @ form.G @ form.c / form.eta + form.k * point.T @ form.g)
        const += weight * (form.c @ form.G @ form.c / (2 * form.eta) + form.k * form.value)
    # Elements are alike but for the discount, so points inside one are eliminated once for all.
    outer = np.r_[0:D, local - D : local]
    inside = np.r_[D : local - D]
    lift = -np.linalg.solve(A[np.ix_(inside, inside)], np.c_[A[np.ix_(inside, outer)], b[inside]])
    small = A[np.ix_(outer, outer)] + A[np.ix_(outer, inside)] @ lift[:, :-1]
    slope = b[outer] + A[np.ix_(outer, inside)] @ lift[:, -1]
    const += b[inside] @ lift[:, -1] / 2
    damp = np.exp(-form.gamma * h * np.arange(elements))
    size = (elements + 1) * D
    index = np.arange(elements)[:, None] * D + np.arange(2 * D)
    rows, cols = np.repeat(index, 2 * D, axis=1).ravel(), np.tile(index, (1, 2 * D)).ravel()
    big = sparse.csc_matrix(
        ((damp[:, None] * small.ravel()).ravel(), (rows, cols)), shape=(size, size)
    )
    side = np.zeros(size)
    np.add.at(side, index.ravel(), (damp[:, None] * slope).ravel())
    full = np.zeros(size)
    full[:D] = theta0 - form.center
    free = slice(D, size if end is None else size - D)
    if end is not None:
        full[-D:] = end - form.center
    # Scaled by its diagonal, so that far, heavily discounted points count as much.
    scale = 1 / np.sqrt(big.diagonal()[free])
    inner = sparse.diags(scale) @ big[free, free] @ sparse.diags(scale)
    right = -scale * (side + big @ full)[free]
    full[free] = scale * splu(inner.tocsc()).solve(right)
    J = full @ (big @ full) / 2 + side @ full + const * damp.sum()
    corners = full[index]
    middles = corners @ lift[:, :-1].T + lift[:, -1]
    points = np.c_[corners[:, :D], middles].reshape(-1, D)
    points = np.r_[points, full[-D:][None]]
    times = (np.arange(elements)[:, None] * h + x[:-1] * h).ravel()
    return Brute(J, slope0 / h @ points[: p + 1], np.append(times, T), points + form.center)
