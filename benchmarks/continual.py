"""Weight uncertainty against the best known rules on streams of tasks: run the studies, print the table.

The studies are the files in benchmarks/continual, run one after another by ``lossnav study``; each can be
stopped and gone on with by the same command. ``published`` has four streams of other papers, and ``apart`` seven by
which nothing may be chosen: it runs only if it is named. For a study X, X.toml has the rivals, each tuned over the same
number of points (C: by compiled.py), X_defaults.toml our rule with its defaults, on the same seeds, X_reset.toml (for A and
B) the same with units that are drawn anew, X_again.toml our rule and the strongest rivals on other seeds, and
X_tuned.toml (with --tuned) our rule tuned as the rivals are. The table is made from the studies' CSV files alone:

    ratio     our error / the error of the best rival; of the errors of each seed, its mean and 95 % interval
    forgot    accuracy on a task at its end, less that one task later: ours, and the best rival's

    python benchmarks/continual.py [A B C D published apart] [--out FOLDER] [--jobs N] [--tuned] [--table] [--keep]

What was measured last is in benchmarks/continual/results: ``--table --out benchmarks/continual/results`` prints it,
``--keep`` puts what was run now in its place, without the curves of tuning.
"""

import argparse
import csv
import math
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from lossnav.studies.statistics import interval

