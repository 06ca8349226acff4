"""The least J over piecewise cubic paths: an independent reference for `solve`.

A path has points and velocities at its nodes as unknowns (Hermite cubics), and J is integrated by five
Gauss points in each element, minimised by damped Newton steps from many starts, on meshes halved where
the curvature jumps. Every such path is admissible, so its J is an upper bound of the least one. No code
is shared with lossnav; formulas are text, read and differentiated by SymPy.
"""

import math
from functools import partial

import numpy as np
import sympy
from scipy.linalg import LinAlgError, cho_solve_banded, cholesky_banded
from scipy.optimize import minimize


def parsed(spec):
    """The coordinates, and the loss, metric and drift as formulas of SymPy."""
    x = sympy.symbols(f"x0:{len(spec['start'])}", real=True)
    read = partial(sympy.sympify, locals={str(s): s for s in x})
    G = (
        sympy.eye(len(x))
        if spec["metric"] is None
        else sympy.Matrix(spec["metric"]).applyfunc(read)
    )
    if spec["metric"] is not None:
        G = sympy.Matrix([[read(a) for a in row] for row in spec["metric"]])
    f = (
        sympy.zeros(len(x), 1)
        if spec["drift"] is None
        else sympy.Matrix([read(a) for a in spec["drift"]])
    )
    return x, read(spec["loss"]), G, f


class Unbounded(Exception):
    """A path costs less than any bound, or runs away."""


