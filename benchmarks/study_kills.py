"""Kill a study at random moments and damage its files, and see that nothing is lost or false.

A study of many tiny trials runs in a process group that is killed (``kill -9``) after a random time, again
and again. Whenever it comes to its end, it is compared with one that was never interrupted, and another one
is begun. A watcher reads ``trials.jsonl`` all the while. Counted are

    lost       trials that the watcher saw as ended and that a later reader did not find
    corrupt    files that could not be read after a kill: lines but the last, curves, JSON
    different  numbers that differ from the uninterrupted study; times do not count

Then the files of a finished study are damaged, one at a time: a byte or a digit changed, a file cut short or
removed, a line removed or put among others. Counted are

    false      results that are read and differ from the uninterrupted study
    silent     trials that are missing without a word; a line that was removed whole leaves no trace
    different  numbers that differ after the study was run again

All must be zero. The process is forked after its imports, because to import PyTorch takes longer than
everything else; its workers, with the engine joblib, import it each time. 200 kills take several minutes, most
of them for the 40 that go to studies with workers.

    python benchmarks/study_kills.py [--kills N] [--workers-kills N] [--damages N] [--seed N]
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse  # noqa: E402
import contextlib  # noqa: E402
import csv  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import random  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import zipfile  # noqa: E402
from pathlib import Path  # noqa: E402

import matplotlib.figure  # noqa: E402, F401  as well as PyTorch below: before the forks
import numpy as np  # noqa: E402

import lossnav.studies.report  # noqa: E402
import lossnav.studies.trial.training  # noqa: E402, F401
from lossnav.studies import store  # noqa: E402
from lossnav.studies.execution import run  # noqa: E402

TASK = '''
import torch
from lossnav.studies.tasks import task_of

def line():
    """A line through eight points: three steps take a millisecond."""
    x = torch.linspace(-1, 1, 8)[:, None]
    def error(model, batch):
        return (model(batch) - 2 * batch).square().mean()
    return task_of(
        model=lambda: torch.nn.Linear(1, 1),
        batches=lambda rng: x[torch.randperm(8, generator=rng)].split(4),
        loss=error,
        evaluate=lambda model, split: {"loss": float(error(model, x))},
    )
'''
STUDY = """
name = "kills"
[tasks.line]
kind = "tiny_task:line"
[rules.sgd]
kind = "torch.optim.SGD"
grid.lr = [0.03, 0.1, 0.3]
[rules.adam]
kind = "torch.optim.Adam"
grid.lr = [0.01, 0.03, 0.1]
[budget]
steps = 3
[seeds]
tuning = {tuning}
reporting = {reporting}
[training]
evaluations = 2
"""


class Victim:
    """A process group that runs the study, to be killed."""

    def __init__(self, file, folder, engine):
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            code = 1
            try:
                nothing = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1):
                    os.dup2(nothing, stream)
                run(file, folder, engine=engine, jobs=2)
                code = 0
            finally:
                os._exit(code)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(self.pid, self.pid)  # whoever of the two is first

    def ended(self):
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid and status:
            raise SystemExit(f"The study itself failed, with status {status}: see above.")
        return bool(pid)

    def kill(self):
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def whole_lines(folder):
    try:
        raw = (folder / "trials.jsonl").read_bytes()
    except FileNotFoundError:
        return []
    return raw.split(b"\n")[:-1]


def damage(folder):
    """Everything in the folder that cannot be read, with plain tools."""
    wrong = []
    for line in whole_lines(folder):
        try:
            entry = json.loads(line)
            with np.load(folder / entry["curves"], allow_pickle=False) as curves:
                [curves[name] for name in curves.files]
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            wrong.append(f"trials.jsonl: {error}")
    for path in [*folder.glob("*.json"), *folder.glob("*.csv"), *folder.glob("report.html")]:
        text = path.read_text()
        try:
            if path.suffix == ".json":
                json.loads(text)
            elif path.suffix == ".html" and "</html>" not in text:
                raise ValueError("it has no end")
            elif path.suffix == ".csv":
                rows = [len(row) for row in csv.reader(io.StringIO(text))]
                if len(set(rows)) > 1 or not text.endswith("\n"):
                    raise ValueError("its rows are not whole")
        except ValueError as error:
            wrong.append(f"{path.name}: {error}")
    return wrong


def numbers(folder):
    """Every number of a study but times and memory."""
    study, results = store.load(folder)
    found = {"study": json.dumps(study, sort_keys=True)}
    for result in results:
        curves = {k: v.tolist() for k, v in result.curves.items() if k != "seconds"}
        cost = {k: v for k, v in result.cost.items() if "seconds" not in k and k != "peak_bytes"}
        found[result.trial.key] = (result.status, result.reason, dict(result.final), cost, curves)
    return found


def kill_again_and_again(file, place, engine, kills, longest, reference, rng):
    """Returns what was lost, corrupt and different, and some counts for the reader."""
    lost, corrupt, different, finished, moments = 0, [], 0, 0, {}
    total, killed, round_ = len(reference) - 1, 0, 0
    folder = place / f"{engine}-{round_}"
    seen, state = set(), "before any trial"
    while True:
        last = killed == kills
        # The report takes as long as many trials: half of the runs that have only that to do may end.
        unhurried = last or (state == "after the last" and rng.random() < 0.5)
        longest_now = longest if state == "after the last" or engine == "joblib" else longest / 6
        victim = Victim(file, folder, engine)
        end = time.monotonic() + (600 if unhurried else rng.uniform(0, longest_now))
        ended = False
        while time.monotonic() < end and not (ended := victim.ended()):
            seen |= {json.loads(line)["key"] for line in whole_lines(folder)}
            time.sleep(0.002)
        if not ended:
            victim.kill()
            killed += 1
        corrupt += damage(folder)
        if (folder / "study.json").exists():
            held = {result.trial.key for result in store.load(folder)[1]}
            lost += len(seen - held)
            state = (
                "before any trial"
                if not held
                else "after the last"
                if len(held) == total
                else "among trials"
            )
        else:
            state = "before any trial"
        if not ended:
            moments[state] = moments.get(state, 0) + 1
            continue
        found = numbers(folder)
        different += sum(found.get(key) != value for key, value in reference.items())
        different += len(found.keys() - reference.keys())
        corrupt += [f"left over: {path.name}" for path in folder.rglob("*.tmp")]
        finished += 1
        if last:
            break
        round_ += 1
        folder, seen, state = place / f"{engine}-{round_}", set(), "before any trial"
    return {"lost": lost, "corrupt": corrupt, "different": different}, (killed, finished, moments)


def damaged(folder, rng):
    """Damage one file of a study, and return how."""
    lines, curves = folder / "trials.jsonl", sorted(folder.glob("curves/*.npz"))
    kind = rng.choice(["byte", "digit", "cut", "remove", "remove line", "repeat line", "swap"])
    path = rng.choice([lines, lines, folder / "study.json", rng.choice(curves)])
    if kind in ("digit", "remove line", "repeat line", "swap"):
        path = lines
    if kind == "remove":
        path = rng.choice(curves)
        path.unlink()
        return f"{kind} {path.name}"
    raw = bytearray(path.read_bytes())
    if kind == "byte":
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del raw[rng.randrange(len(raw)) :]
    elif kind == "digit":
        place = rng.choice([found.start() for found in re.finditer(rb"[0-9]", raw)])
        raw[place] = ord(str((raw[place] - 48 + rng.randrange(1, 10)) % 10))
    else:
        rows = raw.splitlines(keepends=True)
        i, j = rng.sample(range(len(rows)), 2)
        if kind == "remove line":
            del rows[i]
        elif kind == "repeat line":
            rows.insert(j, rows[i])
        else:  # the results of one trial under the name of another
            one, other = json.loads(rows[i]), json.loads(rows[j])
            rows[i] = json.dumps({**one, "final": other["final"]}).encode() + b"\n"
        raw = b"".join(rows)
    path.write_bytes(raw)
    return f"{kind} {path.name}"


def damage_again_and_again(file, place, count, reference, rng):
    """Returns what was false, silent and different, and how often each kind of damage was done."""
    wrong, kinds = {"false": [], "silent": [], "different": []}, {}
    for i in range(count):
        folder = place / f"damaged-{i}"
        shutil.copytree(place / "reference", folder)
        how = damaged(folder, rng)
        name = how if how.endswith(("jsonl", "json")) else how.split()[0] + " curves"
        kinds[name] = kinds.get(name, 0) + 1
        try:
            found = numbers(folder)
        except store.StoreError:  # study.json: refused with a sentence that says to remove it
            (folder / "study.json").unlink()
        else:
            words = json.loads(found["study"]).pop("damaged", "")
            keys = reference.keys() - {"study"}
            wrong["false"] += [how for key in keys & found.keys() if found[key] != reference[key]]
            missing = keys - found.keys()
            traceless = how.startswith(("remove line", "cut trials"))
            wrong["silent"] += [how] if missing and not words and not traceless else []
        again = Victim(file, folder, "serial")
        while not again.ended():
            time.sleep(0.01)
        found = numbers(folder)
        found["study"] = reference["study"]  # it may say that a line does not count
        wrong["different"] += [how] if found != reference else []
        shutil.rmtree(folder)
    return wrong, kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=160, help="of studies in one process")
    parser.add_argument("--workers-kills", type=int, default=40, help="of studies with two workers")
    parser.add_argument("--damages", type=int, default=200, help="of files of a finished study")
    parser.add_argument("--trials", type=int, default=20, help="seeds of each phase")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "tiny_task.py").write_text(TASK)
        file = place / "study.toml"
        seeds = list(range(2 * asked.trials))
        tuning, reporting = seeds[: asked.trials], seeds[asked.trials :]
        file.write_text(STUDY.format(tuning=tuning, reporting=reporting))
        began = time.monotonic()
        reference = Victim(file, place / "reference", "serial")
        while not reference.ended():
            time.sleep(0.01)
        alone = time.monotonic() - began
        wanted = numbers(place / "reference")
        print(f"{len(wanted) - 1} trials take {alone:.1f} s without a kill")
        for engine, kills, longest in (
            ("serial", asked.kills, alone),
            ("joblib", asked.workers_kills, alone + 5.0),
        ):
            if not kills:
                continue
            began = time.monotonic()
            found, (killed, finished, moments) = kill_again_and_again(
                file, place, engine, kills, longest, wanted, rng
            )
            took = time.monotonic() - began
            counts = {key: len(x) if isinstance(x, list) else x for key, x in found.items()}
            print(
                f"{engine}: {killed} kills ({moments}), {finished} studies ended, {took:.0f} s: {counts}"
            )
            for sentence in found["corrupt"][:5]:
                print("   ", sentence)
            bad += sum(counts.values())
        found, kinds = damage_again_and_again(file, place, asked.damages, wanted, rng)
        counts = {key: len(x) for key, x in found.items()}
        print(f"{sum(kinds.values())} damages ({kinds}): {counts}")
        for how in {how for hows in found.values() for how in hows}:
            print("   ", how)
        bad += sum(counts.values())
    print("nothing was lost" if not bad else f"{bad} things went wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
