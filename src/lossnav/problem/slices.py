r"""Losses known by their values on a grid, such as a 2-D slice of a network's loss.

A slice through the weights :math:`\theta_*` of a checkpoint, along two directions, is

.. math:: L(\alpha, \beta) = \mathcal{L}(\theta_* + \alpha d_1 + \beta d_2).

It is evaluated once on a grid, where `GridLoss` joins the values by a spline of degree five. The
spline has four continuous derivatives, so solvers have exact gradients and Hessians of what they
navigate.

References: Li, Xu, Taylor, Studer and Goldstein (2018), filter normalization; Yao, Gholami,
Keutzer and Mahoney (2020), slices along eigenvectors of the Hessian.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import make_interp_spline
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.landscapes import Loss, coordinate_names

State = Mapping[str, Any]
"""Tensors by name, as ``model.state_dict()`` returns them."""
DIRECTIONS = ("random", "hessian")
MODEL_KEYS = ("model", "state_dict", "model_state_dict")
"""Keys under which a training checkpoint keeps the state dict of its model."""
FEWEST, MOST = 11, 301
"""Bounds of the number of nodes on each side of a slice."""
_DEGREE = 5
_STATISTICS = ("running_mean", "running_var")
"""Buffers of normalization layers: floating point, but no weights."""
_ORIGIN = np.zeros(2)
_DENSE = 16
"""Weights up to which the whole Hessian is decomposed, as ARPACK needs room for its basis."""


class GridLoss(Loss):
    r"""A loss in two coordinates from its values on a grid: their spline of degree five.

    The spline goes through every value and is four times continuously differentiable; for a smooth
    loss its error falls with the sixth power of the spacing. Outside the grid, where nothing is
    known, the loss continues by half a spacing and then rises with the cube of the distance, with
    two continuous derivatives, so that no optimal path gains by leaving.

    Args:
        x: Increasing nodes of the first coordinate ``(N,)``, six or more.
        y: Increasing nodes of the second coordinate ``(M,)``, six or more.
        values: The loss ``(N, M)`` at each pair of nodes.
        names: Names of the two coordinates.

    Attributes:
        box: Limits of the grid: x from, x to, y from, y to.

    Examples:
        >>> x, y = np.linspace(-2, 2, 9), np.linspace(-1, 1, 7)
        >>> loss = GridLoss(x, y, x[:, None] ** 3 + np.outer(x, y))
        >>> loss.grad([1.5, 0.25]).round(6)
        array([7. , 1.5])
    """

    def __init__(
        self, x: ArrayLike, y: ArrayLike, values: ArrayLike, names: Sequence[str] = ("x", "y")
    ) -> None:
        self.x, self.y = _nodes("x", x), _nodes("y", y)
        self.values = checks.finite_array("values", values, ndim=2)
        shape = len(self.x), len(self.y)
        if self.values.shape != shape:
            raise ValueError(
                f"values has shape {self.values.shape}, but the nodes of x and y make it {shape}."
            )
        self.names = coordinate_names(names)
        if len(self.names or ()) != 2:
            raise ValueError(f"names is {list(names)!r:.80}, but a grid has two coordinates.")
        x_knots, along_x = _spline(self.x, self.values)  # (power of x, cell in x, M)
        y_knots, along_y = _spline(self.y, np.moveaxis(along_x, -1, 0))
        self._sides = _Side(self.x, x_knots), _Side(self.y, y_knots)
        # Coefficients (cells in x, cells in y, power of x, power of y).
        self._cells = np.ascontiguousarray(along_y.transpose(3, 1, 2, 0))
        self._range = float(np.ptp(self.values)) or 1.0

    @property
    def box(self) -> tuple[float, float, float, float]:
        (x0, x1), (y0, y1) = (map(float, nodes[[0, -1]]) for nodes in (self.x, self.y))
        return x0, x1, y0, y1

    def _summary(self) -> str:
        x0, x1, y0, y1 = self.box
        return f"{len(self.x)} x {len(self.y)} nodes on [{x0:g}, {x1:g}] x [{y0:g}, {y1:g}]"

    def jet(self, theta: ArrayLike, order: int = 2) -> tuple[FloatArray, ...]:
        points = checks.points(theta, 2)
        flat = points.reshape(-1, 2)
        (i, px, wx), (j, py, wy) = (
            side.powers(flat[:, axis], order) for axis, side in enumerate(self._sides)
        )
        # D[m, a, b] is the derivative of order a in x and b in y.
        D = px @ self._cells[i, j] @ py.swapaxes(1, 2)
        D[:, :, 0] += self._range * wx
        D[:, 0, :] += self._range * wy
        parts = [D[:, 0, 0]]
        if order > 0:
            parts.append(np.stack([D[:, 1, 0], D[:, 0, 1]], axis=-1))
        if order > 1:
            rows = [D[:, 2, 0], D[:, 1, 1], D[:, 1, 1], D[:, 0, 2]]
            parts.append(np.stack(rows, axis=-1).reshape(-1, 2, 2))
        return tuple(part.reshape(points.shape[:-1] + part.shape[1:]) for part in parts)


def _nodes(name: str, nodes: ArrayLike) -> FloatArray:
    checked = checks.finite_array(name, nodes, ndim=1)
    if len(checked) <= _DEGREE or (np.diff(checked) <= 0).any():
        raise ValueError(
            f"{name} has {len(checked)} nodes, but there must be {_DEGREE + 1} or more, increasing."
        )
    return checked


def _spline(nodes: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Knots of the interpolating spline along the first axis, and its powers in each cell.

    The coefficients are ``(power, cell, ...)``.
    """
    spline = make_interp_spline(nodes, values, k=_DEGREE)
    knots = np.unique(spline.t)
    powers = [spline(knots[:-1], nu=n) / math.factorial(n) for n in range(_DEGREE + 1)]
    return knots, np.stack(powers)