class Reference:
    """J over piecewise cubic paths; the unknowns are points and velocities at the nodes."""

    def __init__(self, spec):
        x, loss, G, f = parsed(spec)
        self.spec, self.dim, self.gamma = spec, len(x), spec["gamma"]
        v = sympy.symbols(f"v0:{len(x)}", real=True)
        u = sympy.Matrix(v) - f
        running = (u.T * G * u)[0] / (2 * spec["eta"]) + spec["k"] * loss
        both = [*x, *v]
        slope = [running.diff(s) for s in both]
        bend = [[a.diff(s) for s in both] for a in slope]
        self._jets = [
            sympy.lambdify(both, entry, "numpy", cse=True)
            for entry in ([running], slope, [b for row in bend for b in row])
        ]

    def running(self, theta, v, order=0):
        """The running cost at points and velocities ``(M, D)``, or a derivative in both."""
        columns = [*theta.T, *v.T]
        values = np.broadcast_arrays(*self._jets[order](*columns), np.zeros(len(theta)))[:-1]
        n = 2 * self.dim
        shape = {0: (), 1: (n,), 2: (n, n)}[order]
        return np.array(values, dtype=float).T.reshape(len(theta), *shape)

    def resting(self, theta, order=0):
        """The running cost of rest at points ``(M, D)``, with derivatives in the point."""
        D = self.dim
        return self.running(theta, np.zeros_like(theta), order)[(slice(None), *[slice(D)] * order)]

    def rests(self, rng):
        """Local minima of the cost of rest, lowest first."""
        start, found = np.array(self.spec["start"]), []
        tries = [
            start,
            *(start + s * rng.normal(size=self.dim) for s in (0.5, 1, 1, 2, 2, 3, 3, 5)),
        ]
        for point in tries:
            got = minimize(
                lambda z: self.resting(z[None])[0],
                point,
                jac=lambda z: self.resting(z[None], 1)[0],
                method="BFGS",
            )
            if got.fun < -1e7 or np.abs(got.x).max() > 1e5:
                raise Unbounded
            z = got.x
            for _ in range(3):  # a cost of rest that is too high by 1e-9 adds up over a long time
                z = (
                    z
                    - np.linalg.lstsq(
                        self.resting(z[None], 2)[0], self.resting(z[None], 1)[0], 1e-9
                    )[0]
                )
            if not np.linalg.norm(z - got.x) < 1e-2:
                z = got.x
            if np.isfinite(got.fun) and not any(
                np.linalg.norm(z - other) < 1e-3 for _, other in found
            ):
                found.append((float(self.resting(z[None])[0]), z))
        return sorted(found, key=lambda one: one[0])

    def rate(self, theta):
        D, H = self.dim, self.running(theta, np.zeros_like(theta), 2)[0]
        return math.sqrt(np.linalg.norm(H[:D, :D], 2) / np.linalg.eigvalsh(H[D:, D:])[0]) + 1e-3

    def solve(self, guess=None, rng=None):
        """The least J found and its error; `Unbounded` where J has no lower bound.

        ``guess`` is a path to try besides. Without discount, an infinite path is solved for a long
        time up to the point of least cost of rest, and J is the cost beyond that of rest.
        """
        rng = rng or np.random.default_rng(0)
        spec = self.spec
        start, T, stop = np.array(spec["start"]), spec["horizon"], spec["end"]
        rests, self.rest = ([], 0.0) if math.isfinite(T) else (self.rests(rng), 0.0)
        ends = [None if stop is None else np.array(stop)]
        if math.isinf(T) and self.gamma:
            T = min(25 / self.gamma, 300.0)
        elif math.isinf(T):
            self.rest = rests[0][0]
            best = [z for value, z in rests if value - self.rest < 1e-8 * (1 + abs(self.rest))]
            ends = sorted(best, key=lambda z: np.linalg.norm(z - start))[:3]
            bend = self.running(ends[0][None], np.zeros((1, self.dim)), 2)[0]
            slow = math.sqrt(
                max(np.linalg.eigvalsh(bend[: self.dim, : self.dim])[0], 1e-3)
                / np.linalg.norm(bend[self.dim :, self.dim :], 2)
            )
            T = min(max(14 / slow, 5.0), 300.0)
        if math.isfinite(spec["horizon"]):
            try:
                rests = self.rests(rng)
            except Unbounded:
                rests = []
        self.T, results = T, []
        edges = self._first_mesh(T, self.rate(start[None]))
        self.bottom = -math.inf
        for end in ends:
            for path in self._starts(edges, start, end, [z for _, z in rests], guess, rng):
                if not np.isfinite(self.bottom):  # from the straight line, or from rest
                    self.bottom = -1e6 * (1 + abs(self._cost(edges, path, 0)))
                J, z = self._newton(edges, path, end, 120)
                if np.isfinite(J) and not any(
                    abs(J - other) < 1e-4 * (1e-6 + abs(J)) for other, *_ in results
                ):
                    results.append((J, z, end))
        results.sort(key=lambda one: one[0])
        least, error = min(self._refined(edges, z, end) for _, z, end in results[:3])
        if least < self.bottom:
            raise Unbounded
        return least, error

    def _first_mesh(self, T, rate):
        """Small steps at both ends (at the start, for an infinite path), larger ones between."""
        least, t = min(0.7 / rate, T / 16), [0.0]
        infinite = math.isinf(self.spec["horizon"]) and self.gamma
        while t[-1] < T:
            away = t[-1] if infinite else min(t[-1], T - t[-1])
            t.append(t[-1] + min(least + 0.15 * max(away, 0.0), T / 12))
        return np.array(t) * (T / t[-1])

    def _starts(self, t, start, end, rests, guess, rng):
        s = (t / t[-1])[:, None]
        decay = 1 - np.exp(-4 * s)
        targets = [start, *rests[:3]] if end is None else [end]
        lines = (
            [start + decay * (z - start) for z in targets]
            if end is None
            else [start + s * (end - start)]
        )
        size = 1 + np.abs(start).max()
        paths = list(lines)
        for _ in range(3):
            waves = (
                np.sin(np.pi * s * np.arange(1, 4)) @ rng.normal(size=(3, self.dim)) * size * 0.7
            )
            free = 0 if end is not None else s * rng.normal(size=self.dim) * size
            paths.append(lines[0] + waves + free)
        for z in rests[:3] if end is not None else []:
            gap = [(1 - np.exp(-8 * a)) for a in (s, 1 - s)]
            wait = z + (start - z) * (1 - gap[0]) + (end - z) * (1 - gap[1])
            wait[0], wait[-1] = start, end
            paths.append(wait)
        for far in (
            (10.0, 100.0) if math.isfinite(self.spec["horizon"]) else ()
        ):  # does J fall for ever?
            for side in np.concatenate([np.eye(self.dim), -np.eye(self.dim)]):
                out = lines[0] + far * np.sin(np.pi * s) * side
                with np.errstate(all="ignore"):
                    J = self._cost(t, self._node_form(t, out), 0)
                if J < -1e3 * (1 + abs(self._cost(t, self._node_form(t, lines[0]), 0))):
                    paths.append(out)
        if guess is not None:
            paths.append(guess(t))
        return [self._node_form(t, p, start, end) for p in paths if np.isfinite(p).all()]

    def _node_form(self, t, points, start=None, end=None):
        """Points ``(N, D)`` with their slopes: ``(N, 2, D)``."""
        points = np.array(points)
        if start is not None:
            points[0] = start
        if end is not None:
            points[-1] = end
        return np.stack([points, np.gradient(points, t, axis=0)], axis=1)

    def _cost(self, t, z, order):
        """J; with order 2 also its gradient ``(N, 2D)`` and banded Hessian."""
        D, h = self.dim, np.diff(t)
        s, weight = _GAUSS
        basis = np.array([_hermite(a) for a in s])  # (g, 2, 4)
        scale = np.array([1, 0, 1, 0])[None] + h[:, None] * np.array([0, 1, 0, 1])
        value = basis[None, :, 0] * scale[:, None]  # (E, g, 4)
        slope = basis[None, :, 1] * scale[:, None] / h[:, None, None]
        local = np.concatenate([z[:-1], z[1:]], axis=1)  # (E, 4, D)
        theta, v = (b @ local for b in (value, slope))
        when = t[:-1, None] + h[:, None] * s
        w = weight * h[:, None] * np.exp(-self.gamma * when)
        flat = theta.reshape(-1, D), v.reshape(-1, D)
        J = float((w.ravel() * (self.running(*flat) - self.rest)).sum())
        infinite = math.isinf(self.spec["horizon"]) and self.gamma > 0
        tail = math.exp(-self.gamma * t[-1]) / self.gamma if infinite else 0.0
        if infinite:
            J += tail * float(self.resting(z[-1:, 0])[0])
        if order == 0:
            return J if np.isfinite(J) else math.inf
        first = (w.ravel()[:, None] * self.running(*flat, 1)).reshape(*w.shape, 2, D)
        maps = np.stack([value, slope], axis=2)  # (E, g, 2, 4)
        pieces = np.einsum("egkd,egka->ead", first, maps)
        gradient = np.zeros_like(z)
        gradient[:-1] += pieces[:, :2]
        gradient[1:] += pieces[:, 2:]
        second = (w.ravel()[:, None, None] * self.running(*flat, 2)).reshape(*w.shape, 2, D, 2, D)
        blocks = np.einsum("egka,egkcld,eglb->eacbd", maps, second, maps, optimize=True)
        blocks = blocks.reshape(len(h), 4 * D, 4 * D)
        band = np.zeros((4 * D, z.size))  # upper form: band[-1 - (j - i), j] = H[i, j]
        for i in range(4 * D):
            for j in range(i, 4 * D):
                np.add.at(band[-1 - (j - i)], np.arange(len(h)) * 2 * D + j, blocks[:, i, j])
        if infinite:
            gradient[-1, 0] += tail * self.resting(z[-1:, 0], 1)[0]
            H, last = tail * self.resting(z[-1:, 0], 2)[0], z.size - 2 * D
            for i in range(D):
                for j in range(i, D):
                    band[-1 - (j - i), last + j] += H[i, j]
        return J, gradient, band

    def _newton(self, t, z, end, iterations):
        """A local minimum of J on the nodes ``t``: damped Newton, the loss curved up as needed."""
        h = np.diff(t)
        width = np.concatenate([h[:1], (h[1:] + h[:-1]) / 2, h[-1:]]) * np.exp(-self.gamma * t)
        ridge = np.stack([width, width * np.append(h, h[-1]) ** 2 / 50], axis=1)[..., None]
        ridge = np.broadcast_to(ridge, z.shape).ravel()
        fixed = np.zeros(z.shape, dtype=bool)
        fixed[0, 0], fixed[-1, 0] = True, end is not None
        fixed, shift = fixed.ravel(), 0.0
        with np.errstate(all="ignore"):
            J, gradient, band = self._cost(t, z, 2)
            for _ in range(iterations):
                if not np.isfinite(J) or not np.isfinite(band).all():
                    break
                if J < self.bottom:
                    raise Unbounded
                if np.abs(z[:, 0]).max() > 1e6:  # where the discount hides it, or about to fall
                    break
                g = np.where(fixed, 0.0, gradient.ravel())
                for _ in range(60):
                    lifted = band.copy()
                    lifted[-1] += shift * ridge + fixed * 1e15 * (1 + np.abs(band[-1]).max())
                    try:
                        step = -cho_solve_banded(
                            (cholesky_banded(lifted, check_finite=False), False), g
                        )
                    except LinAlgError:
                        shift = max(4 * shift, 1e-2)
                        continue
                    gain = -float(step @ g)
                    if gain <= 1e-15 * (abs(J) + gain):
                        return J, z
                    new = z + step.reshape(z.shape)
                    lower = self._cost(t, new, 0)
                    if lower <= J - 1e-3 * gain:
                        break
                    if gain <= 1e-11 * (abs(J) + gain):
                        return J, z
                    shift = max(6 * shift, 1e-2)
                else:
                    return J, z
                z, shift = new, (shift / 4 if shift > 4e-2 else 0.0)
                J, gradient, band = self._cost(t, z, 2)
        return (J if np.isfinite(J) else math.inf), z

    def _refined(self, t, z, end):
        """J on meshes halved where the curvature jumps, and its last change."""
        J, error = math.inf, math.inf
        for _ in range(9):
            old, (J, z) = J, self._newton(t, z, end, 60)
            error = abs(J - old)
            if error <= 1e-10 * abs(J) or len(t) > 1000:
                break
            h, ends = np.diff(t), np.concatenate([z[:-1], z[1:]], axis=1)
            bend = [np.einsum("ea,ead->ed", _bend(a, h), ends) for a in (0.0, 1.0)]
            jump = np.linalg.norm(bend[0][1:] - bend[1][:-1], axis=1) ** 2
            share = np.zeros(len(h))
            share[:-1] += jump
            share[1:] += jump
            share *= h**3 * np.exp(-self.gamma * t[:-1])
            split = share > 0.01 * share.max() if len(t) > 200 else share >= 1e-4 * share.max()
            t, z = _halved(t, z, np.flatnonzero(split))
        for _ in range(4):  # the same path: a minimum may owe its cost to the quadrature
            t, z = _halved(t, z, np.arange(len(t) - 1))
        exact = self._cost(t, z, 0)
        return exact, error + abs(exact - J)

    def cost_of(self, path):
        """The cost of our own path, integrated anew, and the error of that."""
        t, beyond = np.array(path.t), 0.0
        if math.isinf(self.spec["horizon"]):  # the path goes on beyond its last point
            last = max(t[-1], 1e-3)
            rest = math.exp(-self.gamma * last) * abs(float(self.resting(path.theta[-1:])[0]))
            more = 40 / self.gamma if self.gamma else 2 * last
            if self.gamma and rest <= 1e-5 * self.gamma * abs(path.J):
                beyond = 3 * rest / self.gamma  # `at` may have to solve for what comes later
            elif more > last:
                t = np.append(t, last + (more - last) * np.linspace(0, 1, 400)[1:] ** 2)
                beyond = 1e-8 * abs(path.J)  # later windows are solved one after the other
        costs = []
        for n in (9, 12):
            s = (1 - np.cos(np.pi * np.arange(n) / (n - 1))) / 2
            g, weight = np.polynomial.legendre.leggauss(n + 1)
            g, h = (g + 1) / 2, np.diff(t)
            inverse = np.linalg.inv(np.vander(s, increasing=True))
            value = np.vander(g, n, increasing=True) @ inverse
            power = np.arange(1, n)
            slope = (power * np.vander(g, n - 1, increasing=True)) @ inverse[1:]
            points = path.at((t[:-1, None] + h[:, None] * s).ravel()).reshape(len(h), n, -1)
            moves = points - points[:, :1]  # a slope from moves loses fewer digits
            theta, v = points[:, :1] + value @ moves, slope @ moves / h[:, None, None]
            w = weight / 2 * h[:, None] * np.exp(-self.gamma * (t[:-1, None] + h[:, None] * g))
            running = self.running(theta.reshape(-1, self.dim), v.reshape(-1, self.dim))
            costs.append(float(w.ravel() @ (running - (0.0 if self.gamma else path.rest))))
        return costs[1], abs(costs[1] - costs[0]) + beyond


