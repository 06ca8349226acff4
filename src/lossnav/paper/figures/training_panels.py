"""Fig. 2e, f: an Adam-like form of the ballistic rule against SGD and Adam, on images.

The panels use the paper's settings, or a substitute that this machine can run.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lossnav.paper import figures
from lossnav.paper.figures import BLUE, DASHES, GREY, RED, PaperFigure, Tables
from lossnav.paper.figures.network import NumpyTraining
from lossnav.rules import BeliefRule, Rule, zoo
from lossnav.rules.gains import Betas
from lossnav.studies.data import available

if TYPE_CHECKING:
    from lossnav.studies.progress import Progress
    from lossnav.studies.tasks.images import Convolutions

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
LOOKS = {"sgd": (GREY, DASHES[2]), "adam": (RED, DASHES[1]), "ballistic": (BLUE, DASHES[0])}
COLUMNS = ("step", "epoch", "training loss", "test accuracy")


def _study(
    name: str, data: str, epochs: int, seeds: int, adam: float, beta2: float
) -> dict[str, Any]:
    return {
        "name": name,
        "tasks": {data: {"kind": data, "validation": 0, "metric": "accuracy"}},
        "rules": {
            "sgd": {"kind": "torch.optim.SGD", "lr": 0.1},
            "adam": {"kind": "torch.optim.Adam", "lr": adam},
            "ballistic": {"kind": "lossnav.Ballistic", "lr": 5e-4, "beta2": beta2, "eps": 1e-8},
        },
        "budget": {"epochs": epochs},
        "seeds": {"reporting": list(range(seeds))},
        "training": {"clip": 5.0, "evaluations": epochs, "threads": 1},
    }


PAPER = {
    "e": _study("mnist-paper", "mnist", 10, 5, 1e-3, 0.999),
    "f": _study("cifar-paper", "cifar10", 25, 3, 5e-4, 0.9),
}
"""The paper's settings for each panel, as a study; the seeds are chosen here."""


@dataclass(frozen=True)
class PanelTraining:
    """The training of a panel on this machine.

    Attributes:
        label: Data and model; drawn on the panel.
        run: A study for PyTorch, or a run in NumPy.
        note: Why it differs from the paper; empty if it does not.
    """

    label: str
    run: dict[str, Any] | NumpyTraining
    note: str = ""


def plan(letter: str, full: bool = False) -> PanelTraining:
    """The training of a panel, depending on whether its data and PyTorch are installed.

    Without the data, scikit-learn's digits replace them, as the label and the note state.
    """
    paper = PAPER[letter]
    data = next(iter(paper["tasks"]))
    name, epochs, has_data = NAMES[data], paper["budget"]["epochs"], available(data)
    torch = importlib.util.find_spec("torch") is not None
    if full and torch and has_data:
        return PanelTraining(f"{name}, the paper's settings", paper)
    install = "pip install 'lossnav[torch,study]'"
    needs = f" --full needs PyTorch: {install}." if full and not torch else ""
    if data == "mnist" and has_data:
        return PanelTraining(
            f"MNIST, 1 of {epochs} epochs (shortened)",
            NumpyTraining("mnist", (512, 256), 128, 1, (0,), test_images=1000),
            f"Panel e is shortened to one epoch of {epochs}, one seed and 1,000 test images."
            f"{needs}",
        )
    if data == "cifar10" and has_data and torch:
        short = {
            "name": "cifar-quick",
            "tasks": {"cifar10": {"kind": f"{__name__}:narrow_cifar"}},
            "budget": {"steps": 120},
            "seeds": {"reporting": [0]},
            "training": paper["training"] | {"evaluations": 10},
        }
        return PanelTraining(
            "CIFAR-10, narrow network, 120 steps (shortened)",
            paper | short,
            "Panel f is shortened to 120 steps of 64 images, a network a quarter as wide, one seed "
            "and 1,000 test images.",
        )
    why = f"{name} is not on this machine (set LOSSNAV_DATA to a folder with {data}.npz)"
    if has_data:
        why = f"PyTorch is not installed ({install})"
    return PanelTraining(
        f"bundled digits, not {name}",
        NumpyTraining("digits", (64,), 64, epochs, (0, 1, 2)),
        f"Panel {letter} shows the digits that come with scikit-learn, 64-64-10, with the paper's "
        f"learning rates, because {why}.{needs}",
    )


def narrow_cifar(*, test_images: int = 1000) -> Convolutions:
    """CIFAR-10 with a quarter of the paper's widths and part of the test images, for short runs."""
    from lossnav.studies.tasks.images import Convolutions

    task = Convolutions(batch_size=64, validation=0, metric="accuracy", widths=(16, 32), full=64)
    task._seen["test"] = task._seen["test"][:test_images]
    return task


