"""Calibrated settings against the defaults, at the same learning rate: real tasks, seeds of their own.

Each task is calibrated on 300 batches from a start that is not among those compared, once with the defaults of
AdamW and once with those of Navigator. Then each rule trains from the same starts on the same batches: as it
comes, and with the settings that its calibration found; and, with AdamW's other settings, with the memory that
predicts the next gradient best, which the likelihood alone would choose. Printed are means over the seeds, and the
difference to the same rule's defaults with its 95 % interval, seed by seed.

    python benchmarks/calibrate.py [task ...] [--seeds 200 201 ...]      tasks: digits mnist text

The text needs tinyshakespeare.txt and the digits of MNIST mnist.npz (see docs/studies.md).
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse  # noqa: E402
import time  # noqa: E402

import torch  # noqa: E402

from lossnav.inference import calibrate  # noqa: E402
from lossnav.optim.torch import Navigator  # noqa: E402
from lossnav.studies import tasks  # noqa: E402
from lossnav.studies.statistics import compare  # noqa: E402

DEFAULTS = {
    "AdamW": {"betas": (0.9, 0.999), "weight_decay": 0.01, "nesterov": False, "saturation": 0.0},
    "Navigator": {},
}
SMALL = {"layers": 2, "width": 64, "heads": 4, "context": 32, "batch_size": 16}
# task: kind, settings, steps, learning rates
TASKS = {
    "digits": ("digits", {}, 420, (1e-3, 4e-3)),
    "mnist": ("mnist", {"hidden": [128], "batch_size": 64}, 500, (1e-3,)),
    "text": ("characters", SMALL, 400, (1e-3, 4e-3)),
}
CALIBRATION, REPORTING = 0, (200, 201, 202, 203, 204)


class Passes:
    """A task's batches, one pass after the other, drawn by torch's own generator."""

    def __init__(self, task):
        self.task = task

    def __iter__(self):
        return iter(self.task.batches(torch.default_generator))


def calibrated(task, lr, settings):
    torch.manual_seed(CALIBRATION)
    model = task.model()
    return calibrate(
        model,
        task.loss,
        Passes(task),
        optimizer=lambda p: Navigator(p, lr=lr, **settings),
        seed=CALIBRATION,
    )


def trained(task, steps, lr, settings, seed):
    """Test loss at the end, and the mean training loss."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = Navigator(model.parameters(), lr=lr, **settings)
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


def compared(results, base, seeds):
    """The lines of a table: each rule beside the one that it is compared with."""
    for which, what in ((0, "test loss"), (1, "mean training loss")):
        print(f"{what:<26}{'mean':>10}{'less than the defaults by':>36}{'ahead':>8}")
        first = [r[which] for r in results[base]]
        for rule, both in results.items():
            values = [r[which] for r in both]
            line = f"{rule:<26}{sum(values) / len(values):>10.4f}"
            if rule != base:
                pair = compare(values, first)
                gap = pair.difference
                line += f"{gap.mean:>12.4f} [{gap.low:.4f}, {gap.high:.4f}]".rjust(36)
                line += f"{pair.ahead:>6}/{len(seeds)}"
            print(line, flush=True)


def main(names, seeds):
    torch.set_num_threads(1)
    for name in names:
        kind, settings, steps, rates = TASKS[name]
        task = tasks.named(kind, settings)
        for lr in rates:
            for base, given in DEFAULTS.items():
                began = time.perf_counter()
                found = calibrated(task, lr, given)
                print(f"== {name}, lr = {lr:g}, {base}: {steps} steps, {len(seeds)} seeds")
                print("\n".join(found.report().split("\n\ntensor")[0].splitlines()[2:]))
                print(f"(calibrated in {time.perf_counter() - began:.1f} s)", flush=True)
                rules = {base: given, f"{base}, calibrated": given | found.settings}
                if base == "AdamW":
                    predicts = (round(found.predicts.value, 3), given["betas"][1])
                    rules["AdamW, predictive beta1"] = given | {"betas": predicts}
                results = {
                    rule: [trained(task, steps, lr, more, seed) for seed in seeds]
                    for rule, more in rules.items()
                }
                compared(results, base, seeds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", metavar="task")
    parser.add_argument("--seeds", type=int, nargs="+", default=REPORTING)
    asked = parser.parse_args()
    main(asked.tasks or list(TASKS), asked.seeds)