_NODES = np.polynomial.legendre.leggauss(5)
_GAUSS = (_NODES[0] + 1) / 2, _NODES[1] / 2


def _halved(t, z, chosen):
    """The same path with a node in the middle of the chosen intervals."""
    h, ends = np.diff(t)[chosen], np.concatenate([z[:-1], z[1:]], axis=1)[chosen]
    scale = np.stack([h**0, h, h**0, h], 1)[..., None]
    middle = np.einsum("ka,ead->ekd", _hermite(0.5), ends * scale)
    middle[:, 1] /= h[:, None]
    return np.insert(t, chosen + 1, t[chosen] + h / 2), np.insert(z, chosen + 1, middle, axis=0)


def _hermite(s):
    """Value and slope of the four cubics at s: points and velocities at both ends."""
    return np.array(
        [
            [1 - 3 * s**2 + 2 * s**3, s - 2 * s**2 + s**3, 3 * s**2 - 2 * s**3, s**3 - s**2],
            [6 * s**2 - 6 * s, 1 - 4 * s + 3 * s**2, 6 * s - 6 * s**2, 3 * s**2 - 2 * s],
        ]
    )


def _bend(s, h):
    """Second derivatives of the four cubics at s, on elements of widths h."""
    plain = np.array([12 * s - 6, 6 * s - 4, 6 - 12 * s, 6 * s - 2])
    return plain * np.stack([1 / h**2, 1 / h, 1 / h**2, 1 / h], axis=1)
