"""Two other ways to solve a `Case` of others.py: direct collocation with IPOPT, and ``solve_bvp``."""

import math
import time

import numpy as np
import sympy
from scipy.integrate import solve_bvp

LIMIT, DEGREE = 60, 8  # seconds for IPOPT; degree of its polynomials


def ipopt(case, bend=0.0):
    """J by direct collocation in CasADi, from a straight line bent sideways by ``bend``."""
    import casadi

    x, t, loss, D, f, G = case.formulas()
    v = sympy.symbols(f"v0:{len(x)}")
    u = sympy.Matrix(v) - f
    pairs = [(i, j) for i in range(len(x)) for j in range(len(x)) if G[i, j] != 0]
    running = D * (sum(G[i, j] * u[i] * u[j] for i, j in pairs) / 2 + loss)
    letters = casadi.SX.sym("x", len(x)), casadi.SX.sym("v", len(x)), casadi.SX.sym("t")
    terms = sympy.Add.make_args(running)  # one by one: Python cannot compile a sum of thousands
    numeric = sympy.lambdify([*x, *v, t], terms, modules=casadi, cse=True)
    split = [*casadi.vertsplit(letters[0]), *casadi.vertsplit(letters[1]), letters[2]]
    point = casadi.Function("running", [*letters], [sum(numeric(*split))])
    s = (1 - np.cos(np.pi * np.arange(DEGREE + 1) / DEGREE)) / 2
    gauss, weight = np.polynomial.legendre.leggauss(DEGREE)
    gauss, weight = (gauss + 1) / 2, weight / 2
    legendre = np.polynomial.legendre.legvander(2 * s - 1, DEGREE)
    inverse = np.linalg.inv(legendre)
    value = np.polynomial.legendre.legvander(2 * gauss - 1, DEGREE) @ inverse
    rise = [
        2 * np.polynomial.legendre.legval(2 * gauss - 1, np.polynomial.legendre.legder(c))
        for c in np.eye(DEGREE + 1)
    ]
    slope = np.array(rise).T @ inverse
    edges, old, began = np.linspace(0, case.horizon, 9), math.inf, time.perf_counter()
    start, end = (None if a is None else np.array(a, dtype=float) for a in (case.start, case.end))
    way = 0 * start if end is None else end - start

    def path(when):
        share = when[:, None] / case.horizon
        return start + share * way + np.sin(np.pi * share) * bend

    options = {"print_level": 0, "sb": "yes", "tol": 1e-12, "max_iter": 1000}
    while True:
        n, h = len(edges) - 1, np.diff(edges)
        nodes = np.append((edges[:-1, None] + h[:, None] * s[:-1]).ravel(), edges[-1])
        free = casadi.MX.sym("theta", len(x), len(nodes))
        at, pace, when, weights = [], [], [], []
        for e in range(n):
            local = free[:, e * DEGREE : (e + 1) * DEGREE + 1]
            at.append(local @ value.T)
            pace.append(local @ slope.T / h[e])
            when.append(edges[e] + h[e] * gauss)
            weights.append(h[e] * weight)
        terms = point.map(n * DEGREE)(
            casadi.hcat(at), casadi.hcat(pace), casadi.DM(np.concatenate(when)).T
        )
        J = terms @ casadi.DM(np.concatenate(weights))
        left = max(LIMIT - (time.perf_counter() - began), 0.1)
        solver = casadi.nlpsol(
            "solver",
            "ipopt",
            {"x": casadi.vec(free), "f": J},
            {
                "print_time": False,
                "show_eval_warnings": False,
                "ipopt": options | {"max_cpu_time": left},
            },
        )
        guess = path(nodes)
        low, high = np.full(guess.shape, -np.inf), np.full(guess.shape, np.inf)
        low[0] = high[0] = start
        if end is not None:
            low[-1] = high[-1] = end
        found = solver(x0=guess.ravel(), lbx=low.ravel(), ubx=high.ravel())
        cost, points = float(found["f"]), np.array(found["x"]).reshape(guess.shape)
        local = points[np.arange(n)[:, None] * DEGREE + np.arange(DEGREE + 1)]
        last = np.abs(inverse[-2:] @ local).max(axis=(1, 2))
        rough = last > 1e-6 * np.ptp(points, axis=0).max()
        good = solver.stats()["success"]
        if (
            abs(cost - old) <= 1e-10 * abs(cost)
            or not rough.any()
            or time.perf_counter() - began > LIMIT
        ):
            return cost, "" if good and not rough.any() else "not converged"
        path = _piecewise(edges, local, inverse)
        edges, old = np.sort(np.concatenate([edges, (edges[:-1] + h / 2)[rough]])), cost


def _piecewise(edges, local, inverse):
    def path(when):
        e = np.clip(np.searchsorted(edges, when, "right") - 1, 0, len(edges) - 2)
        s = (when - edges[e]) / np.diff(edges)[e]
        basis = np.polynomial.legendre.legvander(2 * s - 1, DEGREE) @ inverse
        return np.einsum("ta,tad->td", basis, local[e])

    return path


def bvp(case):
    """J by ``solve_bvp`` on Hamilton's equations, p being the momentum per unit of discount."""
    x, t, loss, D, f, G = case.formulas()
    n, p = len(x), sympy.Matrix(sympy.symbols(f"p0:{len(x)}"))
    inverse = G.inv()
    energy = (p.T * f)[0] + (p.T * inverse * p)[0] / 2 - loss
    rate = -sympy.diff(D, t) / D
    both = [*x, *p]
    flow = [energy.diff(a) for a in p] + [
        rate * b - energy.diff(a) for a, b in zip(x, p, strict=True)
    ]
    running = D * ((p.T * inverse * p)[0] / 2 + loss)
    compute, slopes, cost = (
        sympy.lambdify([t, *both], formulas, "numpy", cse=True)
        for formulas in (flow, [a.diff(b) for a in flow for b in both], [running])
    )

    def stack(values, when):
        return np.array(np.broadcast_arrays(*values, when)[:-1], dtype=float)

    start, end = np.array(case.start), None if case.end is None else np.array(case.end)
    when = np.linspace(0, case.horizon, 41)
    way = (0 * start if end is None else end - start)[:, None]
    guess = start[:, None] + way * when / case.horizon
    pace = sympy.lambdify([*x], [*f, *G], "numpy")(*guess)
    pace = stack(pace, when)
    metric = pace[n:].reshape(n, n, -1)
    momentum = np.einsum("ijt,jt->it", metric, way / case.horizon - pace[:n])
    found = solve_bvp(
        lambda when, y: stack(compute(when, *y), when),
        lambda a, b: np.concatenate([a[:n] - start, b[n:] if end is None else b[:n] - end]),
        when,
        np.vstack([guess, momentum]),
        fun_jac=lambda when, y: stack(slopes(when, *y), when).reshape(2 * n, 2 * n, -1),
        tol=1e-9,
        max_nodes=20_000,
    )
    gauss, weight = np.polynomial.legendre.leggauss(8)
    h = np.diff(found.x)
    at = (found.x[:-1, None] + h[:, None] * (gauss + 1) / 2).ravel()
    values = stack(cost(at, *found.sol(at)), at)[0].reshape(len(h), -1)
    return float(h / 2 @ (values @ weight)), "" if found.success else "not converged"
