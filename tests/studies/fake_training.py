"""A stand-in for `lossnav.studies.trial.training` without torch, which can misbehave."""

import math
import os
import signal
import time
from pathlib import Path

import numpy as np

from lossnav.studies.trial import Result

SPLITS = ("validation", "test")


def check(trial):
    if trial.rule_kind == "unknown":
        raise ValueError("There is no rule named 'unknown'.")
    return f"{trial.rule} on {trial.task}"


def metric_of(trial):
    splits = trial.task_settings.get("splits", SPLITS)
    return trial.task_settings.get("metric", "error"), "lower", tuple(splits)


def describe(trial, budget):
    return {
        "parameters": 3,
        "steps": trial.steps,
        "start": 0.5,
        "seconds": 2.0,
        "reporting_seconds": 3.0,
    }


def run_trial(trial, *, callbacks=(), progress=None):
    """A walk that ends best at lr = 0.3; ``misdeed`` of the task says what goes wrong."""
    for callback in callbacks:
        callback.started(trial)
    lr, steps = float(trial.settings["lr"]), trial.steps
    rng = np.random.default_rng([trial.seed, round(1e6 * lr)])
    _misbehave(trial)
    loss = np.abs(math.log(lr / 0.3)) + rng.random(steps) / 10
    for step in range(steps):
        if progress is not None:
            progress(step + 1, steps, float(loss[step]))
        time.sleep(trial.task_settings.get("pause", 0.0))
    curves = {"loss": loss.astype(np.float32), "step": np.array([steps]), "error": loss[-1:]}
    if lr > 100:
        return Result(trial, "diverged", "The loss was inf.", {}, {"steps": steps}, curves)
    final = {"error": float(loss[-1]), "pid": float(os.getpid())}
    cost = {"seconds": time.perf_counter(), "steps": steps}
    result = Result(trial, "done", "", final, cost, curves)
    for callback in callbacks:
        callback.step(trial, steps, float(loss[-1]))
        callback.evaluated(trial, steps, final)
        callback.finished(result)
    return result


def _misbehave(trial):
    settings = trial.task_settings
    if "misdeed" not in settings or trial.seed != settings["seed"]:
        return
    place = Path(settings["place"])
    with place.open("a") as file:  # one letter for each attempt
        file.write("x")
    if len(place.read_text()) > settings.get("times", 10**9):
        return
    if settings["misdeed"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif settings["misdeed"] == "raise":
        raise ValueError("this\nseed is unlucky")
    elif settings["misdeed"] == "interrupt":
        raise KeyboardInterrupt


def run_either(trial, *, callbacks=(), progress=None):
    """A fake trial as above, and any other as it is really trained."""
    if trial.task_kind == "fake":
        return run_trial(trial, callbacks=callbacks, progress=progress)
    from lossnav.studies.trial import training

    return training.run_trial(trial, callbacks=callbacks, progress=progress)
