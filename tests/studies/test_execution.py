"""Studies from file to report: resumed, changed, interrupted, killed, and refused."""

import contextlib
import copy
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from lossnav.cli.commands import app
from lossnav.studies import progress, report, store
from lossnav.studies.engines import RunContext, deferred
from lossnav.studies.execution import check, dry_run, run
from lossnav.studies.progress import Progress
from lossnav.studies.spec import Study, StudyError, plan, read

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BASE = {
    "name": "tiny",
    "tasks": {"a": {"kind": "fake"}},
    "rules": {
        "one": {"kind": "x", "grid": {"lr": [0.1, 0.2, 1000.0]}},
        "two": {"kind": "y", "grid": {"lr": [0.25, 3.0, 9.0]}},
    },
    "budget": {"steps": 3},
    "seeds": {"tuning": [0, 1], "reporting": [10, 11, 12]},
}


fake = mock.patch("lossnav.studies.execution._TRAINING", "fake_training")


class Said(Progress):
    def __init__(self):
        self.lines, self.ended, self.begun = [], [], None

    def begin(self, total, done):
        self.begun, self.done = (total, done), done

    def skip(self, count):
        self.done += count

    def finished(self, result):
        self.ended.append(result)

    def say(self, text):
        self.lines.append(text)


def study(**changes):
    values = copy.deepcopy(BASE)
    for name, value in changes.items():
        values[name] = value
    return Study.from_dict(values, HERE)


def go(folder, asked=None, with_report=False, **options):
    """Run a study; the report, which takes longer than all the rest, only where it is looked at."""
    said = Said()
    options = {"engine": "serial", "progress": said, **options}
    with fake, mock.patch("lossnav.studies.report.write", report.write if with_report else page_of):
        assert run(asked or study(), folder, **options) == page_of(folder)
    assert re.fullmatch(f"The study (tiny|stored) is stored in {folder}.", said.lines.pop(0))
    return said


def page_of(folder):
    return Path(folder) / "report.html"


def numbers(folder):
    found = {}
    for result in store.load(folder)[1]:
        curves = {name: x.tolist() for name, x in result.curves.items()}
        final = {name: x for name, x in result.final.items() if name != "pid"}
        found[result.trial.key] = (result.trial, result.status, result.reason, final, curves)
    return found


def test_a_study_is_tuned_chosen_reported_and_written_down(tmp_path):
    """The fake training is best at lr = 0.3, and diverges above 100."""
    said = go(tmp_path, with_report=True)
    assert said.begun == (12 + 6, 0)
    assert [r.trial.phase for r in said.ended] == ["tuning"] * 12 + ["reporting"] * 6
    held, results = store.load(tmp_path)
    assert held["chosen"] == {"a": {"one": {"lr": 0.2}, "two": {"lr": 0.25}}}
    assert held["metrics"] == {"a": ["error", "lower"]}
    assert held["planned"] == [r.trial.key for r in results]
    assert {r.trial.settings["lr"] for r in results if r.trial.phase == "reporting"} == {0.2, 0.25}
    assert {r.status for r in results if r.trial.settings["lr"] > 100} == {"diverged"}
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {
        "report.html",
        "summary.csv",
        "trials.jsonl",
        "study.json",
        "environment.json",
        "curves",
    }
    assert {key: held[key] for key in ("name", "rules", "budget", "seeds")} == {
        key: study().to_dict()[key] for key in ("name", "rules", "budget", "seeds")
    }


def test_a_study_that_is_done_runs_nothing_again(tmp_path):
    go(tmp_path)
    lines = (tmp_path / "trials.jsonl").read_bytes()
    said = go(tmp_path)
    assert (said.begun, said.ended) == ((18, 18), [])
    assert (tmp_path / "trials.jsonl").read_bytes() == lines


