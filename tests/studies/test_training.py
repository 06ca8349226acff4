"""The loop: bit for bit that of a plain script, and honest about what went wrong."""

import itertools
import json
import random
import subprocess
import sys
import types
import typing
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from lossnav.studies import tasks
from lossnav.studies.trial import Trial, training
from lossnav.studies.trial.setup import batch_rng, reproducible, schedule

BASE = Trial(
    task="digits",
    rule="sgd",
    task_kind="digits",
    task_settings={"hidden": [16]},
    rule_kind="torch.optim.SGD",
    settings={"lr": 0.1, "momentum": 0.9},
    point={"lr": 0.1},
    seed=3,
    phase="reporting",
    steps=50,
    evaluations=4,
)


def a(**changes):
    return replace(BASE, **changes)


@pytest.fixture(autouse=True)
def one_thread():
    """Sums depend on the number of threads, so the references have as many as the trials."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def user(monkeypatch):
    """A module of the user's own, with a task to break."""
    module = types.ModuleType("theirs")
    points = torch.linspace(-1, 1, 64)[:, None]

    class Line(tasks.Task):
        log: typing.ClassVar = []

        def model(self):
            return nn.Linear(1, 1)

        def batches(self, rng):
            return points[torch.randperm(64, generator=rng)].split(16)

        def loss(self, model, batch):
            return (model(batch) - 2 * batch).square().mean()

        def evaluate(self, model, split):
            self.log.append(split)
            return {"loss": float(self.loss(model, points))}

    module.Line = Line
    monkeypatch.setitem(sys.modules, "theirs", module)
    return module


def line(**changes):
    return a(task_kind="theirs:Line", task_settings={}, settings={"lr": 0.1}, **changes)


def bare(trial, make, rates=None):
    """What anyone would write: the reference for the harness."""
    task = tasks.named(trial.task_kind, trial.task_settings)
    torch.manual_seed(trial.seed)
    model = task.model()
    optimizer = make(model.parameters())
    scheduler = rates(optimizer) if rates else None
    rng, losses = batch_rng(trial.seed), []
    while len(losses) < trial.steps:
        for batch in task.batches(rng):
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            loss.backward()
            if trial.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), trial.clip)
            optimizer.step()
            if scheduler:
                scheduler.step()
            losses.append(loss.item())
            if len(losses) == trial.steps:
                break
    return np.array(losses, np.float32), task.evaluate(model.eval(), "test")


@pytest.mark.parametrize("clip", [None, 0.5])
def test_bit_for_bit_a_bare_loop(clip):
    trial = a(clip=clip)
    result = training.run_trial(trial)
    losses, final = bare(trial, lambda p: torch.optim.SGD(p, 0.1, 0.9))
    assert result.status == "done"
    np.testing.assert_array_equal(result.curves["training_loss"], losses)
    assert result.curves["training_loss"].dtype == np.float32
    assert result.final == final


def test_clipping_does_something():
    plain, clipped = (training.run_trial(a(clip=clip)) for clip in (None, 0.5))
    assert plain.final != clipped.final


@pytest.mark.parametrize(
    "trial",
    [
        a(rule_kind="lossnav.KroneckerNavigator", settings={"lr": 0.01}),
        a(rule_kind="optax.adam", settings={"lr": 0.01}, steps=20),
        a(task_kind="noisy-quadratic", task_settings={"dimension": 20}),
        a(task_kind="logistic-regression", task_settings={}, schedule={"kind": "cosine"}),
    ],
    ids=["kronecker", "optax", "quadratic", "logistic"],
)
def test_twice_the_same(trial):
    first = training.run_trial(trial)
    torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    with torch.no_grad():
        again = training.run_trial(trial)
    assert first.status == again.status == "done"
    assert first.final == again.final
    assert first.curves.keys() == again.curves.keys()
    for name in set(first.curves) - {"seconds"}:
        np.testing.assert_array_equal(first.curves[name], again.curves[name])
    other = training.run_trial(replace(trial, seed=4))
    assert other.final != first.final


def test_the_same_in_another_process():
    """A fresh interpreter has other hashes, other memory, and the same numbers."""
    code = (
        "import json, sys; from lossnav.studies.trial import Trial; "
        "from lossnav.studies.trial.training import run_trial; "
        "r = run_trial(Trial(**json.loads(sys.argv[1]))); "
        "print(json.dumps([r.final, r.curves['training_loss'].tolist()]))"
    )
    here = training.run_trial(a())
    spec = json.dumps(here.to_json()["trial"])
    told = subprocess.run(
        [sys.executable, "-c", code, spec], capture_output=True, check=True
    ).stdout
    final, losses = json.loads(told)
    assert final == here.final
    assert losses == here.curves["training_loss"].tolist()


