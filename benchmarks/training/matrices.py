"""Rules for matrices on text: Muon, KroneckerNavigator, and the softened polar step; each at its best point.

Every rule has the same warm-up (10 %), look-ahead, and the same number of tuning points: three rates times four ratios of the
rate of everything outside (embeddings, head, vectors) to it, at beta1 0.8, then beta1 0.7 and 0.9 at the best of these, by
validation loss on seed 0; the best three again on seed 1. The table has the test loss on fresh seeds, and paired differences.

Muon's rates are in AdamW's units: its step times 0.2 sqrt(the longer side). Outside, Muon has AdamW, or Navigator with a horizon as the control
that tells what is due to the matrices. Every run is appended to a file as soon as it ends, and is not repeated:

    python benchmarks/training/matrices.py --out matrices_0.2m_400.jsonl --steps 400 --seeds 5 [--only NAME ...]
    python benchmarks/training/matrices.py --flops
"""

import argparse
from pathlib import Path

from horizon import SIZES, Results, interval, trained

from lossnav.optim.grouping import multiplications
from lossnav.studies.speedrun import parted

KEY = ("rule", "lr", "ratio", "beta1", "steps", "seed", "size")
RATES = {"polar": [1e-2, 2e-2, 4e-2], "kronecker": [4e-3, 8e-3, 16e-3]}
RATIOS = {"polar": [0.1, 0.2, 0.4, 0.8], "kronecker": [0.25, 0.5, 1.0, 2.0]}
BETA2 = 0.99


def outside(params, lr, beta1, N, own):
    """AdamW, which follows the schedule of the run, or Navigator, which has its own."""
    import torch

    from lossnav.optim.torch import Navigator

    if own:
        found = Navigator(params, lr, (beta1, BETA2), horizon=N)
        found.param_groups[0]["schedule"] = "constant"
        return found
    return torch.optim.AdamW(params, lr, betas=(beta1, BETA2), weight_decay=0.0)


def muon(model, lr, ratio, beta1, N, *, own=False, scale="match_rms_adamw"):
    from peers import Both

    from lossnav.optim.torch import from_rule
    from lossnav.rules import zoo

    inner, others = parted(model)
    rate = lr * (0.2 * 8 if scale == "original" else 1)  # equal for 64 x 64
    rule = zoo.Muon(rate, momentum=beta1, weight_decay=0.0, half=False, scale=scale)
    return Both(from_rule(inner, rule), outside(others, ratio * lr, beta1, N, own))


def polar(model, lr, ratio, beta1, N, **settings):
    """The softened polar step, with the cooldown of Navigator's horizon, and Navigator outside."""
    from peers import Both
    from softened import SoftenedPolar

    from lossnav.optim.torch import from_rule

    inner, others = parted(model)
    first = from_rule(inner, SoftenedPolar(lr, beta1, BETA2, **settings))
    return Both(first, outside(others, ratio * lr, beta1, N, True))


def kronecker(model, lr, ratio, beta1, N, **settings):
    from lossnav.optim.torch import KroneckerNavigator

    inner, others = parted(model)
    groups = [{"params": inner}, {"params": others, "lr": ratio * lr}]
    return KroneckerNavigator(groups, lr, (beta1, BETA2), **settings)


def kronecker_horizon(model, lr, ratio, beta1, N, **settings):
    return kronecker(model, lr, ratio, beta1, N, horizon=N, **settings)


def setting(make, **settings):
    def made(*given):
        return make(*given, **settings)

    return made


ARMS = {
    "Muon, WSD": (muon, "wsd"),
    "Muon, late": (muon, "late"),
    "Muon, linear": (muon, "linear"),
    "Muon, WSD, own scale": (setting(muon, scale="original"), "wsd"),
    "Muon, WSD, Navigator outside": (setting(muon, own=True), "wsd"),
    "KroneckerNavigator, linear": (kronecker, "linear"),
    "KroneckerNavigator(horizon)": (kronecker_horizon, "constant"),
    "KroneckerNavigator(horizon), short sides": (
        setting(kronecker_horizon, max_dim=64),
        "constant",
    ),
    "polar, softened": (setting(polar, softening=1.0, steps=2), "cooldown"),
    "polar, half softened": (setting(polar, softening=0.5, steps=2), "cooldown"),
    "polar, three iterations": (setting(polar, softening=0.0, steps=3), "cooldown"),
    "polar, exact": (setting(polar, softening=0.0, steps=None), "cooldown"),
}