def test_a_study_stored_by_an_earlier_version_is_resumed(tmp_path):
    """Keys, lines, curves and columns as they were written; only a missing trial runs."""
    out = tmp_path / "out"
    shutil.copytree(HERE / "stored", out)
    before = {name: (out / name).read_text() for name in ("study.json", "summary.csv")}
    said = go(out, read(out / "study.toml"), with_report=True)
    assert (said.begun, said.ended) == ((8, 8), [])
    assert said.lines == [
        f"8 lines of {out / 'trials.jsonl'} without a hash, by an earlier version: checked by the "
        "curves alone."
    ]
    assert (out / "trials.jsonl").read_bytes() == (HERE / "stored" / "trials.jsonl").read_bytes()
    assert (out / "study.json").read_text() == before["study.json"]
    for new, old in zip(
        *(
            table.splitlines()
            for table in ((out / "summary.csv").read_text(), before["summary.csv"])
        ),
        strict=True,
    ):
        for one, other in zip(new.split(","), old.split(","), strict=True):
            is_number = re.fullmatch(r"-?[\d.e-]*\d", other)
            assert (float(one) == pytest.approx(float(other))) if is_number else one == other
    lines = (out / "trials.jsonl").read_text().splitlines(keepends=True)
    (out / "trials.jsonl").write_text("".join(lines[:-1]))
    (last,) = go(out, read(out / "study.toml")).ended
    assert last.trial.key == json.loads(lines[-1])["key"]


def test_a_final_value_that_was_edited_is_said_and_run_again(tmp_path):
    go(tmp_path)
    before = numbers(tmp_path)
    path = tmp_path / "trials.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    entry = json.loads(lines[4])
    entry["final"]["error"] += 9
    path.write_text("".join([*lines[:4], json.dumps(entry) + "\n", *lines[5:]]))
    assert "trials.jsonl, line 5 (it does not have the hash" in report.write(tmp_path).read_text()
    said = go(tmp_path, with_report=True)
    assert [result.trial.key for result in said.ended] == [entry["key"]]
    assert said.lines[0].startswith(f"{path}, line 5 (it does not have the hash that it names)")
    assert said.lines[0].endswith("Its trial is run again if the study has it.")
    assert numbers(tmp_path) == before
    assert "line 5" not in (tmp_path / "report.html").read_text()


def test_processes_leave_the_folder_that_one_process_leaves(tmp_path):
    go(tmp_path / "one")
    go(tmp_path / "two", engine="joblib", jobs=2)
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")
    one, two = (json.loads((tmp_path / x / "study.json").read_text()) for x in ("one", "two"))
    assert one == two


def test_only_what_a_change_touches_is_run_again(tmp_path):
    go(tmp_path)
    more = go(tmp_path, study(seeds={"tuning": [0, 1], "reporting": [10, 11, 12, 13]}))
    assert sorted(r.trial.seed for r in more.ended) == [13, 13]
    assert any("has changed" in line for line in more.lines)
    rules = copy.deepcopy(BASE["rules"])
    rules["one"]["grid"]["lr"] = [0.1, 0.3, 1000.0]
    changed = go(tmp_path, study(rules=rules), with_report=True)
    ran = [(r.trial.rule, r.trial.settings["lr"], r.trial.phase) for r in changed.ended]
    assert ran == [("one", 0.3, "tuning")] * 2 + [("one", 0.3, "reporting")] * 3
    # Two of tuning at 0.2, four of reporting at 0.2, and one of reporting on seed 13.
    assert "Stored but not reported: 7 trials of an earlier version of the study." in changed.lines
    held, results = store.load(tmp_path)
    assert len(results) == len(held["planned"]) + 7
    summary = (tmp_path / "summary.csv").read_text()
    assert '""lr"": 0.3' in summary
    assert '""lr"": 0.2}' not in summary