class _Side:
    """One coordinate of a grid: the powers that the polynomials of a cell are made of."""

    def __init__(self, nodes: FloatArray, knots: FloatArray) -> None:
        self.knots, self.low, self.high = knots, float(nodes[0]), float(nodes[-1])
        self.reach = float(min(nodes[1] - nodes[0], nodes[-1] - nodes[-2])) / 2
        self.steep = (4 / (self.high - self.low)) ** 3
        powers = np.arange(_DEGREE + 1.0)
        once = np.diag(powers[1:], 1)
        self.derive = np.stack([np.eye(_DEGREE + 1), once, once @ once])

    def powers(self, x: FloatArray, order: int) -> tuple[np.ndarray, FloatArray, FloatArray]:
        """At points ``(M,)``: the cells, their powers ``(M, order + 1, 6)``, and the wall outside.

        Powers and wall are given with their derivatives up to ``order``. The spline is evaluated at
        s(x), which is x inside and goes at most ``reach`` beyond; s''(x) = 0 at the border.
        """
        inside = np.clip(x, self.low, self.high)
        out = x - inside
        bend = np.tanh(out / self.reach)
        slope = 1 - bend**2
        s = inside + self.reach * bend
        cell = np.clip(np.searchsorted(self.knots, s, "right") - 1, 0, len(self.knots) - 2)
        ladder = np.vander(s - self.knots[cell], _DEGREE + 1, increasing=True)
        rows = ladder @ self.derive[: order + 1]  # (order + 1, M, 6), derivatives in s
        if order > 1:
            curl = (-2 / self.reach * bend * slope)[:, None]
            rows[2] = rows[2] * slope[:, None] ** 2 + rows[1] * curl
        if order > 0:
            rows[1] *= slope[:, None]
        far = np.abs(out)
        wall = self.steep * np.stack([far**3, 3 * far * out, 6 * far][: order + 1], axis=-1)
        return cell, rows.swapaxes(0, 1), wall


class LossSlice(GridLoss):
    """A 2-D slice of a network's loss, made by `loss_slice`.

    Attributes:
        center: The state dict of the checkpoint, at the origin.
        directions: Two dicts of tensors; entries of `center` without one stay as they are.
        gram: Scalar products of the directions ``(2, 2)``. As a `ConstantMetric` it measures
            motion by the distance in weight space.
        eigenvalues: The two leading eigenvalues of the Hessian, if the directions belong to them.
        error: How far a spline through every second node misses the values left out, at most: an
            upper estimate of the error of interpolation.

    Examples:
        >>> import torch
        >>> state = {"w": torch.diag(torch.tensor([2.0, 1.0]))}
        >>> loss = loss_slice(lambda s: (s["w"] ** 2).sum() / 2, state, directions="hessian")
        >>> loss.eigenvalues, loss.gram.round(6)
        (array([1., 1.]), array([[1., 0.],
               [0., 1.]]))
    """

    def __init__(
        self,
        nodes: FloatArray,
        values: FloatArray,
        center: dict[str, Any],
        directions: tuple[dict[str, Any], dict[str, Any]],
        eigenvalues: FloatArray | None = None,
    ) -> None:
        super().__init__(nodes, nodes, values, ("alpha", "beta"))
        self.center, self.directions, self.eigenvalues = center, directions, eigenvalues
        d = directions
        self.gram = np.array([[_dot(d[i], d[j]) for j in range(2)] for i in range(2)])
        coarse = GridLoss(nodes[::2], nodes[::2], values[::2, ::2])
        grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1)
        self.error = float(np.abs(coarse(grid) - values).max())

    def weights(self, theta: ArrayLike) -> dict[str, Any]:
        """The state dict at one point of the slice, for ``model.load_state_dict``."""
        return _moved(self.center, self.directions, checks.point("theta", theta, 2))


