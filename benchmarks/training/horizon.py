"""Navigator with a horizon beside its peers with every usual schedule, on text; each rule at its best rate.

Peers: AdamW, Adam with look-ahead (`Navigator(saturation=0)`) and NAdam. Schedules: linear, cosine, WSD (rate held, 20 % cooldown) and "late" 5s/(1 + 4s), s the time left. All
have the same warm-up (10 %). The rate and beta1 (0.8 or 0.9) are tuned by validation loss on seed 0, on a grid that is
extended until the best rate is not on an edge; the table has the test loss on fresh seeds and paired differences to the best peer.

Every run is appended to a file as soon as it ends, and is not repeated:

    python benchmarks/training/horizon.py --out horizon.jsonl --steps 400 --seeds 10 --jobs 2 [--only NAME ...]
"""

import argparse
import json
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

from lossnav.studies.speedrun import track  # noqa: E402

SIZES = {
    "0.2m": {"layers": 4, "width": 64, "heads": 4, "context": 48, "batch_size": 8},
    "1m": {"layers": 5, "width": 128, "heads": 4, "context": 64, "batch_size": 12},
    "nanogpt": track.MODEL,
    # Another text, on which nothing about the rules was chosen.
    "0.2m-python": {
        **{"layers": 4, "width": 64, "heads": 4, "context": 48, "batch_size": 8},
        "text": "python",
    },
}
RATES = [1e-3, 2e-3, 4e-3]
BETAS = [0.8, 0.9]
KEY = ("rule", "lr", "beta1", "steps", "seed", "size")


def navigator(params, lr, betas, N, **settings):
    from lossnav.optim.torch import Navigator

    return Navigator(params, lr, betas, **settings)


def adamw(params, lr, betas, N):
    import torch

    return torch.optim.AdamW(params, lr, betas, weight_decay=0.0)


def nadam(params, lr, betas, N):
    import torch

    return torch.optim.NAdam(params, lr, betas)


def horizon(params, lr, betas, N, **settings):
    return navigator(params, lr, betas, N, horizon=N, **settings)


def look_ahead(params, lr, betas, N):
    return navigator(params, lr, betas, N, saturation=0.0)


def without_damping(params, lr, betas, N):
    return horizon(params, lr, betas, N, saturation=0.0)


ARMS = {
    f"{name}, {kind}": (make, kind)
    for name, make in (("AdamW", adamw), ("look-ahead", look_ahead), ("NAdam", nadam))
    for kind in ("linear", "cosine", "wsd", "late")
} | {
    "Navigator, linear": (navigator, "linear"),
    "Navigator, wsd": (navigator, "wsd"),
    "Navigator(horizon)": (horizon, "constant"),
    "Navigator(horizon), no damping": (without_damping, "constant"),
}


def run(job):
    """Train once; returns the job with its validation and test loss."""
    make, kind = ARMS[job["rule"]]

    def optimizer(model):
        betas = job["beta1"], 0.99
        return make(list(model.named_parameters()), job["lr"], betas, job["steps"])

    return trained(job, optimizer, kind)


def trained(job, make, kind):
    """Train the model of a job with an optimizer; a group may have a ``schedule`` of its own."""
    import torch

    from lossnav.studies.tasks.text import Characters
    from lossnav.studies.trial.setup import endless

    torch.set_num_threads(1)
    N, seed = job["steps"], job["seed"]
    task = Characters(**SIZES[job["size"]])
    torch.manual_seed(seed)
    model = task.model()
    optimizer = make(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    began = time.process_time()
    for step, batch in zip(range(N), endless(task, seed), strict=False):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * track.factor(group.get("schedule", kind), step, N)
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        if not math.isfinite(loss.item()):
            return {**job, "validation": math.inf, "test": math.inf, "seconds": 0.0}
    seconds = time.process_time() - began
    model.eval()
    with torch.no_grad():
        found = {split: task.evaluate(model, split)["loss"] for split in ("validation", "test")}
    return {**job, **found, "seconds": seconds}


class Results:
    """Runs on disk, one line each."""

    def __init__(self, path, jobs, run=run, names=KEY):
        self.path, self.pool, self.known = path, ProcessPoolExecutor(jobs), {}
        self.run, self.names = run, names
        for line in path.read_text().splitlines() if path.exists() else []:
            entry = json.loads(line)
            self.known[self.key(entry)] = entry

    def key(self, job):
        return tuple(job[name] for name in self.names)

    def get(self, jobs):
        missing = [job for job in jobs if self.key(job) not in self.known]
        for entry in self.pool.map(self.run, missing):
            self.known[self.key(entry)] = entry
            with self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            print(json.dumps(entry), flush=True)
        return [self.known[self.key(job)] for job in jobs]


def tuned(results, name, steps, size, rates):
    """The rate and beta1 with the least validation loss on seed 0; the rate is inside the grid."""
    rates = sorted(rates)
    while True:
        points = [(lr, beta1) for lr in rates for beta1 in BETAS]
        jobs = [dict(zip(KEY, (name, *point, steps, 0, size), strict=True)) for point in points]
        losses = {
            point: entry["validation"]
            for point, entry in zip(points, results.get(jobs), strict=True)
        }
        best = min(losses, key=losses.get)
        if best[0] == rates[0]:
            rates = [rates[0] / 2, *rates]
        elif best[0] == rates[-1]:
            rates = [*rates, rates[-1] * 2]
        else:
            return best, losses[best]


def interval(differences):
    import numpy as np
    from scipy import stats

    d = np.asarray(differences)
    if len(d) < 2:
        return math.nan
    return float(stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / math.sqrt(len(d)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("horizon.jsonl"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--size", choices=SIZES, default="0.2m")
    parser.add_argument("--seeds", type=int, default=0, help="fresh seeds to report on")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(ARMS))
    parser.add_argument("--rates", nargs="*", type=float, default=RATES)
    asked = parser.parse_args()
    results = Results(asked.out, asked.jobs)
    best = {name: tuned(results, name, asked.steps, asked.size, asked.rates) for name in asked.only}
    print(f"\n| {asked.size}, {asked.steps} steps | lr, beta1 | validation | test | difference |")
    print("| --- | --- | --- | --- | --- |")
    tests = {}
    for name, (point, _) in best.items():
        jobs = [
            dict(zip(KEY, (name, *point, asked.steps, seed, asked.size), strict=True))
            for seed in range(100, 100 + asked.seeds)
        ]
        tests[name] = [entry["test"] for entry in results.get(jobs)]
    peers = [name for name in best if "Navigator" not in name]
    for name, ((lr, beta1), loss) in sorted(best.items(), key=lambda item: item[1][1]):
        cells = ["", ""]
        if asked.seeds:
            mean = sum(tests[name]) / asked.seeds
            rival = min(peers, key=lambda peer: sum(tests[peer])) if peers else name
            pairs = [x - y for x, y in zip(tests[name], tests[rival], strict=True)]
            cells = [
                f"{mean:.4f}",
                f"{sum(pairs) / len(pairs):+.4f} ± {interval(pairs):.4f} to {rival}",
            ]
        print(f"| {name} | {lr:g}, {beta1:g} | {loss:.4f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