def test_failed_trials_are_kept_until_they_are_asked_for(tmp_path):
    unlucky = {"misdeed": "raise", "seed": 0, "place": str(tmp_path / "tries"), "times": 6}
    asked = study(tasks={"a": {"kind": "fake", **unlucky}})
    first = go(tmp_path / "out", asked)
    failed = [r for r in first.ended if r.status == "failed"]
    assert len(failed) == 6
    assert {r.trial.seed for r in failed} == {0}
    kept = go(tmp_path / "out", asked)
    assert not kept.ended
    assert kept.lines == ["6 trials failed before: --retry-failed runs such trials again."]
    again = go(tmp_path / "out", asked, retry_failed=True)
    assert [r.trial.key for r in again.ended] == [r.trial.key for r in failed]
    assert sorted(r.status for r in again.ended) == ["diverged"] + ["done"] * 5
    assert not [r for r in store.load(tmp_path / "out")[1] if r.status == "failed"]
    assert again.begun == (18, 6)
    assert again.done + len(again.ended) == 18
    assert not go(tmp_path / "out", asked, retry_failed=True).ended


def test_an_interrupt_keeps_what_is_done_and_says_how_to_go_on(tmp_path):
    stop = {"misdeed": "interrupt", "seed": 1, "place": str(tmp_path / "tries"), "times": 1}
    asked = study(tasks={"a": {"kind": "fake", **stop}})
    said = Said()
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "out", asked, progress=said)
    assert said.lines[1:] == [
        f"Stopped. 6 trials stored in {tmp_path / 'out'}: run the same command again to resume."
    ]
    rest = go(tmp_path / "out", asked)
    assert rest.begun == (18, 6)
    go(tmp_path / "whole", asked)
    assert numbers(tmp_path / "out") == numbers(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rules": {"one": {"kind": "unknown", "lr": 0.1}}}, r"rules\.one\): There is no rule"),
        ({"tasks": {"a": {"kind": "fake", "splits": ["test"]}}}, "no validation split"),
        ({"tasks": {"a": {"kind": "fake", "splits": ["validation"]}}}, "no test split"),
        ({"tasks": {"a": {"kind": "no_such_module_here:make"}}}, "no module 'no_such_module_here'"),
    ],
)
def test_a_study_that_cannot_run_leaves_nothing_behind(tmp_path, changes, said):
    with pytest.raises(StudyError, match=said):
        go(tmp_path / "out", study(**changes))
    assert not (tmp_path / "out").exists()


def test_a_task_without_validation_is_fine_for_rules_that_are_not_tuned(tmp_path):
    rules = {"one": {"kind": "x", "lr": 0.1}}
    asked = study(tasks={"a": {"kind": "fake", "splits": ["test"]}}, rules=rules)
    assert {r.trial.phase for r in go(tmp_path, asked).ended} == {"reporting"}


def test_options_are_checked_before_anything_runs(tmp_path):
    with pytest.raises(ValueError, match="no engine"):
        go(tmp_path / "out", engine="jobs")
    with pytest.raises(ValueError, match="one or more processes"):
        go(tmp_path / "out", jobs=0)
    with pytest.raises(ValueError, match="tensorbord"):
        go(tmp_path / "out", callbacks=["tensorbord"])
    assert not (tmp_path / "out").exists()


def test_a_change_of_versions_is_written_down(tmp_path):
    go(tmp_path)
    path = tmp_path / "environment.json"
    record = json.loads(path.read_text())
    record["versions"]["torch"] = "0.4"
    path.write_text(json.dumps(record))
    said = go(tmp_path)
    assert any("Versions have changed" in line for line in said.lines)
    assert json.loads(path.read_text())["earlier"][0]["versions"]["torch"] == "0.4"
    go(tmp_path)
    assert len(json.loads(path.read_text())["earlier"]) == 1


def test_every_rule_is_tried_on_every_task_before_the_run():
    asked = study(tasks={"a": {"kind": "fake"}, "b": {"kind": "fake", "metric": "other"}})
    with fake:
        found = check(asked)
    assert found == {"a": ("error", "lower"), "b": ("other", "lower")}


