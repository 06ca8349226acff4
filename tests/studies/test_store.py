"""The study's folder: what is written can be read after any kill, and by anyone."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lossnav.studies import store
from lossnav.studies.store import BusyError, Store, StoreError, load, scratch
from lossnav.studies.trial import Result, Trial


def made(seed, status="done", size=50):
    trial = Trial("a", "r", "digits", {}, "optax.sgd", {"lr": 0.1}, {"lr": 0.1}, seed, "tuning", 5)
    curves = {"loss": np.random.default_rng(seed).random(size), "file": np.arange(3)}
    curves["loss"][-1] = seed / 7
    return Result(trial, status, "", {"loss": seed / 7}, {"seconds": 1.0}, curves)


def fill(folder, count=3):
    with Store(folder, "tiny") as held:
        held.write_json("study.json", {"name": "tiny", "planned": []})
        for seed in range(count):
            held.add(made(seed))
    return folder


def seeds(folder):
    return [result.trial.seed for result in load(folder)[1]]


def test_what_is_added_comes_back_whole(tmp_path):
    fill(tmp_path / "deep" / "folder")
    study, results = load(tmp_path / "deep" / "folder")
    assert study["name"] == "tiny"
    assert [r.trial for r in results] == [made(seed).trial for seed in range(3)]
    for seed, result in enumerate(results):
        assert result == made(seed)
        for name, values in made(seed).curves.items():
            np.testing.assert_array_equal(result.curves[name], values)
            assert result.curves[name].dtype == values.dtype


def test_lines_are_json_and_curves_are_plain_npz(tmp_path):
    """Read by the standard library and NumPy alone."""
    fill(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert [line["trial"]["seed"] for line in lines] == [0, 1, 2]
    for line in lines:
        assert line["curves"] == f"curves/{line['key']}.npz"
        assert line["finished"].endswith("+00:00")
        assert line["host"]
        with np.load(tmp_path / line["curves"], allow_pickle=False) as curves:
            np.testing.assert_array_equal(curves["file"], np.arange(3))


def test_equal_curves_make_equal_files():
    first, second = (store.packed(made(1).curves) for _ in range(2))
    assert first == second


def test_a_file_cut_at_any_byte_loses_no_whole_line(tmp_path):
    """A kill may leave any part of the last line; all other lines count."""
    whole = (fill(tmp_path) / "trials.jsonl").read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in [*range(ends[1], ends[2], 37), ends[2] - 1, ends[2]]:
        (tmp_path / "trials.jsonl").write_bytes(whole[:cut])
        held = [seed for seed, end in enumerate(ends) if end <= cut]
        # Before the repair, a line that lacks only its newline is whole and counts.
        assert seeds(tmp_path) == ([0, 1, 2] if cut == ends[2] - 1 else held)
        with Store(tmp_path, "tiny") as opened:
            assert [r.trial.seed for r in opened.results.values()] == held
            assert not opened.damaged
            opened.add(made(9))
        assert seeds(tmp_path) == [*held, 9]


@pytest.mark.parametrize("harm", ["missing", "empty", "cut", "flipped", "another"])
def test_a_line_without_its_curves_does_not_count(tmp_path, harm):
    fill(tmp_path)
    path = tmp_path / "curves" / f"{made(1).trial.key}.npz"
    raw = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "flipped":
        path.write_bytes(raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:])
    else:
        other = (tmp_path / "curves" / f"{made(2).trial.key}.npz").read_bytes()
        path.write_bytes({"empty": b"", "cut": raw[:-10], "another": other}[harm])
    assert seeds(tmp_path) == [0, 2]
    why = "are missing" if harm == "missing" else "do not have the hash that it names"
    with Store(tmp_path, "tiny") as held:
        assert held.damaged.startswith(f"{tmp_path / 'trials.jsonl'}, line 2 (its curves")
        assert held.damaged.endswith(f"{why}): a damaged line does not count.")
        held.add(made(1))
    assert seeds(tmp_path) == [0, 2, 1]


@pytest.mark.parametrize(
    "line",
    [
        *(b"\0" * 300, b"{}", b"[1]", b"1", b"\xff\xfe", b"[" * 100_000),
        b'{"key": "../../x", "curves_sha256": "0"}',
    ],
)
def test_damage_in_the_middle_costs_only_its_own_line(tmp_path, line):
    fill(tmp_path)
    lines = (tmp_path / "trials.jsonl").read_bytes().splitlines()
    (tmp_path / "trials.jsonl").write_bytes(b"\n".join([lines[0], line, *lines[1:], b""]))
    assert seeds(tmp_path) == [0, 1, 2]
    with Store(tmp_path, "tiny") as held:
        assert "trials.jsonl, line 2 (" in held.damaged


def edited(folder, line, **changes):
    """Change a line of ``trials.jsonl``, counted from 1; None takes a name away."""
    path = folder / "trials.jsonl"
    lines = path.read_text().splitlines()
    entry = json.loads(lines[line - 1]) | changes
    lines[line - 1] = json.dumps({name: x for name, x in entry.items() if x is not None})
    path.write_text("\n".join([*lines, ""]))


def test_a_line_that_was_changed_by_hand_does_not_count(tmp_path):
    fill(tmp_path)
    text = (tmp_path / "trials.jsonl").read_text()
    (tmp_path / "trials.jsonl").write_text(text.replace('"seed": 1', '"seed": 5'))
    assert seeds(tmp_path) == [0, 2]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"final": {"loss": 9.0}}, "it does not have the hash that it names"),
        ({"cost": {"seconds": 0.1}}, "it does not have the hash that it names"),
        ({"status": "failed"}, "it does not have the hash that it names"),
        ({"sha256": "0" * 64}, "it does not have the hash that it names"),
        ({"final": {"loss": 9.0}, "sha256": None}, "its final loss, 9.0, is not the last one of its curve"),
        ({"final": {"loss": "9"}, "sha256": None}, "its final loss, '9', is not the last one of its curve"),
        ({"final": [9.0], "sha256": None}, "it is not as it was written"),
    ],
)  # fmt: skip
def test_a_result_that_was_changed_by_hand_does_not_count(tmp_path, changes, why):
    """Neither where the line has its hash, nor where the curves alone say what is true."""
    edited(fill(tmp_path), 2, **changes)
    study, results = load(tmp_path)
    sentence = f"{tmp_path / 'trials.jsonl'}, line 2 ({why}): a damaged line does not count."
    assert study["damaged"] == sentence
    assert [result.trial.seed for result in results] == [0, 2]
    with Store(tmp_path, "tiny") as held:
        assert held.damaged == sentence
        assert made(1).trial.key not in held.results
        held.add(made(1))  # run again
    study, results = load(tmp_path)
    assert "damaged" not in study
    assert [result.trial.seed for result in results] == [0, 2, 1]


def test_lines_of_earlier_versions_count_without_a_hash(tmp_path):
    edited(fill(tmp_path), 2, sha256=None)
    with Store(tmp_path, "tiny") as held:
        assert (held.damaged, held.unsigned) == ("", 1)
    study, results = load(tmp_path)
    assert "damaged" not in study
    assert results == [made(seed) for seed in range(3)]


def test_many_damaged_lines_still_make_one_sentence(tmp_path):
    fill(tmp_path, 6)
    for line in range(1, 7):
        edited(tmp_path, line, status="failed")
    sentence = load(tmp_path)[0]["damaged"]
    assert "line 1 (" in sentence
    assert " and 3 more: " in sentence
    assert "line 4" not in sentence


def test_of_two_lines_of_one_trial_the_last_counts(tmp_path):
    with Store(fill(tmp_path), "tiny") as held:
        held.add(replace(made(1), status="failed", reason="why not"))
        assert list(held.results)[-1] == made(1).trial.key
    results = load(tmp_path)[1]
    assert [(r.trial.seed, r.status) for r in results] == [(0, "done"), (2, "done"), (1, "failed")]


@pytest.mark.parametrize("how", ["replaced", "removed", "cut", "edited", "longer"])
def test_lines_that_others_change_in_the_middle_of_a_run_are_noticed(tmp_path, how):
    """Else what is added goes to a file that no longer has a name, or lines vanish unseen."""
    path = tmp_path / "trials.jsonl"
    with Store(fill(tmp_path), "tiny") as held:
        text = path.read_text()
        if how == "replaced":  # as most editors save a file
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").replace(path)
        elif how == "removed":
            path.unlink()
        else:
            lines = text.splitlines(keepends=True)
            edited_lines = {
                "cut": lines[:-1],
                "edited": [*lines[:-1], "{}\n"],
                "longer": [*lines, "{}\n"],
            }
            path.write_text("".join(edited_lines[how]))
        with pytest.raises(StoreError, match="changed by another program while the study ran"):
            held.add(made(3))
    with Store(tmp_path, "tiny") as held:
        held.add(made(3))
    assert seeds(tmp_path)[-1] == 3


def test_what_dead_runs_left_is_removed(tmp_path):
    fill(tmp_path)
    for place in (tmp_path, tmp_path / "curves"):
        (place / ".report.html.x7.tmp").write_text("half")
    with Store(tmp_path, "tiny"):
        assert not [*tmp_path.rglob(".*.tmp")]
    assert seeds(tmp_path) == [0, 1, 2]


HOLD = """
import sys, time
from pathlib import Path
from lossnav.studies.store import Store
with Store(Path(sys.argv[1]), "tiny"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_no_line_is_written_before_its_curves(tmp_path, monkeypatch):
    def stopped(path, raw):
        raise KeyboardInterrupt

    with Store(fill(tmp_path), "tiny") as held:
        before = (tmp_path / "trials.jsonl").read_bytes()
        monkeypatch.setattr(store, "write_whole", stopped)
        with pytest.raises(KeyboardInterrupt):
            held.add(made(3))
        assert (tmp_path / "trials.jsonl").read_bytes() == before
        assert len(held.results) == 3


def test_two_runs_cannot_write_one_folder_and_a_killed_one_leaves_no_lock(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match=f"process {holder.pid} on .*--out"):
            Store(tmp_path, "tiny")
    finally:
        holder.kill()
        holder.communicate()
    assert seeds(fill(tmp_path)) == [0, 1, 2]


def test_a_lock_is_given_back_also_in_this_process(tmp_path):
    with Store(tmp_path, "tiny"), pytest.raises(BusyError):
        Store(tmp_path, "tiny")
    with Store(tmp_path, "tiny"):
        pass


def test_folders_of_others_are_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="not empty and holds no study"):
        Store(tmp_path, "tiny")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thesis.tex"]
    with pytest.raises(StoreError, match="not a folder"):
        Store(tmp_path / "thesis.tex", "tiny")
    with pytest.raises(StoreError, match="holds the study 'tiny', and this one is 'other'"):
        Store(fill(tmp_path / "study"), "other")
    with pytest.raises(StoreError, match="holds no study"):
        load(tmp_path / "none")
    newer = fill(tmp_path / "newer")
    (newer / "study.json").write_text('{"name": "tiny", "format": 99}')
    with pytest.raises(StoreError, match="newer lossnav"):
        load(newer)
    (newer / "study.json").write_text('{"name": ')
    with pytest.raises(StoreError, match="damaged"):
        load(newer)


