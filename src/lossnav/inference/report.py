"""Assumptions as text, a summary for the screen, a figure, and an HTML page."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Sequence
from typing import Any

from lossnav.inference.assumptions import CLOSE, Assumptions, Estimate, named

_DISCOUNTS = {
    "ballistic": "none: the whole future counts, and steps go as 1/sqrt(variance)",
    "overdamped": "very large: only the next moment counts, and steps ignore the variance",
    "between": "finite: small gradients follow gradient descent, large ones go as 1/sqrt(variance)",
    "sign": "none, and noise as large as the signal: every step has one length",
    "linear": "not identified: steps are linear in gradients, as with other metrics and curvatures",
    "planned": "that of the Objective below",
    "other": "not that of the family",
    "unknown": "not known",
}
_STRUCTURES = {
    "diagonal": "each coordinate by itself",
    "kronecker": "a learned basis for the rows and columns of a matrix",
    "factored": "a scale for each row and each column of a matrix",
    "orthogonal": "the whole matrix: its singular values are levelled",
    "isotropic": "every direction alike",
    "matrix": "one matrix for all coordinates",
    "other": "not that of the family",
    "unknown": "not known",
}
_DRIFTS = {
    "none": "none",
    "decoupled": "weights decay by themselves (decoupled weight decay)",
    "coupled": "a penalty in the loss, filtered by memory and metric (coupled weight decay)",
    "either": "decay: decoupled or by a penalty, which are the same without memory and metric",
    "linear": "linear in the weights",
    "planned": "decay that the plan takes into account",
    "other": "not linear in the weights",
    "unknown": "not known",
}
_WIDTH, _MOST_SENTENCES = 100, 5
SIZES = ("line", "screen", "all")
"""Sizes of a report as text."""
_LEFT = 1e-3  # a smaller unexplained share is not mentioned


def rows(found: Assumptions) -> list[tuple[str, str]]:
    """Pairs of a name and a text; an indented name belongs to the one above."""
    d, m, f, s = found.discount, found.memory, found.drift, found.metric
    unit = " (per unit of gradient)" if d.kind == "overdamped" else ""
    table: list[tuple[str, Any]] = [
        ("discount", _DISCOUNTS.get(d.kind, d.kind)),
        ("  gamma, in units of a gradient", d.gamma if d.kind == "between" else None),
        (f"  lr{unit}", d.lr),
        ("  eps", d.eps),
        ("  steepest power of S", _number(d.power, ".3g", " (the family has -1/2 to 0)")),
        ("  residual of S", _number(d.residual, ".2g")),
        ("memory", _memory(found)),
        ("  of gradients, steps", m.gradient),
        ("  of the variance, steps", m.curvature),
        ("  growth of the latter", m.growth),
        ("  weight of memory, as used", m.used),
        ("drift", _DRIFTS.get(f.form, f.form)),
        ("  weight_decay", f.weight_decay),
        ("  share lost in a step", f.decay),
        ("  rotation, radians in a step", f.rotation),
        ("  offset in a step", f.offset),
        ("  scales with lr", {True: "yes", False: "no", None: None}[f.scales_with_lr]),
        ("metric", _STRUCTURES.get(s.kind, s.kind)),
    ]
    for name, value in s.equivariance.items():
        what = "not explained by row and column scales"
        what = what if name == "factors" else f"rotation equivariance error, {name}"
        table.append((f"  {what}", _number(value, ".2g", " (0 = exact)")))
    near = found.nearest
    table += [
        ("  coupling of coordinates", _number(s.coupling, ".2g")),
        ("nearest", "no member of the zoo" if near is None else near),
    ]
    if near is not None and near.others:
        others = sorted(near.others.items(), key=lambda one: one[1])
        table.append(("  others", ", ".join(f"{name} {apart:.2g}" for name, apart in others)))
    for name, reason in () if near is None else near.untried.items():
        table.append((f"  {name} not tried", reason))
    return [(name, str(value)) for name, value in table if value is not None]


def _number(value: Estimate | float | None, form: str, more: str = "") -> str | None:
    if value is None:
        return None
    number = value.value if isinstance(value, Estimate) else value
    return f"{0.0 if abs(number) < 1e-9 else number:{form}}{more}"


def _memory(found: Assumptions) -> str:
    m = found.memory
    if m.gradient is None:
        return "not known"
    gain = "noisy coordinates remember longer" if m.by_noise else "one decay for all coordinates"
    words = ["the last gradient is the mean" if m.gradient.value < 1.0001 else gain]
    if m.look_ahead:
        words.append("looks ahead (Nesterov)")
    if m.centred is not None:
        words.append("variance about the mean" if m.centred else "variance about zero")
    if m.diffuse is not None:
        words.append("the start is corrected for" if m.diffuse else "starts from zero")
    return "; ".join(words)


def verdict(found: Assumptions) -> str:
    """Whether it is optimal for an objective, and for which."""
    d, learner = found.discount, found.learner
    if learner is not None and not found.breaks:
        given = ", ".join(f"{name} = {value:.4g}" for name, value in learner.constants.items())
        return " ".join(
            [f"It is the learning rule of an Objective ({learner.kind}): {given}, k = dt = 1.",
             *learner.ambiguous]
        )  # fmt: skip
    if not found.breaks and d.lr is not None:
        constants = f"eta k / gamma = {d.lr.value:.4g} and a large gamma"
        if d.kind != "overdamped":
            Gamma = 0.0 if d.gamma is None else d.gamma.value
            gamma = 2 * Gamma * d.lr.value
            constants = f"eta = {d.lr.value**2:.4g}, gamma = {gamma:.4g}, k = kappa = dt = 1"
        return f"It is optimal for an objective of the family: {constants}."
    text = "It is optimal for no objective of the family."
    if any("explained" in sentence for sentence in found.outside):
        text += " The numbers are those of the family's most similar rule, not its own."
    return text


def line(found: Assumptions) -> str:
    """What it is, in a sentence: a known optimizer, the mechanisms it adds, and what is left."""
    near, left = found.nearest, found.unexplained
    more = [name for name in found.mechanisms if name != "sum of squares"]
    if found.mechanisms and left is not None and left < CLOSE and "lr" in found.settings:
        base = _base(found)
    elif near is not None and near.is_close:
        base = named(near.name, near.settings)
    elif found.learner is not None and not found.breaks:
        base = f"the learning rule of an Objective ({found.learner.kind})"
    else:
        base = "no known optimizer"
    words = f"{found.name}: {base}" + (f" with {', '.join(more)}" if more else "")
    if left is not None and left > _LEFT:
        words += f"; {min(left, 1):.2g} of its steps unexplained"
    return words


def _base(found: Assumptions) -> str:
    """The member of the family that the mechanisms change."""
    from lossnav.inference.fit.mechanisms import WHOLE

    if WHOLE & set(found.mechanisms):
        return "a rule"
    known = {name: e.value for name, e in found.settings.items()}
    beta1, lr = known.get("beta1", 0.0), known["lr"]
    decay = {}
    if found.drift.form == "decoupled" and known.get("weight_decay"):
        decay = {"weight_decay": known["weight_decay"]}
    if "sum of squares" in found.mechanisms:
        return named("Adagrad", {"lr": lr, **decay})
    if "beta2" not in known:
        momentum = {"momentum": beta1} if beta1 else {}
        return named("SGD", {"lr": lr * (1 - beta1), **momentum, **decay})
    if not beta1:
        return named("RMSprop", {"lr": lr, "alpha": known["beta2"], **decay})
    settings = {"lr": lr, "betas": (beta1, known["beta2"]), **decay}
    return named("AdamW" if decay else "Adam", settings)


def text(found: Assumptions) -> str:
    """The whole report as plain text."""
    lines = rows(found)
    width = max(len(name) for name, _ in lines) + 2
    seconds = "" if found.seconds is None else f" ({found.seconds:.1f} s)"
    parts = [f"{found.name}: what it assumes{seconds}", ""]
    parts += [f"{name:<{width}}{value}" for name, value in lines]
    parts += ["", verdict(found)]
    if not found.breaks:
        parts.append(f"  objective: {found.objective()!r}")
    parts += [f"  outside: {sentence}" for sentence in found.outside]
    parts += [f"  note: {sentence}" for sentence in found.notes]
    return "\n".join(parts)


def _essentials(found: Assumptions) -> list[tuple[str, str]]:
    """The rows of the summary."""
    full = dict(rows(found))
    near = found.nearest
    settings = [f"{name} {value}" for name, value in found.settings.items()]
    memories = {"gradients": found.memory.gradient, "variance": found.memory.curvature}
    steps = [f"{name} {value} steps" for name, value in memories.items() if value is not None]
    outside = list(found.outside[:_MOST_SENTENCES])
    if len(found.outside) > len(outside):
        outside.append(f"and {len(found.outside) - len(outside)} more, see report()")
    table = [
        ("nearest", "no member of the zoo" if near is None else str(near)),
        ("settings", ", ".join(settings) or "not known"),
        ("discount", full["discount"]),
        ("memory", "; ".join([*steps, full["memory"]])),
        ("drift", full["drift"]),
        ("metric", full["metric"]),
    ]
    return table + [("outside", sentence) for sentence in outside or ["nothing"]]


def summary(found: Assumptions) -> str:
    """The essentials on one screen."""
    lines = textwrap.wrap(line(found), _WIDTH, max_lines=3, placeholder=" ...")
    for name, value in _essentials(found):
        wrapped = textwrap.wrap(value, _WIDTH - 12, max_lines=2, placeholder=" ...")
        lines += [f"  {name if i == 0 else '':<10}{part}" for i, part in enumerate(wrapped)]
    return "\n".join([*lines, "All numbers: report(); figure: plot()."])


def compared(founds: Sequence[Assumptions]) -> str:
    """Several side by side, a column for each."""
    cells = [["", *(found.name for found in founds)]]
    cells += [[name, *map(_short, values)] for name, values in _side_by_side(founds)]
    cells.append(["outside", *(str(len(found.outside) or "nothing") for found in founds)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
    for found in founds:
        lines += [f"{found.name} is outside: {sentence}" for sentence in found.outside]
    return "\n".join(lines)


def _side_by_side(founds: Sequence[Assumptions]) -> list[tuple[str, list[str]]]:
    tables = [dict(rows(found)) for found in founds]
    names = dict.fromkeys(name for table in tables for name in table)
    return [(name, [table.get(name, "-") for table in tables]) for name in names]


def _short(words: str) -> str:
    """The part before the first explanation, so that columns stay narrow."""
    for mark in (": ", " (0 =", " (the family", ", at a distance"):
        words = words.split(mark)[0]
    return words if len(words) <= 58 else words[:55] + "..."


def plot(found: Assumptions, axes: Any = None) -> list[Any]:
    """The curves of `Assumptions.plot`."""
    if axes is None:
        from matplotlib import pyplot

        count = max(len(found.curves), 1)
        axes = pyplot.subplots(1, count, figsize=(4 * count, 3.2), layout="constrained")[1]
    axes = list(getattr(axes, "flat", [axes] if hasattr(axes, "plot") else axes))
    for ax, curve in zip(axes, found.curves, strict=False):
        ax.plot(curve.at, curve.measured, "o", mfc="none", ms=4, color="C0", label="measured")
        if curve.fitted:
            ax.plot(curve.at, curve.fitted, color="C1", label="fitted")
        if curve.log:
            ax.set(xscale="log", yscale="log")
            low, high = ax.get_ylim()
            if high < 10 * low:  # a decade at least: rounding should not look like a law
                middle = (low * high) ** 0.5
                ax.set_ylim(middle / 10**0.5, middle * 10**0.5)
        ax.set(title=curve.name, xlabel=curve.x, ylabel=curve.y)
        ax.legend()
    if not found.curves:
        known = {name: e for name, e in found.settings.items() if e.value}
        for place, e in enumerate(known.values()):
            ends = [[(e.value - e.low) / abs(e.value)], [(e.high - e.value) / abs(e.value)]]
            axes[0].errorbar([0.0], [place], xerr=ends, fmt="o", capsize=3, color="C0")
        labels = [f"{name} = {e.value:.4g}" for name, e in known.items()]
        axes[0].set_yticks(range(len(known)), labels)
        axes[0].set(title=found.name, xlabel="relative 95 % interval")
    return axes


_TEMPLATE = """\
{% macro table(lines) -%}
<table>{% for name, values in lines %}<tr><td>{{ name }}</td>
{%- for value in values %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</table>
{%- endmacro -%}
<!doctype html><html lang='en'><head><meta charset='utf-8'>
<title>{{ title }}</title><style>
body{font:16px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}.outside{color:#a33}h2{margin-top:2.5rem}
td{padding:.2rem .8rem .2rem 0;vertical-align:top}td:first-child{white-space:pre;color:#555}
img{max-width:100%}
</style></head><body>
<h1>{{ title }}</h1>
{% if founds|length > 1 %}{{ table(compared) }}{% endif %}
{% for found, verdict, rows, figure in founds %}
{% if founds|length > 1 %}<h2>{{ found.name }}</h2>{% endif %}
<p>{{ verdict }}</p>
{% if found.outside %}<p>Outside the family:</p><ul class='outside'>
{% for sentence in found.outside %}<li>{{ sentence }}</li>{% endfor %}</ul>{% endif %}
<img src='data:image/svg+xml;base64,{{ figure }}' alt='Measured and fitted:
{%- for curve in found.curves %} {{ curve.name }}{{ "," if not loop.last }}{% endfor %}'>
{{ table(rows) }}
{% for note in found.notes %}<p>{{ note }}</p>{% endfor %}
{% endfor %}
</body></html>
"""


def page(founds: Sequence[Assumptions]) -> str:
    """One HTML page for one or several optimizers, with the curves drawn."""
    names = " and ".join(found.name for found in founds)
    each = [
        (found, verdict(found), [(name, [value]) for name, value in rows(found)], _svg(found))
        for found in founds
    ]
    return _rendered(
        _TEMPLATE,
        title=f"What {names} assume{'s' if len(founds) == 1 else ''}",
        founds=each,
        compared=[("", [found.name for found in founds]), *_side_by_side(founds)],
    )


def summary_html(found: Assumptions) -> str:
    """The essentials as a small table."""
    template = (
        "<table><caption>{{ name }}: what it assumes</caption>{% for name, value in rows %}"
        "<tr><th>{{ name }}</th><td>{{ value }}</td></tr>{% endfor %}</table>"
    )
    return _rendered(template, name=found.name, rows=_essentials(found))


def _rendered(template: str, **values: Any) -> str:
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True)
    return environment.from_string(template).render(**values)


def _svg(found: Assumptions) -> str:
    """The figure as SVG in base64, with text as text."""
    import matplotlib
    from matplotlib.figure import Figure

    count = max(len(found.curves), 1)
    figure = Figure(figsize=(4 * count, 3.2), layout="constrained")
    plot(found, figure.subplots(1, count))
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lossnav"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return base64.b64encode(file.getvalue()).decode()
