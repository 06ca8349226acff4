"""Assumptions as one HTML file with the curves drawn, which needs no other file and no network."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from lossnav.inference.assumptions import Assumptions
from lossnav.inference.estimates import Curve
from lossnav.inference.report import rows, verdict

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _TOP = 366, 230, 62, 20, 44, 26
_STYLE = """
body{font:16px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}
td:first-child{white-space:pre;color:#555}figure{display:inline-block;margin:.5rem 1rem .5rem 0}
svg text{font:12px system-ui,sans-serif;fill:#333}.outside{color:#a33}h2{margin-top:2.5rem}
"""


def written(founds: Sequence[Assumptions]) -> str:
    """One page for one or several optimizers."""
    names = html.escape(" and ".join(found.name for found in founds))
    title = f"What {names} assume{'s' if len(founds) == 1 else ''}"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
    ]
    if len(founds) > 1:
        parts.append(_side_by_side(founds))
    parts += [_one(found, titled=len(founds) > 1) for found in founds]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _one(found: Assumptions, titled: bool) -> str:
    parts = [f"<h2>{html.escape(found.name)}</h2>"] if titled else []
    parts.append(f"<p>{html.escape(verdict(found))}</p>")
    if found.outside:
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in found.outside)
        parts.append(f"<p>Outside the family:</p><ul class='outside'>{items}</ul>")
    parts += [f"<figure>{draw(curve)}</figure>" for curve in found.curves]
    parts.append("<p>Circles: measured. Lines: fitted.</p><table>")
    parts += [
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
        for name, value in rows(found)
    ]
    parts.append("</table>")
    parts += [f"<p>{html.escape(note)}</p>" for note in found.notes]
    return "\n".join(parts)


def _side_by_side(founds: Sequence[Assumptions]) -> str:
    tables = [dict(rows(found)) for found in founds]
    names = list(dict.fromkeys(name for table in tables for name in table))
    head = "".join(f"<th>{html.escape(found.name)}</th>" for found in founds)
    lines = [f"<table><tr><th></th>{head}</tr>"]
    for name in names:
        cells = "".join(f"<td>{html.escape(table.get(name, '-'))}</td>" for table in tables)
        lines.append(f"<tr><td>{html.escape(name)}</td>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def draw(curve: Curve) -> str:
    """A curve as SVG: circles where it was measured, a line where it was fitted.

    Examples:
        >>> picture = draw(Curve("echo", "lag", "weight", (0.0, 1.0), (1.0, 0.5), (1.0, 0.5)))
        >>> picture.count("<circle"), picture.count("<polyline")
        (2, 1)
    """
    place = _log if curve.log else float
    shown = [
        (place(x), place(y))
        for x, y in zip(curve.at, curve.measured, strict=True)
        if _drawable(curve, x, y)
    ]
    line = [
        (place(x), place(y))
        for x, y in zip(curve.at, curve.fitted, strict=bool(curve.fitted))
        if _drawable(curve, x, y)
    ]
    if not shown:
        return f"<svg width='{_WIDTH}' height='{_HEIGHT}'><text x='20' y='40'>nothing to draw</text></svg>"
    xs, ys = zip(*shown, *line, strict=True)
    low, high = min(ys) if curve.log else min(0.0, *ys), max(ys)
    if curve.log and high - low < 1:  # a decade at least: rounding is not to look like a law
        low, high = (low + high - 1) / 2, (low + high + 1) / 2
    ranges = (min(xs), max(xs), low, high)

    def at(x: float, y: float) -> tuple[float, float]:
        a, b, c, d = ranges
        across = (x - a) / ((b - a) or 1.0) * (_WIDTH - _LEFT - _RIGHT)
        up = (y - c) / ((d - c) or 1.0) * (_HEIGHT - _BOTTOM - _TOP)
        return round(_LEFT + across, 1), round(_HEIGHT - _BOTTOM - up, 1)

    parts = [
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img' aria-label='{html.escape(curve.name)}'>",
        f"<text x='{_LEFT}' y='16'>{html.escape(curve.name)}</text>",
        f"<path d='M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}' fill='none' stroke='#999'/>",
    ]
    parts += _ticks(curve, ranges, at)
    if line:
        points = " ".join(f"{x},{y}" for x, y in (at(*p) for p in line))
        parts.append(f"<polyline points='{points}' fill='none' stroke='#c60' stroke-width='1.6'/>")
    parts += [
        f"<circle cx='{x}' cy='{y}' r='2.4' fill='none' stroke='#047'/>"
        for x, y in (at(*p) for p in shown)
    ]
    middle = (_LEFT + _WIDTH) // 2
    parts.append(
        f"<text x='{middle}' y='{_HEIGHT - 6}' text-anchor='middle'>{html.escape(curve.x)}</text>"
    )
    parts.append(
        f"<text transform='translate(12 {(_HEIGHT - _BOTTOM + _TOP) // 2}) rotate(-90)' "
        f"text-anchor='middle'>{html.escape(curve.y)}</text></svg>"
    )
    return "".join(parts)


def _ticks(curve: Curve, ranges: tuple[float, ...], at: object) -> list[str]:
    a, b, c, d = ranges
    place = at
    assert callable(place)
    lines = []
    for value, along in [(a, 0), ((a + b) / 2, 0), (b, 0), (c, 1), ((c + d) / 2, 1), (d, 1)]:
        label = f"{10**value:.0e}" if curve.log else f"{value:.3g}"
        x, y = place(a, value) if along else place(value, c)
        if along:
            lines.append(f"<text x='{x - 5}' y='{y + 4}' text-anchor='end'>{label}</text>")
        else:
            lines.append(f"<text x='{x}' y='{y + 15}' text-anchor='middle'>{label}</text>")
    return lines


def _drawable(curve: Curve, x: float, y: float) -> bool:
    if not (math.isfinite(x) and math.isfinite(y)):
        return False
    return not curve.log or (x > 0 and y > 0)


def _log(x: float) -> float:
    return math.log10(x)
