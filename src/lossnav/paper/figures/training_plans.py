"""How the training panels of Fig. 2 are made on this machine: the paper's settings, or what can stand in."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from lossnav.paper.figures.training import Ballistic, Course
from lossnav.rules import Rule, zoo
from lossnav.studies.data import available

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


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
"""The paper's settings for each panel, as a study; the seeds are ours."""


@dataclass(frozen=True)
class Plan:
    """How a panel is made on this machine.

    Attributes:
        label: What it shows; drawn on the panel.
        note: Why it is not what the paper has; empty if it is.
        study: A study for PyTorch, or None to train in NumPy.
        course: What NumPy trains, or None.
    """

    label: str
    note: str = ""
    study: dict[str, Any] | None = None
    course: Course | None = None


def plan(letter: str, full: bool = False) -> Plan:
    """Choose by what is there: the data of the panel, and PyTorch.

    Without the data the digits that come with scikit-learn take their place; the label and the note say so.

    Examples:
        >>> "digits" in plan("f").label or "CIFAR-10" in plan("f").label
        True
    """
    paper = PAPER[letter]
    data = next(iter(paper["tasks"]))
    name, epochs = NAMES[data], paper["budget"]["epochs"]
    torch = importlib.util.find_spec("torch") is not None
    if full and torch and available(data):
        return Plan(f"{name}, the paper's settings", study=paper)
    needs = (
        " --full needs PyTorch: pip install 'lossnav[torch,study]'." if full and not torch else ""
    )
    if data == "mnist" and available(data):
        course = Course("mnist", (512, 256), 128, 1, (0,), judged=1000)
        return Plan(
            f"MNIST, 1 of {epochs} epochs (shortened)",
            f"Panel e is shortened to one epoch of {epochs}, one seed and 1,000 test images.{needs}",
            course=course,
        )
    if data == "cifar10" and available(data) and torch:
        quick = dict(paper, name="cifar-quick", budget={"steps": 120}, seeds={"reporting": [0]})
        quick["tasks"] = {"cifar10": {"kind": "lossnav.paper.figures.narrow:Narrow"}}
        quick["training"] = dict(paper["training"], evaluations=10)
        return Plan(
            "CIFAR-10, narrow network, 120 steps (shortened)",
            "Panel f is shortened to 120 steps of 64 images, a network a quarter as wide, one seed and 1,000 test "
            "images.",
            study=quick,
        )
    here = available(data)
    why = (
        "PyTorch is not installed (pip install 'lossnav[torch,study]')"
        if here
        else f"{name} is not on this machine (set LOSSNAV_DATA to a folder with {data}.npz)"
    )
    course = Course("digits", (64,), 64, epochs, (0, 1, 2))
    return Plan(
        f"bundled digits, not {name}",
        f"Panel {letter} shows the digits that come with scikit-learn, 64-64-10, with the paper's learning rates, because "
        f"{why}.{needs}",
        course=course,
    )


def rules(letter: str) -> dict[str, Rule]:
    """The panel's three rules, for NumPy.

    Examples:
        >>> rules("f")["ballistic"].beta2
        0.9
    """
    given = PAPER[letter]["rules"]
    ballistic = given["ballistic"]
    return {
        "sgd": zoo.SGD(given["sgd"]["lr"]),
        "adam": zoo.Adam(given["adam"]["lr"]),
        "ballistic": Ballistic(ballistic["lr"], beta2=ballistic["beta2"], eps=ballistic["eps"]),
    }
