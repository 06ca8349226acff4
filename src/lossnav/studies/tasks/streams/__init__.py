"""Continual learning: one model learns a stream of tasks, and is scored online."""

from lossnav.studies.tasks.streams.base import Stream
from lossnav.studies.tasks.streams.images import PermutedLabels, PermutedPixels, RandomLabels
from lossnav.studies.tasks.streams.regression import ChangingRewards, GrowingFrequency, SlowBits

__all__ = [
    "ChangingRewards",
    "GrowingFrequency",
    "PermutedLabels",
    "PermutedPixels",
    "RandomLabels",
    "SlowBits",
    "Stream",
]