@pytest.mark.parametrize("made_so_far", [[], ["curves"], ["curves", "lock"]])
def test_a_run_killed_while_it_made_the_folder_can_be_begun_again(tmp_path, made_so_far):
    for name in made_so_far:
        (tmp_path / name).touch() if name == "lock" else (tmp_path / name).mkdir()
    assert seeds(fill(tmp_path)) == [0, 1, 2]


@pytest.mark.parametrize("part", [0, 1, 200])
def test_a_full_disk_stops_with_a_sentence_and_loses_nothing(tmp_path, monkeypatch, part):
    """The disk takes some bytes of the line and then no more."""
    write = os.write

    def full(handle, raw):
        if bytes(raw[:7]) == b'{"key":' and part:
            return write(handle, raw[:part])
        raise OSError(errno.ENOSPC, "No space left on device")

    with Store(fill(tmp_path), "tiny") as held:
        before = (tmp_path / "trials.jsonl").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(
                StoreError, match=r"No room is left .* the 3 trials that ended are safe"
            ):
                held.add(made(3))
        assert (tmp_path / "trials.jsonl").read_bytes() == before
        assert not [*tmp_path.rglob(".*.tmp")]
        held.add(made(4))
    assert seeds(tmp_path) == [0, 1, 2, 4]


LIMITED = """
import resource, signal, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_store import Store, made
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Store(Path(sys.argv[1]), "tiny") as held:
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
    try:
        for seed in range(100):
            held.add(made(seed))
    except OSError as error:
        print(len(held.results), error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit to set")
def test_a_limit_that_the_system_enforces_leaves_whole_lines(tmp_path):
    """The kernel itself refuses the bytes here."""
    command = [sys.executable, "-c", LIMITED, tmp_path, Path(__file__).parent]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, _, sentence = done.stdout.partition(" ")
    assert "No room is left" in sentence
    raw = (tmp_path / "trials.jsonl").read_bytes()
    assert 0 < len(raw) <= 3000
    assert raw.endswith(b"\n")
    fill(tmp_path, 0)
    assert seeds(tmp_path) == list(range(int(count)))


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_store import Store, made
with Store(Path(sys.argv[1]), "tiny") as held:
    held.write_json("study.json", {"name": "tiny"})
    for seed in range(len(held.results), 10**6):
        held.add(made(seed))
        print(seed, flush=True)
"""