def run(job):
    """Train once; returns the job with its validation and test loss."""
    name, lr, ratio, beta1, N = (job[key] for key in KEY[:5])
    make, kind = ARMS[name]
    return trained(job, lambda model: make(model, lr, ratio, beta1, N), kind)


def job(name, point, steps, seed, size):
    return dict(zip(KEY, (name, *point, steps, seed, size), strict=True))


def tuned(results, name, steps, size, betas):
    """The best point (rate, ratio, beta1) by the mean validation loss of seeds 0 and 1."""
    family = "kronecker" if name.startswith("Kronecker") else "polar"

    def losses(points, seed):
        entries = results.get([job(name, point, steps, seed, size) for point in points])
        return dict(zip(points, (entry["validation"] for entry in entries), strict=True))

    first = losses([(lr, r, 0.8) for lr in RATES[family] for r in RATIOS[family]], 0)
    lr, ratio, _ = min(first, key=first.get)
    first |= losses([(lr, ratio, beta) for beta in betas], 0)
    three = sorted(first, key=first.get)[:3]
    second = losses(three, 1)
    best = min(three, key=lambda point: first[point] + second[point])
    return best, (first[best] + second[best]) / 2


def flops(rows, columns, rule, *, steps=5, refresh=10):
    """Multiplications of one step of a matrix, in products and factorizations alone."""
    m, n = min(rows, columns), max(rows, columns)
    if rule == "muon":
        return multiplications((m, n), polar=steps)
    if (
        rule == "softened"
    ):  # X X^T, P X; an iteration has A A, and after the first P A P and the product
        return 2 * m * m * n + m**3 + (steps - 1) * 4 * m**3
    sides = [m, n] if rule == "kronecker" or m == n else [m]
    return multiplications((m, n), sides, refresh=refresh)


def print_flops():
    rules = {
        "Muon, 5 iterations": ("muon", 5),
        "Muon, 3": ("muon", 3),
        "softened, 2": ("softened", 2),
        "KroneckerNavigator": ("kronecker", 0),
        "short sides": ("short", 0),
    }
    print(f"| multiplications per entry | {' | '.join(rules)} |")
    print("| --- |" + " --- |" * len(rules))
    for rows, columns in ((64, 64), (192, 64), (256, 64), (1024, 1024), (4096, 1024)):
        found = [flops(rows, columns, rule, steps=k) for rule, k in rules.values()]
        cells = " | ".join(f"{x / (rows * columns):,.0f}" for x in found)
        print(f"| {rows} x {columns} | {cells} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("matrices.jsonl"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--size", choices=SIZES, default="0.2m")
    parser.add_argument("--seeds", type=int, default=0, help="fresh seeds to report on, from 20")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(ARMS))
    parser.add_argument("--betas", nargs="*", type=float, default=[0.7, 0.9])
    parser.add_argument("--flops", action="store_true", help="count multiplications and end")
    asked = parser.parse_args()
    if asked.flops:
        print_flops()
        return
    results = Results(asked.out, asked.jobs, run, KEY)
    best = {name: tuned(results, name, asked.steps, asked.size, asked.betas) for name in asked.only}
    tests = {}
    for name, (point, _) in best.items():
        jobs = [job(name, point, asked.steps, 20 + i, asked.size) for i in range(asked.seeds)]
        tests[name] = [entry["test"] for entry in results.get(jobs)]
    print(
        f"\n| {asked.size}, {asked.steps} steps | lr, ratio, beta1 | validation | test | difference |"
    )
    print("| --- | --- | --- | --- | --- |")
    peers = [name for name in best if name.startswith("Muon")]
    for name, (point, loss) in sorted(best.items(), key=lambda item: item[1][1]):
        cells = ["", ""]
        if asked.seeds:
            rival = min(peers, key=lambda peer: sum(tests[peer])) if peers else name
            pairs = [x - y for x, y in zip(tests[name], tests[rival], strict=True)]
            mean = sum(pairs) / len(pairs)
            cells[0] = f"{sum(tests[name]) / asked.seeds:.4f}"
            cells[1] = f"{mean:+.4f} ± {interval(pairs):.4f} to {rival}"
        where = ", ".join(f"{x:g}" for x in point)
        print(f"| {name} | {where} | {loss:.4f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
