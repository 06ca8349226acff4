"""The parts of the page, in its order: what each is made by, and what else it follows from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from lossnav.paper import cache, derivations, kept_results, paths
from lossnav.paper.figures import (
    basins,
    fig1,
    fig2,
    fig2ef,
    fig3,
    mixed,
    noise,
    regret,
    spiral,
    style,
    transients,
)
from lossnav.paper.figures.training_plans import plan
from lossnav.paper.page import Section, figure_section, note_section
from lossnav.paper.threads import one_thread
from lossnav.studies.data import DataError


@dataclass(frozen=True)
class Job:
    """Where to write, how thoroughly, and whom to tell."""

    out: Path
    full: bool
    progress: Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """One part of the page.

    Attributes:
        build: Makes its files and returns its section.
        inputs: What it follows from besides the package, by name.
    """

    build: Callable[[Job], Section]
    inputs: Callable[[bool], dict[str, Any]] = lambda full: {}


PAPER, WORDS = "Figures of the paper", "What the paper says in words"
BEYOND, EQUATIONS = "Beyond the paper", "Equations"
_FIGURES: dict[str, tuple[ModuleType, str]] = {
    "fig1": (fig1, PAPER), "fig2": (fig2, PAPER), "fig3": (fig3, PAPER),
    "basins": (basins, WORDS), "mixed": (mixed, WORDS), "spiral": (spiral, WORDS),
    "noise": (noise, WORDS), "transients": (transients, WORDS), "regret": (regret, BEYOND),
}  # fmt: skip


def _figure(name: str) -> Part:
    module, group = _FIGURES[name]

    def build(job: Job) -> Section:
        return _drawn(job, name, module, module.data(), getattr(module, "NOTES", ()))._replace(
            group=group
        )

    return Part(build)


def _drawn(job: Job, name: str, module: ModuleType, tables: style.Tables, notes: Any) -> Section:
    with cache.writing(job.out):
        files = [path.name for path in style.save(module.draw(tables), job.out, name)]
        for table, columns in tables.items():
            files.append(style.save_csv(columns, job.out, table.replace(" ", "_")).name)
    return figure_section(name, module, job.out, files, notes)


def _training(job: Job) -> Section:
    tables = fig2ef.data(job.full, job.out / "training", job.progress)
    return _drawn(job, "fig2ef", fig2ef, tables, fig2ef.notes(job.full))._replace(group=PAPER)


def _trained_on(full: bool) -> dict[str, Any]:
    plans = {letter: str(plan(letter, full)) for letter in "ef"}
    return plans | {name: cache.held(name) for name in ("mnist", "cifar10")}


def _equations(job: Job) -> Section:
    with cache.writing(job.out):
        return derivations.section(job.out, job.progress)._replace(group=EQUATIONS)


PARTS: dict[str, Part] = {
    "fig1": _figure("fig1"),
    "fig2": _figure("fig2"),
    "fig2ef": Part(_training, _trained_on),
    "fig3": _figure("fig3"),
    **{name: _figure(name) for name, (_, group) in _FIGURES.items() if group is WORDS},
    "regret": _figure("regret"),
    "training": Part(
        lambda job: kept_results.training()._replace(group=BEYOND),
        lambda full: {"files": kept_results.fingerprint("training")},
    ),
    "fingerprints": Part(
        lambda job: kept_results.fingerprints()._replace(group=BEYOND),
        lambda full: {"files": kept_results.fingerprint("fingerprints")},
    ),
    "paths": Part(lambda job: paths.section()._replace(group=EQUATIONS)),
    "equations": Part(_equations),
}
"""Every part by name."""


def made(name: str, job: Job) -> Section:
    """The part's section: from the folder if it is there and current, else built and kept."""
    part = PARTS[name]
    wanted = cache.key(name, part.inputs(job.full) | {"full": job.full})
    found = cache.find(job.out, name, wanted)
    if found is not None:
        job.progress(f"  {name} is as the last run left it")
        return found
    try:
        with one_thread():
            section = part.build(job)
    except (
        DataError,
        ImportError,
    ) as missing:  # an extra is not installed: say so, and try again later
        job.progress(f"  left out: {missing}")
        return note_section(name, str(missing))
    with cache.writing(job.out):
        cache.keep(job.out, name, wanted, section)
    return section


def current(name: str, job: Job) -> Section | None:
    """The part as an earlier run left it in the folder, or None."""
    for full in (job.full, not job.full):
        wanted = cache.key(name, PARTS[name].inputs(full) | {"full": full})
        found = cache.find(job.out, name, wanted)
        if found is not None:
            return found
    return None
