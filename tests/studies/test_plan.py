"""Which trials a study has: counted and chosen by hand here, and by `plan` there."""

import copy
import hashlib
import json
import sys

import numpy as np
import pytest

from lossnav.studies.spec import Study, StudyError, plan
from lossnav.studies.trial import Result, Trial

BASE = {
    "name": "tiny",
    "tasks": {"a": {"kind": "digits"}, "b": {"kind": "mnist"}},
    "rules": {
        "sgd": {"kind": "torch.optim.SGD", "momentum": 0.9, "grid": {"lr": [0.1, 0.2, 0.4]}},
        "adam": {"kind": "torch.optim.Adam", "grid": {"lr": [0.001, 0.002, 0.004]}},
    },
    "budget": {"steps": 9},
    "seeds": {"tuning": [0, 1], "reporting": [10, 11, 12]},
}
METRICS = {"a": ("loss", "lower"), "b": ("accuracy", "higher")}


def study(**changes):
    values = copy.deepcopy(BASE)
    for name, value in changes.items():
        values[name] = value
    return Study.from_dict(values)


def result(trial, value, status="done"):
    final = {} if value is None else {METRICS[trial.task][0]: value}
    return Result(trial, status, "", final, {}, {})


def test_every_point_meets_every_tuning_seed_on_every_task():
    trials = plan.tuning(study())
    found = {(t.task, t.rule, t.settings["lr"], t.seed) for t in trials}
    wanted = {
        (task, rule, lr, seed)
        for task in "ab"
        for rule, rates in (("sgd", [0.1, 0.2, 0.4]), ("adam", [0.001, 0.002, 0.004]))
        for lr in rates
        for seed in (0, 1)
    }
    assert found == wanted
    assert len(trials) == len(wanted) == len({t.key for t in trials})
    assert all(t.settings["momentum"] == 0.9 for t in trials if t.rule == "sgd")
    assert all(t.phase == "tuning" and t.steps == 9 and t.epochs is None for t in trials)


def test_the_best_mean_on_the_validation_split_is_reported():
    """On task a less is better; on task b more."""
    scores = {0.1: 3.0, 0.2: 1.0, 0.4: 2.0, 0.001: 1.0, 0.002: 3.0, 0.004: 2.0}
    one = study()
    results = [result(t, scores[t.settings["lr"]] + 0.1 * t.seed) for t in plan.tuning(one)]
    trials = plan.reporting(one, reversed(results), METRICS)
    best = {(t.task, t.rule): t.settings["lr"] for t in trials}
    assert best == {
        ("a", "sgd"): 0.2,
        ("a", "adam"): 0.001,
        ("b", "sgd"): 0.1,
        ("b", "adam"): 0.002,
    }
    assert sorted({t.seed for t in trials}) == [10, 11, 12]
    assert len(trials) == 2 * 2 * 3
    assert all(t.phase == "reporting" for t in trials)


@pytest.mark.parametrize("status", ["diverged", "failed"])
def test_a_point_that_was_once_not_done_is_worse_than_any_that_was(status):
    one = study()

    def outcome(trial):
        lost = trial.settings["lr"] in (0.1, 0.001) and trial.seed == 1
        value = {"a": 1e-9, "b": 1e9}[trial.task] if trial.settings["lr"] in (0.1, 0.001) else 5.0
        return result(trial, None if lost else value, status if lost else "done")

    best = plan.chosen(one, map(outcome, plan.tuning(one)), METRICS)
    assert best["a"] == {"sgd": {"lr": 0.2}, "adam": {"lr": 0.002}}
    assert best["b"] == best["a"]


def test_if_nothing_was_done_the_first_point_is_reported_all_the_same():
    one = study()
    results = [result(t, None, "diverged") for t in plan.tuning(one)]
    assert plan.chosen(one, results, METRICS)["a"] == {"sgd": {"lr": 0.1}, "adam": {"lr": 0.001}}


def test_reporting_waits_for_all_of_the_tuning():
    one = study()
    results = [result(t, 1.0) for t in plan.tuning(one)]
    with pytest.raises(ValueError, match=r"adam on b .* 1 of its tuning trials"):
        plan.reporting(one, results[:-1], METRICS)


