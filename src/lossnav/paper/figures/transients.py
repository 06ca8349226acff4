"""Variance after a task switch (Sec. 6, App. I): what the paper describes in words, solved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base.checks import FloatArray
from lossnav.paper.figures.style import BLUE, GREEN, GREY, RED, WIDTH, Tables, panels, styled
from lossnav.problem.belief import weight_uncertainty
from lossnav.problem.landscapes import Quadratic
from lossnav.solvers import Ritz, solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Variance after a task switch"
NOTES = (
    "App. I says that in the overdamped limit a moved basin leaves the variance alone, and that the full "
    "equations raise it for a while: panel b. The overdamped law is drawn beside each.",
)
K, CURVATURE, GAMMA = 1.0, 4.0, 0.5
SWITCHES = {
    "flatter": (1.0, 0.0),  # new curvature, new minimum
    "moved": (CURVATURE, 2.0),
    "both": (1.0, 2.0),
}
LAST = 10.0


def overdamped(t: ArrayLike, curvature: float) -> FloatArray:
    r"""The variance by the overdamped law of App. I, :math:`\dot v=(\eta/\gamma)(v-kHv^2)`, in closed form.

    With :math:`w=1/v` it is linear, :math:`\dot w=(\eta/\gamma)(kH-w)`.

    Examples:
        >>> overdamped([0.0, 100.0], curvature=1.0)
        array([0.25, 1.  ])
    """
    start, end = K * CURVATURE, K * curvature
    return 1 / (end + (start - end) * np.exp(-np.asarray(t) / GAMMA))


def data() -> Tables:
    """The mean and the variance of one weight over time, for each kind of switch.

    The weight has settled at mean 0 and variance 1/(k H) = 1/4 when the task changes at t = 0: the basin
    is flatter, has moved, or both.

    Examples:
        >>> moved = data()["transient moved"]["v"]
        >>> bool(moved.max() > 1.1 * moved[0]), round(float(moved[-1]), 3)
        (True, 0.25)
    """
    t = np.linspace(0, LAST, 201)
    tables = {}
    for name, (curvature, minimum) in SWITCHES.items():
        objective = weight_uncertainty(Quadratic(curvature, minimum=[minimum]), k=K, gamma=GAMMA)
        end = (minimum, 1 / (K * curvature))
        path = solve(objective, [0.0, 1 / (K * CURVATURE)], method=Ritz(ends=[end])).at(t)
        tables[f"transient {name}"] = {
            "t": t, "mu": path[:, 0], "v": path[:, 1], "v overdamped": overdamped(t, curvature),
        }  # fmt: skip
    return tables


@styled
def draw(tables: Tables) -> Figure:
    """One panel for each kind of switch."""
    figure, (axes,) = panels(3, width=WIDTH, height=2.6)
    titles = {"flatter": "a  A flatter basin", "moved": "b  A moved basin", "both": "c  Both"}
    for ax, (name, (curvature, _)) in zip(axes, SWITCHES.items(), strict=True):
        table = tables[f"transient {name}"]
        ax.axhline(1 / (K * curvature), color=GREY, linewidth=0.8, label="balance $1/(kH)$")
        ax.plot(table["t"], table["v"], color=BLUE, label="variance $v$")
        ax.plot(
            table["t"], table["v overdamped"], color=GREEN, linestyle=(0, (1.5, 1.5)), lw=1.4,
            label="$v$, overdamped law",
        )  # fmt: skip
        ax.plot(table["t"], table["mu"], color=RED, linestyle=(0, (5, 2)), label=r"mean $\mu$")
        ax.set(
            title=titles[name], xlabel="time since the switch", xlim=(0, LAST), ylim=(-0.08, 2.15)
        )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