# The command line, with the training that is shipped.

TOML = """
name = "cli"
[tasks.line]
kind = "logistic-regression"
dimension = 3
examples = 40
[rules.sgd]
kind = "torch.optim.SGD"
grid.lr = [0.1, 1.0]
[rules.adam]
kind = "torch.optim.Adam"
grid.lr = [0.01, 0.1]
[budget]
steps = 5
[seeds]
tuning = [0]
reporting = [1, 2]
"""


@pytest.fixture
def file(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "study.toml"
    path.write_text(TOML)
    return path


def lossnav(*arguments):
    return CliRunner().invoke(app, ["study", *map(str, arguments)])


def test_the_command_runs_a_study_and_prints_what_came_of_it(file, tmp_path):
    done = lossnav(file, "--out", tmp_path / "out", "--engine", "serial")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["task", "rule", "chosen", "metric"]
    assert {line.split()[1] for line in lines[1:3]} == {"sgd", "adam"}
    assert lines[-1] == str(tmp_path / "out" / "report.html")
    assert "8 of 8 trials." in done.stderr
    assert (tmp_path / "out" / "study.toml").read_text() == TOML
    again = lossnav(file, "--out", tmp_path / "out", "--engine", "serial", "--json", "--quiet")
    assert not again.stderr
    found = json.loads(again.stdout)
    assert [row["seeds"] for row in found["results"]] == [2, 2]
    assert all(row["low"] < row["mean"] < row["high"] for row in found["results"])


def test_a_study_runs_in_parts_that_add_up(file, tmp_path):
    place = tmp_path / "out", "--engine", "serial"
    done = lossnav(file, "--out", *place, "--only", "adam")
    assert done.exit_code == 0, done.output
    assert "4 of 4 trials." in done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()[1:2]] == ["adam"]
    whole = lossnav(file, "--out", *place, "--json")
    assert {row["rule"] for row in json.loads(whole.stdout)["results"]} == {"sgd", "adam"}
    assert len((tmp_path / "out" / "trials.jsonl").read_text().splitlines()) == 8
    wrong = lossnav(file, "--only", "adma")
    assert wrong.exit_code == 2
    assert "no rule of this study named 'adma'. Did you mean 'adam'?" in wrong.stderr


