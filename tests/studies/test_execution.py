"""Studies from file to report: resumed, changed, interrupted, killed, and refused."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from lossnav.cli.commands import app
from lossnav.studies import report, store
from lossnav.studies.engines import Job
from lossnav.studies.execution import check, run
from lossnav.studies.progress import Quiet
from lossnav.studies.spec import plan
from lossnav.studies.spec.file import Study, StudyError

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


class Said(Quiet):
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
    options = {"engine": "serial", "training": "fake_training", "progress": said, **options}
    with mock.patch("lossnav.studies.report.write", report.write if with_report else page_of):
        assert run(asked or study(), folder, **options) == page_of(folder)
    assert said.lines.pop(0) == f"The study tiny is kept in {folder}."
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
        "report.html", "summary.csv", "trials.jsonl", "study.json", "environment.json", "curves",
    }  # fmt: skip
    assert {key: held[key] for key in ("name", "rules", "budget", "seeds")} == {
        key: study().to_dict()[key] for key in ("name", "rules", "budget", "seeds")
    }


def test_a_study_that_is_done_runs_nothing_again(tmp_path):
    go(tmp_path)
    lines = (tmp_path / "trials.jsonl").read_bytes()
    said = go(tmp_path)
    assert (said.begun, said.ended) == ((18, 18), [])
    assert (tmp_path / "trials.jsonl").read_bytes() == lines


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
    # Two of tuning at 0.2, four of reporting at 0.2, and two of reporting on seed 13, less the one at 0.2.
    assert "Kept but not reported: 7 trials of an earlier version of the study." in changed.lines
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
        f"Stopped. 6 trials kept in {tmp_path / 'out'}: run the same command again to go on."
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
    assert check(asked, "fake_training") == {"a": ("error", "lower"), "b": ("other", "lower")}


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
        "in studies/cli", "lr=0.1; lr=1", "torch.optim.Adam", "5 steps", "Tuning: 4 trials, on seeds 0.",
        "Reporting: 4 trials, on seeds 1, 2.", "4 parameters", "with 2 processes",
    ):  # fmt: skip
        assert part in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.toml"]
    lossnav(file, "--quiet", "--engine", "serial")
    found = json.loads(lossnav(file, "--dry-run", "--json").stdout)
    assert found["trials"] == {"tuning": 4, "reporting": 4, "done": 8}
    assert found["seconds"] == 0.0


def test_data_that_is_not_here_is_named_and_not_fetched(file, monkeypatch, tmp_path):
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOSSNAV_OFFLINE", "1")
    file.write_text(
        TOML.replace('"logistic-regression"\ndimension = 3\nexamples = 40', '"cifar10"')
    )
    done = lossnav(file, "--dry-run")
    assert done.exit_code == 0
    assert "to be fetched" in done.stdout
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


def test_ctrl_c_stops_the_workers_and_exits_with_130(tmp_path):
    """A real terminal's Ctrl-C: the signal goes to the whole process group."""
    pause = {"kind": "fake", "pause": 0.3}
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_execution import *\n"
        "from lossnav.cli.commands import _guarded\nfrom lossnav.studies.progress import Plain\n"
        # What a shell starts in the background ignores Ctrl-C, and so would this.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"asked = study(tasks={{'a': {pause!r}}})\n"
        "class Lines(Plain):\n"
        "    def begin(self, total, done): pass\n    def finished(self, result): print('ended', flush=True)\n"
        "import typer\n"
        "try: _guarded(lambda: run(asked, sys.argv[2], jobs=2, training='fake_training',\n"
        "         progress=Lines(sys.stderr)))()\n"
        "except typer.Exit as end: sys.exit(end.exit_code)\n"
    )
    command = [sys.executable, "-c", code, str(HERE), str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, start_new_session=True)
    first = process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    rest = process.communicate(timeout=30)[1]
    assert first == "ended\n"
    assert process.returncode == 130, rest
    assert "run the same command again to go on" in rest
    assert "Traceback" not in rest
    held = len(store.load(tmp_path / "out")[1])
    assert 1 <= held < 12
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("workers went on after Ctrl-C")


def test_kills_lose_nothing():
    """The benchmark in small; 200 kills are its own business."""
    pytest.importorskip("torch")
    command = [sys.executable, str(ROOT / "benchmarks" / "study_kills.py")]
    options = ["--kills", "4", "--workers-kills", "0", "--trials", "3"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "serial: 4 kills" in done.stdout
    assert done.stdout.endswith("nothing was lost\n")


def test_the_example_is_a_study(tmp_path):
    from lossnav.studies import read

    quick = read(ROOT / "examples" / "quick.toml")
    assert len(quick.rules) == 3
    assert {rule.size for rule in quick.rules.values()} == {4}
    assert len(plan.tuning(quick)) == 24
    assert Job(".").callbacks == ()
