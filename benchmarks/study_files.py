"""How long the files of a study take: the page of a large one, and data sets against a plain reading of their bytes.

report    ten rules, twenty seeds, a thousand steps with an evaluation at each: seconds and the size of the page
data      each data set on this machine against `numpy.load` of all its arrays, in turns; the ratio of medians
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "studies"))

import study_maker as made
from lossnav.studies import data, report
from lossnav.studies.data import HOMES

ROUNDS = 5


def page():
    """The report of a study that never ran."""
    results = made.study(
        rules=[f"rule {i}" for i in range(10)], seeds=20, tuning=1, lrs=(1e-3, 1e-2), steps=1000, evaluations=1000
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        made.write(Path(folder) / "study", results)
        times = []
        for _ in range(ROUNDS):
            began = time.process_time()
            path = report.write(Path(folder) / "study")
            times.append(time.process_time() - began)
        size = path.stat().st_size / 1e6
    print(f"report of {len(results)} trials: {statistics.median(times):.1f} s, {size:.2f} MB")


def plain(path):
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def seconds(work):
    began = time.process_time()
    work()
    return time.process_time() - began


def sets():
    """Ours checks shapes and types besides."""
    for name in ("mnist", "fashion-mnist", "cifar10"):
        if not data.available(name):
            print(f"{name} is not on this machine: left out")
            continue
        path = data.stored(HOMES[name])
        times = []
        for _ in range(ROUNDS + 1):
            data._images.cache_clear()
            times.append(
                (seconds(lambda name=name: data.load(name)), seconds(lambda path=path: plain(path)))
            )
        ours, theirs = (statistics.median(each) for each in zip(*times[1:], strict=True))
        print(f"{name:<14}load {ours:.3f} s, numpy.load {theirs:.3f} s, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    page()
    sets()
