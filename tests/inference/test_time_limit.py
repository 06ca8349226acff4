"""Optimizers that never return: given up after the limit, stopped where that is possible."""

import threading
import time

import pytest
from typer.testing import CliRunner

from lossnav.cli.commands import app
from lossnav.inference import infer, time_limit
from lossnav.inference.probes import ProbeError

END = threading.Event()
"""Lets native code return that nothing else ends."""


@pytest.fixture
def hanging(monkeypatch):
    """The limit is over as soon as the optimizer hangs, however busy the machine is."""
    reached = threading.Event()
    plain, waits = time_limit._wait, []

    def wait(thread, seconds):
        waits.append(seconds)
        if len(waits) > 1:
            return plain(thread, seconds)
        assert seconds == 7.0
        assert reached.wait(60)
        return None

    monkeypatch.setattr(time_limit, "_wait", wait)
    yield reached
    END.set()
    for thread in threading.enumerate():
        if thread.name == "lossnav infer":
            thread.join(60)
    END.clear()


def python_code(reached):
    while True:
        reached.set()


def python_code_that_catches(reached):
    while True:
        try:
            time.sleep(0.001)
            reached.set()
        except Exception:
            pass


def native_code(reached):
    reached.set()
    END.wait()


def after(calls, hang, reached):
    """Gradient descent that hangs at a call."""
    count = []

    def mine(grad, theta):
        count.append(1)
        if len(count) == calls:
            hang(reached)
        return -0.1 * grad

    return mine


@pytest.mark.parametrize("hang", [python_code, python_code_that_catches])
def test_python_code_that_never_returns_is_stopped(hanging, hang):
    with pytest.raises(ProbeError) as caught:
        infer(after(1, hang, hanging), shape=(2, 2), timeout=7.0)
    assert str(caught.value) == (
        "mine did not finish within 7 s (it was probed for steps that are linear in gradient and "
        "weights, at step 1): if it is slow and does not hang, give more time with timeout."
    )
    assert not [thread for thread in threading.enumerate() if thread.name == "lossnav infer"]


def test_native_code_that_never_returns_is_left_behind_and_said(hanging, monkeypatch):
    monkeypatch.setattr(time_limit, "GRACE", 0.05)
    with pytest.raises(ProbeError, match="its thread cannot be stopped, and runs on"):
        infer(after(1, native_code, hanging), shape=(2, 2), timeout=7.0)
    assert [thread for thread in threading.enumerate() if thread.name == "lossnav infer"]


def test_an_optimizer_that_hangs_when_it_is_made(hanging):
    pytest.importorskip("torch")

    def make(params):
        python_code(hanging)

    make.__name__ = "Maker"
    with pytest.raises(ProbeError, match=r"^Maker did not finish within 7 s \(it was "):
        infer(make, shape=(2, 2), timeout=7.0)


def test_in_another_thread_and_at_a_later_probe(hanging):
    """Call 2000 of gradient descent is long after the first probes."""
    raised = []

    def work():
        try:
            infer(after(2000, python_code, hanging), shape=(2, 2), timeout=7.0)
        except ProbeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    (sentence,) = raised
    assert "probed for" in sentence
    assert "linear in gradient and weights" not in sentence


def test_what_is_slow_ends_between_two_steps(hanging, monkeypatch):
    """The optimizer is never interrupted in the middle of a step."""
    begun, ended = [], []

    def slow(grad, theta):
        begun.append(1)
        hanging.set()
        time.sleep(0.01)
        ended.append(1)
        return -0.1 * grad

    with pytest.raises(ProbeError, match="slow did not finish"):
        infer(slow, shape=(2, 2), timeout=7.0)
    assert len(begun) == len(ended)


def test_ctrl_c_ends_the_work_too(monkeypatch):
    reached = threading.Event()
    plain, waits = time_limit._wait, []

    def wait(thread, seconds):
        waits.append(seconds)
        if len(waits) > 1:
            return plain(thread, seconds)
        assert reached.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(time_limit, "_wait", wait)
    with pytest.raises(KeyboardInterrupt):
        infer(after(1, python_code, reached), shape=(2, 2))
    assert not [thread for thread in threading.enumerate() if thread.name == "lossnav infer"]


def test_a_limit_changes_no_number_and_may_be_left_out():
    def plain(grad, theta):
        return -0.25 * grad

    with_limit, without = infer(plain, shape=(2, 2)), infer(plain, shape=(2, 2), timeout=None)
    assert with_limit.to_dict() | {"seconds": 0} == without.to_dict() | {"seconds": 0}
    for wrong in (0, -1.0, float("nan"), "soon"):
        with pytest.raises((ValueError, TypeError), match=r"timeout (is|must be)"):
            infer(plain, shape=(2, 2), timeout=wrong)


def test_the_command_says_which_probe_was_running(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    (tmp_path / "endless.py").write_text("def mine(grad, theta):\n    while True:\n        pass\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["infer", "endless:mine", "--timeout", "0.5", "--shape", "2,2"])
    assert done.exit_code == 2
    assert "endless:mine did not finish within 0.5 s (it was " in done.stderr
    assert done.stderr.count("\n") == 1
