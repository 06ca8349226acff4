"""Draws docs/_static/schedules.png: the optimal learning-rate schedule for several beliefs.

python docs/make_schedules.py
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt

import lossnav as ln

N = 400


def main():
    rank = np.unique(np.round(np.logspace(0, 3.5, 60)))
    count = np.gradient(rank)  # directions that each curvature stands for
    left = 1 - np.arange(N) / N
    fig, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained", sharey=True)
    for p, noise in ((0.75, 10.0), (1.0, 1.0), (1.5, 1.0)):
        h = rank**-p
        plan = ln.schedule(N, h, noise * h * count, prior=count * rank**-1.2 / h, limit=np.inf)
        axes[0].plot(plan.factors, label=f"$h_j = j^{{-{p:g}}}$")
        axes[0].plot(left ** (2 * p - 1), "k:", lw=1)
    axes[0].set(title="no bound on the rate", ylabel="learning rate / peak")
    h = np.logspace(-4, 0, 40)
    for noise in (0.001, 0.01, 0.1, 1.0):
        plan = ln.schedule(N, h, noise * h, prior=h**-0.5)
        axes[1].plot(plan.factors, label=f"V = {noise:g} h")
    axes[1].set(title="rate below 2 / (largest curvature)")
    for wandering in (0.0, 1e-4, 1e-2):
        plan = ln.schedule(N, h, 0.1 * h, prior=h**-0.5, wandering=wandering)
        axes[2].plot(plan.factors, label=f"Q = {wandering:g}")
    axes[2].set(title="the minimum wanders (V = 0.1 h)")
    for ax in axes:
        ax.set(xlabel="step", ylim=(0, 1.05))
        ax.legend(fontsize="small")
    fig.savefig(Path(__file__).parent / "_static" / "schedules.png", dpi=120)


if __name__ == "__main__":
    main()
