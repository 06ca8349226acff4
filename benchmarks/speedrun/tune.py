"""Tune the entries of the speed-run alike: the learning rate, at a tenth of the track's length.

Each entry is run at half, once and twice its own rate on the tuning seed, with all else as it is in its file. While the best rate is
on an edge of these, the next one is added. Every run is appended to a file as soon as it ends, and is not repeated:

    python benchmarks/speedrun/tune.py adamw muon benchmarks/speedrun/entries/soap.py [--out benchmarks/speedrun/tuning.jsonl]

Without names, all entries are tuned, the built-in ones and those in this folder. Prints a table; write the best rates into the files.
"""

import argparse
import sys
from pathlib import Path

from lossnav.studies.speedrun import entry, results

HERE = Path(__file__).parent
STEPS = 200
FACTORS = [0.5, 1.0, 2.0]


def tuned(one, base, path):
    """Validation losses by rate; the best rate is not on an edge."""
    rates = [base * factor for factor in FACTORS]
    while True:
        wanted = results.jobs([one], seeds=1, steps=STEPS, changed={"lr": rates})
        runs = results.complete(wanted, path, say=lambda text: print(text, file=sys.stderr))
        losses = [run.get("validation", float("inf")) for run in runs]
        best = losses.index(min(losses))
        if best == 0:
            rates = [rates[0] / 2, *rates]
        elif best == len(rates) - 1:
            rates = [*rates, rates[-1] * 2]
        else:
            return dict(zip(rates, losses, strict=True)), rates[best], runs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rules", nargs="*")
    parser.add_argument("--out", type=Path, default=HERE / "tuning.jsonl")
    asked = parser.parse_args()
    extra = sorted(str(path) for path in (HERE / "entries").glob("*.py"))
    print("| entry | rates | validation losses | best | CPU s, in optimizer |")
    print("| --- | --- | --- | --- | --- |")
    for rule in asked.rules or [*entry.BUILTIN, *extra]:
        one = entry.load(rule)
        losses, best, runs = tuned(one, one.settings["lr"], asked.out)
        rates = ", ".join(f"{rate:g}" for rate in losses)
        values = ", ".join(f"{loss:.3f}" for loss in losses.values())
        seconds = sum(run["seconds"] for run in runs) / len(runs)
        inside = sum(run["optimizer_seconds"] for run in runs) / len(runs)
        cost = f"{seconds:.1f}, {inside:.1f}"
        print(f"| {one.name} | {rates} | {values} | {best:g} | {cost} |", flush=True)


if __name__ == "__main__":
    main()
