"""Draw the training studies whose results are kept in benchmarks/training/results.

    python docs/make_training.py        writes docs/_static/training/*.svg

On the left, the test loss over the steps: the mean of the reporting seeds, and their range. On the right,
the validation loss at the end of each trial of tuning, by learning rate; of the other settings, the best.
"""

import csv
import json
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullLocator

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "training" / "results"
FOLDER = HERE / "_static" / "training"
COLOURS = [
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#CC79A7",
    "#56B4E9",
    "#666666",
    "#000000",
    "#999933",
    "#AA4499",
]
plt.rcParams.update({
    "svg.hashsalt": "lossnav", "svg.fonttype": "path", "font.size": 8.5, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 8,
})  # fmt: skip
STUDIES = {
    "text_4m": (1.9, 2.6),
    "text_1m": (2.1, 2.75),
    "text_small": (2.25, 2.9),
    "text_small_matrix": (2.0, 2.5),
    "text_1m_matrix": (1.8, 2.3),
}


def rows(name):
    with (RESULTS / f"{name}_curves.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "loss":
                yield row | {"point": json.loads(row["point"]), "value": float(row["value"])}


def draw(name, limits):
    """The two panels of a study."""
    curves, ends = defaultdict(lambda: defaultdict(list)), defaultdict(dict)
    last = max(int(row["step"]) for row in rows(name))
    for row in rows(name):
        step = int(row["step"])
        if row["phase"] == "reporting":
            curves[row["rule"]][step].append(row["value"])
        elif step == last:
            lr, held = row["point"]["lr"], ends[row["rule"]]
            held[lr] = min(row["value"], held.get(lr, np.inf))
    order = sorted(curves, key=lambda rule: np.mean(curves[rule][last]))
    many = len(order) > 4
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.0 if many else 7.2, 3.1), layout="constrained"
    )
    for rule, colour in zip(order, COLOURS, strict=False):
        steps = sorted(curves[rule])
        values = [curves[rule][step] for step in steps]
        label = f"{rule}, {np.mean(values[-1]):.3f}"
        left.plot(steps, np.mean(values, axis=1), color=colour, label=label)
        left.fill_between(
            steps, np.min(values, 1), np.max(values, 1), color=colour, alpha=0.18, lw=0
        )
        rates = sorted(ends[rule])
        right.plot(rates, [ends[rule][lr] for lr in rates], "o-", color=colour, ms=3.5, label=rule)
    left.set(xlabel="step", ylabel="test loss, nats a character", ylim=limits)
    if many:
        figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    else:
        left.legend()
    right.set(xlabel="learning rate", ylabel="validation loss at the end", ylim=limits)
    right.set_xscale("log")
    right.xaxis.set_minor_locator(NullLocator())
    tried = sorted({lr for held in ends.values() for lr in held})
    shown, apart = tried[:1], max(1.9, (tried[-1] / tried[0]) ** 0.2)  # so that labels do not meet
    for lr in tried:
        if lr > apart * shown[-1]:
            shown.append(lr)
    right.set_xticks(shown, [f"{lr:g}" for lr in shown])
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for study, limits in STUDIES.items():
        if (RESULTS / f"{study}_curves.csv").exists():
            draw(study, limits)
