"""Trackers write what they are given, and their errors stop nothing else."""

import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import study_maker
from lossnav.studies.trial import callbacks
from lossnav.studies.trial.callbacks import Callback, Guarded, named, title
from study_maker import play

TRIAL = study_maker.trial("digits", "SGD", {"lr": 0.1}, 3, "reporting")


@pytest.fixture
def fresh(monkeypatch):
    """No callback has failed before."""
    monkeypatch.setattr(Guarded, "_reported", set())


def test_tensorboard_events(tmp_path, capfd):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (make,) = named(["tensorboard"], tmp_path)
    play(pickle.loads(pickle.dumps(make))(), TRIAL)
    folder = tmp_path / "tensorboard" / title(TRIAL)
    assert len(list(folder.iterdir())) == 1
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("training/loss")] == [
        (1, 3.0),
        (2, 2.0),
        (3, 1.5),
    ]
    assert [(e.step, e.value) for e in events.Scalars("test/accuracy")] == [(1, 0.5), (3, 0.75)]
    (text,) = events.Tensors("trial/text_summary")
    assert TRIAL.key.encode() in text.tensor_proto.string_val[0]
    assert capfd.readouterr().err == ""


def test_tuning_is_logged_as_validation(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trial = study_maker.trial("digits", "SGD", {"lr": 0.1}, 3, "tuning")
    play(named(["tensorboard"], tmp_path)[0](), trial, status="diverged")
    events = EventAccumulator(str(tmp_path / "tensorboard" / title(trial)))
    events.Reload()
    assert "validation/loss" in events.Tags()["scalars"]


def test_mlflow_runs_of_two_processes(tmp_path, monkeypatch, capfd):
    """Two processes that start at once share one experiment."""
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import study_maker\n"
        "from lossnav.studies.trial.callbacks import named\n"
        "trial = study_maker.trial('digits', 'SGD', {'lr': 0.1}, int(sys.argv[3]), 'reporting')\n"
        "study_maker.play(named(['mlflow'], sys.argv[2])[0](), trial)\n"
    )
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    running = [subprocess.Popen([*arguments, seed]) for seed in ("3", "4")]
    assert [one.wait(60) for one in running] == [0, 0]
    assert "failed" not in capfd.readouterr().err
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tracking_uri=(tmp_path / "mlflow").as_uri())
    named_ = [e for e in client.search_experiments() if e.name == tmp_path.name]
    assert len(named_) == 1
    runs = client.search_runs([named_[0].experiment_id])
    assert {run.data.params["seed"] for run in runs} == {"3", "4"}
    for run in runs:
        history = client.get_metric_history(run.info.run_id, "training/loss")
        assert sorted((m.step, m.value) for m in history) == [(1, 3.0), (2, 2.0), (3, 1.5)]
        assert run.data.metrics["test/accuracy"] == 0.75
        assert (run.info.status, run.data.tags["status"]) == ("FINISHED", "done")


def test_wandb_offline(tmp_path):
    """In a process of its own, as it starts another one and keeps it."""
    pytest.importorskip("wandb")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import random, study_maker\n"
        "from lossnav.studies.trial.callbacks import named\n"
        "trial = study_maker.trial('digits', 'SGD', {'lr': 0.1}, 3, 'reporting')\n"
        "for _ in range(2):\n"
        "    random.seed(0)  # as a trial does\n"
        "    study_maker.play(named(['wandb'], sys.argv[2])[0](), trial)\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    environment |= {"WANDB_MODE": "offline", "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2  # the same trial twice is two runs
    history = logged(files[0])
    assert [row["training/loss"] for row in history if "training/loss" in row] == ["3", "2", "1.5"]
    assert [(row["step"], row["test/accuracy"]) for row in history if "test/accuracy" in row] == [
        ("1", "0.5"),
        ("3", "0.75"),
    ]