def loss_slice(
    fn: Callable[[dict[str, Any]], Any],
    checkpoint: State | str | os.PathLike[str],
    *,
    directions: str | tuple[State, State] = "random",
    seed: int = 0,
    extent: float = 1.0,
    resolution: int = 31,
    progress: Callable[[int, int], None] | None = None,
) -> LossSlice:
    r"""A 2-D slice of a PyTorch model's loss around a checkpoint, as a loss to navigate.

    The slice :math:`L(\alpha,\beta)=\mathcal{L}(\theta_*+\alpha d_1+\beta d_2)` is evaluated on
    ``resolution`` x ``resolution`` points and joined by a smooth spline (`GridLoss`).

    Args:
        fn: Maps a state dict to the loss, a tensor with one element, as in the example below. Use
            a fixed batch and a model in evaluation mode.
        checkpoint: A state dict, or a dict with one under ``"model"``, ``"state_dict"`` or
            ``"model_state_dict"``; or the path of a file with either, which is loaded with
            ``weights_only=True``.
        directions: ``"random"``: Gaussian directions, each filter (a row of a matrix, an output
            channel of a convolution) scaled to the norm of the weights' filter; biases and
            normalization stay fixed. ``"hessian"``: unit eigenvectors of the two largest
            eigenvalues of the Hessian. Or a pair of dicts of tensors.
        seed: Seed of the random directions, or of the start of the search for eigenvectors.
        extent: The slice is the square of alpha and beta from ``-extent`` to ``extent``.
        resolution: Nodes on each side, an odd number from 11 to 301.
        progress: Called with the number of points that are done and their total.

    Raises:
        ValueError: The file is no checkpoint, ``fn`` fails or returns no scalar, or the loss is not
            finite on the whole grid.

    Examples:
        >>> import torch, lossnav as ln
        >>> x, y = torch.eye(3), torch.tensor([0, 1, 2])
        >>> model = torch.nn.Linear(3, 3)
        >>> def loss_fn(state):
        ...     logits = torch.func.functional_call(model, state, (x,))
        ...     return torch.nn.functional.cross_entropy(logits, y)
        >>> loss = loss_slice(loss_fn, model.state_dict(), resolution=11)
        >>> path = ln.solve(ln.Objective(loss, gamma=1.0), [0.5, -0.5], horizon=1.0)
        >>> sorted(loss.weights(path.theta[-1]))
        ['bias', 'weight']
    """
    try:
        import torch
    except ImportError:
        raise ImportError(
            "loss_slice needs the package torch: pip install 'lossnav[torch]'"
        ) from None
    if not callable(fn):
        raise TypeError(f"The loss function is a {type(fn).__name__}, which is not callable.")
    extent = checks.positive("extent", extent)
    if not (isinstance(resolution, int) and FEWEST <= resolution <= MOST and resolution % 2):
        raise ValueError(
            f"resolution is {resolution!r}, but it must be an odd number from {FEWEST} to {MOST}."
        )
    loaded = checkpoint if isinstance(checkpoint, Mapping) else _loaded(Path(checkpoint))
    center = _state(loaded, "The checkpoint" if loaded is checkpoint else str(checkpoint))
    with torch.no_grad():
        first, again = (float(_result(fn, _moved(center))) for _ in range(2))
    if not math.isfinite(first):
        raise ValueError(f"The loss is {first} at the checkpoint itself, but it must be finite.")
    if abs(first - again) > 1e-6 * abs(first):
        raise ValueError(
            f"The loss function returned {first:.6g} and then {again:.6g} for the same weights: "
            "use a fixed batch and the model in evaluation mode."
        )
    chosen, eigenvalues = _directions(fn, center, directions, seed)
    nodes = np.linspace(-extent, extent, resolution)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    values = np.empty(len(grid))
    with torch.no_grad():
        for i, point in enumerate(grid):
            values[i] = float(_result(fn, _moved(center, chosen, point)))
            if progress is not None:
                progress(i + 1, len(grid))
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        a, b = grid[bad[0]]
        raise ValueError(
            f"The loss is not finite at {len(bad)} of the {len(grid)} points of the slice, first "
            f"at ({a:.3g}, {b:.3g}): use a smaller extent than {extent:g}."
        )
    if not np.ptp(values):
        raise ValueError(
            f"The loss is {first:.6g} on the whole slice: does the loss function use the state "
            "dict that it is given?"
        )
    return LossSlice(nodes, values.reshape(resolution, -1), center, chosen, eigenvalues)