def test_what_a_killed_writer_had_said_is_there(tmp_path):
    """kill -9 at some moment; everything that it had printed can be read."""
    command = [sys.executable, "-c", WRITER, tmp_path, Path(__file__).parent]
    for _ in range(3):
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said = writer.stdout.readline()
        threading.Timer(0.05, writer.send_signal, [signal.SIGKILL]).start()
        rest = writer.communicate()[0].splitlines()
        last = int(([said, *rest])[-1] if not rest or rest[-1].isdigit() else rest[-2])
        held = seeds(tmp_path)
        assert held[: last + 1] == list(range(last + 1))
        assert len(held) <= last + 2


def test_reading_goes_on_while_a_run_writes(tmp_path):
    fill(tmp_path, 1)
    wrong = []

    def watch():
        known = 0
        while known < 40:
            found = seeds(tmp_path)
            if found != list(range(len(found))) or len(found) < known:
                wrong.append(found)
            known = len(found)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with Store(tmp_path, "tiny") as held:
        for seed in range(1, 40):
            held.add(made(seed))
    watcher.join(timeout=20)
    assert not wrong
    assert seeds(tmp_path) == list(range(40))


def test_nothing_here_needs_torch():
    code = "import sys, lossnav.studies.execution; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_curves_that_would_need_pickle_are_refused(tmp_path):
    bad = replace(made(0), curves={"loss": np.array([None, "x"], dtype=object)})
    with Store(tmp_path, "tiny") as held, pytest.raises(ValueError, match="Object arrays"):
        held.add(bad)
    assert store.FORMAT == 1


def test_what_a_killed_run_left_of_its_scratch_is_removed(tmp_path):
    with scratch(str(fill(tmp_path))) as name:
        assert Path(name).parent == tmp_path.resolve()
    assert not Path(name).exists()
    left = tmp_path / ".run-of-a-killed-one"
    left.mkdir()
    (left / "news").write_text("x")
    with Store(tmp_path, "tiny"):
        assert not left.exists()
    assert len(load(tmp_path)[1]) == 3
