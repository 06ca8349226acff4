"""Engines: the same results from each, also when the processes that work on them are killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pytest

from lossnav.studies import engines
from lossnav.studies.engines import ATTEMPTS, RunContext, make
from lossnav.studies.progress import Progress
from lossnav.studies.spec import plan
from lossnav.studies.trial import Trial, callbacks

HERE = Path(__file__).parent
FAKE = RunContext(gettempdir(), code=str(HERE), runner="fake_training:run_trial")


class Heard(Progress):
    def __init__(self):
        self.steps = []

    def step(self, trial, step, steps, loss):
        self.steps.append((trial.seed, step, steps, loss))


def trials(count=4, *, steps=3, **settings):
    settings = {"pause": 0.0, **settings}
    return [
        Trial("a", "r", "fake", settings, "fake", {"lr": 0.1}, {"lr": 0.1}, seed, "tuning", steps)
        for seed in range(count)
    ]


def collect(engine, wanted, progress=None):
    with contextlib.closing(engine):
        results = list(engine.run(wanted, progress or Progress()))
    assert sorted(r.trial.key for r in results) == sorted(t.key for t in wanted)
    return {r.trial.seed: r for r in results}


def numbers(result):
    """All that must be equal: everything but times and the process."""
    final = {name: value for name, value in result.final.items() if name != "pid"}
    curves = {name: x.tolist() for name, x in result.curves.items() if name != "seconds"}
    return result.trial, result.status, result.reason, final, curves


def same(first, second):
    assert {s: numbers(r) for s, r in first.items()} == {s: numbers(r) for s, r in second.items()}


def test_code_that_was_changed_meanwhile_does_not_run_under_the_old_name(tmp_path):
    """A worker that starts later imports the file as it is then; one that has it keeps what it has."""
    (tmp_path / "mine_.py").write_text("task = 1\n")
    (tmp_path / "fake_training.py").write_text((HERE / "fake_training.py").read_text())
    context = replace(FAKE, code=str(tmp_path))
    first = plan.fingerprints("mine_:task", "fake", tmp_path)
    (trial,) = trials(1)
    old = replace(trial, task_kind="mine_:task", code=first)
    assert engines.perform(old, context).status == "done"
    (tmp_path / "mine_.py").write_text("task = 2\n")
    assert engines.perform(old, context).status == "done"
    new = replace(old, code=plan.fingerprints("mine_:task", "fake", tmp_path))
    assert new.code != first
    for engine, stale in (("serial", new), ("joblib", old)):
        (result,) = collect(make(engine, context), [stale]).values()
        assert result.status == "failed"
        assert "The code of 'mine_:task' or 'fake' was changed while the study ran" in result.reason
    (result,) = collect(make("joblib", context), [new]).values()
    assert result.status == "done", result.reason


def test_processes_give_what_this_process_gives():
    wanted = trials(5)
    here = collect(make("serial", FAKE), wanted)
    there = collect(make("joblib", FAKE, jobs=2), wanted)
    same(here, there)
    assert {r.final["pid"] for r in here.values()} == {os.getpid()}
    pids = {r.final["pid"] for r in there.values()}
    assert os.getpid() not in pids
    assert len(pids) == 2


@pytest.mark.parametrize("engine", ["serial", "joblib"])
def test_progress_comes_while_a_trial_runs(engine):
    heard = Heard()
    (result,) = collect(make(engine, FAKE), trials(1, steps=12, pause=0.05), heard).values()
    assert {(seed, steps) for seed, _, steps, _ in heard.steps} == {(0, 12)}
    told = [step for _, step, _, _ in heard.steps]
    assert told == sorted(told)
    assert len(set(told)) >= 2
    for _, step, _, loss in heard.steps:
        assert loss == pytest.approx(result.curves["loss"][step - 1], abs=1e-6)


def test_a_killed_worker_has_its_trial_run_again(tmp_path):
    """Twice is not yet once too often; the other trials do not notice."""
    wanted = trials(4, misdeed="die", seed=1, place=str(tmp_path / "tries"), times=ATTEMPTS - 1)
    found = collect(make("joblib", FAKE, jobs=2), wanted)
    assert [found[seed].status for seed in range(4)] == ["done"] * 4
    assert (tmp_path / "tries").read_text() == "x" * ATTEMPTS


def test_a_trial_that_always_kills_its_worker_fails_and_takes_no_other_with_it(tmp_path):
    wanted = trials(4, misdeed="die", seed=1, place=str(tmp_path / "tries"))
    found = collect(make("joblib", FAKE, jobs=2), wanted)
    assert [found[seed].status for seed in range(4)] == ["done", "failed", "done", "done"]
    assert f"died {ATTEMPTS} times" in found[1].reason
    assert (tmp_path / "tries").read_text() == "x" * ATTEMPTS


@pytest.mark.parametrize("engine", ["serial", "joblib"])
def test_an_exception_is_a_failed_result_in_one_line(engine, tmp_path):
    wanted = trials(2, misdeed="raise", seed=1, place=str(tmp_path / "tries"))
    found = collect(make(engine, FAKE), wanted)
    assert found[0].status == "done"
    assert (found[1].status, found[1].reason) == ("failed", "ValueError: this seed is unlucky")
    assert (tmp_path / "tries").read_text() == "x"


def gone(pid, patience=5.0):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_closing_stops_the_workers():
    engine = make("joblib", FAKE, jobs=2)
    results = engine.run(trials(2) + trials(2, pause=30.0), Progress())
    pids = {int(next(results).final["pid"]) for _ in range(2)}
    results.close()
    engine.close()
    assert all(gone(pid) for pid in pids)


def test_workers_are_kept_from_one_phase_to_the_next_even_if_one_is_killed_meanwhile():
    engine = make("joblib", FAKE, jobs=1)
    with contextlib.closing(engine):
        pids = [int(r.final["pid"]) for _ in range(2) for r in engine.run(trials(2), Progress())]
        assert len(set(pids)) == 1
        os.kill(pids[0], signal.SIGKILL)
        again = [r.status for r in engine.run(trials(2), Progress())]
        assert again == ["done", "done"]
    assert not engine.idle


STARTER = """
import sys
from lossnav.studies.progress import Progress
sys.path.insert(0, sys.argv[1])
from test_engines import FAKE, make, trials
results = make("joblib", FAKE, jobs=1).run([*trials(1), *trials(1, pause=30.0)], Progress())
print(int(next(results).final["pid"]), flush=True)
next(results)
"""


def test_workers_do_not_outlive_a_killed_run(tmp_path):
    command = [sys.executable, "-c", STARTER, str(HERE)]
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    worker = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    try:
        assert gone(worker)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def test_names_and_options_are_checked():
    with pytest.raises(ValueError, match="no engine named 'rya'"):
        make("rya", FAKE)
    with pytest.raises(ValueError, match="only --engine ray"):
        make("joblib", FAKE, address="auto")
    assert engines.failed(trials(1)[0], "a\n b").reason == "a b"


class Recorder:
    told = ()

    def __getattr__(self, name):
        def tell(*args):
            Recorder.told = (*Recorder.told, (name, args))

        return tell


def test_callbacks_are_made_where_the_trial_runs_and_know_it_by_its_own_name(monkeypatch):
    monkeypatch.setattr(callbacks, "named", lambda names, folder: [Recorder] * len(names))
    (plain,) = trials(1)
    result = engines.perform(plain, replace(FAKE, callbacks=("one",)))
    assert (result.status, result.trial) == ("done", plain)
    assert [name for name, _ in Recorder.told] == ["started", "step", "evaluated", "finished"]
    assert [args[0] for _, args in Recorder.told] == [plain, plain, plain, result]
    assert Recorder.told[1][1][1:] == (3, pytest.approx(result.final["error"]))


def test_an_engine_whose_package_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'lossnav\[study\]'.*--engine serial"):
        make("joblib", FAKE)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:here"])
def test_a_cluster_that_is_not_there_is_told_at_once(address):
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match=r"No Ray cluster answers at '127\.0\.0\.1:"):
        make("ray", FAKE, address=address)


def real(count=2, **changes):
    """Trials of the training that is shipped."""
    base = Trial(
        "a",
        "r",
        "logistic-regression",
        {"dimension": 5, "examples": 70, "batch_size": 25},
        "torch.optim.Adam",
        {"lr": 0.1},
        {"lr": 0.1},
        0,
        "reporting",
        12,
        evaluations=3,
        clip=1.0,
    )
    return [replace(base, seed=seed, **changes) for seed in range(count)]


@pytest.fixture(scope="module")
def here():
    pytest.importorskip("torch")
    return collect(make("serial", RunContext(gettempdir())), real())


def test_real_training_is_the_same_in_processes(here):
    same(here, collect(make("joblib", RunContext(gettempdir())), real()))
    assert all(r.status == "done" for r in here.values())


def on_ray(place):
    """One run for all of it: to start a cluster is what takes the time."""
    import ray

    heard = Heard()
    fakes = trials(5, misdeed="die", seed=4, place=str(place), times=1, pause=0.2)[3:]
    either = replace(FAKE, runner="fake_training:run_either")
    found = collect(make("ray", either), [*real(), *fakes], heard)
    here = collect(make("serial", RunContext(gettempdir())), real())
    same(here, {seed: found[seed] for seed in here})
    assert [found[seed].status for seed in (3, 4)] == ["done"] * 2
    assert place.read_text() == "xx"
    assert {seed for seed, _, _, _ in heard.steps} >= {3, 4}
    assert not ray.is_initialized()


def test_real_training_is_the_same_on_ray_and_survives_lost_workers(tmp_path):
    """In a process of its own: Ray forks, which JAX, imported by other tests, warns of."""
    pytest.importorskip("ray")
    pytest.importorskip("torch")
    code = "import pathlib, sys, test_engines as t; t.on_ray(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "tries")],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_two_processes_train_as_one_would(here):
    """A last batch of 20 and one of 25 do not divide evenly."""
    dist = pytest.importorskip("torch.distributed")
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this PyTorch was built without gloo")
    heard = Heard()
    found = collect(make("torchrun", RunContext(gettempdir()), processes=2), real(1), heard)
    assert found[0].status == "done", found[0].reason
    assert found[0].trial == here[0].trial
    for name, value in here[0].final.items():
        assert found[0].final[name] == pytest.approx(value, abs=1e-6)
    gap = np.abs(found[0].curves["training_loss"] - here[0].curves["training_loss"]).max()
    assert gap < 1e-6
    assert heard.steps[-1][1:3] == (12, 12)