def test_what_a_task_draws_for_itself_does_not_move_the_start(user):
    class Drawing(user.Line):
        def __init__(self):
            torch.rand(5)

    plain = training.run_trial(line())
    user.Line = Drawing
    assert training.run_trial(line()).final == plain.final


def test_nothing_is_left_changed():
    torch.set_num_threads(2)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    torch.set_default_dtype(torch.float64)
    try:
        result = training.run_trial(a(steps=5))
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert result.final == training.run_trial(a(steps=5)).final
    assert torch.get_num_threads() == 2
    assert not torch.are_deterministic_algorithms_enabled()
    drawn = torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    assert drawn == (torch.rand(1).item(), np.random.rand(), random.random())  # noqa: NPY002


def test_threads_are_set_while_it_runs(user):
    seen = []

    class Curious(user.Line):
        def loss(self, model, batch):
            seen.append((torch.get_num_threads(), model.training, torch.is_grad_enabled()))
            return super().loss(model, batch)

    user.Line = Curious
    training.run_trial(line(threads=2, steps=4, evaluations=2))
    in_evaluation = (2, False, False)
    assert set(seen) == {(2, True, True), in_evaluation}
    assert seen.count(in_evaluation) == 3


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"kind": "constant"}, None),
        ({"kind": "linear"}, lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, 50)),
        (
            {"kind": "linear", "floor": 0.1},
            lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, 50),
        ),
        ({"kind": "cosine"}, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 50)),
        (
            {"kind": "cosine", "floor": 0.2},
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 50, 0.2 * 0.3),
        ),
        (
            {"kind": "linear", "hold": 0.6},
            lambda o: torch.optim.lr_scheduler.SequentialLR(
                o,
                [
                    torch.optim.lr_scheduler.ConstantLR(o, 1.0, 30),
                    torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, 20),
                ],
                [30],
            ),
        ),
        (
            {"kind": "constant", "warmup": 0.2},
            lambda o: torch.optim.lr_scheduler.LinearLR(o, 1 / 11, 1.0, 10),
        ),
        (
            {"kind": "cosine", "warmup": 0.2},
            lambda o: torch.optim.lr_scheduler.SequentialLR(
                o,
                [
                    torch.optim.lr_scheduler.LinearLR(o, 1 / 11, 1.0, 10),
                    torch.optim.lr_scheduler.CosineAnnealingLR(o, 40),
                ],
                [10],
            ),
        ),
    ],
    ids=[
        "constant",
        "linear",
        "linear-floor",
        "cosine",
        "cosine-floor",
        "hold",
        "warm",
        "warm-cosine",
    ],
)
def test_schedules_are_those_of_torch(settings, theirs):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = theirs(optimizer) if theirs else None
    factor, rates = schedule(settings, 50), []
    for _ in range(50):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "The epoch parameter"
                )  # torch's own, in SequentialLR
                scheduler.step()
    ours = [0.3 * (factor(step) if factor else 1.0) for step in range(50)]
    np.testing.assert_allclose(ours, rates, rtol=1e-9)


def test_a_schedule_reaches_the_optimizer(user):
    """Recorded inside the optimizer, for a number and for a tensor, with two groups."""
    seen = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            seen.append([float(group["lr"]) for group in self.param_groups])
            return super().step(closure)

    def two(params, lr, tensor=False):
        first, *rest = params
        rate = torch.tensor(lr) if tensor else lr
        return Watched([{"params": [first]}, {"params": rest, "lr": 10 * lr}], lr=rate)

    user.two = two
    for tensor in (False, True):
        seen.clear()
        settings = {"lr": 0.01, "tensor": tensor}
        result = training.run_trial(
            replace(
                line(steps=10, schedule={"kind": "linear"}),
                rule_kind="theirs:two",
                settings=settings,
            )
        )
        assert result.status == "done", result.reason
        np.testing.assert_allclose(
            seen, [[0.01 * (1 - i / 10), 0.1 * (1 - i / 10)] for i in range(10)], rtol=1e-6
        )


