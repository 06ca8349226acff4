"""Convex problems that train fast: a noisy quadratic, and logistic regression."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lossnav._base import checks
from lossnav.studies.tasks import BETTER, Split, Task, check_whole


class Point(nn.Module):  # type: ignore[misc]
    """A model that is only its parameters, drawn from a standard normal distribution."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.randn(dimension))


@dataclass(kw_only=True, eq=False)
class NoisyQuadratic(Task):
    r"""A quadratic loss with noisy gradients.

    .. math:: L(\theta)=\tfrac12(\theta-\theta_*)^TH(\theta-\theta_*),\qquad
              \hat g=\nabla L+\xi,\quad\xi\sim N(0,\mathrm{noise}^2H).

    The eigenvalues of H go from ``1 / condition`` to 1, evenly in their logarithm. The metric
    ``loss`` is L itself, without noise. Both splits are the same.

    Args:
        dimension: Number of parameters.
        condition: Ratio of the largest to the smallest eigenvalue.
        noise: Size of the noise, in units of the gradient at distance one.
        rotated: Whether the eigenvectors are random directions; otherwise they are the axes.
        problem: Seed of the eigenvectors and of the minimum.
        epoch_steps: Steps that count as an epoch, for budgets in epochs.

    Examples:
        >>> task = NoisyQuadratic(dimension=3, condition=100.0)
        >>> torch.linalg.eigvalsh(task.H.double())
        tensor([0.0100, 0.1000, 1.0000], dtype=torch.float64)
    """

    dimension: int = 100
    condition: float = 1e3
    noise: float = 0.1
    rotated: bool = True
    problem: int = 0
    epoch_steps: int = 100

    def __post_init__(self) -> None:
        check_whole(self, "dimension", "epoch_steps")
        checks.non_negative("noise", self.noise)
        values = _spectrum(self.condition, self.dimension)
        rng = torch.Generator().manual_seed(self.problem)
        vectors = _axes(self.dimension, rng, self.rotated)
        self.minimum = torch.randn(self.dimension, generator=rng)
        self.H = ((vectors * values) @ vectors.T).float()
        self._noise = (self.noise * vectors * values.sqrt()).float()

    def model(self) -> nn.Module:
        return Point(self.dimension)

    def batch_count(self) -> int:
        return self.epoch_steps

    def batches(self, rng: torch.Generator) -> Iterator[Tensor]:
        for _ in range(self.epoch_steps):
            yield self._noise @ torch.randn(self.dimension, generator=rng)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """L, and a slope of mean zero."""
        x = model.theta - self.minimum
        return x @ (self.H @ x) / 2 + batch @ x

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """``loss``: L above its minimum, which is zero."""
        x = (model.theta.detach() - self.minimum).double()
        return {"loss": float(x @ (self.H.double() @ x) / 2)}


@dataclass(kw_only=True, eq=False)
class LogisticRegression(Task):
    """Two classes by a linear model, with badly scaled features in rotated directions.

    The examples are drawn once, by ``problem``: features from a normal distribution whose
    covariance has eigenvalues from ``1 / condition`` to 1 in random directions, and classes from a
    logistic model with random weights.

    Args:
        dimension: Number of features.
        condition: Ratio of the largest to the smallest variance.
        examples: Examples for training, and as many each for validation and test.
        batch_size: Examples of one step.
        problem: Seed of the examples.
        metric: The metric to compare by: ``"loss"`` (cross-entropy, in nats) or ``"accuracy"``.
    """

    dimension: int = 50
    condition: float = 1e3
    examples: int = 2000
    batch_size: int = 100
    problem: int = 0
    metric: str = "loss"

    def __post_init__(self) -> None:
        check_whole(self, "dimension", "examples", "batch_size")
        self.better = BETTER[checks.choice("metric", str(self.metric), BETTER)]
        values = _spectrum(self.condition, self.dimension)
        rng = torch.Generator().manual_seed(self.problem)
        turn = values.sqrt()[:, None] * _axes(self.dimension, rng, rotated=True).T
        # In the rotated axes all weights matter equally: small features have large weights.
        weights = torch.linalg.solve(turn, torch.randn(self.dimension, generator=rng).double())
        self._parts: dict[str, tuple[Tensor, Tensor]] = {}
        for part in ("train", "validation", "test"):
            x = torch.randn(self.examples, self.dimension, generator=rng).double() @ turn
            chance = torch.sigmoid(2 * x @ weights / math.sqrt(self.dimension))
            y = torch.rand(self.examples, generator=rng).double() < chance
            self._parts[part] = x.float(), y.float()

    def model(self) -> nn.Module:
        return nn.Linear(self.dimension, 1)

    def batch_count(self) -> int:
        return -(-self.examples // self.batch_size)

    def batches(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self._parts["train"]
        for rows in torch.randperm(len(x), generator=rng).split(self.batch_size):
            yield x[rows], y[rows]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1])

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        x, y = self._parts[split]
        with torch.no_grad():
            scores = model(x).squeeze(1)
            loss = binary_cross_entropy_with_logits(scores, y)
            accuracy = ((scores > 0) == (y > 0)).float().mean()
            return {"loss": float(loss), "accuracy": float(accuracy)}


def _spectrum(condition: float, dimension: int) -> Tensor:
    """From ``1 / condition`` to 1, evenly in the logarithm; float64."""
    if checks.number("condition", condition) < 1:
        raise ValueError(f"condition is {condition!r}, but it must be 1 or more.")
    return torch.logspace(-math.log10(condition), 0.0, dimension, dtype=torch.float64)


def _axes(dimension: int, rng: torch.Generator, rotated: bool) -> Tensor:
    """Orthogonal directions, as columns; float64."""
    if not rotated:
        return torch.eye(dimension, dtype=torch.float64)
    return torch.linalg.qr(torch.randn(dimension, dimension, generator=rng).double())[0]
