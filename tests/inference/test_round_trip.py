"""The learning rule of an Objective gives back an Objective with the same steps."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import lossnav as ln
from lossnav.inference import Assumptions, infer
from lossnav.problem.belief import adaptive
from lossnav.problem.geometry import Decay, Rotation

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from infer_round_trip import SAME, apart, trip


def same_steps(rule, other, shape):
    assert apart(rule, other, shape) <= SAME


# Kinds and seeds of the random objectives of benchmarks/infer_round_trip.py, which tries 200 of each.
SAMPLE = [
    *(("local", seed) for seed in range(4)),
    ("squares", 3),  # it bends where gradients are large, and is nearly isotropic elsewhere
    ("averaging", 1),  # evidence that adds up
    ("averaging", 15),  # a straight move with look-ahead, relative to the typical gradient
    ("uncertain", 0),
]


@pytest.mark.parametrize(("kind", "seed"), SAMPLE)
def test_random_objectives_come_back(kind, seed):
    verdict, words = trip(kind, seed)
    assert verdict == "comes back", words
    assert words  # what steps do not show


@pytest.mark.parametrize("drift", [Rotation(1.0), Decay([0.2, 0.7])])
def test_an_affine_drift(drift):
    objective = ln.Objective(ln.Quadratic([[2.0, 0.5], [0.5, 1.0]]), drift=drift, gamma=0.5)
    rule = ln.learning_rule(objective, 0.5)
    found = infer(rule, shape=(2,))
    same_steps(rule, found.rule(), (2,))
    assert "cannot be distinguished" in found.report()


@pytest.mark.parametrize("case", ["path", "decay"])
def test_averaged_gradients(case):
    if case == "path":
        rule = ln.learning_rule(adaptive([0.0], gamma=1.0, kappa=2.0), dt=0.01)
    else:
        objective = ln.Objective(ln.Quadratic([1.0]), drift=Decay(0.1), gamma=0.5)
        rule = ln.learning_rule(objective, curvature="squares")
    found = infer(rule, shape=(4, 3))
    assert found.outside == ()
    same_steps(rule, found.rule(), (4, 3))
    again = Assumptions.from_dict(json.loads(found.report("json")))
    assert again.objective().gamma == found.objective().gamma
    assert "not eta, k and dt by themselves" in found.report()


def test_what_is_no_learning_rule_says_so():
    with pytest.raises(ValueError, match="is the learning rule of no Objective"):
        infer(lambda grad, theta: -0.1 * np.clip(grad, -1, 1), shape=(4, 3)).rule()
