"""Streams of regressions: slowly changing bits, sines that become faster, values of rewards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from lossnav._base import checks
from lossnav.studies.tasks import check_whole, widths
from lossnav.studies.tasks.streams import Block, Stream, network


@dataclass(kw_only=True, eq=False)
class Regression(Stream):
    """Base: a network with one output, and the squared error as loss and as score.

    Args:
        hidden: Widths of the learner's hidden layers.
        batch_size, steps, tasks, part: As in `Stream`.

    Attributes:
        inputs: Number of inputs of the network.
    """

    hidden: Sequence[int]
    part: int = 3

    inputs: int = field(init=False)
    metric, better, loss_kind = "error", "lower", "mse"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hidden = widths("hidden", self.hidden)

    def model(self) -> nn.Module:
        return network([self.inputs, *self.hidden, 1])

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square()

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(outputs, targets)


@dataclass(kw_only=True, eq=False)
class SlowBits(Regression):
    r"""Slowly changing regression: the inputs change from task to task, the function does not.

    An example has ``bits`` bits: ``slow`` of them are fixed during a task, the others are drawn for
    each example. The target is :math:`y=\beta+\sum_iu_i\,[w_i\cdot x+b_i>\tau_i]`, a sum of
    ``units`` threshold units. All weights and biases are +1 or -1, and

    .. math:: \tau_i=\mathrm{threshold}\,(\mathrm{bits}+1)-S_i,\qquad
              S_i=\tfrac12\Bigl(\mathrm{bits}-\sum_jw_{ij}+b_i\Bigr).

    A unit is on where about ``threshold`` of the bits agree with the sign of their weight. A small
    learner can fit the current task only, and must go on learning. The metric is ``error``, the
    mean squared error, by default over the last third of the tasks.

    With ``flips=1``, ``steps=10_000``, and the other defaults it is the slowly changing regression
    problem of Dohare et al. 2024 ("Loss of plasticity in deep continual learning").

    Args:
        bits, slow, units, threshold: As above.
        flips: Number of slow bits, drawn at random, that change from one task to the next; None
            draws all of them anew.
        hidden, batch_size, steps, tasks, part: As in `Regression`.
    """

    bits: int = 20
    slow: int = 15
    units: int = 100
    threshold: float = 0.7
    flips: int | None = None
    hidden: Sequence[int] = (5,)
    batch_size: int = 1
    steps: int = 1000
    tasks: int = 60

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "bits", "units", "slow")
        checks.positive("threshold", self.threshold)
        if self.slow >= self.bits:
            raise ValueError(
                f"slow is {self.slow}, but of {self.bits} bits at least one must be drawn for each "
                "example."
            )
        if self.flips is not None:
            check_whole(self, "flips")
            if self.flips > self.slow:
                raise ValueError(f"flips is {self.flips}, but only {self.slow} bits are slow.")
        self.inputs = self.bits

    def blocks(self, rng: torch.Generator) -> Iterator[Block]:
        """The target, once, and then bits and targets of each task."""
        shapes = (self.bits, self.units), (self.units,), (self.units, 1)
        w, b, u = (_signs(shape, rng) for shape in shapes)
        bias = _signs((), rng)
        tau = self.threshold * (self.bits + 1) - (self.bits - w.sum(0) + b) / 2
        shape = self.steps, self.batch_size
        for task in itertools.count():
            if self.flips is None or not task:
                fixed = torch.randint(2, (self.slow,), generator=rng)
            else:
                changed = torch.randperm(self.slow, generator=rng)[: self.flips]
                fixed[changed] = 1 - fixed[changed]
            drawn = torch.randint(2, (*shape, self.bits - self.slow), generator=rng)
            x = torch.cat([fixed.expand(*shape, -1), drawn], -1).float()
            yield x, (x @ w + b > tau).float() @ u + bias


def _signs(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """+1 or -1, equally likely."""
    return torch.randint(2, shape, generator=rng).float() * 2 - 1


@dataclass(kw_only=True, eq=False)
class GrowingFrequency(Regression):
    r"""Regression on a sine that becomes faster from task to task, and has a new phase in each.

    :math:`y=\sin(\pi fx+\phi)+\mathrm{noise}\,\epsilon` for x uniform from -1 to 1: f periods. From
    the first task to the last, f grows by a constant factor, from ``lowest`` to ``highest``. The
    metric is ``error``, the mean squared error; noise is part of it.

    Args:
        lowest, highest, noise: As above.
        hidden, batch_size, steps, tasks, part: As in `Regression`.
    """

    lowest: float = 0.5
    highest: float = 4.0
    noise: float = 0.1
    hidden: Sequence[int] = (50, 50)
    batch_size: int = 16
    steps: int = 500
    tasks: int = 60

    inputs = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("lowest", self.lowest)
        checks.positive("highest", self.highest)
        checks.non_negative("noise", self.noise)

    def blocks(self, rng: torch.Generator) -> Iterator[Block]:
        """Points of one sine after another."""
        shape = self.steps, self.batch_size, 1
        for task in itertools.count():
            share = min(task / max(self.tasks - 1, 1), 1.0)
            periods = self.lowest * (self.highest / self.lowest) ** share
            phase = 2 * math.pi * torch.rand((), generator=rng)
            x = 2 * torch.rand(shape, generator=rng) - 1
            noise = self.noise * torch.randn(shape, generator=rng)
            yield x, (math.pi * periods * x + phase).sin() + noise


@dataclass(kw_only=True, eq=False)
class ChangingRewards(Regression):
    r"""Learn the values of states by temporal differences, with new rewards in each task.

    A walker goes through ``states`` states, from each to one of ``branches`` successors with equal
    probability. Each branch is a permutation of the states, the first of them a cycle, so that all
    states are visited equally often. States are shown as ``features`` random bits. Successors and
    bits are drawn once, the reward r of each state, standard normal, for each task. The loss is
    that of TD(0), :math:`(V(s)-r(s)-\gamma V(s'))^2`, whose gradient is through :math:`V(s)` alone.
    The metric is ``error``, the mean square of :math:`V(s)-v(s)`, for the true values
    :math:`v=(1-\gamma P)^{-1}r`. Examples follow each other as the walker goes.

    Args:
        states, branches, features: As above.
        discount: :math:`\gamma`.
        batch_size: Independent walkers.
        hidden, steps, tasks, part: As in `Regression`.
    """

    states: int = 50
    branches: int = 3
    features: int = 16
    discount: float = 0.8
    hidden: Sequence[int] = (32,)
    batch_size: int = 1
    steps: int = 2000
    tasks: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "states", "branches", "features")
        checks.fraction("discount", self.discount)
        self.inputs = self.features

    def blocks(self, rng: torch.Generator) -> Iterator[Block]:
        """Features of states; true values, rewards and the features of the next states."""
        bits = torch.randint(2, (self.states, self.features), generator=rng).float()
        cycle = torch.randperm(self.states, generator=rng)
        others = [torch.randperm(self.states, generator=rng) for _ in range(self.branches - 1)]
        after = torch.stack([torch.empty_like(cycle), *others], 1)
        after[cycle, 0] = cycle.roll(1)
        moves = torch.zeros(self.states, self.states, dtype=torch.float64)
        one = torch.full(after.shape, 1 / self.branches, dtype=torch.float64)
        moves.scatter_add_(1, after, one)
        state = torch.randint(self.states, (self.batch_size,), generator=rng)
        shape = self.steps, self.batch_size
        while True:
            rewards = torch.randn(self.states, generator=rng, dtype=torch.float64)
            eye = torch.eye(self.states, dtype=torch.float64)
            values = torch.linalg.solve(eye - self.discount * moves, rewards)
            path = [state]
            for branch in torch.randint(self.branches, shape, generator=rng):
                path.append(after[path[-1], branch])
            state, visited = path[-1], torch.stack(path)
            known = torch.stack([values, rewards], 1)[visited[:-1]].float()
            yield bits[visited[:-1]], torch.cat([known, bits[visited[1:]]], -1)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of TD(0); the targets of `criterion` come from the model."""
        x, y = batch
        with torch.no_grad():
            following = y[..., 1:2] + self.discount * model(y[..., 2:])
        return super().loss(model, (x, torch.cat([y[..., :1], following], -1)))

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets[..., :1]).square()

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(outputs, targets[..., 1:2])