def _loaded(path: Path) -> Any:
    import torch

    if not path.is_file():
        what = "a folder" if path.is_dir() else "missing"
        raise ValueError(f"The checkpoint {path} is {what}: give a file made by torch.save.")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, as the file may hold anything
        raise ValueError(
            f"{path} is not a checkpoint that torch.load(..., weights_only=True) reads "
            f"({type(error).__name__}): save one by torch.save(model.state_dict(), path)."
        ) from error


def _state(loaded: Any, what: str) -> dict[str, Any]:
    """The state dict in a checkpoint, detached."""
    import torch

    content = f"a {type(loaded).__name__}"
    state: Mapping[Any, Any] = {}
    if isinstance(loaded, Mapping):
        state = next((loaded[k] for k in MODEL_KEYS if isinstance(loaded.get(k), Mapping)), loaded)
        content = f"keys {', '.join(map(str, state))}"[:80]
    if not any(torch.is_tensor(one) and one.is_floating_point() for one in state.values()):
        raise ValueError(
            f"{what} holds no weights but {content}: it must be a state dict, or a dict with one "
            f"under {', '.join(map(repr, MODEL_KEYS))}."
        )
    return {str(k): v.detach() if torch.is_tensor(v) else v for k, v in state.items()}


def _result(fn: Callable[[dict[str, Any]], Any], state: dict[str, Any]) -> Any:
    """What the loss function returns, if that is one number."""
    import torch

    try:
        result = fn(state)
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise ValueError(
            f"The loss function failed on the state dict ({type(error).__name__}: {text})."
        ) from error
    if isinstance(result, int | float | np.number):
        return result
    kind = f"a {type(result).__name__}"
    if torch.is_tensor(result):
        if result.numel() == 1 and not result.is_complex():
            return result.reshape(())
        kind = f"a tensor of shape {tuple(result.shape)} and type {result.dtype}"
    raise ValueError(f"The loss function returned {kind}, but it must return one real number.")


def _moved(
    center: dict[str, Any], directions: Sequence[State] = (), point: FloatArray = _ORIGIN
) -> dict[str, Any]:
    """The state dict at a point. Names that shared one tensor still do, as tied weights must."""
    import torch

    made: dict[Any, Any] = {}
    state = {}
    for name, w in center.items():
        if not torch.is_tensor(w):
            state[name] = w
            continue
        if _key(w) not in made:
            pairs = zip(point.tolist(), directions, strict=False)
            parts = [c * d[name] for c, d in pairs if name in d]
            made[_key(w)] = sum(parts, w) if parts else w.clone()
        state[name] = made[_key(w)]
    return state


def _key(w: Any) -> Any:
    """The same for tensors that are views of the same memory, as tied weights are."""
    return (w.data_ptr(), w.shape, w.stride()) if w.numel() else id(w)


def _directions(
    fn: Callable[[dict[str, Any]], Any],
    center: dict[str, Any],
    directions: str | tuple[State, State],
    seed: int,
) -> tuple[tuple[dict[str, Any], dict[str, Any]], FloatArray | None]:
    weights = _weights(center)
    if not isinstance(directions, str):
        first, second = (_given(one, center) for one in directions)
        return (first, second), None
    checks.choice("kind of directions", directions, DIRECTIONS)
    if directions == "hessian":
        return _leading(fn, center, weights, seed)
    import torch

    draws = torch.Generator().manual_seed(seed)
    matrices = {name: w for name, w in weights.items() if w.ndim > 1}
    if not matrices:
        raise ValueError(
            "The checkpoint has no weights with two or more axes, the only ones that random "
            'directions move: use directions="hessian".'
        )
    first, second = ({n: _filters(w, draws) for n, w in matrices.items()} for _ in range(2))
    return (_tied(first, center), _tied(second, center)), None


def _weights(center: dict[str, Any]) -> dict[str, Any]:
    """The tensors that a direction may move, each once."""
    import torch

    distinct: dict[Any, tuple[str, Any]] = {}
    for name, w in center.items():
        moves = torch.is_tensor(w) and w.is_floating_point() and w.numel() > 0
        if moves and not name.endswith(_STATISTICS):
            distinct.setdefault(_key(w), (name, w))
    return dict(distinct.values())


