"""What the harness of a study costs: `run_trial` against a bare loop of the same training.

Both set up the same model from the same seed, train it on the same batches with the same rule, keep each
loss, and judge the model before and after; the loop is what a careful script would have, with the whole set
in memory as bytes and no DataLoader. Their losses must be equal to the last bit. They take turns, one thread
each, and the ratio is the median over pairs of neighbours in time, with its standard error: a busy machine
disturbs both of a pair alike. It is of the processor's time for the whole, and of the time on the wall for the
steps alone.

    digits    a small network, where every microsecond of a step shows
    mnist     the paper's network for one epoch; images of LOSSNAV_DATA, or random ones of that size
    estimate  what `lossnav study --dry-run` says of examples/quick.toml, and what that study takes; within a factor of 2

    python benchmarks/study_overhead.py [row ...] [--rounds N]
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from lossnav.studies import data  # noqa: E402
from lossnav.studies.trial import Trial  # noqa: E402
from lossnav.studies.trial.setup import batch_rng  # noqa: E402
from lossnav.studies.trial.training import run_trial  # noqa: E402

BOUND = 1.03


def say(what, value, bound, *, note=""):
    verdict = "holds" if value <= bound else "MISSES"
    print(f"{what:<62}{value:>12.4g}  <= {bound:<8g}{verdict}  {note}", flush=True)


def bare(trial, images, widths, top, mean, std, batch_size, held):
    """The training of a trial, written out: its losses, and the seconds of the steps alone."""
    slope, shift = 1 / (top * std), -mean / std
    x, y = torch.tensor(images.x_train).flatten(1), torch.tensor(images.y_train).long()
    tests = torch.tensor(images.x_test).flatten(1), torch.tensor(images.y_test).long()
    order = torch.from_numpy(np.random.default_rng(1).permutation(len(x)))[held:]
    torch.manual_seed(trial.seed)
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    params = list(model.parameters())
    optimizer = torch.optim.Adam(params, **trial.settings)
    rng, losses = batch_rng(trial.seed), []

    def judge():
        loss = right = 0.0
        with torch.no_grad():
            for images, classes in zip(tests[0].split(2000), tests[1].split(2000), strict=True):
                scores = model(images.float().mul_(slope).add_(shift))
                loss += cross_entropy(scores, classes, reduction="sum").item()
                right += (scores.argmax(1) == classes).sum().item()
        return loss, right

    judge()
    began = time.perf_counter()
    for _ in range(trial.epochs):
        for rows in order[torch.randperm(len(order), generator=rng)].split(batch_size):
            inputs = x[rows].float().mul_(slope).add_(shift)
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), y[rows])
            loss.backward()
            nn.utils.clip_grad_norm_(params, trial.clip)
            optimizer.step()
            losses.append(loss.item())
    seconds = time.perf_counter() - began
    judge()
    return np.array(losses, np.float32), seconds


def compared(trial, loop, rounds):
    """The times of each, in turn, whole and of the steps alone; equal losses or an error."""
    times = {"ours": [], "bare": []}
    for number in range(rounds + 1):
        for name in times if number % 2 else reversed(times):
            began = time.process_time()
            if name == "ours":
                result = run_trial(trial)
                losses, steps = result.curves["training_loss"], result.cost["seconds"]
            else:
                reference, steps = loop(trial)
            times[name].append((time.process_time() - began, steps))
        if not np.array_equal(losses, reference):
            raise AssertionError("The two loops did not train the same.")
    # The first round is for warming up.
    return {name: np.array(found[1:]) for name, found in times.items()}, len(losses)


def a_trial(kind, epochs, lr):
    return Trial(
        task=kind, rule="adam", task_kind=kind, task_settings={}, rule_kind="torch.optim.Adam",
        settings={"lr": lr}, point={"lr": lr}, seed=0, phase="reporting", epochs=epochs, evaluations=1,
        clip=5.0,
    )  # fmt: skip


def digits(rounds):
    """Twenty epochs of the digits."""
    images = data.load("digits")
    found, count = compared(
        a_trial("digits", 20, 1e-3),
        lambda trial: bare(trial, images, (64, 64, 10), 16, 0.3053, 0.3760, 64, 144),
        rounds,
    )
    shown("digits", found, count)


def mnist(rounds):
    """One epoch of the paper's network."""
    images = data.load("mnist")
    found, count = compared(
        a_trial("mnist", 1, 1e-3),
        lambda trial: bare(trial, images, (784, 512, 256, 10), 255, 0.1307, 0.3081, 128, 6000),
        max(rounds // 8, 3),
    )
    shown("mnist, one epoch", found, count)


def shown(what, found, count):
    for place, part in enumerate(("in all", "the steps alone")):
        ours, loop = found["ours"][:, place], found["bare"][:, place]
        ratios = ours / loop
        error = 1.25 * ratios.std(ddof=1) / np.sqrt(len(ratios))  # of a median
        each = 1e6 * np.median(loop) / count
        note = f"+- {error:.3f}, {len(ratios)} pairs; the loop takes {each:.0f} us a step"
        say(f"{what}, run_trial / bare loop, {part}", np.median(ratios), BOUND, note=note)


def estimate(_):
    """The time that a dry run announces against the truth, on the wall."""
    file = Path(__file__).parents[1] / "examples" / "quick.toml"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lossnav", "study", str(file), "--out", f"{folder}/out"]
        for engine in (["--jobs", "2"], ["--engine", "serial"]):
            plan = subprocess.run(
                [*command, *engine, "--dry-run", "--json"], check=True, capture_output=True
            )
            said = json.loads(plan.stdout)["seconds"]
            began = time.perf_counter()
            subprocess.run([*command, *engine, "--quiet"], check=True, capture_output=True)
            took = time.perf_counter() - began
            shutil.rmtree(f"{folder}/out")
            what = f"quick.toml, {' '.join(engine)}, estimate against truth"
            say(what, max(said / took, took / said), 2.0, note=f"{said:.1f} s and {took:.1f} s")


def stand_in(folder):
    """Random images of the size of MNIST, where there are no others."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 60000), ("test", 10000)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 10, count, dtype=np.uint8)
    np.savez(Path(folder) / "mnist.npz", **arrays)
    os.environ["LOSSNAV_DATA"] = folder
    print("  (MNIST is not on this machine: random images of its size are used)")


ROWS = {f.__name__: f for f in (digits, mnist, estimate)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="row", help=f"some of {', '.join(ROWS)}; all")
    parser.add_argument("--rounds", type=int, default=40, help="an eighth of them for mnist; 40")
    wanted = parser.parse_args()
    unknown = [name for name in wanted.rows if name not in ROWS]
    if unknown:
        parser.error(f"there is no row {unknown[0]!r}; rows: {', '.join(ROWS)}")
    if wanted.rounds < 2:
        parser.error(f"--rounds is {wanted.rounds}, but a spread needs two or more")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted.rows or ROWS:
            if name in data.IMAGES and not data.available(name):
                stand_in(folder)
            ROWS[name](wanted.rounds)


if __name__ == "__main__":
    main()
