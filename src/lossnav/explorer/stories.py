"""Stories: settings of the page that show one thing each, with a sentence that says which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Story:
    """One story.

    Attributes:
        title: What its link says.
        sentence: What there is to see.
        view: The view of the page that shows it.
        settings: Settings of a request of that view; those left out have their defaults.
        field: Whether the policy field and the watershed are shown.
    """

    title: str
    sentence: str
    view: str = "paths"
    settings: dict[str, Any] = field(default_factory=dict)
    field: bool = False


STORIES = {
    "crossing": Story(
        "The deeper well",
        "A patient learner (γ = 0.1) climbs the hill to reach the deeper well; gradient flow, Adam "
        "and the local rule end in the nearer one.",
        settings={"landscape": "double-well", "gamma": 0.1},
    ),
    "patience": Story(
        "When patience pays",
        "At γ = 0.6646 both wells are equally good ends, and the watershed runs through the start: "
        "with a smaller γ the path over the hill wins, with a larger one the nearer well.",
        settings={"landscape": "double-well", "gamma": 0.6646},
        field=True,
    ),
    "natural": Story(
        "Natural gradient",
        "Where the Fisher metric prices motion, the optimal path first widens the variance, close "
        "to natural gradient, which costs less than gradient flow, each at its best rate.",
        settings={"landscape": "normal", "gamma": 2.0, "rules": ["flow", "natural"]},
    ),
    "wind": Story(
        "A wind that turns",
        "A drift turns all weights about the origin: the optimal path is carried round with it, "
        "and rests at (0,\u00a0−0.4), where loss and the cost of resisting the drift balance.",
        settings={"landscape": "bowl", "gamma": 0.0, "drift": "rotation", "speed": 1.0},
    ),
    "switch": Story(
        "A task switch",
        "When the minimum moves, the variance of the weight first more than doubles, as "
        "uncertainty makes motion cheap, and then settles again at its old value.",
        view="uncertainty",
    ),
}
"""The stories by the name that their links have."""
