"""reproduce(): the paper's results worked out again, into one page that opens from disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lossnav import _checks
from lossnav.figures import fig1, fig2, fig3, style, transients
from lossnav.reproduction import derivations, paths
from lossnav.reproduction.page import Section, figure_section, write_page

_FIGURES = {"fig1": fig1, "fig2": fig2, "fig3": fig3, "transients": transients}
PARTS = ("equations", *_FIGURES, "paths")


def reproduce(
    out: Path, what: Sequence[str] = (), progress: Callable[[str], None] = lambda _: None
) -> Path:
    """Rebuild the named parts of the paper into ``out/index.html``, with figures and data beside it.

    Args:
        out: Folder to write to; made if it is not there.
        what: Some of ``equations``, ``fig1``, ``fig2``, ``fig3``, ``transients`` and ``paths``; nothing
            or ``all`` means all.
        progress: Called with a line before each part.

    Returns:
        The path of the page.
    """
    wanted = [_checks.choice("part", part, [*PARTS, "all"]) for part in what]
    parts = PARTS if not wanted or "all" in wanted else [p for p in PARTS if p in wanted]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The results cannot be written to {out}: {error.strerror or error}. Choose another folder "
            "with --out."
        ) from None
    sections: list[Section] = []
    for number, part in enumerate(parts, 1):
        progress(f"[{number}/{len(parts)}] {part}")
        if part in _FIGURES:
            module = _FIGURES[part]
            tables = module.data()
            style.save(module.draw(tables), out, part)
            for name, table in tables.items():
                style.save_csv(table, out, name.replace(" ", "_"))
            sections.append(figure_section(part, module, out, list(tables)))
        elif part == "equations":
            sections.append(derivations.section(out, progress))
        else:
            sections.append(paths.section())
    return write_page(out, sections)
