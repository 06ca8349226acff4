"""Assumptions in words: one block for each part, and what no member of the family does at the end."""

from __future__ import annotations

from collections.abc import Sequence

from lossnav.inference.assumptions import Assumptions
from lossnav.inference.estimates import Estimate

_DISCOUNTS = {
    "ballistic": "none: the whole future counts, and steps go as 1/sqrt(variance)",
    "overdamped": "so strong that only the next moment counts: steps do not see the variance",
    "between": "finite: small gradients follow gradient descent, large ones go as 1/sqrt(variance)",
    "newton": "none, and long steps: they go as 1/variance",
    "sign": "none, and noise as large as the signal: every step has one length",
    "other": "not that of the family",
    "unknown": "not known",
}
_STRUCTURES = {
    "diagonal": "each coordinate by itself",
    "kronecker": "a learnt basis for the rows and columns of a matrix",
    "factored": "a scale for each row and each column of a matrix",
    "orthogonal": "the whole matrix: its singular values are levelled",
    "isotropic": "every direction alike",
    "other": "not that of the family",
    "unknown": "not known",
}
_DRIFTS = {
    "none": "none",
    "decoupled": "weights decay by themselves (decoupled weight decay)",
    "coupled": "a penalty in the loss, seen through memory and metric (coupled weight decay)",
    "either": "decay: by itself or by a penalty, which are the same without memory and metric",
    "linear": "linear in the weights",
    "other": "not linear in the weights",
    "unknown": "not known",
}


def rows(found: Assumptions) -> list[tuple[str, str]]:
    """What was found, as pairs of a name and a text."""
    d, m, f, s = found.discount, found.memory, found.drift, found.metric
    lines = [("discount", _DISCOUNTS.get(d.kind, d.kind))]
    lines += _numbers(
        [("  gamma, in units of a gradient", d.gamma if d.kind == "between" else None)]
    )
    unit = " (for each unit of gradient)" if d.kind == "overdamped" else ""
    lines += _numbers([(f"  lr{unit}", d.lr), ("  eps", d.eps)])
    if d.power is not None:
        lines.append(
            ("  steepest power of S", f"{_rounded(d.power.value):.3g} (the family has -1/2 to 0)")
        )
    if d.residual is not None:
        lines.append(("  residual of S", f"{_rounded(d.residual):.2g}"))
    lines.append(("memory", _memory(found)))
    lines += _numbers(
        [("  of gradients, steps", m.gradient), ("  of the variance, steps", m.curvature)]
    )
    lines += _numbers(
        [("  growth of the latter", m.growth), ("  weight of memory, as used", m.used)]
    )
    lines.append(("drift", _DRIFTS.get(f.form, f.form)))
    lines += _numbers(
        [
            ("  weight_decay", f.weight_decay),
            ("  share lost in a step", f.decay),
            ("  rotation, radians in a step", f.rotation),
            ("  offset in a step", f.offset),
        ]
    )
    if f.scales_with_lr is not None:
        lines.append(("  scales with lr", "yes" if f.scales_with_lr else "no"))
    lines.append(("metric", _STRUCTURES.get(s.kind, s.kind)))
    for name, value in s.equivariance.items():
        what = "rows and columns unexplained" if name == "factors" else f"turns with {name}"
        lines.append((f"  {what}", f"{_rounded(value):.2g} (0 is exactly)"))
    if s.coupling is not None:
        lines.append(("  coordinates act on each other", f"{_rounded(s.coupling):.2g}"))
    lines.append(
        ("nearest", "no member of the zoo" if found.nearest is None else str(found.nearest))
    )
    if found.nearest is not None and found.nearest.others:
        others = sorted(found.nearest.others.items(), key=lambda one: one[1])
        lines.append(("  others", ", ".join(f"{name} {apart:.2g}" for name, apart in others)))
    return lines


def _rounded(value: float) -> float:
    """The number, without what rounding leaves of zero."""
    return 0.0 if abs(value) < 1e-9 else value


def _memory(found: Assumptions) -> str:
    m = found.memory
    if m.gradient is None:
        return "not known"
    if m.gradient.value < 1.0001:
        words = ["the last gradient is the mean"]
    else:
        words = [
            "noisy coordinates remember longer" if m.by_noise else "one decay for all coordinates"
        ]
    if m.look_ahead:
        words.append("looks ahead (Nesterov)")
    if m.centred is not None:
        words.append("variance about the mean" if m.centred else "variance about zero")
    if m.diffuse is not None:
        words.append("the start is corrected for" if m.diffuse else "starts from zero")
    return "; ".join(words)


def _numbers(pairs: Sequence[tuple[str, Estimate | None]]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in pairs if value is not None]


def verdict(found: Assumptions) -> str:
    """One sentence: optimal for an objective, or not and why."""
    if not found.breaks:
        return "It is optimal for an objective of the family: see .objective()."
    text = "It is optimal for no objective of the family."
    if any("explained" in sentence for sentence in found.outside):
        text += " The numbers are those of the family's most similar rule, not its own."
    return text


def text(found: Assumptions) -> str:
    """The plain text of ``lossnav infer``."""
    lines = rows(found)
    width = max(len(name) for name, _ in lines) + 2
    seconds = "" if found.seconds is None else f" ({found.seconds:.1f} s)"
    parts = [f"{found.name}: what it assumes{seconds}", ""]
    parts += [f"{name:<{width}}{value}" for name, value in lines]
    parts += ["", verdict(found)]
    parts += [f"  outside: {sentence}" for sentence in found.outside]
    parts += [f"  note: {sentence}" for sentence in found.notes]
    return "\n".join(parts)


def compared(founds: Sequence[Assumptions]) -> str:
    """Several side by side, a column for each."""
    tables = [dict(rows(found)) for found in founds]
    names = list(dict.fromkeys(name for table in tables for name in table))
    cells = [["", *(found.name for found in founds)]]
    cells += [[name, *(_short(table.get(name, "-")) for table in tables)] for name in names]
    cells.append(["outside", *(str(len(found.outside) or "nothing") for found in founds)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
    for found in founds:
        lines += [f"{found.name} is outside: {sentence}" for sentence in found.outside]
    return "\n".join(lines)


def _short(words: str) -> str:
    """The part before the first explanation, so that columns stay narrow."""
    for mark in (": ", " (0 is", " (the family", ", at a distance"):
        words = words.split(mark)[0]
    return words if len(words) <= 58 else words[:55] + "..."
