"""Calibrated settings against the defaults, at the same learning rate: real tasks, seeds of their own.

Each task is calibrated once, on 300 batches from a start that is not among those compared. Then three rules
train from the same starts on the same batches: AdamW's defaults, the calibrated settings, and the
memory that predicts the next gradient best, which the likelihood alone would choose. Printed are means over
the seeds, and the difference to the defaults with its 95 % interval, seed by seed.

    python benchmarks/calibrate.py [task ...]      tasks: digits mnist text; about ten minutes for all

The text needs tinyshakespeare.txt and the digits of MNIST mnist.npz (see docs/studies.md).
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import sys  # noqa: E402
import time  # noqa: E402

import torch  # noqa: E402

from lossnav.inference import calibrate  # noqa: E402
from lossnav.optim.torch import Navigator  # noqa: E402
from lossnav.studies import tasks  # noqa: E402
from lossnav.studies.comparisons import compare  # noqa: E402

ADAMW = {"betas": (0.9, 0.999), "nesterov": False, "saturation": 0.0}
SMALL = {"layers": 2, "width": 64, "heads": 4, "context": 32, "batch_size": 16}
# task: kind, settings, steps, learning rates
TASKS = {
    "digits": ("digits", {}, 420, (1e-3, 4e-3)),
    "mnist": ("mnist", {"hidden": [128], "batch_size": 64}, 500, (1e-3,)),
    "text": ("characters", SMALL, 400, (1e-3, 4e-3)),
}
CALIBRATION, REPORTING = 0, (100, 101, 102, 103, 104)


class Passes:
    """A task's batches, one pass after the other, drawn by torch's own generator."""

    def __init__(self, task):
        self.task = task

    def __iter__(self):
        return iter(self.task.batches(torch.default_generator))


def calibrated(task, lr):
    torch.manual_seed(CALIBRATION)
    model = task.model()
    return calibrate(
        model,
        task.loss,
        Passes(task),
        optimizer=lambda p: Navigator(p, lr=lr, **ADAMW),
        seed=CALIBRATION,
    )


def trained(task, steps, lr, settings, seed):
    """Test loss at the end, and the mean training loss."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = Navigator(model.parameters(), lr=lr, **(ADAMW | settings))
    rng = torch.Generator().manual_seed(seed)
    losses = []
    while len(losses) < steps:
        for batch in task.batches(rng):
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if len(losses) == steps:
                break
    return task.evaluate(model, "test")["loss"], float(torch.stack(losses).mean())


def main(names):
    torch.set_num_threads(1)
    for name in names:
        kind, settings, steps, rates = TASKS[name]
        task = tasks.named(kind, settings)
        for lr in rates:
            began = time.perf_counter()
            found = calibrated(task, lr)
            print(f"== {name}, lr = {lr:g}: {steps} steps, {len(REPORTING)} seeds", flush=True)
            print("\n".join(found.report().split("\n\ntensor")[0].splitlines()[2:]))
            print(f"(calibrated in {time.perf_counter() - began:.1f} s)")
            rules = {
                "defaults": {},
                "calibrated": found.settings,
                "predictive beta1": {"betas": (round(found.predicts.value, 3), 0.999)},
            }
            results = {
                rule: [trained(task, steps, lr, more, seed) for seed in REPORTING]
                for rule, more in rules.items()
            }
            for which, what in ((0, "test loss"), (1, "mean training loss")):
                print(f"{what:<22}{'mean':>10}{'less than the defaults by':>40}{'ahead':>8}")
                base = [r[which] for r in results["defaults"]]
                for rule, both in results.items():
                    values = [r[which] for r in both]
                    line = f"{rule:<22}{sum(values) / len(values):>10.4f}"
                    if rule != "defaults":
                        pair = compare(values, base)
                        gap = pair.difference
                        line += f"{gap.mean:>16.4f} [{gap.low:.4f}, {gap.high:.4f}]".rjust(40)
                        line += f"{pair.ahead:>6}/{len(values)}"
                    print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(TASKS))