def _tied(direction: dict[str, Any], center: dict[str, Any]) -> dict[str, Any]:
    """The direction under every name of a tied weight."""
    import torch

    moves = {_key(center[name]): d for name, d in direction.items()}
    keys = {name: _key(w) for name, w in center.items() if torch.is_tensor(w)}
    return {name: moves[key] for name, key in keys.items() if key in moves}


def _given(direction: State, center: dict[str, Any]) -> dict[str, Any]:
    import torch

    for name, d in direction.items():
        if name not in center:
            hint = checks.suggestion(name, center)
            raise ValueError(f"The checkpoint has no tensor named {name!r}, {hint}")
        if not torch.is_tensor(d) or d.shape != center[name].shape:
            raise ValueError(
                f"The direction of {name!r} must be a tensor of shape {tuple(center[name].shape)}."
            )
    return {name: d.detach() for name, d in direction.items()}


def _filters(w: Any, draws: Any) -> Any:
    """A Gaussian direction whose slices along the first axis have the norms of those of ``w``."""
    import torch

    rows = torch.randn(w.shape, generator=draws, dtype=torch.float64).flatten(1)
    norms = w.double().cpu().flatten(1).norm(dim=1, keepdim=True)
    scaled = rows * (norms / rows.norm(dim=1, keepdim=True))
    return scaled.reshape(w.shape).to(w)


def _leading(
    fn: Callable[[dict[str, Any]], Any], center: dict[str, Any], weights: dict[str, Any], seed: int
) -> tuple[tuple[dict[str, Any], dict[str, Any]], FloatArray]:
    """Unit eigenvectors of the two largest eigenvalues of the Hessian, and these."""
    import torch

    named = {name: w.clone().requires_grad_() for name, w in weights.items()}
    state = _moved(center) | _tied(named, center)
    with torch.enable_grad():
        loss = _result(fn, state)
        slopes: tuple[Any, ...] = ()
        if torch.is_tensor(loss) and loss.requires_grad:
            inputs = [*named.values()]
            slopes = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
    used = [
        (name, g) for name, g in zip(named, slopes, strict=False) if g is not None and g.grad_fn
    ]
    if not used:
        raise ValueError(
            "The loss function is not differentiable twice in the tensors it is given: use "
            'torch.func.functional_call(model, state, ...), or directions="random".'
        )
    places, grads = [named[name] for name, _ in used], [g for _, g in used]
    sizes = [w.numel() for w in places]
    total = sum(sizes)
    if total < 2:
        raise ValueError("The loss depends on one weight, but a slice needs two directions.")

    def split(v: FloatArray) -> list[Any]:
        parts = torch.from_numpy(np.ascontiguousarray(v)).split(sizes)
        return [part.reshape(w.shape).to(w) for part, w in zip(parts, places, strict=True)]

    def product(v: FloatArray) -> FloatArray:
        parts = torch.autograd.grad(
            grads, places, split(v.reshape(-1)), retain_graph=True, allow_unused=True
        )
        flat = [
            np.zeros(n) if part is None else part.detach().double().cpu().numpy().reshape(-1)
            for n, part in zip(sizes, parts, strict=True)
        ]
        if not all(np.isfinite(part).all() for part in flat):
            raise ValueError(
                'A Hessian-vector product is NaN or infinite: use directions="random".'
            )
        return np.concatenate(flat)

    if total <= _DENSE:
        H = np.stack([product(v) for v in np.eye(total)])
        eigenvalues, vectors = np.linalg.eigh((H + H.T) / 2)
    else:
        operator = LinearOperator((total, total), matvec=product, dtype=np.float64)
        start = np.random.default_rng(seed).standard_normal(total)
        tol = 1e-8 if all(w.dtype == torch.float64 for w in places) else 1e-4
        try:
            eigenvalues, vectors = eigsh(operator, k=2, which="LA", v0=start, tol=tol)
        except ArpackError as error:
            raise ValueError(
                f"The search for the leading eigenvectors of the Hessian failed ({error}): use "
                'another seed, or directions="random".'
            ) from None

    def direction(v: FloatArray) -> dict[str, Any]:
        v = v * np.sign(v[np.abs(v).argmax()])  # an eigenvector is known up to its sign
        parts = zip(used, split(v), strict=True)
        return _tied({name: d.detach() for (name, _), d in parts}, center)

    order = np.argsort(eigenvalues)[::-1][:2]
    first, second = vectors[:, order].T
    return (direction(first), direction(second)), eigenvalues[order]


def _dot(a: State, b: State) -> float:
    return math.fsum(float((a[n].double() * b[n].double()).sum()) for n in a if n in b)
