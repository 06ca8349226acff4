"""The figure of one solution: its path on the landscape, and its running cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.paper import figures
from lossnav.paper.figures import BLUE, GREEN, GREY, ORANGE, RED, Tables
from lossnav.problem.objective import Objective
from lossnav.solvers.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRID = 161
_LINES = 8  # more coordinates than this share one line style


def data(objective: Objective, path: Trajectory) -> Tables:
    """The path over time and, in the plane, the landscape, gradient flow, minima and end.

    Examples:
        >>> import lossnav as ln
        >>> bowl = ln.Objective(ln.Quadratic([1.0, 4.0]), gamma=1.0)
        >>> sorted(data(bowl, ln.solve(bowl, [1.0, 1.0])))
        ['end', 'flow', 'landscape', 'minima', 'path']
    """
    from scipy.interpolate import PchipInterpolator

    t = _shown(path) * np.linspace(0, 1, 1201) ** 2  # dense where the path is fast
    theta = path.at(t)
    costs = PchipInterpolator(path.t, np.stack([path.kinetic, path.potential], 1))(t)
    names = path.names or tuple(f"theta{i + 1}" for i in range(theta.shape[1]))
    tables: Tables = {"path": {"t": t, **dict(zip(names, theta.T, strict=True))}}
    tables["path"] |= {"kinetic cost": costs[:, 0], "potential cost": costs[:, 1]}
    if len(names) != 2:
        return tables
    flow = _gradient_flow(objective, theta[0])
    ends = theta[-1:] if path.end is None else path.end[None]
    box = _box(np.concatenate([theta, flow, ends]))
    x, y = (np.linspace(low, high, _GRID) for low, high in box)
    grid = np.stack(np.meshgrid(x, y), axis=-1)
    tables["landscape"] = {"x": grid[..., 0], "y": grid[..., 1], "loss": objective.loss(grid)}
    for label, points in (("flow", flow), ("minima", _minima(objective, theta[0], box))):
        tables[label] = dict(zip(names, points.T, strict=True))
    tables["end"] = dict(zip(names, ends.T, strict=True))
    return tables


@figures.styled
def draw(tables: Tables) -> figures.Figure:
    """The landscape with the path, or the coordinates over time, and the running costs."""
    wide = 7.6 if "landscape" in tables else 7.0
    figure, ((place, cost),) = figures.panels(2, width=wide, height=3.3)
    path = tables["path"]
    names = [name for name in path if name not in ("t", "kinetic cost", "potential cost")]
    if "landscape" in tables:
        _draw_map(place, tables, names)
    else:
        _draw_coordinates(place, path, names)
    cost.plot(path["t"], path["kinetic cost"], color=BLUE, label="kinetic: motion")
    cost.plot(path["t"], path["potential cost"], color=RED, dashes=(5, 2), label="potential: $kL$")
    cost.set(title="Running cost", xlabel="time $t$", xlim=(0, _busy(path)))
    cost.set_ylabel("cost per unit of time")
    cost.legend()
    return figure


def _draw_map(ax: Axes, tables: Tables, names: list[str]) -> None:
    from matplotlib.colors import BoundaryNorm

    land, path = tuple(tables["landscape"].values()), tables["path"]
    # Each shade covers a similar area, a little less near the bottom where paths end.
    levels = np.unique(np.nanquantile(land[2], np.linspace(0, 1, 17) ** 1.5))
    if len(levels) > 2:
        shades = BoundaryNorm(levels, 256)
        ax.contourf(*land, levels, cmap="Greys", norm=shades, alpha=0.5)
        ax.contour(*land, levels[1:-1], colors="white", linewidths=0.5, linestyles="solid")
    x, y = names
    flow, minima, end = ((tables[name][x], tables[name][y]) for name in ("flow", "minima", "end"))
    dots: dict[str, Any] = {"linestyle": "none", "markeredgecolor": "black", "markeredgewidth": 0.6}
    ax.plot(*flow, color=GREEN, dashes=(5, 2), label="gradient flow")
    ax.plot(path[x], path[y], color=BLUE, label="optimal path")
    ax.plot(*minima, "o", color=RED, markersize=6, label="minimum", **dots)
    ax.plot(path[x][:1], path[y][:1], "s", color=BLUE, markersize=5, label="start", **dots)
    ax.plot(*end, "D", color=ORANGE, markersize=4, label="end", **dots)
    ax.set(title="Path", xlabel=_symbol(x), ylabel=_symbol(y), aspect="equal", anchor="N")
    ax.set(xlim=(land[0].min(), land[0].max()), ylim=(land[1].min(), land[1].max()))
    ax.figure.legend(loc="outside lower center", ncols=5, columnspacing=1.2, handletextpad=0.5)


def _draw_coordinates(ax: Axes, path: dict[str, FloatArray], names: list[str]) -> None:
    many = len(names) > _LINES
    colours = [BLUE, RED, GREEN, ORANGE, GREY, "#CC79A7", "#56B4E9", "black"]
    dashes: list[Any] = ["-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 1.5, 1, 1.5))]
    for i, name in enumerate(names):
        look: dict[str, Any] = {"color": BLUE, "linewidth": 0.8, "alpha": 0.5}
        if not many:
            look = {"color": colours[i], "linestyle": dashes[i % 4], "label": _symbol(name)}
        ax.plot(path["t"], path[name], **look)
    label = _symbol(names[0]) if len(names) == 1 else "coordinates"
    ax.set(title="Path", xlabel="time $t$", ylabel=label, xlim=(0, path["t"][-1]))
    if not many and len(names) > 1:
        ax.legend()


def _symbol(name: str) -> str:
    import sympy

    return f"${sympy.latex(sympy.Symbol(name))}$"


def _shown(path: Trajectory) -> float:
    """Slightly more than the time until the path is within a hundredth of its end."""
    if path.end is None:
        return float(path.t[-1])
    return _settling(path.t, np.linalg.norm(path.theta - path.end, axis=1), 0.01)


def _busy(path: dict[str, FloatArray]) -> float:
    """Slightly more than the time until the running costs have nearly settled."""
    costs = np.stack([path["kinetic cost"], path["potential cost"]], 1)
    return _settling(path["t"], np.abs(costs - costs[-1]).max(axis=1), 0.005)


def _settling(t: FloatArray, left: FloatArray, share: float) -> float:
    far = np.flatnonzero(left > share * left.max())
    return float(min(1.15 * t[min(far[-1] + 1, len(t) - 1)] if len(far) else t[-1], t[-1]))


def _gradient_flow(objective: Objective, theta0: FloatArray) -> FloatArray:
    """Gradient flow of the loss from the start until it stops."""
    from scipy.integrate import solve_ivp

    loss, size = objective.loss, 1 + float(np.abs(theta0).max())
    steep = float(linalg.norm(loss.grad(theta0)))
    if not steep > 0:
        return theta0[None]

    def settled(t: float, theta: FloatArray) -> float:
        return float(linalg.norm(loss.grad(theta))) - 1e-4 * steep

    def away(t: float, theta: FloatArray) -> float:
        return 20 * size - float(np.abs(theta).max())

    settled.terminal = away.terminal = True  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):
        flow = solve_ivp(
            lambda _, theta: -loss.grad(theta),
            (0, 1e4 * size / steep),
            theta0,
            method="LSODA",
            jac=lambda _, theta: -loss.hess(theta),
            rtol=1e-7,
            atol=1e-9 * size,
            events=[settled, away],
            dense_output=True,
        )
    # A long step of the integrator may be curved.
    steps = flow.t[:-1, None] + np.linspace(0, 1, 10, endpoint=False) * np.diff(flow.t)[:, None]
    points = flow.sol(np.append(steps, flow.t[-1])).T
    return np.asarray(points[np.isfinite(points).all(axis=1)], dtype=np.float64)


def _box(points: FloatArray) -> FloatArray:
    """A box around the points, with a margin: ``[[left, right], [bottom, top]]``."""
    low, high = points.min(axis=0), points.max(axis=0)
    middle, half = (low + high) / 2, (high - low) / 2
    half = np.maximum(half, 0.6 * half.max()) if half.max() > 0 else half + 1
    half = 1.25 * half
    return np.stack([middle - half, middle + half], axis=1)


def _minima(objective: Objective, theta0: FloatArray, box: FloatArray) -> FloatArray:
    from lossnav.solvers.ritz.ends import minima

    points = np.array(list(minima(objective.loss.jet, theta0))).reshape(-1, 2)
    return points[((box[:, 0] <= points) & (points <= box[:, 1])).all(axis=1)]
