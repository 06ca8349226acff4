"""Draw the figure of docs/infer_path.md: a simulated animal with two cues, and the profile of its discount.

python docs/make_infer_path.py        writes docs/_static/infer_path.png
"""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import numpy as np

import lossnav as ln

loss = ln.Quadratic([[0.8, 0.6], [0.6, 0.8]], minimum=[1.0, 0.0])
sessions = np.arange(30.0)
animal = ln.Objective(loss, eta=0.03, gamma=0.1)
weights = ln.solve(animal, [0.0, 0.0]).at(sessions)
weights += 0.05 * np.random.default_rng(1).normal(size=weights.shape)
left, right = ln.infer_path(sessions, weights, loss).plot()
left.set(xlabel="session", ylabel="behavioural weight", ylim=(-0.15, 1.15))
labels = ["light", "tone", "gradient descent"]
left.legend(
    left.get_legend_handles_labels()[0],
    labels,
    loc="upper left",
    ncols=3,
    frameon=False,
    fontsize="small",
)
left.figure.savefig(Path(__file__).parent / "_static" / "infer_path.png", dpi=110)
