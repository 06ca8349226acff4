"""Ranking: the rows of a comparison, and their table, figure and files."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lossnav._base.checks import FloatArray
from lossnav._base.files import plain
from lossnav.solvers.trajectory import Trajectory, axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Row:
    """One rule of a `Ranking`; with noise, means over the seeds.

    Attributes:
        name: Name of the rule.
        J: Cost of its path on the true loss; infinite if it ended early.
        J_error, spread: Standard error and standard deviation of J over the seeds.
        quadrature: Estimated error of the integral J.
        regret: J minus that of the optimal path; NaN without a reference.
        behind, behind_error: J minus that of the best row, paired by seed: mean, standard error.
        loss, loss_error: Loss at the end of the path, and its standard error over the seeds.
        kinetic, share: Kinetic part of J, and its share; NaN where the loss's part is negative.
        distance, rms: Largest and root-mean-square distance from the optimal path, over time.
        dt: Time between the steps of the rule.
        gradients: Gradient evaluations, on average.
        diverged, seeds: Number of seeds whose path ended early, and of all seeds.
        status: Empty, or a sentence about the failure.
        each: J for each seed.
    """

    name: str
    J: float
    J_error: float
    spread: float
    quadrature: float
    regret: float
    behind: float
    behind_error: float
    loss: float
    loss_error: float
    kinetic: float
    share: float
    distance: float
    rms: float
    dt: float
    gradients: float
    diverged: int
    seeds: int
    status: str
    each: FloatArray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Optimal:
    """The path that the rules are compared with.

    Attributes:
        J, error: Its cost over the horizon of the ranking, and the estimated error.
        sampled: J of the straight segments between its points every ``dt``. A difference of less
            than ``sampled - J`` between two rules is a matter of the segments.
        bound: Whether, according to the solver, no path costs less than ``J - error``.
        status: How the solve ended.
        path: The path itself.
    """

    J: float
    error: float
    sampled: float
    bound: bool
    status: str
    path: Trajectory = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """Rules compared under one objective, sorted by J; the result of `rank`.

    ``ranking["adam"]`` is the row of that name; ``print(ranking)`` shows a table.

    Attributes:
        rows: One `Row` for each rule, the best first.
        optimal: The optimal path over the same horizon, or None.
        status: How the optimal path was computed, or why there is none.
        paths: For each rule the times ``(N + 1,)`` and the points ``(seeds, N + 1, D)``; NaN after
            the end of a path that stopped early.
        dt: Time between the steps of a rule without its own.
        horizon: Time given to each rule.
        noisy: Whether gradients had noise, so that rows are means over seeds.

    Examples:
        >>> import lossnav as ln
        >>> objective = ln.Objective(ln.Quadratic([4.0, 1.0]))
        >>> rules = {"local": ln.learning_rule(objective), "slow": lambda grad, theta: -0.01 * grad}
        >>> ranking = ln.rank(rules, objective, [1.0, 1.0], steps=50)
        >>> ranking.best.name, ranking.optimal.J < ranking.best.J < ranking["slow"].J
        ('local', True)
    """

    rows: tuple[Row, ...]
    optimal: Optimal | None
    status: str
    paths: Mapping[str, tuple[FloatArray, FloatArray]] = field(repr=False)
    dt: float
    horizon: float
    noisy: bool

    @property
    def best(self) -> Row:
        """The row with the lowest J."""
        return self.rows[0]

    @property
    def regret(self) -> dict[str, float]:
        """J minus the optimal path's, for each rule."""
        return {row.name: row.regret for row in self.rows}

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The headings and the rows of the table that is shown, as text."""
        columns: dict[str, Callable[[Row], str]] = {"rule": lambda row: row.name, "J": _J}
        if self.noisy:
            columns["behind the best"] = _behind
        if self.optimal is not None:
            columns["regret"] = lambda row: _text(row.regret, 3)
        columns["final loss"] = lambda row: _text(row.loss, 4)
        columns["kinetic"] = lambda row: _text(100 * row.share, 1, "f", " %")
        if self.optimal is not None:
            columns["distance"] = lambda row: _text(row.distance, 3)
            columns["rms"] = lambda row: _text(row.rms, 3)
        if any(row.status for row in self.rows):
            columns["note"] = lambda row: row.status
        body = [[show(row) for show in columns.values()] for row in self.rows]
        if self.optimal is not None:
            body.insert(0, [self._bound().get(name, "") for name in columns])
        return list(columns), body

    def _bound(self) -> dict[str, str]:
        """The row of the optimal path, which no rule can undercut."""
        assert self.optimal is not None
        best = self.optimal
        name = "optimal path (bound)" if best.bound else "best path known"
        return {"rule": name, "J": _text(best.J, 6), "regret": "0"}

    def caption(self) -> str:
        """Horizon, steps and the optimal path, in a few lines."""
        lines = [f"horizon {self.horizon:.6g}, a step every {self.dt:.6g}"]
        if any(row.dt != self.dt for row in self.rows):
            lines[0] += " unless a rule has its own dt"
        if self.noisy:
            lines[0] += f", {self.best.seeds} seeds, mean ± standard error"
        if self.optimal is not None:
            best = self.optimal
            lines.append(
                f"optimal path: J = {best.J:.6g} ({best.sampled:.6g} in straight segments). "
                f"{self.status}"
            )
        elif self.status:
            lines.append(f"no optimal path to compare with: {self.status}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        heads, body = self.cells()
        widths = [max(map(len, column)) for column in zip(heads, *body, strict=True)]
        left = {"rule", "note"}
        lines = []
        for cells in (heads, *body):
            padded = (
                f"{cell:<{width}}" if head in left else f"{cell:>{width}}"
                for head, cell, width in zip(heads, cells, widths, strict=True)
            )
            lines.append("  ".join(padded).rstrip())
        return "\n".join([*lines, "", self.caption()])

    def _repr_html_(self) -> str:
        heads, body = self.cells()
        top = "".join(f"<th>{html.escape(head)}</th>" for head in heads)
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in cells) for cells in body)
        inner = "".join(f"<tr>{row}</tr>" for row in rows)
        below = html.escape(self.caption()).replace("\n", "<br>")
        return f"<table><thead><tr>{top}</tr></thead><tbody>{inner}</tbody></table><p>{below}</p>"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw J of each rule as a bar, with its standard error, beside the J of the optimal path.

        Args:
            ax: Axes of matplotlib to draw into; new ones by default.

        Returns:
            The axes.
        """
        ax = axes(ax, (6, 1 + 0.4 * len(self)))
        shown = [row for row in self.rows if math.isfinite(row.J)]
        errors = [row.J_error for row in shown] if self.noisy else None
        ax.barh([row.name for row in shown], [row.J for row in shown], xerr=errors, color="C0")
        for row in self.rows[len(shown) :]:
            ax.barh(row.name, 0.0)
            ax.annotate(
                row.status, (0.01, row.name), xycoords=("axes fraction", "data"), va="center"
            )
        if self.optimal is not None:
            ax.axvline(self.optimal.J, color="C3", label=f"optimal path, {self.optimal.J:.4g}")
            ax.legend(loc="lower right")
        ax.invert_yaxis()
        ax.set_xlabel(f"J over the horizon {self.horizon:.4g}")
        return ax

    def to_dict(self) -> dict[str, Any]:
        """All but the paths as plain numbers, text and lists; None where not finite."""
        summary = {
            "horizon": self.horizon,
            "dt": self.dt,
            "noisy": self.noisy,
            "status": self.status,
        }
        best = self.optimal
        names = ("J", "error", "sampled", "bound", "status")
        optimal = None if best is None else {name: getattr(best, name) for name in names}
        rows = [asdict(row) | {"each": row.each.tolist()} for row in self.rows]
        return plain(summary | {"optimal": optimal, "rows": rows})

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def to_csv(self) -> str:
        """One line for each row, under a line of names."""
        rows = [{k: v for k, v in asdict(row).items() if k != "each"} for row in self.rows]
        file = io.StringIO()
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return file.getvalue()


def _J(row: Row) -> str:
    return _text(row.J, 6) if row.seeds == 1 else _pair(row.J, row.J_error)


def _behind(row: Row) -> str:
    """The difference to the best; zero if it is rounding."""
    return "0" if abs(row.behind) <= 1e-12 * abs(row.J) else _pair(row.behind, row.behind_error)


def _text(value: float, digits: int, form: str = "g", unit: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}{form}}{unit}"


def _pair(value: float, error: float) -> str:
    """A mean, rounded to its standard error."""
    if not (math.isfinite(value) and math.isfinite(error)) or error == 0:
        return _text(value, 6)
    places = max(0, 1 - math.floor(math.log10(error)))
    if places > 8 or error >= 1e6:
        return f"{value:.6g} ± {error:.2g}"
    return f"{value:.{places}f} ± {error:.{places}f}"
