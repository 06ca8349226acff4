r"""Figures on noise and uncertainty: gradient noise (App. H), and variance after a switch (App. I).

Near a minimum, the process :math:`\dot\theta=-\tfrac1\tau\nabla L+\sigma\,\text{noise}` has
gradients of covariance :math:`\tfrac12\sigma^2\tau H`. Measured here in three ways: on that
process, on the same process with the loss of a network, and in the gradients of single examples
of that network.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg, optimize

from lossnav._base.checks import FloatArray
from lossnav.paper import figures
from lossnav.paper.figures import BLUE, GREEN, GREY, RED, PaperFigure, Tables
from lossnav.paper.figures.network import Network
from lossnav.problem.belief import weight_uncertainty
from lossnav.problem.landscapes import Quadratic
from lossnav.solvers import Ritz, solve

TAU, SIGMA = 2.0, 0.5
WANDER = 0.01
"""Noise of the network's weights; small enough for the loss to be nearly quadratic."""
NET = Network((16, 6, 10), smooth=True, decay=0.02)
EXAMPLES, STEPS = 400, 24_000


def process() -> tuple[FloatArray, FloatArray]:
    """Curvatures of a random quadratic loss, and the measured variance of its gradient."""
    rng = np.random.default_rng(0)
    h = np.logspace(0, 1.5, 10)
    Q, _ = np.linalg.qr(rng.normal(size=(len(h),) * 2))
    H = (Q * h) @ Q.T
    dt = 0.05 * TAU / h[-1]
    pull = np.eye(len(h)) - H * dt / TAU
    x = np.zeros((1000, len(h)))
    total, count = np.zeros_like(H), 0
    for step in range(4_000):
        x = x @ pull + SIGMA * np.sqrt(dt) * rng.normal(size=x.shape)
        if step >= 2_500 and step % 20 == 0:  # after burn-in of the slowest direction
            g = x @ H
            total, count = total + g.T @ g, count + len(g)
    return h, np.diag(Q.T @ (total / count) @ Q)


def examples() -> tuple[FloatArray, FloatArray]:
    """Digits averaged to 4 x 4 pixels and scaled, with their classes."""
    from lossnav.studies.data import load

    digits = load("digits")
    x = digits.x_train[:EXAMPLES].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    return (x - x.mean()) / x.std(), digits.y_train[:EXAMPLES].astype(np.int64)


def trained() -> tuple[FloatArray, FloatArray, FloatArray]:
    """A minimum of the network's loss, with its curvatures and their directions (columns)."""
    start = NET.start(np.random.default_rng(0))
    how = {"jac": True, "options": {"maxiter": 3000, "ftol": 1e-15, "gtol": 1e-9}}
    theta = optimize.minimize(NET.loss_and_gradient, start, examples(), "L-BFGS-B", **how).x
    h, Q = linalg.eigh(hessian(theta))
    return theta, h, Q


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
    """Variance of the full gradient along each direction under the process with tau = 1."""
    rng = np.random.default_rng(1)
    x, y = examples()
    dt = 0.2 / h[-1]
    now, total, count = theta, np.zeros(len(h)), 0
    for step in range(STEPS):
        slope = NET.loss_and_gradient(now, x, y)[1]
        now = now - dt * slope + WANDER * np.sqrt(dt) * rng.normal(size=len(h))
        if step >= STEPS // 4 and step % 5 == 0:  # after burn-in
            total, count = total + (slope @ Q) ** 2, count + 1
    return total / count


def noise_data() -> Tables:
    """The curvature and the variance of the gradient along each direction of the Hessian."""
    h, variance = process()
    theta, curvature, Q = trained()
    lines = {"expected": SIGMA**2 * TAU / 2 * h, "as printed": SIGMA**2 / (2 * TAU**2) * h}
    network = {"variance": wandering(theta, curvature, Q), "expected": WANDER**2 / 2 * curvature}
    each = NET.each_gradient(theta, *examples()) @ Q
    return {
        "noise process": {"h": h, "variance": variance, **lines},
        "noise network": {"h": curvature, **network},
        "noise examples": {"h": curvature - NET.decay, "variance": each.var(axis=0)},
    }