def test_a_divergence_is_a_result():
    trial = a(settings={"lr": 1e6}, steps=200, evaluations=10, task_settings={"hidden": [16]})
    result = training.run_trial(trial)
    losses, _ = bare(trial, lambda p: torch.optim.SGD(p, 1e6))
    first = int(np.flatnonzero(~np.isfinite(losses))[0])
    assert result.status == "diverged"
    assert f"at step {first + 1}." in result.reason
    assert result.final == {}
    assert result.cost["steps"] == first + 1 == len(result.curves["training_loss"])
    np.testing.assert_array_equal(result.curves["training_loss"], losses[: first + 1])
    assert np.isfinite(result.curves["loss"]).all()
    assert (result.curves["step"] <= first).all()
    json.dumps(result.to_json(), allow_nan=False)


def test_an_evaluation_that_is_not_finite(user):
    class Blind(user.Line):
        def evaluate(self, model, split):
            found = super().evaluate(model, split)
            return found if len(self.log) < 4 else {"loss": float("inf")}

    Blind.log = []
    user.Line = Blind
    result = training.run_trial(line(steps=40, evaluations=5))
    assert (result.status, result.reason) == ("diverged", "The test loss was inf after 24 steps.")
    assert result.curves["step"].tolist() == [0, 8, 16]
    assert result.final == {}


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("model", "KeyError: 'lost' (test_training.py, line "),
        ("batches", "KeyError: 'lost' (test_training.py, line "),
        ("loss", "KeyError: 'lost' (test_training.py, line "),
        ("evaluate", "KeyError: 'lost' (test_training.py, line "),
    ],
)
def test_code_that_fails(user, method, sentence):
    def fail(self, *args):
        raise KeyError("lost")

    setattr(user.Line, method, fail)
    result = training.run_trial(line())
    assert result.status == "failed"
    assert sentence in result.reason
    assert result.final == {}
    json.dumps(result.to_json(), allow_nan=False)


def test_a_failure_after_some_steps_keeps_them(user):
    calls = []

    def loss(self, model, batch):
        calls.append(1)
        if len(calls) == 31:
            raise RuntimeError("out of\nmemory")
        return (model(batch) - 2 * batch).square().mean()

    user.Line.loss = loss
    user.Line.evaluate = lambda self, model, split: {"loss": 1.0}
    result = training.run_trial(line())
    assert result.status == "failed"
    assert "RuntimeError: out of memory (test_training.py, line" in result.reason
    assert len(result.curves["training_loss"]) == 30
    assert result.curves["step"].tolist() == [0, 13, 25]


def test_a_rule_that_breaks_on_nan_has_diverged(user):
    class Fragile(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if not p.grad.isfinite().all():
                        raise RuntimeError("The algorithm failed to converge")
            return super().step(closure)

    user.Fragile = Fragile
    trial = line(steps=400, evaluations=1)
    result = training.run_trial(replace(trial, rule_kind="theirs:Fragile", settings={"lr": 1e3}))
    assert result.status == "diverged"
    assert "The training loss was" in result.reason
    raising = replace(
        trial, rule_kind="lossnav.Navigator", settings={"lr": 1e30, "nonfinite": "raise"}
    )
    assert training.run_trial(raising).status == "diverged"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({"accuracy": 1.0}, "evaluate() returned accuracy, but the metric of the task is 'loss'."),
        ({}, "evaluate() returned nothing, but the metric of the task is 'loss'."),
        (
            {"loss": 1.0, "step": 3.0},
            "evaluate() returned 'step', a reserved name: use another.",
        ),
    ],
)
def test_metrics_that_cannot_be_kept(user, found, sentence):
    user.Line.evaluate = lambda self, model, split: found
    result = training.run_trial(line())
    assert (result.status, result.reason) == ("failed", sentence)


def test_no_batches(user):
    user.Line.batches = lambda self, rng: ()
    result = training.run_trial(line())
    assert result.reason == "A pass over the batches of the task has none."


def test_an_interrupt_comes_through(user):
    def loss(self, model, batch):
        raise KeyboardInterrupt

    user.Line.loss = loss
    user.Line.evaluate = lambda self, model, split: {"loss": 1.0}
    with pytest.raises(KeyboardInterrupt):
        training.run_trial(line(threads=2))
    assert torch.get_num_threads() == 1