def test_a_dry_run_tells_the_plan_and_leaves_nothing(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = lossnav(file, "--dry-run", "--jobs", 2)
    assert done.exit_code == 0, done.output
    for part in (
        "in studies/cli",
        "lr=0.1; lr=1",
        "torch.optim.Adam",
        "5 steps",
        "Tuning: 4 trials, on seeds 0.",
        "Reporting: 4 trials, on seeds 1, 2.",
        "4 parameters",
        "with 2 processes",
    ):
        assert part in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.toml"]
    lossnav(file, "--quiet", "--engine", "serial")
    found = json.loads(lossnav(file, "--dry-run", "--json").stdout)
    assert found["trials"] == {"tuning": 4, "reporting": 4, "done": 8}
    assert found["seconds"] == 0.0


def test_the_estimate_counts_points_seeds_processes_and_starts(tmp_path, monkeypatch):
    """The fake trials cost 2 and 3 seconds, the first of a task and rule in a process 0.5 more."""
    monkeypatch.setattr(progress, "usable_cores", lambda: 2)
    start = progress.STARTUP
    report_ = 0.35 * start
    with fake:
        importlib.import_module("fake_training")  # so that its import is not timed

        def seconds(jobs=1, engine="serial", folder=tmp_path / "none", **changes):
            return dry_run(study(**changes), folder, jobs, engine)["seconds"]

        alone = 12 * 2.0 + 6 * 3.0
        assert seconds() == pytest.approx(start + 2 * 0.5 + alone + report_)
        assert seconds(2, "joblib") == pytest.approx(2 * start + 2 * 0.5 + alone / 2 + report_)
        assert seconds(5, "joblib") == pytest.approx(  # on two cores: 3 rounds of 2 s, 2 of 3 s
            2 * start + 2.5 * (2 * 0.5 + 3 * 2.0 + 2 * 3.0) + report_
        )
        assert seconds(1, "torchrun") == pytest.approx(
            start + 2 * 0.5 + alone + 18 * start + report_
        )
        more = {"tuning": [0, 1, 2], "reporting": [10, 11, 12, 13]}
        assert seconds(seeds=more) == pytest.approx(seconds() + 6 * 2.0 + 2 * 3.0)
        tasks = {"a": {"kind": "fake"}, "b": {"kind": "fake"}}
        assert seconds(tasks=tasks) == pytest.approx(start + 4 * 0.5 + 2 * alone + 0.55 * start)
    go(tmp_path / "out")
    path = tmp_path / "out" / "trials.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    with fake:
        assert seconds(folder=tmp_path / "out") == 0.0
        path.write_text("".join(lines[:-1]))
        assert seconds(folder=tmp_path / "out") == pytest.approx(start + 0.5 + 3.0 + report_)
        path.write_text("".join(lines[1:12]))  # one of tuning, and all of reporting
        found = dry_run(study(), tmp_path / "out", 1, "serial")
        assert found["trials"]["done"] == 11
        assert found["seconds"] == pytest.approx(start + 1.0 + 2.0 + 18.0 + report_)


def test_data_that_is_not_here_is_named_and_not_fetched(file, monkeypatch, tmp_path):
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOSSNAV_OFFLINE", "1")
    file.write_text(
        TOML.replace('"logistic-regression"\ndimension = 3\nexamples = 40', '"cifar10"')
    )
    done = lossnav(file, "--dry-run")
    assert done.exit_code == 0
    assert "to be downloaded" in done.stdout
    assert "cannot be estimated" in done.stdout
    done = lossnav(file, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "cifar10" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("torch.optim.SGD", "torch.optim.SGDD", "Did you mean 'SGD'?"),
        ("[0.1, 1.0]", "[]", "line 9 (rules.sgd.grid.lr): the grid of lr is empty"),
        ("[1, 2]", "[0, 1]", "among the tuning seeds"),
        ("dimension = 3", "dimensions = 3", "Did you mean 'dimension'?"),
    ],
)
def test_a_bad_study_ends_with_one_sentence(file, tmp_path, old, new, said):
    file.write_text(TOML.replace(old, new))
    done = lossnav(file, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert not done.stdout
    assert done.stderr.startswith(f"Error: {file}")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_bad_options_end_with_one_sentence(file):
    for options, said in (
        (["--jobs", "0"], "--jobs is 0"),
        (["--engine", "rya"], "no engine named 'rya'"),
        (["--address", "auto"], "only --engine ray"),
        (["--callback", "wandbb"], "wandbb"),
    ):
        done = lossnav(file, *options)
        assert done.exit_code == 2
        assert said in done.stderr


STUDY_IN_A_TERMINAL = """
import sys; sys.path.insert(0, sys.argv[1]); from test_execution import *
import concurrent.futures, joblib.externals.loky as loky, typer
from lossnav.cli.commands import _guarded
from lossnav.studies import engines
from lossnav.studies.progress import PlainLines

# What a shell starts in the background ignores Ctrl-C, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)
asked = study(tasks={'a': {'kind': 'fake', 'pause': 0.3}})

class Lines(PlainLines):
    def begin(self, total, done): pass
    def finished(self, result): print('ended', flush=True)

def press_at(owner, name, call, times=1):
    original, calls = getattr(owner, name), []
    def pressed(*args, **kwargs):
        calls.append(1)
        for _ in range(times if len(calls) == call else 0):
            os.killpg(0, signal.SIGINT)  # as a terminal does: to the workers too
        return original(*args, **kwargs)
    setattr(owner, name, pressed)

exec(sys.argv[3])
fake.start()
try: _guarded(lambda: run(asked, sys.argv[2], jobs=2, progress=Lines(sys.stderr)))()
except typer.Exit as end: sys.exit(end.exit_code)
"""


def gone(group):
    """Whether every process of a group ends soon."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    "moment",
    [
        "",  # from outside, once a trial has ended
        "press_at(loky.ProcessPoolExecutor, 'submit', 1)",
        "press_at(loky.ProcessPoolExecutor, 'submit', 2)",
        "press_at(loky.ProcessPoolExecutor, '__init__', 2)",
        "press_at(engines, 'wait', 1)",
        "press_at(engines, 'wait', 9, times=2)",
        "press_at(concurrent.futures.Future, 'result', 1)",
        "press_at(engines, 'wait', 2); press_at(loky.ProcessPoolExecutor, 'shutdown', 1)",
        "press_at(engines, 'wait', 2); press_at(loky.ProcessPoolExecutor, 'shutdown', 2)",
    ],
)
def test_ctrl_c_stops_the_workers_and_exits_with_130(tmp_path, moment):
    """A real terminal's Ctrl-C, at any moment and also twice: the signal goes to the whole process group."""
    command = [sys.executable, "-c", STUDY_IN_A_TERMINAL, str(HERE), str(tmp_path / "out"), moment]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, start_new_session=True)
    if not moment:
        assert process.stdout.readline() == "ended\n"
        os.killpg(process.pid, signal.SIGINT)
    try:
        rest = process.communicate(timeout=60)[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            workers_left = not gone(process.pid)
            os.killpg(process.pid, signal.SIGKILL)
    assert not workers_left
    assert process.returncode == 130, rest
    assert "run the same command again to resume" in rest
    assert "Traceback" not in rest
    held = len(store.load(tmp_path / "out")[1])
    assert (0 if moment else 1) <= held < 12


@pytest.mark.parametrize("again", [0, 1, 60])
def test_ctrl_c_at_any_line_leaves_no_worker_and_no_lock(again):
    """Also if it comes again so many lines later."""
    command = [sys.executable, str(HERE / "interrupt_sweep.py"), "1", str(again)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(re.fullmatch(r"(\d+) moments\n", done.stdout)[1]) > 500, done.stdout


@pytest.fixture
def listening():
    """Ctrl-C as in a terminal, also where the tests run in the background and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_for_its_place_and_three_times_for_nothing(listening):
    with pytest.raises(KeyboardInterrupt), deferred() as check:  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        with deferred() as inner:
            assert inner is check
        done = True
        check()
        pytest.fail("not noticed")
    assert done
    with pytest.raises(KeyboardInterrupt), deferred():
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(ValueError, match="another"), deferred():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        raise ValueError("another")
    code = (
        "import signal\nfrom lossnav.studies.engines import deferred\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with deferred():\n    while True: signal.raise_signal(signal.SIGINT)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 130
    assert signal.getsignal(signal.SIGINT) is listening


def test_kills_lose_nothing():
    """The benchmark in small: 200 kills and 200 damages are its own."""
    pytest.importorskip("torch")
    command = [sys.executable, str(ROOT / "benchmarks" / "study_kills.py")]
    options = ["--kills", "4", "--workers-kills", "0", "--damages", "8", "--trials", "3"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "serial: 4 kills" in done.stdout
    assert done.stdout.endswith("nothing was lost\n")


def test_the_example_is_a_study(tmp_path):
    quick = read(ROOT / "examples" / "quick.toml")
    assert "lossnav.Navigator" in {rule.kind for rule in quick.rules.values()}
    assert len(quick.rules) == 4
    assert {rule.size for rule in quick.rules.values()} == {4}
    assert len(plan.tuning(quick)) == 32
    assert RunContext(".").callbacks == ()
