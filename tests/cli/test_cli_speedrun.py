"""``lossnav speedrun``: what it prints, where, and how it ends."""

import json
import sys

import pytest
from typer.testing import CliRunner

from lossnav.cli import commands
from lossnav.studies import data
from lossnav.studies.speedrun import entry, results, track

ENTRY = """
import torch

NAME = "Plain"
AUTHOR = "Ada"
TUNING = "not at all"

def make(model, steps, lr=0.1, schedule="linear"):
    print("made")
    return torch.optim.SGD(model.parameters(), lr), schedule
"""


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    """A folder to work in, with an entry and a small text; the model is tiny."""
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(ENTRY)
    (tmp_path / "tinyshakespeare.txt").write_text("the quick brown fox jumps over it. " * 60)
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    sizes = {"layers": 1, "width": 8, "heads": 2, "context": 8, "batch_size": 4}
    monkeypatch.setattr(track, "MODEL", sizes)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def speedrun(*arguments):
    return CliRunner().invoke(commands.app, ["speedrun", *arguments])


def test_the_table_alone():
    result = speedrun()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.split()[0] == "rule"
    assert f"Built-in entries: {', '.join(entry.BUILTIN)}." in result.stdout
    assert f"Target: {track.TARGET:g}." in result.stdout


def test_an_entry_of_ones_own(desk):
    result = speedrun("mine.py", "adamw", "mine.py", "--steps", "4", "--seeds", "2")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    mine = next(row for row in rows if row[:1] == ["Plain"])
    assert (mine[2], mine[-1]) == ("2", "no")
    assert "made" not in result.stdout
    assert "Plain (lr=0.1, schedule=linear), seed 101: validation loss" in result.stderr
    runs = results.read(desk / "speedrun.jsonl")
    assert [(run["entry"], run["seed"]) for run in runs] == [
        ("mine", 100), ("mine", 101), ("adamw", 100), ("adamw", 101),
    ]  # fmt: skip
    again = speedrun("mine.py", "--steps", "4", "--seeds", "2", "--json", "--quiet")
    assert again.stderr == "made\n"  # it is made to be checked, and not run again
    row = next(row for row in json.loads(again.stdout) if row["entry"] == "mine")
    assert (row["n"], row["steps"], row["author"], row["text"]) == (2, 4, "Ada", "tinyshakespeare")


def test_tuning_has_seeds_of_its_own_and_no_row(desk):
    result = speedrun("mine.py", "--set", "lr=0.1,0.5", "--set", "schedule=wsd", "--steps", "3")
    assert result.exit_code == 0
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == [
        "Plain (lr=0.5, schedule=wsd), seed 0",
        "Plain (lr=0.1, schedule=wsd), seed 0",
    ]
    runs = results.read(desk / "speedrun.jsonl")
    assert [run["reported"] for run in runs] == [False, False]
    assert "test" not in runs[0]
    assert "Plain" not in speedrun().stdout


def test_another_text(desk, monkeypatch):
    monkeypatch.setattr(data, "_python", lambda: "import this\n" * 100)
    result = speedrun("mine.py", "--text", "python", "--steps", "2")
    assert result.exit_code == 0
    assert "Text: python." in result.stdout
    assert "There is no target for this text: the track is on tinyshakespeare." in result.stdout
    assert "AdamW" not in result.stdout


def test_without_the_data(desk, monkeypatch):
    (desk / "tinyshakespeare.txt").unlink()
    monkeypatch.setenv("LOSSNAV_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(desk))
    result = speedrun("adamw")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: The data set 'tinyshakespeare' is not available")
    assert result.stderr.endswith("Or use --text python, outside the track.\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["muom"], "There is no built-in entry named 'muom'. Did you mean 'muon'?"),
        (["no.py"], "There is no file no.py: check the path."),
        (["broken.py"], "The entry broken.py cannot be loaded: NameError: name 'nothing' is not defined (line 1)."),
        (["mine.py", "--set", "rate=1"], "The entry 'mine' has no setting 'rate'. It takes: lr, schedule."),
        (["mine.py", "--set", "lr"], "--set is 'lr', but it must be a setting and its values, such as lr=0.001,0.002, and each setting once."),
        (["mine.py", "--set", "schedule=slow"], "The entry mine.py cannot be made: ValueError: the schedule 'slow' is none of constant, linear, cosine, wsd, cooldown, late."),
        (["--set", "lr=1"], "--set is for the entries to run: name one or more."),
        (["mine.py", "--seeds", "0"], "--seeds is 0, but it must be one or more."),
        (["mine.py", "--steps", "-1"], "--steps is -1, but it must be one or more."),
        (["mine.py", "--text", "pyton"], "There is no text named 'pyton'. Did you mean 'python'?"),
        (["mine.py", "--out", "runs.txt"], "--out is runs.txt, but its name must end in .jsonl."),
        (["--out", "wrong.jsonl"], "Line 1 of wrong.jsonl is no run of a speed-run: remove it, or choose another file with --out."),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_code_2(desk, arguments, sentence):
    (desk / "broken.py").write_text("nothing\n")
    (desk / "wrong.jsonl").write_text("{}\n")
    result = speedrun(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.removeprefix("made\n") == f"Error: {sentence}\n"
    assert not (desk / "speedrun.jsonl").exists()


def test_a_run_on_two_files_counts_once(desk):
    (desk / "again.jsonl").write_bytes(results.SHIPPED.read_bytes())
    plain, again = (
        json.loads(speedrun("--json", *more).stdout) for more in ([], ["--out", "again.jsonl"])
    )
    assert again == plain


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    ended = speedrun("adamw")
    assert ended.exit_code == 2
    assert "pip install 'lossnav[torch]'" in ended.output
