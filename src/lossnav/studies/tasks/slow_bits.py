"""A stream in which most inputs change slowly: regression on bits, by a network too small for all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from lossnav._base import checks
from lossnav.studies.tasks.images import _widths, whole
from lossnav.studies.tasks.streams import Block, Stream, network


class SlowBits(Stream):
    r"""Slowly changing regression: what is seen changes from task to task, the function does not.

    An example has ``bits`` bits: ``slow`` of them are drawn once for each task, the others for each example. The
    target is :math:`y=\beta+\sum_iu_i\,[w_i\cdot x+b_i>\tau_i]`, a sum of ``units`` threshold units. All
    weights and biases are +1 or -1, and

    .. math:: \tau_i=\mathrm{threshold}\,(\mathrm{bits}+1)-S_i,\qquad
              S_i=\tfrac12\Bigl(\mathrm{bits}-\sum_jw_{ij}+b_i\Bigr).

    As :math:`w_i\cdot x` and the number of -1 in :math:`w_i` add up to the number of bits that agree with the sign of their
    weight, a unit is on where about ``threshold`` of them agree. A small learner can fit what is there now,
    and must go on learning. The metric is ``error``, the mean squared error over the last third of the tasks.

    Args:
        bits, slow, units, threshold: As above.
        hidden: Widths of the learner's hidden layers.
        batch_size: Examples of one step.
        steps: Steps of one task.
        tasks: Tasks of the stream.

    Examples:
        >>> task = SlowBits(steps=4, tasks=2)
        >>> x = torch.cat([x for x, y in task.batches(torch.Generator().manual_seed(0))])
        >>> x.shape, len(x[:4, :15].unique(dim=0)), len(x[:, :15].unique(dim=0))
        (torch.Size([8, 20]), 1, 2)
    """

    metric, better, loss_kind = "error", "lower", "mse"
    part = 3

    def __init__(
        self, *, bits: int = 20, slow: int = 15, units: int = 100, threshold: float = 0.7,
        hidden: Sequence[int] = (5,), batch_size: int = 1, steps: int = 1000, tasks: int = 60,
    ) -> None:  # fmt: skip
        super().__init__(tasks, steps)
        self.bits, self.units = whole("bits", bits), whole("units", units)
        self.slow, self.batch_size = whole("slow", slow), whole("batch_size", batch_size)
        self.threshold, self.hidden = checks.positive("threshold", threshold), _widths("hidden", hidden)  # fmt: skip
        if self.slow >= self.bits:
            raise ValueError(
                f"slow is {slow}, but of {bits} bits at least one must be drawn for each example."
            )

    def model(self) -> nn.Module:
        """The network of `lossnav.studies.tasks.streams.network`, with one output."""
        return network([self.bits, *self.hidden, 1])

    def blocks(self, rng: torch.Generator) -> Iterator[Block]:
        """The target, once, and then bits and targets of each task."""
        w, b, u = (_signs(shape, rng) for shape in ((self.bits, self.units), (self.units,), (self.units, 1)))  # fmt: skip
        bias = _signs((), rng)
        tau = self.threshold * (self.bits + 1) - (self.bits - w.sum(0) + b) / 2
        shape = self.steps, self.batch_size
        while True:
            held = torch.randint(2, (self.slow,), generator=rng).expand(*shape, -1)
            drawn = torch.randint(2, (*shape, self.bits - self.slow), generator=rng)
            x = torch.cat([held, drawn], -1).float()
            yield x, (x @ w + b > tau).float() @ u + bias

    def score(self, said: Tensor, targets: Tensor) -> Tensor:
        """The squared error."""
        return (said - targets).square()

    def price(self, said: Tensor, targets: Tensor) -> Tensor:
        """The mean squared error."""
        return mse_loss(said, targets)


def _signs(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """+1 or -1, alike likely."""
    return torch.randint(2, shape, generator=rng).float() * 2 - 1
