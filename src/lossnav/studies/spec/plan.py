"""The trials of a study: pure functions, so that any two runs plan the same.

Every point of every rule's grid is tried on the tuning seeds. Then the best point of each rule, by
the validation split, is run on the reporting seeds, which took no part in the choice.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lossnav.studies.spec import Study, StudyError
from lossnav.studies.trial import Phase, Result, Trial

Point = dict[str, Any]
Metrics = Mapping[str, tuple[str, str]]
"""For each task, the metric to select by, and whether ``"lower"`` or ``"higher"`` is better."""


def points(study: Study, rule: str) -> list[Point]:
    """The points of a rule's grid to try, in the order of the grid.

    With ``[budget] trials = N`` they are drawn by a hash of the rule and the point: the same on
    every machine, and a larger N keeps what a smaller one drew.
    """
    grid = study.rules[rule].grid
    whole = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]

    def rank(point: Point) -> bytes:
        return hashlib.sha256(json.dumps([rule, point], sort_keys=True).encode()).digest()

    drawn = {rank(point) for point in sorted(whole, key=rank)[: study.budget.trials]}
    return [point for point in whole if rank(point) in drawn]


def tuning(study: Study) -> list[Trial]:
    """Every point of every rule on every tuning seed; none for rules with a single point."""
    trial, options = _maker(study), {rule: points(study, rule) for rule in study.rules}
    return [
        trial(task, rule, point, seed, "tuning")
        for task in study.tasks
        for seed in study.seeds.tuning
        for rule in study.rules
        for point in options[rule]
        if len(options[rule]) > 1
    ]


def reporting(study: Study, results: Iterable[Result], metrics: Metrics) -> list[Trial]:
    """The best point of each rule on the reporting seeds, from the results of all of the tuning."""
    trial, best = _maker(study), chosen(study, results, metrics)
    return [
        trial(task, rule, best[task][rule], seed, "reporting")
        for task in study.tasks
        for seed in study.seeds.reporting
        for rule in study.rules
    ]


def chosen(
    study: Study, results: Iterable[Result], metrics: Metrics
) -> dict[str, dict[str, Point]]:
    """For each task, the point of each rule that did best on the tuning seeds.

    The best has the fewest trials that did not finish, then the best mean of the final validation
    metric over the others; of equals, the first in the grid.
    """
    trial, by_key = _maker(study), {result.trial.key: result for result in results}
    best: dict[str, dict[str, Point]] = {task: {} for task in study.tasks}
    for task, rule in itertools.product(study.tasks, study.rules):
        options = points(study, rule)

        def score(point: Point, task: str = task, rule: str = rule) -> tuple[int, float]:
            trials = [trial(task, rule, point, seed, "tuning") for seed in study.seeds.tuning]
            waiting = [each for each in trials if each.key not in by_key]
            if waiting:
                raise ValueError(
                    f"{rule} on {task} cannot be reported yet: {len(waiting)} of its tuning trials "
                    f"have no result, such as {waiting[0].point} with seed {waiting[0].seed}."
                )
            return _score([by_key[each.key] for each in trials], *metrics[task])

        best[task][rule] = min(options, key=score) if len(options) > 1 else options[0]
    return best


def _score(results: list[Result], metric: str, better: str) -> tuple[int, float]:
    """Lower is better: trials that did not finish, then the mean of the others."""
    ended = [result.final.get(metric) for result in results if result.status == "done"]
    values = [value for value in ended if value is not None and math.isfinite(value)]
    mean = math.fsum(values) / len(values) if values else math.inf
    return len(results) - len(values), -mean if values and better == "higher" else mean


def _maker(study: Study) -> Callable[[str, str, Point, int, Phase], Trial]:
    """A function that makes the trials of a study; each fingerprint is computed once."""
    code_of = functools.cache(functools.partial(fingerprints, folder=study.folder))
    shared = {
        "schedule": study.schedule,
        **study.budget.model_dump(include={"steps", "epochs"}),
        **study.training.model_dump(include={"evaluations", "clip", "threads"}),
    }

    def make(task: str, rule: str, point: Point, seed: int, phase: Phase) -> Trial:
        what, how = study.tasks[task], study.rules[rule]
        code = code_of(what.kind, how.kind)
        named = (task, rule, what.kind, what.settings, how.kind, {**how.settings, **point})
        return Trial(*named, point, seed, phase, code=code, **shared)

    return make


def fingerprints(task_kind: str, rule_kind: str, folder: Path | str | None = None) -> str:
    """A hash of the user's own code of a task and a rule; empty if both are built in."""
    return " ".join(filter(None, (fingerprint(kind, folder) for kind in (task_kind, rule_kind))))


def fingerprint(kind: str, folder: Path | str | None = None) -> str:
    """A hash of the source file of a user's ``module:factory``; empty for built-in kinds.

    Only that one file is hashed, not the modules that it imports.
    """
    module, colon, _ = kind.partition(":")
    if not colon or module.split(".")[0] == "lossnav":
        return ""
    with importable(folder):
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):
            spec = None
    if spec is None:
        where = "" if folder is None else f", nor in {Path(folder).resolve()}"
        raise StudyError(
            f"There is no module {module!r} for {kind!r} among the installed ones{where}: put "
            f"{module.split('.')[0]}.py beside the study file, or check the name."
        )
    source = None if spec.origin is None else Path(spec.origin)
    if source is None or not source.is_file():
        return ""
    return hashlib.sha256(source.read_bytes()).hexdigest()[:16]


@contextmanager
def importable(folder: Path | str | None) -> Iterator[None]:
    """Append a folder to the import path."""
    if folder is None:
        yield
        return
    place = str(Path(folder).resolve())
    sys.path.append(place)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(place)