def test_a_single_point_needs_no_tuning():
    rules = {"sgd": {"kind": "torch.optim.SGD", "lr": 0.1}}
    one = study(rules=rules, seeds={"reporting": [0, 1]})
    assert plan.tuning(one) == []
    assert [t.settings for t in plan.reporting(one, [], METRICS)] == [{"lr": 0.1}] * 4
    several = study(rules={"sgd": {**rules["sgd"], "grid": {"momentum": [0.5]}}})
    assert plan.tuning(several) == []


def test_points_are_drawn_from_the_grid_and_a_larger_budget_keeps_them():
    grid = {"lr": [0.1 * i for i in range(1, 9)], "momentum": [0.0, 0.5, 0.9]}
    rules = {name: {"kind": "torch.optim.SGD", "grid": grid} for name in ("one", "two")}
    drawn = {}
    for trials in (3, 7, 24):
        one = study(rules=rules, budget={"steps": 1, "trials": trials})
        drawn[trials] = {rule: plan.points(one, rule) for rule in rules}
        assert all(len(points) == trials for points in drawn[trials].values())
    for rule in rules:
        assert all(point in drawn[7][rule] for point in drawn[3][rule])
        whole = [{"lr": lr, "momentum": m} for lr in grid["lr"] for m in grid["momentum"]]
        assert drawn[24][rule] == whole
    assert drawn[7]["one"] != drawn[7]["two"]


def test_a_key_depends_on_all_that_decides_the_numbers_and_only_on_that():
    keys = {t.key for t in plan.tuning(study())}
    assert {t.key for t in plan.tuning(study(name="other"))} == keys
    assert {t.key for t in plan.tuning(study(seeds={"tuning": [0, 1], "reporting": [5]}))} == keys
    for changed in (
        study(budget={"steps": 10}),
        study(training={"clip": 1.0}),
        study(training={"schedule": "cosine"}),
        study(training={"threads": 2}),
        study(
            tasks={"a": {"kind": "digits", "hidden": [3]}, "b": {"kind": "mnist", "hidden": [3]}}
        ),
    ):
        assert not keys & {t.key for t in plan.tuning(changed)}
    more = copy.deepcopy(BASE["rules"])
    more["sgd"]["grid"]["lr"].append(0.8)
    more["adam"]["grid"]["lr"].append(0.008)
    assert keys < {t.key for t in plan.tuning(study(rules=more))}


def test_a_key_is_the_hash_of_a_text_that_every_machine_writes_alike():
    trial = Trial("a", "sgd", "digits", {}, "optax.sgd", {"lr": 0.1}, {"lr": 0.1}, 0, "tuning", 5)
    text = (
        '{"clip":null,"code":"","epochs":null,"evaluations":10,"phase":"tuning","point":{"lr":0.1},'
        '"rule":"sgd","rule_kind":"optax.sgd","schedule":{"kind":"constant"},"seed":0,"settings":{"lr":0.1},'
        '"steps":5,"task":"a","task_kind":"digits","task_settings":{},"threads":1}'
    )
    assert trial.key == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_result_survives_json_without_numbers_that_json_lacks():
    trial = plan.tuning(study())[0]
    done = Result(trial, "done", "", {"loss": np.float64(1.5), "bad": np.nan}, {"s": np.inf}, {})
    line = json.loads(json.dumps(done.to_json(), allow_nan=False))
    back = Result.from_json(line, {})
    assert back.trial == trial
    assert back.trial.key == trial.key == line["key"]
    assert (back.final, back.cost) == ({"loss": 1.5}, {})


def test_the_users_own_code_is_part_of_the_key(tmp_path):
    module = tmp_path / "my_rules_for_a_plan.py"
    module.write_text("def make(params): ...\n")
    rules = {"mine": {"kind": "my_rules_for_a_plan:make", "grid": {"lr": [1.0, 2.0]}}}
    one = Study.from_dict({**BASE, "rules": rules}, tmp_path)
    before = {t.key for t in plan.tuning(one)}
    assert {t.key for t in plan.tuning(one)} == before
    module.write_text("def make(params): return None\n")
    assert not before & {t.key for t in plan.tuning(one)}
    elsewhere = Study.from_dict({**BASE, "rules": rules}, tmp_path / "elsewhere")
    with pytest.raises(StudyError, match="no module 'my_rules_for_a_plan'"):
        plan.tuning(elsewhere)


def test_folders_leave_no_trace_on_the_path(tmp_path):
    before = list(sys.path)
    with plan.importable(tmp_path):
        assert sys.path[-1] == str(tmp_path.resolve())
    assert sys.path == before
