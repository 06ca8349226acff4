"""Training in NumPy: a rule's own init and update on a small network, for machines without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.paper.figures.network import Network
from lossnav.rules.base import Array, Rule, State
from lossnav.studies.data import load

SCALES = {"mnist": (255.0, 0.1307, 0.3081), "digits": (16.0, 0.3053, 0.3760)}
"""The largest value of a pixel, and mean and deviation of x / largest."""


@dataclass(frozen=True)
class Ballistic(Rule):
    r"""The rule of Fig. 2e, f: :math:`v\leftarrow\beta_2v+(1-\beta_2)g^2`, :math:`\Delta\theta=-\mathrm{lr}\,g/\sqrt{v+\epsilon}`.

    Args:
        dt: The learning rate.
        beta2: How much a step leaves of v, which starts at zero.
        eps: Added to v, under the root.

    Examples:
        >>> rule = Ballistic(0.01, beta2=0.9)
        >>> theta = np.array([1.0, -2.0])
        >>> rule.update(2 * theta, rule.init(theta), theta)[0].round(4)  # lr / sqrt(1 - beta2)
        array([-0.0316,  0.0316])
    """

    beta2: float = 0.999
    eps: float = 1e-8

    def init(self, theta: Array) -> State:
        """No variance yet."""
        return {"v": np.zeros_like(theta)}

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        """The step, and the variance to keep."""
        v = self.beta2 * state["v"] + (1 - self.beta2) * grad * grad
        return -self.dt * grad / np.sqrt(v + self.eps), {"v": v}


@dataclass(frozen=True)
class Course:
    """What is trained, on what, and for how long.

    Args:
        data: ``"mnist"`` or ``"digits"``.
        hidden: Widths of the hidden layers.
        batch: Examples of a step.
        epochs: Passes over the training images.
        seeds: One run of each rule for each.
        judged: Test images that accuracy is taken from, at most.
        points: How often it is taken, evenly spread.
        clip: Largest norm of a gradient.
    """

    data: str
    hidden: tuple[int, ...]
    batch: int
    epochs: float
    seeds: tuple[int, ...]
    judged: int = 10_000
    points: int = 10
    clip: float = 5.0

    def run(self, rule: Rule, seed: int) -> dict[str, FloatArray]:
        """Step, epoch, mean training loss since the last row, and test accuracy.

        Examples:
            >>> from lossnav.rules import zoo
            >>> found = Course("digits", (32,), 64, 2, (0,), points=4).run(zoo.SGD(0.1), 0)
            >>> found["step"].astype(int).tolist(), bool(found["test accuracy"][-1] > 0.7)
            ([0, 11, 22, 34, 45], True)
        """
        rng, images = np.random.default_rng(seed), load(self.data)
        net = Network((images.x_train[0].size, *self.hidden, 10))
        theta = net.start(rng, np.float32)
        state, count = rule.init(theta), len(images.x_train)
        steps = round(self.epochs * count / self.batch)
        stops = {round(i * steps / self.points) for i in range(self.points + 1)}
        test = _scaled(self.data, images.x_test[: self.judged]), images.y_test[: self.judged]
        rows: list[list[float]] = []
        losses: list[float] = []
        order: Any = []
        for step in range(steps + 1):
            if len(order) < self.batch:
                order = rng.permutation(count)
            chosen, order = order[: self.batch], order[self.batch :]
            x, y = _scaled(self.data, images.x_train[chosen]), images.y_train[chosen]
            loss, slope = net.loss_and_gradient(theta, x, y)
            losses = losses or [loss]
            if step in stops:
                rows.append([step, step * self.batch / count, float(np.mean(losses)),
                             net.judged(theta, *test)[1]])  # fmt: skip
                losses = []
            losses.append(loss)
            size = float(np.linalg.norm(slope))
            if size > self.clip:
                slope *= np.float32(self.clip / size)
            move, state = rule.update(slope, state, theta)
            theta = theta + move.astype(np.float32)
        names = ("step", "epoch", "training loss", "test accuracy")
        return dict(zip(names, np.array(rows).T, strict=True))


def _scaled(data: str, images: Any) -> FloatArray:
    top, mean, deviation = SCALES[data]
    flat = images.reshape(len(images), -1).astype(np.float32)
    return (flat * np.float32(1 / (top * deviation)) - np.float32(mean / deviation)).astype(
        np.float32
    )
