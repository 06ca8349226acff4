r"""Rules that are diagonal in a learned basis: SOAP is Adam's step after a rotation.

The learner believes that a gradient matrix G varies independently along the eigenvectors of
:math:`E[GG^T]` and of :math:`E[G^TG]`, and takes the step of `lossnav.rules.family` there,
coordinate by coordinate. The basis follows the averaged covariances by orthogonal iteration: it is
sorted by :math:`\mathrm{diag}(Q^TCQ)`, largest first, and then :math:`Q\leftarrow\mathrm{qr}(CQ)`.

The functions take one matrix or a stack of them, with rows along axis -2 and columns along -1.
`KroneckerRule` is SOAP with the theory's settings, for any number of axes. `RotatedRule` runs any
diagonal rule on a matrix; the optimizers of `lossnav.optim` take its step.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from array_api_compat import device, is_jax_namespace

from lossnav.rules.base import (
    Array,
    Rule,
    State,
    array_namespace,
    check_settings,
    clipped,
    lerp,
    memory_dtype,
    one_minus_power,
    where,
)
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.family import BeliefFamily, decayed, quotient, speed_limit

Basis = Mapping[int, Array]
"""Eigenvectors as columns, by axis; an axis without any keeps its coordinates."""
LEAST = 1e-11
"""Curvature added to every direction at a refresh, in units of the largest."""


def matrix_size(shape: tuple[int, ...], *, pairs: bool = False) -> tuple[int, int]:
    """Rows and columns of a parameter: its first axis and all others; a vector has no columns.

    Examples:
        >>> matrix_size((8, 3, 2, 2)), matrix_size((4, 3), pairs=True), matrix_size((5,))
        ((8, 12), (4, 6), (1, 0))
    """
    if len(shape) < 2 or 0 in shape:
        return 1, 0
    return shape[0], math.prod(shape[1:]) * (2 if pairs else 1)


def sides(
    rows: int, columns: int, *, matrix: bool | str, max_dim: int, basis_beta: float
) -> tuple[int, ...]:
    """The axes of a matrix that get a basis, 0 for its rows; without any the rule is diagonal.

    With ``matrix="auto"`` a side gets one if it is at most ``max_dim`` long and if the averaged
    gradients can span it: each has at most as many directions as the other side is long, and the
    average has about ``1 / (1 - basis_beta)`` of them. True gives one to every side longer than
    one, False to none.

    Examples:
        >>> auto = {"matrix": "auto", "max_dim": 4096, "basis_beta": 0.95}
        >>> sides(512, 512, **auto), sides(50_000, 512, **auto), sides(1, 512, **auto)
        ((0, 1), (1,), ())
    """
    lengths = rows, columns
    if matrix is False or rows * columns == 0:
        return ()
    if matrix is True:
        return tuple(i for i in (0, 1) if lengths[i] > 1)
    if min(lengths) == 1:
        return ()
    # Slightly more than one, so that a ratio of exactly 1 / (1 - 0.95) is inside.
    reach = 1.000001 / (1 - basis_beta)
    longest = [min(max_dim, reach * across) for across in (columns, rows)]
    return tuple(i for i in (0, 1) if lengths[i] <= longest[i])


@lru_cache(maxsize=64)
def phases(costs: tuple[float, ...], refresh: int) -> tuple[int, ...]:
    """The step of each cycle at which each matrix is refreshed, balancing the work per step.

    Greedy: the most expensive matrix goes first, each to the step with the least work so far.

    Examples:
        >>> phases((1.0, 8.0, 1.0, 1.0), 2)
        (1, 0, 1, 1)
    """
    slots = [(0.0, i) for i in range(refresh)]
    chosen = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        load, slot = heapq.heappop(slots)
        chosen[i] = slot
        heapq.heappush(slots, (load + costs[i], slot))
    return tuple(chosen)


def check_matrix(matrix: Any) -> None:
    """Check the setting ``matrix`` of a basis."""
    if matrix not in (True, False, "auto"):
        raise ValueError(f'matrix is {matrix!r}, but it must be True, False or "auto".')


def rotate(a: Array, basis: Basis, *, back: bool = False) -> Array:
    r"""Rotate ``a`` into the basis, :math:`Q_L^TAQ_R` for a matrix, or ``back`` from it.

    Examples:
        >>> import numpy as np
        >>> Q = np.array([[0.0, 1.0], [1.0, 0.0]])
        >>> rotate(np.array([[1.0, 2.0], [3.0, 4.0]]), {-2: Q})
        array([[3., 4.],
               [1., 2.]])
    """
    xp = array_namespace(a)
    for axis, Q in basis.items():
        if axis == -2:
            a = (Q if back else xp.matrix_transpose(Q)) @ a
            continue
        Q = xp.matrix_transpose(Q) if back else Q
        a = a @ Q if axis == -1 else xp.moveaxis(xp.moveaxis(a, axis, -1) @ Q, -1, axis)
    return a


def zero_rounding_noise(a: Array) -> Array:
    """Zero the entries of a rotated matrix that are below eps times its norm.

    A basis concentrates gradients in few coordinates. For a repeated gradient all others are
    rounding errors, which division by the root of their variance would turn into full steps.
    """
    xp = array_namespace(a)
    norm = xp.linalg.vector_norm(a, axis=(-2, -1), keepdims=True)
    return xp.where(xp.abs(a) > xp.finfo(a.dtype).eps * norm, a, 0.0)


def averaged_covariance(C: Array, g: Array, axis: int, beta: float) -> Array:
    """The average of the covariance along one axis after one more gradient, not a stack of them."""
    others = [i for i in range(g.ndim) if i != axis % g.ndim]
    outer = array_namespace(g).tensordot(g, g, axes=(others, others))
    return lerp(C, outer, 1 - beta)


def first_basis(G: Array, axes: Iterable[int]) -> dict[int, Array]:
    """The singular vectors of a first gradient, largest first, for the axes that get a basis.

    They are the eigenvectors of its covariances, computed without squaring the singular values.
    Null directions of the gradient are ordered by the coordinate axes; otherwise rounding would
    choose them, and with them the path.
    """
    xp = array_namespace(G)
    axes = tuple(axes)
    lengths = {-2: G.shape[-2], -1: G.shape[-1]}
    longer = any(lengths[axis] > min(lengths.values()) for axis in axes)
    U, s, Vt = xp.linalg.svd(G, full_matrices=longer)
    vectors = {-2: U, -1: xp.matrix_transpose(Vt)}
    return {axis: _with_sorted_null_space(vectors[axis], s) for axis in axes}


def _with_sorted_null_space(Q: Array, s: Array) -> Array:
    xp = array_namespace(Q)
    n = Q.shape[-1]
    at: Any = {"dtype": Q.dtype, "device": device(Q)}
    s = xp.concat([s, xp.zeros((*s.shape[:-1], n - s.shape[-1]), **at)], axis=-1)
    missing = s <= 1e-5 * s[..., :1]

    def ordered(Q: Array) -> Array:
        # Null directions become eigenvectors of a ramp; larger eigenvalues keep the others' order.
        ramp = (xp.matrix_transpose(Q) * xp.linspace(1.0, 0.0, n, **at)) @ Q
        among = missing[..., :, None] & missing[..., None, :]
        places = xp.where(missing, xp.zeros_like(s), 1.0 + n - xp.arange(n, **at))
        key = xp.where(among, ramp, xp.zeros_like(ramp)) + places[..., None] * xp.eye(n, **at)
        return Q @ xp.flip(xp.linalg.eigh(key)[1], axis=-1)

    return _cond(xp, xp.any(missing), ordered, lambda Q: Q, Q)


def refreshed_basis(
    C: Array, Q: Array, *, least: float = LEAST, dtype: Any = None
) -> tuple[Array, Array, Array]:
    r"""One step of orthogonal iteration, for one matrix or a stack.

    The iteration is with :math:`C+\delta I`, so that a direction without gradients stays unchanged
    instead of becoming rounding errors. If a covariance has overflowed, the old basis is returned.

    Args:
        C: Covariances.
        Q: Their present basis.
        least: :math:`\delta` in units of the largest variance, at least a few eps; zero iterates
            with C.
        dtype: Precision of the factorization; by default that of ``Q``.

    Returns:
        The new basis; the order that sorts the old directions, largest variance first; and
        whether the covariance was usable.
    """
    xp = array_namespace(Q)
    ahead = C @ Q
    variances = xp.sum(Q * ahead, axis=-2)
    order = xp.argsort(variances, axis=-1, descending=True)
    if least:
        delta = max(8 * float(xp.finfo(Q.dtype).eps), least) * xp.max(variances, axis=-1)
        ahead = ahead + delta[..., None, None] * Q
    ahead = xp.take_along_axis(ahead, order[..., None, :], axis=-1)
    finite = xp.isfinite(xp.sum(ahead, axis=(-2, -1)))
    ahead = xp.where(finite[..., None, None], ahead, 0.0)
    ahead = ahead if dtype is None else xp.astype(ahead, dtype)
    new = xp.astype(xp.linalg.qr(ahead)[0], Q.dtype)
    good = finite & xp.isfinite(xp.sum(new, axis=(-2, -1)))
    same = xp.arange(Q.shape[-1], dtype=order.dtype, device=device(Q))
    return (xp.where(good[..., None, None], new, Q), xp.where(good[..., None], order, same), good)


def refreshed(
    C: Basis, Q: Basis, m: Any, v: Array
) -> tuple[dict[int, Array], Any, Array, dict[int, Array]]:
    """Bases after a refresh from their covariances, with mean and variance in them.

    The mean is rotated with its basis; variances are permuted with their directions.

    Returns:
        The new bases, mean and variance, and by axis whether the covariance was usable.
    """
    xp = array_namespace(v)
    new: dict[int, Array] = {}
    good: dict[int, Array] = {}
    for axis in Q:
        new[axis], order, good[axis] = refreshed_basis(C[axis], Q[axis])
        index = order[..., :, None] if axis == -2 else order[..., None, :]
        v = xp.take_along_axis(v, index, axis=axis)
    return new, None if m is None else rotate(rotate(m, Q, back=True), new), v, good


def from_second(rule: BeliefRule) -> BeliefRule:
    """The rule of a matrix with a basis, whose count of steps begins with the second gradient."""
    if rule.horizon is None:
        return rule
    return replace(rule, horizon=clipped(rule.horizon - 1, 1, math.inf))


@dataclass(frozen=True)
class KroneckerRule(BeliefFamily):
    r"""The optimal step under a belief that is diagonal in a basis learned from the gradients.

    For each axis of the parameter the covariance of gradients along it, :math:`E[GG^T]` for rows
    and :math:`E[G^TG]` for columns, is averaged. Its eigenvectors Q are the basis: the variance v
    of the rotated gradient is averaged there, and the step of the family is taken there and rotated
    back. Every ``refresh`` steps the basis follows the covariance by one power iteration and a QR
    factorization. The first gradient sets up the basis and moves nothing.

    Args:
        dt, eta, k, gamma, kappa, finite, implicit, decay: As in `BeliefFamily`; the weights decay
            after the step.
        beta1: Decay factor of the mean.
        beta2: Decay factor of the variance, in the basis.
        basis_beta: Decay factor of the covariances; None takes ``beta2``.
        refresh: Steps between two refreshes of the basis.
        max_dim: Axes longer than this keep their own coordinates.
        vectors: Whether a parameter with one axis gets a basis too.
        eps: Added to the root before its bias is corrected, as in SOAP.
        single: Factorize in single precision, as the reference does.

    Examples:
        >>> import numpy as np
        >>> rule = KroneckerRule(dt=0.1, finite=False)
        >>> theta, G = np.zeros((2, 2)), np.array([[3.0, 4.0], [1.0, 2.0]])
        >>> _, state = rule.update(G, rule.init(theta), theta)
        >>> step, _ = rule.update(G, state, theta)
        >>> U, _, Vt = np.linalg.svd(G)
        >>> bool(np.allclose(step, -0.1 * U @ Vt))  # in the basis of G itself, all levels are one
        True
    """

    beta1: float = 0.95
    beta2: float = 0.95
    basis_beta: float | None = None
    refresh: int = 10
    max_dim: int = 10_000
    vectors: bool = False
    eps: float = 1e-8
    single: bool = False

    def _axes(self, shape: tuple[int, ...]) -> list[int]:
        """The axes that get a basis."""
        if len(shape) == 1 and not self.vectors:
            return []
        return [i for i, n in enumerate(shape) if n <= self.max_dim]

    def init(self, theta: Array) -> State:
        xp = array_namespace(theta)
        dtype = memory_dtype(theta)
        state = {
            "t": xp.zeros((), dtype=xp.int32, device=device(theta)),
            "m": xp.zeros_like(theta, dtype=dtype),
            "v": xp.zeros_like(theta, dtype=dtype),
        }
        return state | _initial_basis(theta, self._axes(theta.shape))

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        xp = array_namespace(theta)
        dtype = memory_dtype(theta)
        g, x = xp.astype(grad, dtype), xp.astype(theta, dtype)
        move, state = _cond(
            xp, state["t"] > 0, lambda s: self._walk(g, s, x), lambda s: self._begin(g, s), state
        )
        return xp.astype(move, theta.dtype), {**state, "t": state["t"] + 1}

    def _begin(self, g: Array, state: State) -> tuple[Array, State]:
        xp = array_namespace(g)
        state = self._observed(g, state)
        for i in self._axes(g.shape):
            state[f"Q{i}"] = xp.flip(xp.linalg.eigh(state[f"C{i}"])[1], axis=1)
        return xp.zeros_like(g), state

    def _walk(self, g: Array, state: State, x: Array) -> tuple[Array, State]:
        xp = array_namespace(g)
        t = xp.astype(state["t"], g.dtype)
        rotated = self._rotate(g, state)
        m = lerp(state["m"], g, 1 - self.beta1)
        v = lerp(state["v"], rotated * rotated, 1 - self.beta2)
        shrunk = one_minus_power(self.beta2, t) ** 0.5
        root = xp.sqrt(v) / shrunk
        D = speed_limit(root, self.Gamma, self.eps / shrunk)
        mean = self._rotate(m, state) / one_minus_power(self.beta1, t)
        move = -self.lr * quotient(mean, D)
        if self.finite:
            move = move * self.share(self.lr * self.kappa * quotient(root * root, D))
        move = self._rotate(move, state, back=True)
        if self.decay:
            move = move + decayed(x + move, self.decay * self.dt)
        state = self._observed(g, {**state, "m": m, "v": v})
        due = state["t"] % self.refresh == 0
        return move, _cond(xp, due, self._refreshed, lambda s: s, state)

    def _rotate(self, a: Array, state: State, *, back: bool = False) -> Array:
        return rotate(a, _basis(state, a.ndim), back=back)

    def _observed(self, g: Array, state: State) -> State:
        beta = self.beta2 if self.basis_beta is None else self.basis_beta
        return _with_covariances(state, g, self._axes(g.shape), beta)

    def _refreshed(self, state: State) -> State:
        new = dict(state)
        xp = array_namespace(state["v"])
        dtype = xp.float32 if self.single else None
        for i in self._axes(state["v"].shape):
            C, Q = state[f"C{i}"], state[f"Q{i}"]
            new[f"Q{i}"], order, _ = refreshed_basis(C, Q, least=0.0, dtype=dtype)
            new["v"] = xp.take(new["v"], order, axis=i)
        return new

    def _belief(self) -> list[str]:
        return [
            "- loss: quadratic near here, with curvature kappa V",
            "- gradients: V is diagonal in the eigenvectors of their covariance along each axis "
            f"(E[G G^T], E[G^T G]); the basis is looked at every {self.refresh} steps",
            f"- variance: the average of g^2 in that basis (memory {self.beta2:.6g})",
            f"- mean: one gain for all coordinates, 1 - beta1 = {1 - self.beta1:.6g}; the prior is "
            "diffuse",
        ]


@dataclass(frozen=True)
class RotatedRule(Rule):
    r"""A diagonal rule for a matrix, run in the eigenvectors of its gradients' covariances.

    A parameter with more axes is a matrix of its first axis and the rest. The first nonzero
    gradient sets up the basis and moves nothing: in its own basis most coordinates would be
    rounding errors. Later gradients are rotated into the basis of the previous ones. The mean is
    stored in the basis and rotated with it; variances are permuted with their directions.

    Args:
        dt: Learning rate, which replaces that of ``inner``.
        inner: The diagonal rule.
        sides: The axes of the matrix that have a basis, as `sides` gives them.
        basis_beta: Decay factor of the covariances.
        refresh: Steps between two refreshes of the basis.
        phase: The basis is refreshed after steps that leave this remainder.
    """

    inner: BeliefRule = field(default_factory=BeliefRule.practical)
    sides: tuple[int, ...] = (0, 1)
    basis_beta: float = 0.95
    refresh: int = 10
    phase: int = 0

    def __post_init__(self) -> None:
        check_settings(vars(self))

    def init(self, theta: Array) -> State:
        X = _as_matrix(theta)
        belief = self.inner.init(X)
        return {"step": belief.pop("t"), **belief, **_initial_basis(X, self.sides)}

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        xp = array_namespace(theta)
        G = _as_matrix(grad)
        move, new_state = _cond(
            xp, state["step"] > 0, lambda s: self._walk(G, s), lambda s: self._begin(G, s), state
        )
        return xp.reshape(move, theta.shape), new_state

    def _begin(self, G: Array, state: State) -> tuple[Array, State]:
        xp = array_namespace(G)
        nonzero = xp.any(G != 0)  # a zero gradient determines no basis
        started = _with_covariances(state, G, self.sides, self.basis_beta)
        for axis, Q in first_basis(G, [i - 2 for i in self.sides]).items():
            started[f"Q{axis + 2}"] = Q
        new = {name: xp.where(nonzero, started[name], value) for name, value in state.items()}
        new["step"] = state["step"] + xp.astype(nonzero, state["step"].dtype)
        if "peak" in state:
            longest = self.dt * (1 + self.inner.saturation) * xp.ones_like(state["peak"])
            new["peak"] = xp.maximum(state["peak"], longest)
        return xp.zeros_like(G), new

    def _walk(self, G: Array, state: State) -> tuple[Array, State]:
        basis = _basis(state, 2)
        # The first gradient is not part of mean and variance: their count is one less.
        belief: State = {name: state[name] for name in ("m", "v", "peak") if name in state}
        belief["t"] = state["step"] - 1
        rotated = zero_rounding_noise(rotate(G, basis))
        zeros = array_namespace(G).zeros_like(G)
        move, belief = replace(self.inner, dt=self.dt).update(rotated, belief, zeros)
        step = belief.pop("t")
        new = _with_covariances({**state, **belief}, G, self.sides, self.basis_beta)
        due = step % self.refresh == self.phase % self.refresh
        new = _cond(array_namespace(G), due, self._refreshed, lambda s: s, new)
        return rotate(move, basis, back=True), {**new, "step": step + 1}

    def _refreshed(self, state: State) -> State:
        covariances = {i - 2: state[f"C{i}"] for i in self.sides}
        bases, m, v, good = refreshed(covariances, _basis(state, 2), state.get("m"), state["v"])
        new = {**state, "v": v} | ({} if m is None else {"m": m})
        for axis, C in covariances.items():
            new[f"Q{axis + 2}"] = bases[axis]
            # Reset after an overflow.
            new[f"C{axis + 2}"] = where(good[axis], C, array_namespace(C).zeros_like(C))
        return new


def _initial_basis(theta: Array, axes: Iterable[int]) -> State:
    xp = array_namespace(theta)
    at: Any = {"dtype": memory_dtype(theta), "device": device(theta)}
    state: State = {}
    for i in axes:
        n = theta.shape[i]
        state |= {f"C{i}": xp.zeros((n, n), **at), f"Q{i}": xp.eye(n, **at)}
    return state


def _with_covariances(state: State, g: Array, axes: Iterable[int], beta: float) -> State:
    return state | {f"C{i}": averaged_covariance(state[f"C{i}"], g, i, beta) for i in axes}


def _basis(state: State, ndim: int) -> Basis:
    return {i - ndim: state[f"Q{i}"] for i in range(ndim) if f"Q{i}" in state}


def _as_matrix(a: Array) -> Array:
    return array_namespace(a).reshape(a, (a.shape[0], -1))


def _cond(
    xp: Any, flag: Array, yes: Callable[[Any], Any], no: Callable[[Any], Any], operand: Any
) -> Any:
    """``yes(operand)`` or ``no(operand)``; by ``lax.cond`` in JAX, as computing both is slow."""
    if is_jax_namespace(xp):
        import jax

        return jax.lax.cond(flag, yes, no, operand)
    # A meta tensor of PyTorch has no value; both branches return the same shapes.
    return yes(operand) if getattr(flag, "is_meta", False) or bool(flag) else no(operand)