def logged(file):
    """The rows of history in a W&B file: records in blocks of 32 KiB (LevelDB's log)."""
    from wandb.proto import wandb_internal_pb2

    raw, at, part, rows = file.read_bytes(), 7, b"", []
    while at + 7 <= len(raw):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", raw, at)
        part += raw[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record.FromString(part)
            part = b""
            if record.WhichOneof("record_type") == "history":
                rows.append({i.key or i.nested_key[0]: i.value_json for i in record.history.item})
    return rows


def test_training_has_the_same_numbers_when_it_is_watched(tmp_path):
    pytest.importorskip("tensorboard")
    from lossnav.studies.trial import training

    trial = study_maker.trial(
        "digits", "SGD", {"lr": 0.1}, 3, "reporting", steps=None, epochs=1, settings={"lr": 0.1}
    )
    alone = training.run_trial(trial)
    watched = training.run_trial(
        trial, callbacks=[make() for make in named(["tensorboard"], tmp_path)]
    )
    assert alone.status == watched.status == "done"
    assert alone.final == watched.final
    np.testing.assert_array_equal(alone.curves["training_loss"], watched.curves["training_loss"])
    assert list((tmp_path / "tensorboard").rglob("events.*"))


class Broken(Callback):
    """Fails where it is told to."""

    where = "started"

    def __init__(self, folder):
        self.fail("made")

    def fail(self, name):
        if name == self.where:
            raise OSError(f"no room\nin {name}")

    def started(self, trial):
        self.fail("started")

    def step(self, trial, step, loss):
        self.fail("step")

    def evaluated(self, trial, step, metrics):
        self.fail("evaluated")

    def finished(self, result):
        self.fail("finished")


@pytest.mark.parametrize("where", ["made", "started", "step", "evaluated", "finished"])
def test_a_failing_callback_is_said_once_and_fails_nothing(
    tmp_path, monkeypatch, capsys, fresh, where
):
    monkeypatch.setattr(Broken, "where", where)
    monkeypatch.setitem(callbacks.TRACKERS, "mlflow", Broken)
    for _ in range(3):
        play(Guarded("mlflow", str(tmp_path)), TRIAL)
    said = capsys.readouterr()
    assert said.err == f"The callback mlflow failed and is dropped: OSError: no room in {where}\n"
    assert said.out == ""


def test_an_interrupt_is_not_swallowed(tmp_path, monkeypatch, fresh):
    def interrupted(self, trial):
        raise KeyboardInterrupt

    monkeypatch.setattr(Broken, "started", interrupted)
    monkeypatch.setattr(Broken, "where", "")
    monkeypatch.setitem(callbacks.TRACKERS, "mlflow", Broken)
    with pytest.raises(KeyboardInterrupt):
        Guarded("mlflow", str(tmp_path)).started(TRIAL)


def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else name)
    with pytest.raises(ValueError, match=r"'wandb' needs a package .* pip install wandb$"):
        named(["tensorboard", "wandb"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_naming_callbacks_imports_and_writes_nothing(tmp_path):
    code = (
        "import sys; from lossnav.studies.trial.callbacks import named\n"
        "named(['tensorboard', 'tensorboard'], sys.argv[1])\n"
        "assert not {'torch', 'wandb', 'mlflow', 'tensorboard'} & set(sys.modules)\n"
    )
    pytest.importorskip("tensorboard")
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_titles_are_fit_for_a_path():
    odd = study_maker.trial("../../etc", "a/b c$", {"lr": 0.1, "betas": [0.9, 0.99]}, 0, "tuning")
    name = title(odd)
    assert name.count("/") == 2
    assert ".." not in name.split("/")
    assert title(odd) != title(study_maker.trial("../../etc", "a/b c$", {"lr": 0.1}, 0, "tuning"))
    empty = study_maker.trial("...", "", {}, 0, "tuning")
    assert all(part.strip(".") for part in title(empty).split("/"))
