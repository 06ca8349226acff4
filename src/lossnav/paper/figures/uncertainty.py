r"""Noisy gradients and curvature (App. H): the covariance of gradients grows as the Hessian.

A weight that wanders by :math:`\dot\theta=-\tfrac1\tau\nabla L+\sigma\,\text{noise}` near a minimum sees gradients of
covariance :math:`\tfrac12\sigma^2\tau H`. Measured here in three ways: on that process, on the same process with the loss
of a network, and in the gradients of single examples of that network, which no process was made for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg, optimize

from lossnav._base.checks import FloatArray
from lossnav.paper.figures.network import Network
from lossnav.paper.figures.style import BLUE, GREY, RED, WIDTH, Tables, panels, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Gradient noise and curvature"
NOTES = (
    "The paper prints σ²H/(2τ²); what its process has is σ²τH/2 (errata 5). Its claim, that the covariance is "
    "proportional to H, holds for the process. In the gradients of single examples it holds roughly, over "
    "three orders of magnitude, with scatter: an assumption, as the paper says, not a law.",
)
TAU, SIGMA = 2.0, 0.5
WANDER = 0.01
"""Noise of the network's weights; so small that the loss looks quadratic."""
NET = Network((16, 6, 10), smooth=True, decay=0.02)
EXAMPLES, STEPS = 400, 24_000


def process(seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Curvatures of a random quadratic loss, and the measured variance of its gradient along each.

    Examples:
        >>> h, variance = process()
        >>> bool(np.abs(variance / (SIGMA**2 * TAU / 2 * h) - 1).max() < 0.1)
        True
    """
    rng = np.random.default_rng(seed)
    h = np.logspace(0, 1.5, 10)
    Q, _ = np.linalg.qr(rng.normal(size=(len(h),) * 2))
    H = (Q * h) @ Q.T
    dt = 0.05 * TAU / h[-1]
    pull = np.eye(len(h)) - H * dt / TAU
    x = np.zeros((1000, len(h)))
    total, seen = np.zeros_like(H), 0
    for step in range(4_000):
        x = x @ pull + SIGMA * np.sqrt(dt) * rng.normal(size=x.shape)
        if (
            step >= 2_500 and step % 20 == 0
        ):  # by then the slowest direction has forgotten its start
            g = x @ H
            total, seen = total + g.T @ g, seen + len(g)
    return h, np.diag(Q.T @ (total / seen) @ Q)


def examples() -> tuple[FloatArray, FloatArray]:
    """Some of the digits, averaged to 4 x 4 pixels and scaled."""
    from lossnav.studies.data import load

    digits = load("digits")
    x = digits.x_train[:EXAMPLES].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    return (x - x.mean()) / x.std(), digits.y_train[:EXAMPLES].astype(np.int64)


def trained() -> tuple[FloatArray, FloatArray, FloatArray]:
    """A minimum of the network's loss, with its curvatures and their directions (columns)."""
    x, y = examples()
    start = NET.start(np.random.default_rng(0))
    options = {"maxiter": 3000, "ftol": 1e-15, "gtol": 1e-9}
    found = optimize.minimize(
        NET.loss_and_gradient, start, (x, y), "L-BFGS-B", jac=True, options=options
    ).x
    h, Q = linalg.eigh(hessian(found))
    return found, h, Q


def hessian(theta: FloatArray, step: float = 1e-4) -> FloatArray:
    """Second derivatives of the network's loss, by central differences of its gradient."""
    x, y = examples()
    rows = [
        NET.loss_and_gradient(theta + e, x, y)[1] - NET.loss_and_gradient(theta - e, x, y)[1]
        for e in step * np.eye(len(theta))
    ]
    H = np.array(rows) / (2 * step)
    return (H + H.T) / 2


def wandering(theta: FloatArray, h: FloatArray, Q: FloatArray) -> FloatArray:
    """Variance of the whole gradient along each direction while the weights wander, with tau = 1."""
    rng = np.random.default_rng(1)
    x, y = examples()
    dt = 0.2 / h[-1]
    now, total, seen = theta, np.zeros(len(h)), 0
    for step in range(STEPS):
        slope = NET.loss_and_gradient(now, x, y)[1]
        now = now - dt * slope + WANDER * np.sqrt(dt) * rng.normal(size=len(h))
        if step >= STEPS // 4 and step % 5 == 0:  # the way there is left out
            total, seen = total + (slope @ Q) ** 2, seen + 1
    return total / seen


def data() -> Tables:
    """For each direction of the Hessian: its curvature, and the variance of the gradient along it."""
    h, variance = process()
    theta, curvature, Q = trained()
    x, y = examples()
    each = NET.each_gradient(theta, x, y) @ Q
    expected = {"process": SIGMA**2 * TAU / 2 * h, "network": WANDER**2 / 2 * curvature}
    return {
        "noise process": {"h": h, "variance": variance, "expected": expected["process"],
                          "as printed": SIGMA**2 / (2 * TAU**2) * h},
        "noise network": {"h": curvature, "variance": wandering(theta, curvature, Q),
                          "expected": expected["network"]},
        "noise examples": {"h": curvature - NET.decay, "variance": each.var(axis=0)},
    }  # fmt: skip


def proportion(h: FloatArray, variance: FloatArray) -> tuple[float, float]:
    """The exponent of h in the variance, and how well the logarithms are correlated.

    Examples:
        >>> h = np.array([1.0, 2.0, 4.0])
        >>> [round(x, 12) for x in proportion(h, 3 * h**2)]
        [2.0, 1.0]
    """
    x, y = np.log(h), np.log(variance)
    exponent = float(np.polyfit(x, y, 1)[0])
    return exponent, float(np.corrcoef(x, y)[0, 1])


@styled
def draw(tables: Tables) -> Figure:
    """Variance against curvature, on logarithmic axes: proportional is a slope of one."""
    figure, (axes,) = panels(3, width=WIDTH, height=2.8)
    titles = ("a  The process", "b  A network that wanders", "c  Its single examples")
    for ax, table, title in zip(axes, tables.values(), titles, strict=True):
        h, variance = table["h"], table["variance"]
        keep = h > h.max() * 1e-4  # below this, rounding of the Hessian
        exponent, correlation = proportion(h[keep], variance[keep])
        ends = np.array([h[keep].min(), h.max()])
        if "expected" in table:
            ax.plot(h, table["expected"], color=GREY, lw=1.2, label=r"$\frac{1}{2}\sigma^2\tau h$")
        else:
            level = np.exp(np.mean(np.log(variance[keep] / h[keep])))
            ax.plot(ends, level * ends, color=GREY, lw=1.2, label="slope one")
        if "as printed" in table:
            ax.plot(
                h, table["as printed"], color=RED, linestyle=(0, (5, 2)), lw=1.2, label="as printed"
            )
        ax.plot(h[keep], variance[keep], "o", color=BLUE, ms=3.5, mfc="none", label="measured")
        ax.set(xscale="log", yscale="log", xlabel="curvature $h$", title=title)
        ax.text(0.97, 0.05, f"slope {exponent:.2f}\ncorrelation {correlation:.3f}", ha="right",
                transform=ax.transAxes)  # fmt: skip
        ax.legend(loc="upper left")
    axes[0].set_ylabel("variance of the gradient")
    return figure
