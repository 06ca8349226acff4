"""Draw the fingerprints of sixteen optimizers and write the page that shows them.

    python docs/make_fingerprints.py        writes docs/fingerprints.md and docs/_static/fingerprints/*.svg

A fingerprint has four panels: the response of a step to the variance of gradients, the weight of each past
gradient, the adaptation of the response when the noise increases tenfold, and the equivariance error of the
steps under rotations of the gradients. Circles are measured, lines are fitted.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from pathlib import Path  # noqa: E402

import matplotlib  # noqa: E402

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import torch  # noqa: E402

from lossnav.inference import infer  # noqa: E402
from lossnav.optim.torch import KroneckerNavigator, Navigator  # noqa: E402
from lossnav.rules import zoo  # noqa: E402

HERE = Path(__file__).parent
FOLDER = HERE / "_static" / "fingerprints"
plt.rcParams.update({"svg.hashsalt": "lossnav", "font.size": 8, "svg.fonttype": "none"})

T = torch.optim
OPTIMIZERS = {
    "SGD": ("lr=0.1", lambda p: T.SGD(p, lr=0.1)),
    "SGD, momentum": ("lr=0.1, momentum=0.9", lambda p: T.SGD(p, lr=0.1, momentum=0.9)),
    "SGD, Nesterov": ("lr=0.1, momentum=0.9", lambda p: T.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    "RMSprop": ("defaults", T.RMSprop),
    "Adam": ("defaults", T.Adam),
    "AdamW": ("weight_decay=0.1", lambda p: T.AdamW(p, weight_decay=0.1)),
    "NAdam": ("defaults", T.NAdam),
    "AdaBelief": ("the zoo's, lr=1e-3", zoo.AdaBelief()),
    "Adafactor": ("defaults", T.Adafactor),
    "Adagrad": ("defaults", T.Adagrad),
    "Lion": ("the zoo's, lr=1e-4", zoo.Lion()),
    "Muon": ("defaults", T.Muon),
    "SOAP": ("the zoo's, lr=3e-3", zoo.SOAP()),
    "Navigator": ("gamma=0.1", lambda p: Navigator(p, gamma=0.1)),
    "Navigator, Kalman": ('gain="kalman"', lambda p: Navigator(p, gain="kalman")),
    "KroneckerNavigator": ("defaults", KroneckerNavigator),
}  # fmt: skip


def draw(found, path):
    """The four parts side by side."""
    figure, axes = plt.subplots(1, 4, figsize=(9.2, 2.1), layout="constrained")
    curves = {curve.name: curve for curve in found.curves}
    for axis, name in zip(axes, ("response", "gradient memory", "curvature memory"), strict=False):
        axis.set_title(name)
        curve = curves.get(name)
        if curve is None:
            axis.text(0.5, 0.5, "one length:\nbalanced instead", ha="center", va="center",
                      transform=axis.transAxes)  # fmt: skip
            axis.set_xticks([]), axis.set_yticks([])
            continue
        last = 40 if name == "gradient memory" else None
        axis.plot(curve.at[:last], curve.measured[:last], "o", ms=2.5, mfc="none", color="#047")
        if curve.fitted:
            axis.plot(curve.at[:last], curve.fitted[:last], color="#c60", lw=1.2)
        if curve.log:
            axis.set_xscale("log"), axis.set_yscale("log")
            low, high = min(curve.measured), max(curve.measured)
            if high < 10 * low:  # rounding is not to look like a law
                middle = (low * high) ** 0.5
                axis.set_ylim(middle / 10, middle * 10)
        elif name == "curvature memory":
            axis.set_ylim(0, 1.2)
        axis.set_xlabel(curve.x)
    sides = [side for side in ("rows", "columns", "all") if side in found.metric.equivariance]
    axes[3].bar(sides, [found.metric.equivariance[side] for side in sides], color="#7a9")
    axes[3].set_title("does not turn with")
    axes[3].set_ylim(0, 1)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def words(found):
    """What was found, in one line of the page."""
    said = [f"{name} = {value}" for name, value in found.settings.items()]
    return "; ".join([f"{found.discount.kind}, {found.metric.kind}", *said])


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = [
        "# Fingerprints of optimizers",
        "",
        "Measurements of [`infer`](infer.md) on sixteen optimizers. Circles are measured, lines are fitted. The last panel of",
        "each figure is the equivariance error of the steps under rotations of the rows, the columns or all coordinates of the",
        "gradients (0 = exact). `python docs/make_fingerprints.py` generates this page.",
        "",
    ]  # fmt: skip
    for name, (settings, make) in OPTIMIZERS.items():
        found = infer(make, name=name)
        file = name.lower().replace(", ", "-").replace(" ", "-") + ".svg"
        draw(found, FOLDER / file)
        text += [f"## {name}", "", f"Given: {settings}. Found: {words(found)}.", ""]
        text += [f"![The fingerprint of {name}](_static/fingerprints/{file})", ""]
        if found.nearest is not None:
            text += [
                f"Nearest member: `{found.nearest.name}`, at a distance of {found.nearest.distance:.1g}.",
                "",
            ]
        text += [f"- Outside: {sentence}" for sentence in found.outside] + [""] * bool(
            found.outside
        )
        text += [f"- {note}" for note in found.notes] + [""] * bool(found.notes)
        print(f"{name}: {found.seconds:.1f} s", flush=True)
    (HERE / "fingerprints.md").write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
