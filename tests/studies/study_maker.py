"""Folders of studies that never ran: results from a formula, in the study's own store."""

import itertools
import math

import numpy as np

from lossnav.studies.store import Store
from lossnav.studies.trial import Result, Trial

ENVIRONMENT = {
    "lossnav": "0.1.0",
    "python": "3.11.2",
    "platform": "Linux-6.1-x86_64",
    "cpu": "Some CPU at 2.40 GHz",
    "cpus": 2,
    "memory_bytes": 8 * 2**30,
    "commit": "0123456789abcdef",
    "time": "2026-11-16T05:00:00+00:00",
    "command": "lossnav study quick.toml --out quick",
    "versions": {"numpy": "2.4.6", "torch": "2.13.0", "jax": None},
}
TOML = 'name = "made up"\n\n[tasks.digits]\nkind = "digits"\n'


def trial(task, rule, point, seed, phase, **changes):
    fields = {
        "task_kind": task,
        "task_settings": {},
        "rule_kind": f"torch.optim.{rule}",
        "settings": {**point, "momentum": 0.9},
        "steps": 100,
        **changes,
    }
    return Trial(task=task, rule=rule, point=point, seed=seed, phase=phase, **fields)


def result(
    one,
    *,
    metric="loss",
    end=0.1,
    start=2.3,
    steps=100,
    evaluations=10,
    speed=1.0,
    status="done",
    reason="",
    seconds=None,
):
    """A result that falls from ``start`` to ``end``; one that diverged stops half-way."""
    rng = np.random.default_rng([one.seed, *one.rule.encode(), *one.task.encode()])
    there = steps if status == "done" else steps // 2 if status == "diverged" else 0
    at = np.unique(np.linspace(0, steps, evaluations + 1).round().astype(int))[1:]
    at = at[at <= there]

    def curve(x):
        return end + (start - end) * (np.exp(-8 * x / steps) - math.exp(-8))

    loss = curve(np.arange(1, there + 1)) * rng.lognormal(0, 0.15, there)
    if status == "diverged":
        loss[-1] = math.nan
    time = speed * 2e-3 * at
    curves = {
        "training_loss": loss.astype(np.float32),
        "step": at,
        "seconds": time,
        metric: curve(at),
    }
    final = {metric: float(curve(at)[-1])} if status == "done" else {}
    cost = {
        "seconds": speed * 2e-3 * there if seconds is None else seconds,
        "evaluation_seconds": 0.05,
        "step_seconds": speed * 2e-3,
        "optimizer_seconds": speed * 3e-4,
        "state_bytes": 8 * 4810,
        "parameters": 4810,
        "steps": there,
        "peak_bytes": 3e8,
    }
    return Result(one, status, reason, final, cost, curves)


def play(callback, one, **changes):
    """A whole trial of three steps and two evaluations, as the training tells it."""
    ended = result(one, steps=3, evaluations=1, **changes)
    callback.started(one)
    for step, loss in enumerate([3.0, 2.0, 1.5], start=1):
        callback.step(one, step, loss)
    callback.evaluated(one, 1, {"loss": 2.5, "accuracy": 0.5})
    callback.evaluated(one, 3, {"loss": 1.25, "accuracy": 0.75})
    callback.finished(ended)
    return ended


def write(
    folder,
    results,
    *,
    name="made up",
    rules=None,
    tasks=None,
    metrics=None,
    seeds=None,
    planned=None,
    text=TOML,
    environment=ENVIRONMENT,
    **more,
):
    """Write a study's folder; what is not given follows from the results."""
    trials = [one.trial for one in results]
    tasks = tasks if tasks is not None else dict.fromkeys(t.task for t in trials)
    rules = rules if rules is not None else dict.fromkeys(t.rule for t in trials)
    seeds = seeds or {
        phase: sorted({t.seed for t in trials if t.phase == phase})
        for phase in ("tuning", "reporting")
    }
    with Store(folder, name) as store:
        store.write_json(
            "study.json",
            {
                "name": name,
                "metrics": metrics or {task: ["loss", "lower"] for task in tasks},
                "tasks": {task: {"kind": task} for task in tasks},
                "rules": {rule: {"kind": f"torch.optim.{rule}"} for rule in rules},
                "seeds": seeds,
                "budget": {"steps": 100},
                "planned": [t.key for t in trials] if planned is None else planned,
                **more,
            },
        )
        store.write_text("study.toml", text)
        store.write_json("environment.json", environment)
        for one in results:
            store.add(one)
    return folder


def study(
    rules=("ballistic", "adam", "sgd"),
    seeds=5,
    tuning=2,
    task="digits",
    *,
    metric="loss",
    lrs=(1e-4, 1e-3, 1e-2, 1e-1),
    axes=None,
    ends=None,
    steps=100,
    evaluations=10,
    top=2.3,
):
    """Results of a whole study: a grid on tuning seeds, and the best of it on reporting seeds."""
    made = []
    for place, rule in enumerate(rules):
        end = (ends or {}).get(rule, 0.1 * (1 + 0.15 * place))
        best = lrs[(place + 1) % len(lrs)]
        points = [
            dict(zip(("lr", *(axes or {})), values, strict=True))
            for values in itertools.product(lrs, *(axes or {}).values())
        ]
        for point, seed in itertools.product(points, range(tuning)):
            away = abs(math.log10(point["lr"] / best))
            lost = math.log10(point["lr"] / best) > 1.5
            other = 0.05 * sum(list((axes or {})[k]).index(point[k]) for k in (axes or {}))
            rng = np.random.default_rng([seed, place])
            made.append(
                result(
                    trial(task, rule, point, seed, "tuning"),
                    metric=metric,
                    steps=steps,
                    evaluations=evaluations,
                    end=end * (1 + away**2 + other) * rng.lognormal(0, 0.03),
                    start=top,
                    status="diverged" if lost else "done",
                    reason="The loss was no longer finite at step 50." if lost else "",
                )
            )
        chosen = {"lr": best, **{name: values[0] for name, values in (axes or {}).items()}}
        for seed in range(10, 10 + seeds):
            rng, shared = np.random.default_rng([seed, place, 7]), np.random.default_rng(seed)
            made.append(
                result(
                    trial(task, rule, chosen, seed, "reporting"),
                    metric=metric,
                    steps=steps,
                    evaluations=evaluations,
                    end=end * shared.lognormal(0, 0.05) * rng.lognormal(0, 0.03),
                    start=top,
                    speed=1 + 0.3 * place,
                )
            )
    return made
