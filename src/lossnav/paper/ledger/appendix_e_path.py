"""Checks of App. E: the path on a quadratic loss."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.appendix_e import TIMES, eigen
from lossnav.paper.ledger.evidence import Evidence, numeric, numerics
from lossnav.paper.ledger.instances import Local, least, local
from lossnav.paper.ledger.registry import check
from lossnav.solvers import solve


def rates(p: Local) -> FloatArray:
    """The negative roots r_i."""
    values, *_ = eigen(p)
    return p.gamma / 2 - np.sqrt(p.gamma**2 / 4 + p.eta * p.k * values)


@check("E.12")
def one_direction() -> Evidence:
    """Both signs against the path of least J in the coordinates of the eigenvectors, at four times."""
    p = local("E.12")
    values, Q, phi_0, g_t = eigen(p)
    ours = least(p.objective(), p.theta0, TIMES) @ Q

    def shown(sign: int) -> FloatArray:
        return phi_0 - g_t / values * (1 + sign * np.exp(TIMES[:, None] * rates(p)))

    return numeric(ours, shown(1), 1e-9).otherwise(numeric(ours, shown(-1), 1e-9))


@check("E.13")
def by_components() -> Evidence:
    """Both signs, summed over directions, against the path of least J at four times."""
    p = local("E.13")
    values, Q, phi_0, g_t = eigen(p)
    ours = least(p.objective(), p.theta0, TIMES)

    def shown(sign: int) -> list[list[Any]]:
        return [
            [
                sum(Q[i, j] * phi_0[j] - Q[i, j] / values[j] * g_t[j] * (1 + sign * np.exp(rates(p)[j] * t)) for j in range(3))
                for i in range(3)
            ]
            for t in TIMES
        ]  # fmt: skip

    return numeric(ours, shown(1), 1e-9).otherwise(numeric(ours, shown(-1), 1e-9))


@check("E.14")
def by_matrices() -> Evidence:
    """Both signs of both displayed products against the path of least J at four times."""
    p = local("E.14")
    values, Q, phi_0, g_t = eigen(p)
    ours = least(p.objective(), p.theta0, TIMES)

    def shown(sign: int) -> Evidence:
        short, long = [], []
        for t in TIMES:
            bracket = np.eye(3) + sign * linalg.expm(np.diag(rates(p)) * t)
            short.append(Q @ phi_0 - Q @ np.diag(1 / values) @ bracket @ g_t)
            inverse = Q @ np.diag(1 / values) @ Q.T
            long.append(Q @ phi_0 - inverse @ (Q @ bracket @ Q.T) @ (Q @ g_t))
        return numerics([(ours, np.array(short)), (ours, np.array(long))], 1e-9)

    return shown(1).otherwise(shown(-1))


@check("E.15")
def exponent() -> Evidence:
    """Both sides for a random Hessian at three times: without t in the exponent they agree at t = 1 only."""
    p = local("E.15")
    _, Q, *_ = eigen(p)
    times = (0.3, 1.0, 2.0)
    ours = [Q @ (np.eye(3) - np.diag(np.exp(rates(p) * t))) @ Q.T for t in times]
    printed = [np.eye(3) - linalg.expm(-p.rate(p.H)) for _ in times]
    right = [np.eye(3) - linalg.expm(-p.rate(p.H) * t) for t in times]
    return numeric(ours, printed).otherwise(numeric(ours, right))


def _closed(p: Local, t: float) -> FloatArray:
    return -(np.eye(len(p.g)) - p.decay(t)) @ linalg.solve(p.H, p.g)


@check("E.16")
def path() -> Evidence:
    """Matrix functions of random Hessians in one to five dimensions against paths of least J."""
    pairs = []
    for n in (1, 2, 5):
        p = local(f"E.16 {n}", n)
        shown = [p.theta0 + _closed(p, t) for t in TIMES]
        pairs.append((least(p.objective(), p.theta0, TIMES), np.array(shown)))
    return numerics(pairs, 1e-9)


@check("E.17")
def update() -> Evidence:
    """The displayed update against the exact path of a Riccati equation, for steps from 1e-3 to 100 and three discounts."""
    pairs = []
    for gamma in (0.0, 1.0, 20.0):
        p = local("E.17", gamma=gamma)
        exact = solve(p.objective(), p.theta0)
        pairs += [(exact.at(dt) - p.theta0, _closed(p, dt)) for dt in (1e-3, 0.1, 1.0, 10.0, 100.0)]
    return numerics(pairs)
