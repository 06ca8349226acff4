"""The style of the figures: readable at column width, in print, and for the colour-blind.

Each module has figures, each a `PaperFigure` with ``data`` and ``draw``.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lossnav._base import checks
from lossnav._base.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure

Tables = dict[str, dict[str, Any]]
"""Columns of numbers or words by name, and tables of them by name: what ``data()`` returns."""

# Okabe and Ito's palette; lines differ in dash as well as in colour.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
COLOURS = (BLUE, RED, GREEN)
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
FORMATS: dict[str, dict[str, Any]] = {
    "png": {"Software": "lossnav"},
    "svg": {"Date": None, "Creator": "lossnav"},
    "pdf": {"CreationDate": None, "Producer": "lossnav", "Creator": "lossnav"},
}
"""Metadata by format, without dates, so that equal figures are equal files."""
_SETTINGS = {
    "font.size": 8.5,
    "axes.titlesize": 9.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.8,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.hashsalt": "lossnav",  # the same figure gives the same bytes
    "svg.fonttype": "path",
}


@dataclass
class PaperFigure:
    """A figure of the page; its title, caption and note are in ``templates/figures.toml``.

    Attributes:
        name: Its name as a part of the page and as a file.
        data: Computes the tables of numbers.
        draw: Draws them.
    """

    name: str
    data: Callable[..., Tables]
    draw: Callable[[Tables], Figure]


def styled(draw: Callable[[Tables], Figure]) -> Callable[[Tables], Figure]:
    """Run a figure's ``draw`` in this style without changing the user's settings."""

    @functools.wraps(draw)
    def drawn(tables: Tables) -> Figure:
        import matplotlib as mpl

        with mpl.rc_context(_SETTINGS):
            return draw(tables)

    return drawn


def panels(
    columns: int, *, height: float, width: float = 7.0, rows: int = 1, ratios: Sequence[float] = ()
) -> tuple[Figure, Any]:
    """A figure with ``rows x columns`` axes; ``ratios`` are the widths of the columns.

    The default width is that of a page of text, in inches, so that fonts have their nominal size.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, width_ratios=list(ratios) or None)


def contours(ax: Axes, loss: Any, box: tuple[float, float, float, float]) -> None:
    """Fill ``ax`` with the loss over ``(left, right, bottom, top)``."""
    x, y = np.linspace(*box[:2], 121), np.linspace(*box[2:], 121)
    values = loss(np.stack(np.meshgrid(x, y), axis=-1))
    ax.contourf(x, y, values, levels=14, cmap="Greys", alpha=0.55)
    ax.contour(x, y, values, levels=14, colors="white", linewidths=0.5, linestyles="solid")
    ax.set(xlim=box[:2], ylim=box[2:], aspect="equal", xlabel=r"$\theta_1$", ylabel=r"$\theta_2$")


def write(figure: Figure, path: Path) -> None:
    """Save a figure atomically, in the format that the file name ends with."""
    import matplotlib as mpl

    kind = checks.choice("figure format", path.suffix.lstrip(".").lower(), FORMATS)
    file = io.BytesIO()
    with mpl.rc_context({name: _SETTINGS[name] for name in ("savefig.dpi", "svg.hashsalt")}):
        figure.savefig(file, format=kind, metadata=FORMATS[kind])
    write_whole(path, file.getvalue())


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name`` in all formats."""
    import matplotlib as mpl

    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    with mpl.rc_context(_SETTINGS):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, the same for all formats
        for path in paths:
            write(figure, path)
    return paths


def save_csv(table: Mapping[str, Any], folder: Path, name: str) -> Path:
    """Write columns of equal length as CSV with 17 digits, which preserves every float.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_csv({"rule": ["adam"], "J": [0.1]}, Path(folder), "costs").read_text()
        'rule,J\\nadam,0.10000000000000001\\n'
    """
    path, file = folder / f"{name}.csv", io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(map(_cell, row) for row in zip(*map(np.asarray, table.values()), strict=True))
    write_whole(path, file.getvalue().encode())
    return path


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{value:.17g}"
