"""How long a study takes, from the measured costs of its trials.

A run starts its processes, trains the tuning trials, then the reporting trials, and writes the
report. In each phase a free process takes the next trial. Each process pays once for what a task
and rule need at first: data in memory, compiled kernels.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Mapping, Sequence

from lossnav.studies.trial import Phase

STARTUP = 3.0
"""Seconds in which a process imports PyTorch, where this cannot be measured."""
_REPORT = (0.15, 0.2)  # time of a report and of each task in it, in units of a start

Pair = tuple[str, str]
"""A task and a rule, by their names in the study."""


def total(
    phases: Mapping[Phase, Sequence[Pair]],
    costs: Mapping[str, Mapping[str, Mapping[str, float]]],
    *,
    startup: float,
    jobs: int = 1,
    threads: int = 1,
    engine: str = "joblib",
    cores: int | None = None,
) -> float:
    """Seconds from the command to its report.

    Args:
        phases: For each phase, the task and the rule of each trial that is still to be run.
        costs: For each task and rule ``seconds`` of a tuning trial, ``reporting_seconds`` of a
            reporting trial, and ``start``, once in each process.
        startup: Seconds in which a process starts.
        jobs: Trials at the same time.
        threads: Threads of each trial.
        engine: The engine: ``"serial"`` starts no further process, ``"torchrun"`` some for each
            trial, others once for each job.
        cores: Processors; those of this machine if not given.

    Examples:
        >>> costs = {"digits": {"sgd": {"seconds": 4.0, "reporting_seconds": 6.0, "start": 1.0}}}
        >>> phases = {"tuning": [("digits", "sgd")] * 3, "reporting": [("digits", "sgd")] * 2}
        >>> round(total(phases, costs, startup=2.0, jobs=2, cores=2), 2)  # 2 + 2 + 1 + 8 + 6 + 0.7
        19.7
    """
    pairs = {pair for trials in phases.values() for pair in trials}
    if not pairs:
        return 0.0
    crowd = max(1.0, jobs * threads / (cores or _cores()))  # processes that wait for a processor
    again = startup if engine == "torchrun" else 0.0  # for each trial
    first = math.fsum(costs[task][rule]["start"] for task, rule in pairs)
    spent = startup + crowd * first + (startup if engine in ("joblib", "ray") else 0.0)
    for phase, trials in phases.items():
        name = "seconds" if phase == "tuning" else "reporting_seconds"
        each = [costs[task][rule][name] + again for task, rule in trials]
        spent += crowd * makespan(each, jobs)
    report = _REPORT[0] + _REPORT[1] * len({task for task, _ in pairs})
    return spent + report * startup


def makespan(costs: Sequence[float], workers: int) -> float:
    """The time until all is done, if each free worker takes the next in line.

    Examples:
        >>> makespan([3.0, 1.0, 1.0, 1.0, 3.0], 2)
        6.0
    """
    ends = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