def test_evaluations_change_nothing(user):
    """Dropout, an evaluation that draws, a module in eval mode: training is the same."""

    class Noisy(user.Line):
        def model(self):
            model = nn.Sequential(
                nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)
            )
            model[3].eval()
            self.net = model
            return model

        def evaluate(self, model, split):
            torch.rand(3), np.random.rand(), random.random()  # noqa: NPY002
            assert not model[1].training
            return super().evaluate(model, split)

        def loss(self, model, batch):
            if torch.is_grad_enabled():
                assert (model[1].training, model[3].training) == (True, False)
                batch = batch + 0.01 * random.random()
            return super().loss(model, batch)

    user.Line = Noisy
    few, many = (training.run_trial(line(evaluations=n)) for n in (1, 25))
    assert few.status == "done", few.reason
    np.testing.assert_array_equal(few.curves["training_loss"], many.curves["training_loss"])
    assert few.final == many.final


@pytest.mark.parametrize(
    ("steps", "evaluations", "stops"),
    [
        (50, 4, [0, 13, 25, 38, 50]),
        (3, 10, [0, 1, 2, 3]),
        (7, 1, [0, 7]),
        (10, 3, [0, 3, 7, 10]),
    ],
)
def test_evaluations_are_spread(user, steps, evaluations, stops):
    result = training.run_trial(line(steps=steps, evaluations=evaluations))
    assert result.curves["step"].tolist() == stops
    assert len(result.curves["loss"]) == len(result.curves["seconds"]) == len(stops)
    assert result.curves["seconds"][0] == 0
    assert (np.diff(result.curves["seconds"]) > 0).all()
    assert result.final == {"loss": result.curves["loss"][-1]}


def test_the_split_is_that_of_the_phase(user):
    user.Line.log = []
    training.run_trial(line(phase="tuning", steps=2, evaluations=1))
    assert set(user.Line.log) == {"validation"}
    user.Line.splits = ("test",)
    assert training.run_trial(line(phase="reporting", steps=2)).status == "done"
    result = training.run_trial(line(phase="tuning", steps=2))
    assert result.status == "failed"
    assert (
        "The task 'theirs:Line' has no validation split, so a rule cannot be tuned by it"
        in result.reason
    )


def test_epochs_are_passes():
    assert training.run_trial(a(steps=None, epochs=2)).cost["steps"] == 2 * 21
    assert training.run_trial(a(steps=None, epochs=0.5)).cost["steps"] == 10


def test_costs(user):
    result = training.run_trial(a(rule_kind="torch.optim.Adam", settings={"lr": 1e-3}))
    cost = result.cost
    size = 64 * 16 + 16 + 16 * 10 + 10
    assert cost["parameters"] == size
    assert cost["state_bytes"] == pytest.approx(8 * size, abs=4 * 4)
    assert cost["steps"] == 50
    assert 0 < cost["optimizer_seconds"] < cost["step_seconds"] < cost["seconds"]
    assert cost["evaluation_seconds"] > 0
    assert cost["peak_bytes"] > 5e7
    assert cost["seconds"] == pytest.approx(result.curves["seconds"][-1])


def test_rules_that_ask_for_the_loss_again():
    """LBFGS against its own loop."""
    trial = a(rule_kind="torch.optim.LBFGS", settings={"lr": 0.1, "max_iter": 3}, steps=6)
    result = training.run_trial(trial)
    task = tasks.named("digits", BASE.task_settings)
    torch.manual_seed(3)
    model = task.model()
    optimizer, losses = torch.optim.LBFGS(model.parameters(), 0.1, 3), []
    for _, batch in zip(range(6), task.batches(batch_rng(3)), strict=False):

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    np.testing.assert_array_equal(result.curves["training_loss"], np.array(losses, np.float32))


def test_rules_with_a_second_point(user):
    """A rule that is judged elsewhere than it trains, as schedule-free ones are."""
    modes = []

    class Averaged(torch.optim.SGD):
        def eval(self):
            modes.append("eval")

        def train(self):
            modes.append("train")

    user.Averaged = Averaged
    trial = replace(line(steps=4, evaluations=1), rule_kind="theirs:Averaged")
    assert training.run_trial(trial).status == "done"
    assert modes == ["eval", "train"] * 2


class Listener:
    def __init__(self):
        self.heard = []

    def started(self, trial):
        self.heard.append(("started", trial.key))

    def step(self, trial, step, loss):
        self.heard.append(("step", step, loss))

    def evaluated(self, trial, step, metrics):
        self.heard.append(("evaluated", step, metrics["loss"]))

    def finished(self, result):
        self.heard.append(("finished", result.status))


