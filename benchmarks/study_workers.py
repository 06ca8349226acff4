"""Two workers against one on trials that do not depend on each other: at least 1.7 times as fast.

The same trials of a small network run with one worker and with two that have started already: a start, which
imports PyTorch, is paid once in a study and is shown apart. The results must be equal, number for number.
Needs two free cores; the figure is the median of the repeats.

    python benchmarks/study_workers.py [--trials N] [--epochs N] [--repeats N]
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse  # noqa: E402
import contextlib  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

from lossnav.studies import engines  # noqa: E402
from lossnav.studies.progress import Progress  # noqa: E402
from lossnav.studies.trial import Trial  # noqa: E402

GOAL = 1.7


def trials(count, epochs):
    return [
        Trial(
            "digits", "adam", "digits", {"hidden": [128, 128]}, "torch.optim.Adam", {"lr": 1e-3}, {},
            seed, "reporting", epochs=epochs, evaluations=2,
        )
        for seed in range(count)
    ]  # fmt: skip


def run(jobs, wanted):
    """Seconds until the workers have started, seconds of all trials after that, and the results."""
    began = time.perf_counter()
    with contextlib.closing(engines.make("joblib", engines.RunContext("."), jobs=jobs)) as engine:
        list(engine.run(trials(jobs, 1), Progress()))  # one each
        ready = time.perf_counter()
        results = list(engine.run(wanted, Progress()))
        return ready - began, time.perf_counter() - ready, results


def numbers(results):
    found = {}
    for result in results:
        curves = {name: x.tolist() for name, x in result.curves.items() if name != "seconds"}
        found[result.trial.key] = (result.status, dict(result.final), curves)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--epochs", type=float, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    wanted = trials(asked.trials, asked.epochs)
    found, took, ratios = [], {}, []
    for _ in range(asked.repeats):
        for jobs in (1, 2):
            start, seconds, results = run(jobs, wanted)
            found.append(numbers(results))
            took[jobs] = seconds
            print(
                f"{jobs} worker(s): {start:.1f} s to start, {seconds:.1f} s for {len(wanted)} trials"
            )
        ratios.append(took[1] / took[2])
    equal = all(one == found[0] for one in found)
    ratio = statistics.median(ratios)
    print(f"two workers are {ratio:.2f} times as fast as one (goal {GOAL}); results equal: {equal}")
    return not equal or ratio < GOAL


if __name__ == "__main__":
    sys.exit(main())
