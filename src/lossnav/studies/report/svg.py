"""Figures as SVG inside the page: its colours, its fonts, no two of the same id, and a text for who cannot see.

Matplotlib draws in stand-in colours, which are then replaced by the page's own (CSS variables): so a figure is
dark on a dark page and black on white in print.
"""

from __future__ import annotations

import io
import math
import re
from html import escape
from typing import TYPE_CHECKING, Any

from lossnav.studies.report.words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = 7
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)), (0, (3, 1)), (0, (7, 2, 1.5, 2, 1.5, 2)),
)  # fmt: skip
MARKERS = "osD^vPX<>p"
INK, GRID = "#010203", "#010204"
SETTINGS = {
    "font.size": 9.0,
    "font.family": "DejaVu Sans",  # comes with matplotlib, and is wide: other fonts fit where it does
    "text.color": INK,
    "text.parse_math": False,  # a rule may have a dollar in its name
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "lossnav",
    "path.simplify_threshold": 0.3,
}


def colour(place: int) -> str:
    """The stand-in for the colour of a rule."""
    return f"#0a0b{place % COLOURS:02x}"


def look(place: int) -> dict[str, Any]:
    """How the lines of a rule are drawn: colour, dash and marker all differ, for print and for the colour-blind."""
    turn = place // COLOURS
    return {
        "color": colour(place),
        "linestyle": DASHES[(place + turn) % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


def panel(width: float = 4.6, height: float = 3.0) -> tuple[Figure, Axes]:
    """A figure with one pair of axes: narrow enough to be read on a phone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    return figure, axes


def log_axis(axis: Any, low: float, high: float) -> None:
    """A logarithmic axis with a few plain numbers on it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    name = axis.axis_name
    getattr(axis.axes, f"set_{name}scale")("log")
    decades = math.log10(high / low)
    subs: tuple[float, ...]
    subs = (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.5 else (1.0, 2.0, 5.0)
    if decades < 0.5:
        subs = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=7))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def plain_axis(axis: Any) -> None:
    """A linear axis with a few plain numbers on it."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 4)))


def svg(figure: Figure, name: str, text: str) -> str:
    """The figure as an element of the page; ``name`` is unique in it, ``text`` says what is to be seen."""
    file = io.StringIO()
    figure.savefig(
        file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    raw = file.getvalue()
    raw = raw[raw.index("<svg") :]
    raw = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", raw, flags=re.DOTALL)
    raw = _only_ids_in_use(raw, name)
    for place in range(COLOURS):
        raw = raw.replace(colour(place), f"var(--r{place})")
    raw = raw.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    raw = re.sub(r'(?<=\bd=")[^"]*', lambda found: _rounded(found[0]), raw)
    raw = re.sub(r'(?<=\b[xy]=")-?[\d.]+(?=")', lambda found: _rounded(found[0]), raw)
    raw = raw.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    raw = re.sub(r"\n\s*", "\n", raw)
    box = re.search(r'viewBox="[^"]*"', raw)
    head = f'<svg role="img" aria-label="{escape(text)}" xmlns="http://www.w3.org/2000/svg" {box[0] if box else ""}'
    head += ' xmlns:xlink="http://www.w3.org/1999/xlink">'
    return re.sub(r"^<svg[^>]*>", lambda _: head, raw, count=1)


def _only_ids_in_use(raw: str, name: str) -> str:
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', raw))

    def keep(found: re.Match[str]) -> str:
        return f' id="{name}-{found[1]}"' if found[1] in used else ""

    raw = re.sub(r' id="([^"]*)"', keep, raw)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", raw)


def _rounded(path: str) -> str:
    """Two decimals of a point are a thousandth of a millimetre."""
    return re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), path)  # fmt: skip


def swatch(place: int) -> str:
    """A rule's line and marker for a legend in HTML."""
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        figure, axes = panel(0.55, 0.17)
        figure.set_layout_engine("none")
        axes.set_position((0, 0, 1, 1))
        axes.axis("off")
        axes.plot([0.02, 0.5, 0.98], [0.5] * 3, markevery=[1], **look(place))
        axes.set(xlim=(0, 1), ylim=(0, 1))
        drawn = svg(figure, f"swatch{place}", "")
    return drawn.replace('role="img" aria-label=""', 'aria-hidden="true" class="swatch"')