def test_callbacks_hear_everything_in_order(user):
    listener = Listener()
    trial = line(steps=45, evaluations=2)
    result = training.run_trial(trial, callbacks=[listener])
    heard = listener.heard
    assert heard[0] == ("started", trial.key)
    assert heard[-1] == ("finished", "done")
    losses = result.curves["training_loss"].tolist()
    assert [h[1:] for h in heard if h[0] == "step"] == list(enumerate(losses, start=1))
    assert [h[1] for h in heard if h[0] == "evaluated"] == [0, 23, 45]
    place = heard.index(("evaluated", 23, result.curves["loss"][1]))
    assert heard[place - 1][:2] == ("step", 23)


def test_callbacks_hear_of_a_divergence():
    listener = Listener()
    result = training.run_trial(a(settings={"lr": 1e6}, steps=200), callbacks=[listener])
    heard = [h[1:] for h in listener.heard if h[0] == "step"]
    np.testing.assert_array_equal([loss for _, loss in heard], result.curves["training_loss"])
    assert listener.heard[-1] == ("finished", "diverged")


def test_a_callback_that_fails_is_left_out(user):
    class Bad(Listener):
        def step(self, trial, step, loss):
            raise OSError("no connection")

    good, bad = Listener(), Bad()
    with pytest.warns(RuntimeWarning, match="Bad raised OSError .no connection. in the trial"):
        result = training.run_trial(line(), callbacks=[bad, good])
    assert result.status == "done"
    assert bad.heard[-1][0] == "evaluated"
    assert good.heard[-1] == ("finished", "done")


def test_progress_is_told_ten_times_a_second_at_most(user, monkeypatch):
    """By a clock that goes 1/32 s with each loss; the first one is in an evaluation."""
    now, told = 0.0, []

    class Slow(user.Line):
        def loss(self, model, batch):
            nonlocal now
            now += 1 / 32
            return super().loss(model, batch)

    user.Line = Slow
    monkeypatch.setattr(training, "clock", lambda: now)
    monkeypatch.setattr(training, "time", types.SimpleNamespace(perf_counter=lambda: now))
    result = training.run_trial(line(evaluations=1), progress=lambda *heard: told.append(heard))
    steps = [*range(3, 50, 4), 50]
    losses = result.curves["training_loss"]
    assert told == [(step, 50, float(losses[step - 1])) for step in steps]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rule_kind": "torch.optim.SDG"}, "There is no 'SDG' in torch.optim. Did you mean 'SGD'?"),
        ({"settings": {"rate": 0.1}}, "The rule 'torch.optim.SGD' has no setting 'rate'."),
        ({"settings": {"lr": -0.1}}, "cannot be made with lr=-0.1: Invalid learning rate: -0.1"),
        ({"task_kind": "digit"}, "There is no built-in task named 'digit'. Did you mean 'digits'?"),
        ({"task_settings": {"width": 3}}, "The task 'digits' has no setting 'width'."),
        ({"task_settings": {"validation": 0}, "phase": "tuning"}, "has no validation split"),
        (
            {"schedule": {"kind": "cosin"}},
            "There is no schedule named 'cosin'. Did you mean 'cosine'?",
        ),
        (
            {"schedule": {"kind": "cosine", "warmup": 1.5}},
            "warmup is 1.5, but it must be below one",
        ),
        (
            {"schedule": {"kind": "cosine", "floor": 2}},
            "floor is 2, but it is a share: at most one",
        ),
        (
            {"schedule": {"knd": "cosine"}},
            "There is no setting of the schedule named 'knd'. Did you mean 'kind'?",
        ),
        (
            {"schedule": {"kind": "cosine", "floor": "low"}},
            "floor must be a real number, but a str was given.",
        ),
        ({"clip": "much"}, "clip must be a real number, but a str was given."),
        ({"clip": 0.0}, "clip is 0, but it must be greater than zero."),
        ({"steps": 0}, "steps is 0, but it must be a whole number, 1 or more."),
        ({"evaluations": 0}, "evaluations is 0, but it must be a whole number, 1 or more."),
        ({"threads": 0}, "threads is 0, but it must be a whole number, 1 or more."),
        ({"epochs": 1}, "A trial needs either steps or epochs, and not both."),
        ({"steps": None}, "A trial needs either steps or epochs, and not both."),
        ({"steps": None, "epochs": 0}, "epochs is 0, but it must be greater than zero."),
    ],
)
def test_what_is_wrong_is_said_before_and_while(changes, sentence):
    """`check` raises a sentence, and `run_trial` returns the same one."""
    trial = a(**changes)
    with pytest.raises(ValueError) as caught:
        training.check(trial)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    result = training.run_trial(trial)
    assert result.status == "failed"
    assert sentence in result.reason


