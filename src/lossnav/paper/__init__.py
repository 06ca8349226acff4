"""reproduce(): recompute the paper's results into one self-contained page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lossnav._base import checks
from lossnav._base.files import write_whole
from lossnav.paper.cache import writing
from lossnav.paper.sections import PARTS, Job, built, finished, write_page

__all__ = ["PARTS", "reproduce"]


def reproduce(
    out: Path,
    what: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
    *,
    full: bool = False,
) -> Path:
    """Rebuild the named parts of the paper into ``out/index.html``, with figures and data.

    A part that an earlier run finished in the same folder is reused, unless the code, the versions
    of packages, its settings or its data have changed. The page shows every part in the folder.

    Args:
        out: Folder to write to; created if missing.
        what: Names of parts, see `PARTS`; nothing or ``all`` means all.
        progress: Called with one line before each part.
        full: Train for as many epochs as the paper, which takes hours; by default runs are short.

    Returns:
        The path of the page.

    Raises:
        ValueError: The folder cannot be written, or is full. Finished parts are kept.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = reproduce(Path(folder), ["fig2"])
        ...     page.name, (page.parent / "fig2d.csv").exists()
        ('index.html', True)
    """
    wanted = [checks.choice("part", part, [*PARTS, "all"]) for part in what]
    names = [name for name in PARTS if not wanted or "all" in wanted or name in wanted]
    with writing(out):  # fail before any work if the folder cannot be written
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / ".try", b"")
        (out / ".try").unlink()
    job = Job(out, full, progress)
    sections = {}
    for number, name in enumerate(names, 1):
        progress(f"[{number}/{len(names)}] {name}")
        sections[name] = built(name, job)
    shown = [sections.get(name) or finished(name, job) for name in PARTS]
    with writing(out):
        return write_page(out, [section for section in shown if section is not None])
