"""The speed-run: what a run measures, what is on file, who is refused, and when a lead counts."""

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from lossnav.studies import speedrun
from lossnav.studies.speedrun import entry, results, table, track, training

TINY = {"layers": 1, "width": 8, "heads": 2, "context": 8, "batch_size": 4}
EXTRA = Path(__file__).parents[2] / "benchmarks" / "speedrun" / "entries"
ENTRY = """
import torch

NAME = "Plain"
AUTHOR = "Ada"
TUNING = "not at all"

def make(model, steps, lr=0.1, schedule="linear"):
    return torch.optim.SGD(model.parameters(), lr), schedule
"""


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    """A tiny model, and a text with something to learn."""
    letters = np.random.default_rng(0).choice(list("abcdefgh "), 4000, p=[0.3, 0.2, *[0.5 / 7] * 7])
    (tmp_path / "tinyshakespeare.txt").write_text("".join(letters))
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    monkeypatch.setattr(track, "MODEL", TINY)


def written(tmp_path, source, name="mine"):
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    return entry.load(str(path))


def job(one, steps=10, **more):
    (found,) = results.jobs([one], seeds=1, steps=steps)
    return {**found, **more}


def test_a_run_is_that_of_a_plain_loop(tmp_path):
    """Seeds, batches, warm-up, decay and evaluation, written out."""
    steps, seed, peak = 20, 7, 0.3
    found = training.run(
        job(written(tmp_path, ENTRY), steps, seed=seed, settings={"lr": peak, "schedule": "linear"})
    )
    torch.manual_seed(seed)
    task = training.task("tinyshakespeare")
    model = task.model()
    rates = [1 / 3, 2 / 3, *np.linspace(1, 0, 18, endpoint=False)]
    batches = training.endless(task, seed)
    curve = []
    for step, rate in enumerate(rates):
        task.loss(model, next(batches)).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= peak * rate * p.grad
                p.grad = None
        if step >= 9:
            with torch.no_grad():
                curve.append((step + 1, task.evaluate(model, "validation")["loss"]))
    assert [row[:2] for row in found["curve"]] == [pytest.approx(row, abs=2e-6) for row in curve]
    assert found["validation"] == pytest.approx(curve[-1][1], abs=2e-6)
    with torch.no_grad():
        assert found["test"] == pytest.approx(task.evaluate(model, "test")["loss"], abs=2e-6)
    assert found["validation"] < math.log(9)


def test_costs(tmp_path):
    """Seconds grow along the curve, the optimizer's are a part of them, and state is counted."""
    found = training.run(job(entry.load("adamw"), 10))
    count = sum(p.numel() for p in training.task("tinyshakespeare").model().parameters())
    tensors = len(list(training.task("tinyshakespeare").model().parameters()))
    assert found["parameters"] == count
    assert found["state_bytes"] == 8 * count + 4 * tensors  # two averages, and a count for each
    times = np.array([row[2:] for row in found["curve"]])
    assert (np.diff(times, axis=0) >= 0).all()
    assert 0 <= found["optimizer_seconds"] < found["seconds"]


def test_a_rule_that_draws_numbers_gets_the_same_batches(tmp_path):
    draws = ENTRY.replace("    return", "    torch.manual_seed(5); torch.randn(3)\n    return")
    plain = training.run(job(written(tmp_path, ENTRY)))
    drawn = training.run(job(written(tmp_path, draws, "other")))
    other = training.run(job(written(tmp_path, ENTRY), seed=101))
    assert drawn["validation"] == plain["validation"] != other["validation"]


def test_an_average_is_what_is_evaluated(tmp_path):
    """`eval` and `train` are called around each evaluation."""
    source = (
        ENTRY
        + """
class Zeroed(torch.optim.SGD):
    def eval(self):
        self.kept = [p.detach().clone() for p in self.param_groups[0]["params"]]
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.zero_()
    def train(self):
        with torch.no_grad():
            for p, old in zip(self.param_groups[0]["params"], self.kept):
                p.copy_(old)
"""
    )
    source = source.replace("torch.optim.SGD(", "Zeroed(", 1)
    found = training.run(job(written(tmp_path, source)))
    assert [row[1] for row in found["curve"]] == pytest.approx([math.log(9)] * 6, abs=1e-5)


def test_lists_of_optimizers_and_a_schedule_of_ones_own(tmp_path):
    """Two halves of the parameters with one rate are the whole; a function may be the schedule."""
    source = ENTRY.replace(
        "return torch.optim.SGD(model.parameters(), lr), schedule",
        "p = list(model.parameters())\n"
        "    parts = [torch.optim.SGD(p[:3], lr), torch.optim.SGD(p[3:], lr)]\n"
        "    return parts, lambda step: min(1.0, (step + 1) / 2, (steps - step) / (steps - 1))",
    )  # fmt: skip
    one = training.run(job(written(tmp_path, ENTRY), 10))
    two = training.run(job(written(tmp_path, source, "two"), 10))
    assert two["validation"] == pytest.approx(one["validation"], abs=1e-6)