def test_missing_data_are_said_before(tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOSSNAV_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"there is no mnist\.npz in LOSSNAV_DATA"):
        training.check(a(task_kind="mnist", task_settings={}))


def test_what_is_said_before(user, monkeypatch):
    before = torch.random.get_rng_state()
    assert training.check(a()) == (
        "torch.optim.SGD(lr=0.1, momentum=0.9) on digits, judged by loss (lower)"
    )
    trial = a(task_settings={"metric": "accuracy", "validation": 0}, steps=None, epochs=3)
    assert training.metric_of(trial) == ("accuracy", "higher", ("test",))
    ticks = itertools.count()
    monkeypatch.setattr(training, "clock", lambda: 0.01 * next(ticks))  # 10 ms for all there is
    found = training.describe(a(steps=200))
    assert found["steps"] == 200
    assert found["parameters"] == 64 * 16 + 16 + 16 * 10 + 10
    judged, setup = 1 + 4, 1
    assert found["seconds"] == pytest.approx(0.01 * (200 + judged + setup))
    assert found["reporting_seconds"] == pytest.approx(found["seconds"])
    assert found["start"] == pytest.approx(0.0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_each_part_of_a_trial_is_counted_by_its_own_time(monkeypatch):
    """Setting up takes 5 and later 1, the first step 10, others 2 and each fourth one 6; splits 3 and 7."""
    time, made, steps = [0.0], [], []
    plain = training.TrialRun

    class Slow(plain):
        def __init__(self, trial):
            super().__init__(trial)
            time[0] += 1.0 if made else 5.0
            made.append(self)

        def step(self, batch, step, times=None):
            time[0] += 10.0 if not steps else 2.0 if len(steps) % 4 else 6.0
            steps.append(step)
            return super().step(batch, step, times)

        def evaluate(self):
            time[0] += {"validation": 3.0, "test": 7.0}[self.split]
            return super().evaluate()

    monkeypatch.setattr(training, "TrialRun", Slow)
    monkeypatch.setattr(training, "clock", lambda: time[0])
    found = training.describe(a(phase="tuning", steps=34, evaluations=2), budget=1000.0)
    assert steps == list(range(34))
    step = (24 * 2.0 + 8 * 6.0) / 32  # of those after the first two
    assert found["seconds"] == pytest.approx(1.0 + 34 * step + 3 * 3.0)
    assert found["reporting_seconds"] == pytest.approx(1.0 + 34 * step + 3 * 7.0)
    assert found["start"] == pytest.approx(4.0 + 10.0 + 2.0 - 2 * step)
    steps.clear()
    training.describe(a(phase="tuning", steps=34), budget=13.0)
    assert len(steps) == 3  # 10 + 2 + 2: the time is over


def test_a_rule_without_lr_has_no_schedule(user):
    class Plain(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self, closure=None):
            pass

    user.Plain = Plain
    trial = replace(line(schedule={"kind": "cosine"}), rule_kind="theirs:Plain", settings={})
    with pytest.raises(
        ValueError, match="has no 'lr' in its groups, so it cannot have the schedule"
    ):
        training.check(trial)
    assert training.run_trial(replace(trial, schedule={"kind": "constant"})).status == "done"


def test_reading_about_studies_does_not_import_torch():
    code = (
        "import sys, lossnav.studies, lossnav.studies.data, lossnav.studies.spec.plan; "
        "lossnav.studies.Trial; assert 'torch' not in sys.modules and 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numbers_too_small_count_as_zero_in_a_trial_and_not_after_it():
    """Silent units leave averages that processors are slow with."""
    tiny = torch.tensor(1e-39)
    with reproducible(0, 1):
        assert float(tiny * 1.0) == 0.0
    assert float(tiny * 1.0) > 0.0
    torch.set_flush_denormal(True)
    try:
        with reproducible(0, 1):
            pass
        assert float(tiny * 1.0) == 0.0
    finally:
        torch.set_flush_denormal(False)