def proportion(h: FloatArray, variance: FloatArray) -> tuple[float, float]:
    """The exponent of h in the variance, and the correlation of the logarithms.

    Examples:
        >>> h = np.array([1.0, 2.0, 4.0])
        >>> [round(x, 12) for x in proportion(h, 3 * h**2)]
        [2.0, 1.0]
    """
    x, y = np.log(h), np.log(variance)
    return float(np.polyfit(x, y, 1)[0]), float(np.corrcoef(x, y)[0, 1])


@figures.styled
def draw_noise(tables: Tables) -> figures.Figure:
    """Variance against curvature, on logarithmic axes: proportional is a slope of one."""
    figure, (axes,) = figures.panels(3, height=2.8)
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
            dashed = {"color": RED, "linestyle": (0, (5, 2)), "lw": 1.2}
            ax.plot(h, table["as printed"], label="as printed", **dashed)
        ax.plot(h[keep], variance[keep], "o", color=BLUE, ms=3.5, mfc="none", label="measured")
        ax.set(xscale="log", yscale="log", xlabel="curvature $h$", title=title)
        text = f"slope {exponent:.2f}\ncorrelation {correlation:.3f}"
        ax.text(0.97, 0.05, text, ha="right", transform=ax.transAxes)
        ax.legend(loc="upper left")
    axes[0].set_ylabel("variance of the gradient")
    return figure


noise = PaperFigure("noise", noise_data, draw_noise)

K, CURVATURE, GAMMA = 1.0, 4.0, 0.5
SWITCHES = {
    "flatter": (1.0, 0.0),  # new curvature, new minimum
    "moved": (CURVATURE, 2.0),
    "both": (1.0, 2.0),
}
LAST = 10.0


def overdamped(t: ArrayLike, curvature: float) -> FloatArray:
    r"""The variance by App. I's overdamped law, :math:`\dot v=(\eta/\gamma)(v-kHv^2)`.

    With :math:`w=1/v` it is linear, :math:`\dot w=(\eta/\gamma)(kH-w)`.

    Examples:
        >>> overdamped([0.0, 100.0], curvature=1.0)
        array([0.25, 1.  ])
    """
    start, end = K * CURVATURE, K * curvature
    return 1 / (end + (start - end) * np.exp(-np.asarray(t) / GAMMA))


def transients_data() -> Tables:
    """The mean and the variance of one weight over time, for each kind of switch.

    The weight has settled at mean 0 and variance 1/(k H) = 1/4 when the task changes at t = 0: the
    basin becomes flatter, moves, or both.
    """
    t = np.linspace(0, LAST, 201)
    tables = {}
    for name, (curvature, minimum) in SWITCHES.items():
        objective = weight_uncertainty(Quadratic(curvature, minimum=[minimum]), k=K, gamma=GAMMA)
        method = Ritz(ends=[(minimum, 1 / (K * curvature))])
        mu, v = solve(objective, [0.0, 1 / (K * CURVATURE)], method=method).at(t).T
        law = overdamped(t, curvature)
        tables[f"transient {name}"] = {"t": t, "mu": mu, "v": v, "v overdamped": law}
    return tables


@figures.styled
def draw_transients(tables: Tables) -> figures.Figure:
    """One panel for each kind of switch."""
    figure, (axes,) = figures.panels(3, height=2.6)
    titles = ("a  A flatter basin", "b  A moved basin", "c  Both")
    law = {"color": GREEN, "linestyle": (0, (1.5, 1.5)), "lw": 1.4, "label": "$v$, overdamped law"}
    mean = {"color": RED, "linestyle": (0, (5, 2)), "label": r"mean $\mu$"}
    for ax, (name, (curvature, _)), title in zip(axes, SWITCHES.items(), titles, strict=True):
        table = tables[f"transient {name}"]
        ax.axhline(1 / (K * curvature), color=GREY, linewidth=0.8, label="balance $1/(kH)$")
        ax.plot(table["t"], table["v"], color=BLUE, label="variance $v$")
        ax.plot(table["t"], table["v overdamped"], **law)
        ax.plot(table["t"], table["mu"], **mean)
        ax.set(title=title, xlabel="time since the switch", xlim=(0, LAST), ylim=(-0.08, 2.15))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


transients = PaperFigure("transients", transients_data, draw_transients)
