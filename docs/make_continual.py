"""Draw the streams of tasks whose results are kept in benchmarks/continual/results, and v in the course of one.

    python docs/make_continual.py            writes docs/_static/continual/streams.svg
    python docs/make_continual.py variance   also variance.svg: trains for a minute, on MNIST if it is there
    python docs/make_continual.py plasticity also plasticity.svg: the same

``streams``: for each stream what is wrong over the tasks, before each step: the mean of the reporting seeds since the
evaluation before. ``variance``: the mean of v/v_0 in each layer over the steps of a stream of permuted pixels, the
share of weights that are free, and units that are drawn anew with ``reset=0.99``. ``plasticity``: what
`lossnav.plasticity.Meter` says at the end of each task of such a stream, for two optimizers.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "continual" / "results"
FOLDER = HERE / "_static" / "continual"
OURS = "weight-uncertainty (defaults)"
COLOURS = {
    "sgd": "#999999", "adam": "#000000", "l2": "#BBBB55", "l2-init": "#56B4E9", "l2-init with adam": "#009E73",
    "shrink and perturb": "#CC79A7", "continual backprop": "#D55E00", "upgd": "#E69F00", "redo": "#AA4499",
    "variational newton": "#7777BB", OURS: "#0072B2",
}  # fmt: skip
STREAMS = {
    "A": ("A: pixels permuted", "error (share wrong)", 150),
    "B": ("B: labels permuted", "error (share wrong)", 100),
    "C": ("C: slowly changing bits", "squared error", 60),
    "D": ("D: Fashion-MNIST, larger, longer", "error (share wrong)", 400),
}
plt.rcParams.update({
    "svg.hashsalt": "lossnav", "svg.fonttype": "path", "font.size": 8.5, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 8,
})  # fmt: skip


def curves(stream):
    """For each rule, the steps and what is wrong at each of them, the mean over seeds."""
    found = defaultdict(lambda: defaultdict(list))
    for name in (stream, f"{stream}_defaults"):
        with (RESULTS / name / "curves.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["metric"] == "recent" and int(row["step"]):
                    found[row["rule"]][int(row["step"])].append(float(row["value"]))
    result = {}
    for rule, held in found.items():
        steps = sorted(held)
        means = np.array([np.mean(held[step]) for step in steps])
        result[rule] = np.array(steps), means if stream == "C" else 1 - means
    return result


def streams():
    there = [name for name in STREAMS if (RESULTS / name / "curves.csv").exists()]
    figure, panels = plt.subplots(
        -(-len(there) // 2), 2, figsize=(8.6, 2.75 * -(-len(there) // 2)), layout="constrained", squeeze=False
    )  # fmt: skip
    handles = {}
    for name, axes in zip(there, panels.flat, strict=False):
        title, label, tasks = STREAMS[name]
        found = curves(name)
        last = max(steps[-1] for steps, _ in found.values())
        ends = []
        for rule, (steps, values) in found.items():
            own = rule == OURS
            (line,) = axes.plot(
                steps / last * tasks, values, color=COLOURS[rule], lw=2.2 if own else 1.0, zorder=3 if own else 2
            )  # fmt: skip
            handles[rule] = line
            ends.append(values[len(values) // 3 :])
        low, high = min(v.min() for v in ends), np.quantile(np.concatenate(ends), 0.93)
        axes.set(title=title, ylabel=label, xlabel="tasks", ylim=(low - 0.06 * (high - low), high))
    for axes in list(panels.flat)[len(there) :]:
        axes.set_axis_off()
    order = [OURS, *(rule for rule in COLOURS if rule in handles and rule != OURS)]
    figure.legend([handles[r] for r in order], order, loc="outside lower center", ncols=4)
    keep(figure, "streams")


def keep(figure, name):
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def variance(tasks=8, every=10, reset=0.99):
    """Train on a stream of permuted pixels, and look at v as it goes."""
    import torch

    from lossnav.optim.torch import WeightUncertainty
    from lossnav.studies.data import substitute
    from lossnav.studies.tasks import named

    torch.set_num_threads(1)
    data, _ = substitute("mnist")
    figure, panels = plt.subplots(3, 1, figsize=(7.2, 5.4), layout="constrained", sharex=True)
    names = ("first layer", "second layer", "last layer")
    for given in (None, reset):
        stream = named("permuted-pixels", {"tasks": tasks, "data": data})
        torch.manual_seed(0)
        model = stream.model()
        optimizer = WeightUncertainty(model.named_parameters(), curvature="ggn", reset=given)
        optimizer.watch(model, "cross_entropy")
        weights = [p for p in model.parameters() if p.ndim > 1]
        steps, means, free, drawn = [], [], [], [0]
        for step, batch in enumerate(stream.batches(torch.Generator().manual_seed(1)), start=1):
            optimizer.zero_grad()
            stream.loss(model, batch).backward()
            optimizer.step()
            if given is not None:
                drawn.append(
                    drawn[-1] + sum(int((optimizer.state[p]["age"] == 0).sum()) for p in weights)
                )
            elif step % every == 0:
                shares = [
                    optimizer.variance(p) / optimizer.state[p]["prior_variance"] for p in weights
                ]
                steps.append(step)
                means.append([share.mean().item() for share in shares])
                free.append([(share > 0.9).float().mean().item() for share in shares])
        if given is None:
            for values, axes in ((means, panels[0]), (free, panels[1])):
                for column, name, colour in zip(
                    np.transpose(values), names, ("#0072B2", "#009E73", "#D55E00"), strict=True
                ):
                    axes.plot(steps, column, color=colour, label=name)
        else:
            panels[2].plot(drawn, color="#CC79A7")
    panels[0].set(ylabel="mean of $v/v_0$", ylim=(0, 1))
    panels[1].set(ylabel="share of weights\nwith $v>0.9\\,v_0$", ylim=(0, 1))
    panels[2].set(ylabel=f"units drawn anew,\nreset = {reset}", xlabel="steps", ylim=(0, None))
    for axes in panels:
        for switch in range(1, tasks):
            axes.axvline(switch * stream.steps, color="#888888", lw=0.6, ls=":")
        axes.set_xlim(0, tasks * stream.steps)
    panels[0].legend(loc="lower right", ncols=3)
    keep(figure, "variance")


def plasticity(tasks=30, last=32):
    """Train on a stream of permuted pixels with two optimizers, and measure after each task."""
    import torch

    from lossnav.optim.torch import WeightUncertainty
    from lossnav.plasticity import Meter
    from lossnav.studies.data import substitute
    from lossnav.studies.tasks import named

    torch.set_num_threads(1)
    data, _ = substitute("mnist")
    axes = None
    for name in ("WeightUncertainty", "Adam, lr = 0.003"):
        stream = named("permuted-pixels", {"tasks": tasks, "data": data})
        torch.manual_seed(0)
        model = stream.model()
        if axes is None:
            optimizer = WeightUncertainty(model.parameters(), curvature="ggn")
            optimizer.watch(model, "cross_entropy")
        else:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
        meter, seen = Meter(model, torch.nn.functional.cross_entropy, optimizer), []
        for step, batch in enumerate(stream.batches(torch.Generator().manual_seed(1)), start=1):
            optimizer.zero_grad()
            stream.loss(model, batch).backward()
            optimizer.step()
            seen = [*seen[1 - last :], batch]
            if step % stream.steps == 0:
                x, y = (torch.cat(parts) for parts in zip(*seen, strict=True))
                meter.measure(x, y, step=step)
        print(name, stream.evaluate(model, "test")["accuracy"], meter.history[0], meter.history[-1])
        axes = meter.plot(axes, label=name)
    for ax in axes[1:]:
        ax.get_legend().remove()
    keep(axes[0].figure, "plasticity")


if __name__ == "__main__":
    if list(RESULTS.glob("*/curves.csv")):
        streams()
    if "variance" in sys.argv[1:]:
        variance()
    if "plasticity" in sys.argv[1:]:
        plasticity()
