"""reproduce(): the paper's results worked out again, into one page that opens from disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lossnav._base import checks
from lossnav.paper import cache
from lossnav.paper.page import write_page
from lossnav.paper.parts import PARTS, Job, current, made

__all__ = ["PARTS", "reproduce"]


def reproduce(
    out: Path,
    what: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
    *,
    full: bool = False,
) -> Path:
    """Rebuild the named parts of the paper into ``out/index.html``, with figures and data beside it.

    A part that an earlier run has finished in the same folder is not made again, unless the code, the
    versions below it, its settings or its data have changed. The page shows all that the folder holds.

    Args:
        out: Folder to write to; made if it is not there.
        what: Names of parts, see `PARTS`; nothing or ``all`` means all.
        progress: Called with a line before each part.
        full: Train as long as the paper does, which takes hours; else short runs stand in for it.

    Returns:
        The path of the page.

    Raises:
        ValueError: The folder cannot be written, or is full: one sentence says so. What is finished is kept.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = reproduce(Path(folder), ["fig2"])
        ...     page.name, (page.parent / "fig2d.csv").exists()
        ('index.html', True)
    """
    wanted = [checks.choice("part", part, [*PARTS, "all"]) for part in what]
    names = [name for name in PARTS if not wanted or "all" in wanted or name in wanted]
    with cache.writing(out):
        cache.prepare(out)
    job = Job(out, full, progress)
    sections = {}
    for number, name in enumerate(names, 1):
        progress(f"[{number}/{len(names)}] {name}")
        sections[name] = made(name, job)
    found = [sections.get(name) or current(name, job) for name in PARTS]
    with cache.writing(out):
        return write_page(out, [section for section in found if section is not None])