HERE = Path(__file__).parent / "continual"
KINDS = ("", "_defaults", "_reset", "_again", "_tuned")
OURS = "weight-uncertainty"
COLUMNS = ("rule", "phase", "seed", "step", "metric", "value")
BOUNDS = {  # of each study's streams; None where there is only one
    "A": {None: 0.93},
    "B": {None: 0.90},
    "C": {None: 0.95},
    "D": {None: 0.97},
    "published": dict.fromkeys(["l2-init", "upgd-pixels", "upgd-labels", "slow-bits"], 1.0),
    "apart": dict.fromkeys(
        [
            "cifar-labels", "fashion-labels", "random-labels", "gradual", "layer-norm",
            "growing-frequency", "changing-rewards",
        ],
        1.1,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What one stream says of one of our entries."""

    stream: str
    entry: str
    ours: float
    best: str
    theirs: float
    ratio: float
    low: float
    high: float
    forgotten: tuple[float, float] | None
    bound: float
    lost: list[str] = field(default_factory=list)  # rivals that lost a seed, and so have no mean
    edges: list[str] = field(
        default_factory=list
    )  # rivals whose best point is the last of its grid

    @property
    def reached(self) -> bool:
        """Whether the ratio is the bound or less."""
        return self.ratio <= self.bound


def table(folder):
    """The rows that the studies in a folder are enough for."""
    found = []
    for study, bounds in BOUNDS.items():
        for kind in KINDS[1:]:
            ours = folder / (study + kind)
            places = (ours if kind == "_again" else folder / study), ours
            if all((place / "summary.csv").exists() for place in places):
                found += [row(study, task, bound, *places) for task, bound in bounds.items()]
    return found


def row(study, task, bound, theirs, ours):
    """Our one rule in the study ``ours`` against the best of others in the study ``theirs``."""
    rivals, lost, edges = {}, [], []
    for line in rows(theirs / "summary.csv", task):
        if line["rule"].startswith(OURS):
            continue
        if line["mean"]:
            rivals[line["rule"]] = error(line["mean"], line["better"])
        else:
            lost.append(line["rule"])
        if line["edge"]:
            edges.append(f"{line['rule']} ({line['edge']})")
    (own,) = (line for line in rows(ours / "summary.csv", task) if line["rule"].startswith(OURS))
    best = min(rivals, key=rivals.get)
    mean = error(own["mean"], own["better"]) if own["mean"] else float("nan")
    ends = {place: last(place / "curves.csv", task) for place in (ours, theirs)}
    pairs = []
    for seed, value in ends[ours].get((own["rule"], own["metric"]), {}).items():
        other = ends[theirs].get((best, own["metric"]), {}).get(seed)
        if other is not None:
            pairs.append(error(value, own["better"]) / error(other, own["better"]))
    spread = interval(pairs)
    forgotten = [
        list(ends[place].get((rule, "forgetting"), {}).values())
        for place, rule in ((ours, own["rule"]), (theirs, best))
    ]
    means = tuple(sum(values) / len(values) for values in forgotten if values)
    return Row(
        task or study, own["rule"], mean, best, rivals[best], mean / rivals[best], spread.low, spread.high,
        means if len(means) == 2 else None, bound, lost, edges,
    )  # fmt: skip


def error(value, better):
    """What is wrong: the metric itself, or what an accuracy lacks."""
    return 1 - float(value) if better == "higher" else float(value)


def rows(path, task=None):
    """The lines of a file, or those of one task."""
    with path.open(newline="") as file:
        return [line for line in csv.DictReader(file) if task in (None, line.get("task"))]


def last(path, task=None):
    """The last value of each reporting seed, by rule and metric."""
    found, steps = {}, {}
    for line in rows(path, task):
        if line["phase"] == "reporting":
            key = line["rule"], line["metric"]
            step = int(line["step"])
            if step >= steps.get((*key, line["seed"]), 0):
                steps[*key, line["seed"]] = step
                found.setdefault(key, {})[line["seed"]] = float(line["value"])
    return found


def keep(folder):
    """Put the studies of a folder among the kept results: summaries, scores at the end, and curves of ``recent``."""
    for place in sorted(path.parent for path in folder.glob("*/summary.csv")):
        home = HERE / "results" / place.name
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(place / "summary.csv", home / "summary.csv")
        lines = [line for line in rows(place / "curves.csv") if line["phase"] == "reporting"]
        final = {}
        for line in lines:
            final[line["task"]] = max(int(line["step"]), final.get(line["task"], 0))
        columns = COLUMNS if len(final) == 1 else ("task", *COLUMNS)
        with (home / "curves.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            for line in lines:
                if line["metric"] == "recent" or int(line["step"]) == final[line["task"]]:
                    writer.writerow(line | {"value": f"{float(line['value']):.6g}"})


def text(found):
    """The table for reading."""
    widths = (19, 31, 8, 26, 8, 7, 17, 7, 8, 17)
    cells = [
        ("stream", "our rule", "error", "best rival", "error", "ratio", "of seeds", "bound", "", "forgot")
    ]  # fmt: skip
    notes = [""]
    for one in found:
        forgot = "" if one.forgotten is None else "{:.4f} / {:.4f}".format(*one.forgotten)
        verdict = "holds" if one.reached else "MISSES"
        cells.append((
            one.stream, one.entry, f"{one.ours:.4f}", one.best, f"{one.theirs:.4f}", f"{one.ratio:.3f}",
            f"[{one.low:.3f}, {one.high:.3f}]", f"{one.bound:.2f}", verdict, forgot,
        ))  # fmt: skip
        note = ""
        if one.lost:
            note += f"\n{'':19}lost seeds, and so have no mean: {', '.join(one.lost)}"
        if one.edges:
            note += f"\n{'':19}best at the edge of the grid: {', '.join(one.edges)}"
        notes.append(note)
    lines = [
        "".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        + note
        for line, note in zip(cells, notes, strict=True)
    ]
    apart = [one.ratio for one in found if one.stream in BOUNDS["apart"]]
    if apart:
        mean = math.prod(apart) ** (1 / len(apart))
        lines.append(
            f"Streams kept apart: geometric mean of the ratios {mean:.3f}, largest {max(apart):.3f}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", nargs="*", metavar="study", help=f"some of {', '.join(BOUNDS)}; all but apart")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("studies/continual"), help="folder of the studies")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time; 2")
    parser.add_argument("--tuned", action="store_true", help="tune our rule, too")
    parser.add_argument("--table", action="store_true", help="run nothing; only print the table")
    parser.add_argument("--keep", action="store_true", help="make these the kept results")
    wanted = parser.parse_args()
    unknown = [name for name in wanted.streams if name not in BOUNDS]
    if unknown:
        parser.error(f"there is no study {unknown[0]!r}; studies: {', '.join(BOUNDS)}")
    kinds = KINDS if wanted.tuned else KINDS[:-1]
    everyday = [study for study in BOUNDS if study != "apart"]
    for stream in [] if wanted.table else wanted.streams or everyday:
        for name in (stream + kind for kind in kinds):
            if not (HERE / f"{name}.toml").exists():
                continue
            command = [
                sys.executable, "-m", "lossnav", "study", HERE / f"{name}.toml", "--out",
                wanted.out / name, "--jobs", str(wanted.jobs),
            ]  # fmt: skip
            if subprocess.run(command).returncode:
                sys.exit(f"The study {name} was stopped; the same command goes on with it.")
    if wanted.keep:
        keep(wanted.out)
    print(
        text(table(wanted.out)) if table(wanted.out) else f"There are no results in {wanted.out}."
    )


if __name__ == "__main__":
    main()
