"""One look for all figures: readable at column width, in print, and to the colour-blind."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Tables = dict[str, dict[str, Any]]
"""Columns of numbers or words by name, and tables of them by name: what ``data()`` returns."""
WIDTH = 7.0
"""Inches: the width of a page of text, at which every letter has its own size."""

# Okabe and Ito's palette; lines differ in dash as well as in colour.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
COLOURS = (BLUE, RED, GREEN)
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
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


def styled(draw: Callable[[Tables], Figure]) -> Callable[[Tables], Figure]:
    """Run a figure's ``draw`` in the house style, leaving the user's settings alone."""

    @functools.wraps(draw)
    def drawn(tables: Tables) -> Figure:
        import matplotlib as mpl

        with mpl.rc_context(_SETTINGS):
            return draw(tables)

    return drawn


def panels(
    columns: int, *, width: float, height: float, rows: int = 1, ratios: Sequence[float] = ()
) -> tuple[Figure, Any]:
    """A figure with ``rows x columns`` axes that lays itself out; ``ratios`` are of the columns."""
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


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name to write under; ``path`` is there as a whole at the end, or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name`` as PNG, SVG and PDF without dates, so that equal figures are equal files."""
    import matplotlib as mpl

    written = []
    with mpl.rc_context(_SETTINGS):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, the same for all three
        for kind, metadata in (
            ("png", {"Software": "lossnav"}),
            ("svg", {"Date": None, "Creator": "lossnav"}),
            ("pdf", {"CreationDate": None, "Producer": "lossnav", "Creator": "lossnav"}),
        ):
            path = folder / f"{name}.{kind}"
            with whole(path) as part:
                figure.savefig(part, format=kind, metadata=metadata)
            written.append(path)
    return written


def save_csv(table: Mapping[str, Any], folder: Path, name: str) -> Path:
    """Write columns of equal length as CSV with 17 digits: reading it back loses nothing.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_csv({"rule": ["adam"], "J": [0.1]}, Path(folder), "costs").read_text()
        'rule,J\\nadam,0.10000000000000001\\n'
    """
    path = folder / f"{name}.csv"
    columns = [np.asarray(c) for c in table.values()]
    with whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(map(_cell, row) for row in zip(*columns, strict=True))
    return path


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{value:.17g}"
