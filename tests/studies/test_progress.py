"""What is shown while a study runs, on a terminal and in a log."""

import io
import sys

import pytest
from rich.console import Console

from lossnav.studies.progress import Bars, PlainLines, Progress, choose, label
from lossnav.studies.trial import Result, Trial


def trial(seed=0):
    point = {"lr": 0.03, "nesterov": True}
    return Trial("digits", "sgd", "digits", {}, "optax.sgd", point, point, seed, "tuning", 10)


def result(seed=0, status="done", reason=""):
    return Result(trial(seed), status, reason, {}, {}, {})


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_log_gets_a_line_now_and_then_and_every_failure():
    stream, clock = io.StringIO(), Clock()
    shown = PlainLines(stream, clock)
    shown.begin(100, 0)
    for seed in range(50):
        clock.now += 0.5
        shown.finished(result(seed))
    shown.finished(result(50, "failed", "the disk\nis on fire."))
    shown.finished(result(51, "diverged", "The loss was inf."))
    lines = stream.getvalue().splitlines()
    assert lines == [
        "20 of 100 trials, about 40 s left.",  # every 10 s
        "40 of 100 trials, about 30 s left.",
        "Failed: digits sgd lr=0.03 nesterov=True seed 50: the disk is on fire.",
        "Diverged: digits sgd lr=0.03 nesterov=True seed 51: The loss was inf.",
    ]


def test_the_time_left_counts_parts_of_trials_and_not_what_was_done_before():
    clock = Clock()
    shown = PlainLines(io.StringIO(), clock)
    shown.begin(20, 10)
    clock.now = 30.0
    shown.finished(result(0))
    shown.step(trial(1), 5, 10, 0.1)  # 1.5 trials in 30 s, 8.5 to go
    assert shown.left() == pytest.approx(8.5 * 20.0)
    shown.skip(4)
    assert shown.left() == pytest.approx(4.5 * 20.0)


def test_a_terminal_has_a_bar_for_all_and_one_for_each_running_trial():
    stream = io.StringIO()
    shown = Bars(Console(file=stream, force_terminal=True, width=100, height=20), Clock())
    shown.begin(4, 1)
    shown.step(trial(1), 3, 10, 0.123456)
    shown.step(trial(2), 4, 10, 7.0)
    shown.bars.refresh()
    shown.finished(result(1, "failed", "[red]why[/red] not"))
    shown.bars.refresh()
    shown.close()
    text = stream.getvalue()
    for part in ("all trials", "1 of 4", "seed 1", "loss 0.1235", "loss 7", "2 of 4, 1 not done"):
        assert part in text
    assert "Failed: digits sgd lr=0.03 nesterov=True seed 1: [red]why[/red] not" in text
    assert not shown.parts.keys() - {trial(2).key}


def test_who_sees_what(monkeypatch, capsys):
    assert type(choose(quiet=True)) is Progress
    assert isinstance(choose(), PlainLines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(choose(), Bars)
    silent = choose(quiet=True)
    silent.begin(3, 0)
    silent.skip(1)
    silent.step(trial(), 1, 2, 0.5)
    silent.finished(result(0, "failed", "x"))
    silent.say("something")
    silent.close()
    assert capsys.readouterr() == ("", "")


def test_a_trial_has_a_short_name():
    assert label(trial(7)) == "digits sgd lr=0.03 nesterov=True seed 7"