def rules(letter: str) -> dict[str, Rule]:
    """The panel's three rules, for NumPy."""
    sgd, adam, ballistic = PAPER[letter]["rules"].values()
    root = {"beta2": ballistic["beta2"], "eps_root": ballistic["eps"]}
    return {
        "sgd": zoo.SGD(sgd["lr"]),
        "adam": zoo.Adam(adam["lr"]),
        "ballistic": BeliefRule(
            ballistic["lr"], gain=Betas(0.0), diffuse=False, finite=False, **root
        ),
    }


def notes(full: bool = False) -> tuple[str, ...]:
    """Differences from the paper on this machine."""
    return tuple(note for letter in "ef" if (note := plan(letter, full).note))


def data(
    full: bool = False,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Tables:
    """Training loss and test accuracy of each rule and seed, one table for each panel.

    Args:
        full: Train for as many epochs as the paper, which takes hours; needs PyTorch and the data.
        folder: Where PyTorch's runs are stored and resumed; a temporary one by default.
        progress: Called with a line for each panel and trial.
    """
    tables = {}
    for letter in "ef":
        how = plan(letter, full)
        progress(f"  panel {letter}: {how.label}")
        if isinstance(how.run, NumpyTraining):
            run, pairs = how.run, itertools.product(rules(letter).items(), how.run.seeds)
            table = _table([(name, seed, run.run(rule, seed)) for (name, rule), seed in pairs])
        else:
            table = _by_study(how.run, full, folder, progress)
        tables[f"fig2{letter}"] = {"data": np.array([how.label] * len(table["step"])), **table}
    return tables


def _by_study(
    study: dict[str, Any], full: bool, folder: Path | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    from lossnav.studies import execution, store

    how: dict[str, Any] = {"engine": "serial"}
    if full:
        how = {"engine": "joblib", "jobs": min(os.cpu_count() or 1, 8)}
    with tempfile.TemporaryDirectory() as spare:
        place = (Path(spare) if folder is None else folder) / study["name"]
        place.parent.mkdir(parents=True, exist_ok=True)
        execution.run(study, place, progress=_lines(progress), **how)
        _, results = store.load(place)
    runs = []
    for result in sorted(results, key=lambda r: (list(LOOKS).index(r.trial.rule), r.trial.seed)):
        steps = result.curves["step"].astype(int)
        loss = result.curves["training_loss"].astype(np.float64)
        means = [loss[0]] + [loss[a:b].mean() for a, b in itertools.pairwise(steps)]
        epochs = study["budget"].get("epochs", np.nan) * steps / max(steps[-1], 1)
        columns = (steps, epochs, np.array(means), result.curves["accuracy"])
        curves = dict(zip(COLUMNS, columns, strict=True))
        runs.append((result.trial.rule, result.trial.seed, curves))
    return _table(runs)


def _table(runs: list[tuple[str, int, dict[str, Any]]]) -> dict[str, Any]:
    counts = [len(curves["step"]) for _, _, curves in runs]
    return {
        "rule": np.repeat([name for name, _, _ in runs], counts),
        "seed": np.repeat([seed for _, seed, _ in runs], counts),
        **{column: np.concatenate([curves[column] for _, _, curves in runs]) for column in COLUMNS},
    }


def _lines(progress: Callable[[str], None]) -> Progress:
    from lossnav.studies.progress import Progress
    from lossnav.studies.trial import Result

    class Lines(Progress):
        """A line for each trial that has ended."""

        def say(self, text: str) -> None:
            progress(f"  {text}")

        def finished(self, result: Result) -> None:
            end = ", ".join(f"{name} {value:.4g}" for name, value in result.final.items())
            progress(f"  {result.trial.rule}, seed {result.trial.seed}: {result.status}, {end}")

    return Lines()


@figures.styled
def draw(tables: Tables) -> figures.Figure:
    """For each panel the training loss on the left, test accuracy on the right."""
    figure, grid = figures.panels(2, height=4.6, rows=2)
    for (losses, scores), letter in zip(grid, "ef", strict=True):
        table = tables[f"fig2{letter}"]
        for name, (colour, dash) in LOOKS.items():
            seeds = np.unique(table["seed"])
            runs = [(table["rule"] == name) & (table["seed"] == seed) for seed in seeds]
            steps = table["step"][runs[0]]
            for ax, column in ((losses, "training loss"), (scores, "test accuracy")):
                values = np.array([table[column][run] for run in runs])
                ax.plot(steps, values.mean(axis=0), color=colour, linestyle=dash, label=name)
                if len(values) > 1:
                    low, high = values.min(axis=0), values.max(axis=0)
                    ax.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
        label = str(table["data"][0])
        losses.set_title(f"{letter}  {label[0].upper()}{label[1:]}")
        losses.set(xlabel="step", ylabel="training loss")
        if table["training loss"].max() > 5 * table["training loss"].min():
            losses.set_yscale("log")
        low = np.quantile(table["test accuracy"], 0.2) - 0.05
        scores.set(xlabel="step", ylabel="test accuracy", ylim=(max(0.0, low), None))
    handles, _ = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, ["SGD", "Adam", "ballistic"], loc="outside lower center", ncols=3)
    return figure


fig2ef = PaperFigure("fig2ef", data, draw)