@pytest.mark.parametrize(
    "rule",
    [*entry.BUILTIN, *sorted(map(str, EXTRA.glob("*.py")))],
    ids=lambda rule: Path(rule).stem,
)
def test_each_entry_trains(rule):
    if Path(rule).suffix and "pytorch_optimizer" in Path(rule).read_text():
        pytest.importorskip("pytorch_optimizer")
    one = entry.load(rule)
    training.check(one, one.settings, 10, "tinyshakespeare")
    found = training.run(job(one, 10))
    assert (found["status"], found["reason"]) == ("done", "")
    assert found["validation"] < math.log(9) + 0.3


def test_the_entry_in_the_documentation(tmp_path):
    page = (EXTRA.parents[2] / "docs" / "speedrun.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    one = written(tmp_path, source, "sign")
    training.check(one, one.settings, 10, "tinyshakespeare")
    assert training.run(job(one, 10))["status"] == "done"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def make(:", "cannot be loaded: SyntaxError: "),
        ("import nothing_like_it", "cannot be loaded: ModuleNotFoundError: No module named 'nothing_like_it' (line 1)"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3 (line 1)"),
        (ENTRY.replace('AUTHOR = "Ada"', ""), "must say its AUTHOR, a line of text"),
        (ENTRY.replace('"not at all"', '" "'), "must say its TUNING, a line of text"),
        (ENTRY.replace("def make", "def made"), "must have a function make(model, steps, ...)"),
        (ENTRY.replace("model, steps, lr=0.1", "lr=0.1"), "must have make(model, steps, ...), with these two first"),
        (ENTRY.replace("lr=0.1, schedule=\"linear\"", "lr"), "has the setting 'lr' without a default"),
        (ENTRY.replace("lr=0.1", "lr=(1, 2)"), "has lr = (1, 2), but a setting must be a number"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused(tmp_path, source, sentence):
    with pytest.raises(ValueError) as error:
        written(tmp_path, source)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("), schedule", ")", "make() must return a pair"),
        ("torch.optim.SGD(model.parameters(), lr)", "3", "returned a int for an optimizer of PyTorch"),
        ("model.parameters()", "list(model.parameters())[1:]", "each parameter of the model must be in exactly one optimizer"),
        ('"linear"', '"linaer"', "the schedule 'linaer' is none of constant, "),
        ("    return", "    model.head.bias.data += 1\n    return", "changes the model in make()"),
        ("    return", "    model.more = torch.nn.Linear(1, 1)\n    return", "changes the model in make()"),
        ("    return", "    steps.real_name\n    return", "AttributeError: 'int' object has no attribute 'real_name' (line 9)"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_made_is_refused(tmp_path, old, new, sentence):
    one = written(tmp_path, ENTRY.replace(old, new))
    with pytest.raises(ValueError) as error:
        training.check(one, one.settings, 10, "tinyshakespeare")
    assert sentence in str(error.value)


def test_names_and_settings_that_there_are_not(tmp_path):
    with pytest.raises(ValueError, match=r"no built-in entry named 'muom'. Did you mean 'muon'\?"):
        entry.load("muom")
    with pytest.raises(ValueError, match=r"There is no file no/mine.py: check the path."):
        entry.load("no/mine.py")
    with pytest.raises(ValueError, match=r"The entry 'mine' has no setting 'rate'."):
        written(tmp_path, ENTRY).with_settings({"rate": 1})


def test_the_hash_is_of_the_code_alone(tmp_path):
    def code(source):
        return written(tmp_path, source).code

    first = code(ENTRY)
    for old, new in (
        ("Ada", "Eve"),
        ("lr=0.1", "lr=0.2"),
        ("\ndef", "\n# a note\ndef"),
        ("not at all", "well"),
    ):
        assert old in ENTRY
        assert code(ENTRY.replace(old, new)) == first
    assert code(ENTRY.replace("lr), schedule", "2 * lr), schedule")) != first
    assert code(ENTRY.replace("import torch", "import torch\nRATIO = 2")) != first


class Counted:
    """Stands in for training."""

    def __init__(self, monkeypatch):
        self.seeds = []
        monkeypatch.setattr(training, "run", self)

    def __call__(self, job, tell=None):
        self.seeds.append(job["seed"])
        if tell:
            tell(job["steps"], 1.0)
        return done(1.5)


def done(loss, **more):
    return {
        "status": "done", "reason": "", "curve": [[5, loss + 0.2, 1.0, 0.1], [10, loss, 3.0, 0.2]],
        "machine": {"cpu": "abacus"}, "parameters": 10, "validation": loss, "test": loss,
        "seconds": 3.0, "optimizer_seconds": 0.2, "state_bytes": 80, **more,
    }  # fmt: skip


def test_runs_on_file_are_not_repeated(tmp_path, monkeypatch):
    one, path, said = written(tmp_path, ENTRY), tmp_path / "runs.jsonl", []
    counted = Counted(monkeypatch)
    first = results.complete(results.jobs([one], seeds=2), path, say=said.append)
    assert counted.seeds == [100, 101]
    assert any("step 2,000 of 2,000" in line for line in said)
    again = results.complete(results.jobs([one], seeds=3), path, say=said.append)
    assert counted.seeds == [100, 101, 102]
    assert again[:2] == first
    assert "2 of 3 runs are on file." in said
    assert results.read(path) == again
    # Other settings, steps or code are other runs.
    results.complete(results.jobs([one], seeds=1, changed={"lr": [0.1]}), path)
    results.complete(results.jobs([one], seeds=1, steps=5), path)
    results.complete(results.jobs([written(tmp_path, ENTRY + "RATIO = 2\n")], seeds=1), path)
    assert counted.seeds[3:] == [0, 100, 100]


def test_a_line_torn_by_a_kill_is_run_again(tmp_path, monkeypatch):
    one, path = written(tmp_path, ENTRY), tmp_path / "runs.jsonl"
    counted, wanted = Counted(monkeypatch), results.jobs([one], seeds=2)
    results.complete(wanted, path)
    whole = path.read_bytes()
    for end in (len(whole) - 1, whole.index(b"\n") + 10):
        path.write_bytes(whole[:end])
        assert len(results.read(path)) == 1
        results.complete(wanted, path)
        assert path.read_bytes() == whole
    assert counted.seeds == [100, 101, 101, 101]


def test_a_damaged_line_is_refused_not_lost(tmp_path, monkeypatch):
    path = tmp_path / "runs.jsonl"
    Counted(monkeypatch)
    results.complete(results.jobs([written(tmp_path, ENTRY)], seeds=1), path)
    for text in (b"{}\n", b"[1]\n", b"nothing\n", b"\xff\n"):
        damaged = path.read_bytes().split(b"\n")[0] + b"\n" + text
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"Line 2 of .* is no run of a speed-run"):
            results.read(path)
        assert path.read_bytes() == damaged


def test_several_at_a_time(tmp_path, monkeypatch):
    """Each is written as soon as it ends, whatever the order; threads stand in for processes."""
    counted = Counted(monkeypatch)
    monkeypatch.setattr(results, "ProcessPoolExecutor", lambda n, mp_context: ThreadPoolExecutor(n))
    path, one = tmp_path / "runs.jsonl", written(tmp_path, ENTRY)
    found = results.complete(results.jobs([one], seeds=3), path, processes=2)
    assert sorted(counted.seeds) == [run["seed"] for run in found] == [100, 101, 102]
    assert len(path.read_text().splitlines()) == 3


def test_runs_that_fail_stay_on_file_and_in_the_table(tmp_path):
    broken = (
        ENTRY.replace("torch.optim.SGD", "Broken")
        + """
class Broken(torch.optim.SGD):
    def step(self):
        raise RuntimeError("out of luck")
"""
    )
    path = tmp_path / "runs.jsonl"
    entries = [
        written(tmp_path, broken, "broken"),
        written(tmp_path, ENTRY.replace("lr=0.1", "lr=1e20"), "wild"),
    ]
    for _ in range(2):
        results.complete(results.jobs(entries, seeds=1, steps=10), path)
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["status"], first["reason"]) == ("failed", "RuntimeError: out of luck (line 13)")
    assert second["status"] == "diverged"
    assert "loss was nan" in second["reason"]
    rows = table.rows(results.read(path))
    assert [row["entry"] for row in rows] == ["broken", "wild"]
    text = table.text(rows)
    assert "Plain failed: RuntimeError: out of luck (line 13)" in text
    assert [line.split()[-1] for line in text.splitlines()[1:3]] == ["failed", "failed"]


def runs_of(name, losses, **more):
    return [
        {
            "track": track.VERSION, "entry": name, "name": name.title(), "author": "Ada",
            "tuning": "-", "code": "0", "settings": {}, "text": track.TEXT, "steps": 10,
            "seed": 100 + i, "reported": True, **done(loss), **more,
        }
        for i, loss in enumerate(losses)
    ]  # fmt: skip


def test_the_table_by_hand():
    target = track.TARGET
    runs = runs_of("slow", [target + 0.1])
    runs += runs_of("fast", [target - 0.1, target - 0.05])
    runs += runs_of("half", [target - 0.1, target + 0.01])
    runs += runs_of("tuned", [1.0], reported=False) + runs_of("other", [1.0], text="python")
    runs += runs_of("old", [1.0], track=track.VERSION - 1)
    rows = table.rows(runs)
    assert [row["entry"] for row in rows] == ["fast", "half", "slow"]
    # From 5 to 10 steps the loss falls by 0.2: it is at the target after a half and three quarters.
    assert rows[0]["steps_to_target"] == pytest.approx((7.5 + 8.75) / 2)
    assert rows[0]["seconds_to_target"] == pytest.approx((2.0 + 2.5) / 2)
    assert rows[0]["optimizer_seconds_to_target"] == pytest.approx((0.15 + 0.175) / 2)
    assert rows[1]["steps_to_target"] is None  # one of its seeds does not
    assert rows[1]["validation"] == pytest.approx(target - 0.045)
    assert rows[0]["n"] == 2
    head, first, *_ = table.text(rows).splitlines()
    assert head.split()[0] == "rule"
    words = first.split()
    assert words[:4] == ["Fast", "10", "2", f"{target - 0.075:.4f}"]
    assert words[5:] == ["8", "2", "7", "%", "8.0", "yes"]
    (alone,) = table.rows(runs, "python")
    assert alone["steps_to_target"] is alone["below_target"] is None
    assert "There is no target for this text" in table.text([alone], "python")


def test_other_machines_have_other_rows():
    runs = runs_of("fast", [1.0]) + runs_of("fast", [1.0], machine={"cpu": "slide rule"})
    assert [row["n"] for row in table.rows(runs)] == [1, 1]
    assert "on: abacus; slide rule." in table.text(table.rows(runs))


@pytest.mark.parametrize("n", [1, 3])
def test_one_in_a_hundred_passes_by_luck(n):
    """Entries whose true mean is the target, with a margin from the spread of k + 1 other seeds."""
    k, count, sd = 4, 4000, 0.01
    rng = np.random.default_rng(n)
    spread = rng.normal(size=(count, k + 1)).std(axis=1, ddof=1) * sd
    losses = 1.7 + sd * rng.normal(size=(count, n))
    margins = stats.t.ppf(0.99, k) * spread
    passed = [
        track.below_target(row, 1.7, margin)
        for row, margin in zip(losses.tolist(), margins, strict=True)
    ]
    assert np.mean(passed) == pytest.approx(0.01, abs=0.005)
    better = [track.below_target((row - 8 * sd).tolist(), 1.7, 4 * sd) for row in losses[:200]]
    assert all(better)


def test_nothing_and_a_lost_run_are_not_below():
    assert not track.below_target([])
    assert not track.below_target([0.1, math.inf])


def test_the_margin_is_that_of_the_measured_spread():
    """The constants of the track are what docs/speedrun.md says that they are made of."""
    losses = [run["validation"] for run in results.read(results.SHIPPED)
              if run["entry"] == "adamw" and run["steps"] == track.STEPS]  # fmt: skip
    k = len(losses) - 1
    margin = stats.t.ppf(0.99, k) * np.std(losses, ddof=1)
    assert track.MARGIN == pytest.approx(margin, abs=0.0051)
    assert track.MARGIN >= margin
    least = next(t for t in np.arange(100, 300) / 100 if track.below_target(losses, t))
    assert least == track.TARGET


def test_what_is_shipped_was_made_by_the_entries_as_they_are():
    shipped = results.read(results.SHIPPED)
    files = {path.stem: path for path in EXTRA.glob("*.py")}
    for name in {run["entry"] for run in shipped}:
        if name in files and "pytorch_optimizer" in files[name].read_text():
            pytest.importorskip("pytorch_optimizer")
        one = entry.load(name if name in entry.BUILTIN else str(files[name]))
        for run in shipped:
            if run["entry"] == name:
                assert (run["code"], run["settings"], run["name"]) == (
                    one.code,
                    one.settings,
                    one.name,
                )
                assert run["reported"]
                assert run["seed"] >= track.REPORTING_SEED
                assert [row[0] for row in run["curve"]] == track.evaluated_after(run["steps"])


def test_matrices_and_others():
    model = training.task("tinyshakespeare").model()
    inner, others = speedrun.parted(model)
    assert [tuple(p.shape) for p in inner] == [(24, 8), (8, 8), (32, 8), (8, 32)]
    assert len(inner) + len(others) == len(list(model.parameters()))
    assert {id(model.head.weight), id(model.letter.weight), id(model.place)} <= set(map(id, others))
