"""Which trials a study consists of: pure functions, so that any two runs plan the same.

First every point of every rule's grid is tried on the tuning seeds. Then the best point of each rule, by
the validation split, is run on the reporting seeds, which had no say in the choice.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lossnav.studies.spec.file import Study, StudyError
from lossnav.studies.trial.records import Phase, Result, Trial

Point = dict[str, Any]


def points(study: Study, rule: str) -> list[Point]:
    """The points of a rule's grid that are tried, in the order of the grid.

    With ``[budget] trials = N`` they are drawn by a hash of the rule and the point: the same on every
    machine, and a larger N keeps what a smaller one drew.

    Examples:
        >>> study = Study.from_dict({
        ...     "name": "tiny", "budget": {"steps": 9, "trials": 2}, "seeds": {"tuning": [0], "reporting": [1]},
        ...     "tasks": {"digits": {"kind": "digits"}},
        ...     "rules": {"sgd": {"kind": "torch.optim.SGD", "grid": {"lr": [0.1, 0.2, 0.4]}}},
        ... })
        >>> points(study, "sgd")
        [{'lr': 0.1}, {'lr': 0.4}]
    """
    grid = study.rules[rule].grid
    found = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if study.trials is None:
        return found

    def lot(point: Point) -> bytes:
        return hashlib.sha256(json.dumps([rule, point], sort_keys=True).encode()).digest()

    drawn = {lot(point) for point in sorted(found, key=lot)[: study.trials]}
    return [point for point in found if lot(point) in drawn]


def tuning(study: Study) -> list[Trial]:
    """Every point of every rule on every tuning seed; empty if there is nothing to choose."""
    made, options = _Maker(study), {rule: points(study, rule) for rule in study.rules}
    return [
        made.trial(task, rule, point, seed, "tuning")
        for task in study.tasks
        for seed in study.tuning
        for rule in study.rules
        for point in options[rule]
        if len(options[rule]) > 1
    ]


def reporting(
    study: Study, results: Iterable[Result], metrics: Mapping[str, tuple[str, str]]
) -> list[Trial]:
    """The best point of each rule on the reporting seeds. Waits for all of the tuning.

    Args:
        study: The study.
        results: Results of at least all trials of `tuning`; others are passed over.
        metrics: For each task, the metric that decides, and whether ``"lower"`` or ``"higher"`` is better.
    """
    made, best = _Maker(study), chosen(study, results, metrics)
    return [
        made.trial(task, rule, best[task][rule], seed, "reporting")
        for task in study.tasks
        for seed in study.reporting
        for rule in study.rules
    ]


def chosen(
    study: Study, results: Iterable[Result], metrics: Mapping[str, tuple[str, str]]
) -> dict[str, dict[str, Point]]:
    """For each task, the point of each rule that did best on the tuning seeds.

    The best has the fewest trials that did not end well, then the best mean of the final validation metric
    over the others; of equals, the first in the grid.
    """
    made, known = _Maker(study), {result.trial.key: result for result in results}
    found: dict[str, dict[str, Point]] = {}
    for task, rule in itertools.product(study.tasks, study.rules):
        options = points(study, rule)
        found.setdefault(task, {})[rule] = options[0]
        if len(options) == 1:
            continue
        metric, better = metrics[task]
        scores = []
        for point in options:
            trials = [made.trial(task, rule, point, seed, "tuning") for seed in study.tuning]
            waiting = [trial for trial in trials if trial.key not in known]
            if waiting:
                raise ValueError(
                    f"{rule} on {task} cannot be reported yet: {len(waiting)} of its tuning trials "
                    f"have no result, such as {waiting[0].point} with seed {waiting[0].seed}."
                )
            scores.append(_score([known[trial.key] for trial in trials], metric, better))
        found[task][rule] = options[scores.index(min(scores))]
    return found


def _score(results: list[Result], metric: str, better: str) -> tuple[int, float]:
    """Less is better."""
    ended = [result.final.get(metric) for result in results if result.status == "done"]
    values = [value for value in ended if value is not None and math.isfinite(value)]
    mean = math.fsum(values) / len(values) if values else math.inf
    return len(results) - len(values), -mean if values and better == "higher" else mean


class _Maker:
    """Makes the trials of one study, with each fingerprint worked out once."""

    def __init__(self, study: Study) -> None:
        self.study = study
        kinds = {entry.kind for entry in (*study.tasks.values(), *study.rules.values())}
        self.prints = {kind: fingerprint(kind, study.folder) for kind in sorted(kinds)}

    def trial(self, task: str, rule: str, point: Point, seed: int, phase: Phase) -> Trial:
        study, what, how = self.study, self.study.tasks[task], self.study.rules[rule]
        prints = (self.prints[what.kind], self.prints[how.kind])
        return Trial(
            task, rule, what.kind, what.settings, how.kind, {**how.settings, **point}, point, seed,
            phase, study.steps, study.epochs, study.evaluations, study.schedule, study.clip,
            study.threads, code=" ".join(filter(None, prints)),
        )  # fmt: skip


def fingerprint(kind: str, folder: Path | None = None) -> str:
    """A hash of the source file of a user's ``module:factory``, or an empty string for what is built in.

    Only that one file is looked at, and not what it imports.

    Examples:
        >>> fingerprint("torch.optim.SGD"), len(fingerprint("json:loads"))
        ('', 16)
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
        where = "" if folder is None else f", nor in {folder.resolve()}"
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
    """Lets modules be imported from a folder as well, after all others."""
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
