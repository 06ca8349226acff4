"""Fig. 2e, f: an Adam-like form of the ballistic rule against SGD and Adam, on images."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lossnav.paper.figures.style import BLUE, DASHES, GREY, RED, WIDTH, Tables, panels, styled
from lossnav.paper.figures.training import Course
from lossnav.paper.figures.training_plans import plan, rules

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lossnav.studies.progress import Progress

TITLE = "Training with the ballistic rule"
LOOKS = {"sgd": (GREY, DASHES[2]), "adam": (RED, DASHES[1]), "ballistic": (BLUE, DASHES[0])}
COLUMNS = ("step", "epoch", "training loss", "test accuracy")


def notes(full: bool = False) -> list[str]:
    """What differs from the paper on this machine."""
    return [found for letter in "ef" if (found := plan(letter, full).note)]


def data(
    full: bool = False,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Tables:
    """Training loss and test accuracy of each rule and seed, one table for each panel.

    Args:
        full: Train as the paper does, which takes hours; needs PyTorch and the data.
        folder: Where PyTorch's runs are kept, to go on with; a temporary one if not given.
        progress: Called with a line now and then.
    """
    tables = {}
    for letter in "ef":
        how = plan(letter, full)
        progress(f"  panel {letter}: {how.label}")
        if how.course is not None:
            found = _by_numpy(how.course, letter)
        else:
            assert how.study is not None
            found = _by_study(how.study, full, folder, progress)
        count = len(found["step"])
        tables[f"fig2{letter}"] = {"data": np.array([how.label] * count), **found}
    return tables


def _by_numpy(course: Course, letter: str) -> dict[str, Any]:
    rows = [
        (name, seed, course.run(rule, seed))
        for name, rule in rules(letter).items()
        for seed in course.seeds
    ]
    return _table(rows)


def _by_study(
    study: dict[str, Any], full: bool, folder: Path | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    from lossnav.studies import execution, store

    with tempfile.TemporaryDirectory() as spare:
        place = (Path(spare) if folder is None else folder) / study["name"]
        place.parent.mkdir(parents=True, exist_ok=True)
        how = (
            {"engine": "joblib", "jobs": min(os.cpu_count() or 1, 8)}
            if full
            else {"engine": "serial"}
        )
        execution.run(study, place, progress=_lines(progress), **how)
        _, results = store.load(place)
    rows = []
    for result in sorted(results, key=lambda r: (list(LOOKS).index(r.trial.rule), r.trial.seed)):
        steps = result.curves["step"].astype(int)
        loss = result.curves["training_loss"].astype(np.float64)
        means = [loss[0]] + [loss[a:b].mean() for a, b in itertools.pairwise(steps)]
        epochs = study["budget"].get("epochs", np.nan)
        part = {
            "step": steps,
            "epoch": epochs * steps / max(steps[-1], 1),
            "training loss": np.array(means),
        }
        rows.append(
            (
                result.trial.rule,
                result.trial.seed,
                part | {"test accuracy": result.curves["accuracy"]},
            )
        )
    return _table(rows)


def _table(rows: list[tuple[str, int, dict[str, Any]]]) -> dict[str, Any]:
    """The runs one below the other."""
    counts = [len(found["step"]) for _, _, found in rows]
    return {
        "rule": np.repeat([name for name, _, _ in rows], counts),
        "seed": np.repeat([seed for _, seed, _ in rows], counts),
        **{column: np.concatenate([found[column] for _, _, found in rows]) for column in COLUMNS},
    }


def _lines(progress: Callable[[str], None]) -> Progress:
    from lossnav.studies.progress import Progress
    from lossnav.studies.trial.records import Result

    class Lines(Progress):
        """A line for each trial that has ended."""

        def say(self, text: str) -> None:
            progress(f"  {text}")

        def finished(self, result: Result) -> None:
            end = ", ".join(f"{name} {value:.4g}" for name, value in result.final.items())
            progress(f"  {result.trial.rule}, seed {result.trial.seed}: {result.status}, {end}")

    return Lines()


@styled
def draw(tables: Tables) -> Figure:
    """For each panel the training loss on the left, test accuracy on the right."""
    figure, grid = panels(2, width=WIDTH, height=4.6, rows=2)
    for (losses, scores), letter in zip(grid, "ef", strict=True):
        table = tables[f"fig2{letter}"]
        for name, (colour, dash) in LOOKS.items():
            steps, by_seed = _runs(table, name)
            for ax, column in ((losses, "training loss"), (scores, "test accuracy")):
                values = np.array([run[column] for run in by_seed])
                ax.plot(steps, values.mean(axis=0), color=colour, linestyle=dash, label=name)
                if len(values) > 1:
                    ax.fill_between(
                        steps,
                        values.min(axis=0),
                        values.max(axis=0),
                        color=colour,
                        alpha=0.15,
                        lw=0,
                    )
        label = str(table["data"][0])
        losses.set_title(f"{letter}  {label[0].upper()}{label[1:]}")
        losses.set(xlabel="step", ylabel="training loss")
        if table["training loss"].max() > 5 * table["training loss"].min():
            losses.set_yscale("log")
        low = np.quantile(table["test accuracy"], 0.2) - 0.05
        scores.set(xlabel="step", ylabel="test accuracy", ylim=(max(0.0, low), None))
    handles, labels = grid[0][0].get_legend_handles_labels()
    labels = [{"sgd": "SGD", "adam": "Adam", "ballistic": "ballistic"}[name] for name in labels]
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _runs(table: dict[str, Any], rule: str) -> tuple[Any, list[dict[str, Any]]]:
    """The steps of a rule's evaluations, and its runs by seed."""
    runs = []
    for seed in np.unique(table["seed"]):
        rows = (table["rule"] == rule) & (table["seed"] == seed)
        runs.append({column: table[column][rows] for column in COLUMNS})
    return runs[0]["step"], runs
