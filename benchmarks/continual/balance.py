"""What other balances between layers would do, for the studies A_balance.toml and B_balance.toml.

`WeightUncertainty` divides the weight of a layer's curvature by q^2, where q is the layer's share of signal over the
geometric mean of all, and averages its gradients with a gain in proportion to q. Here q has any exponent; or the step
that is best in expectation stands in its place: along the step d of a layer, which meets the curvature d^T F d, the
loss falls most by (signal in d^T g) / (d^T F d) times d; or gradients are averaged alike in all layers.
"""

import torch

from lossnav.optim.torch import Examples, WeightUncertainty


class Even(WeightUncertainty):
    """Weight uncertainty whose average gradients have the same gain in all layers."""

    def _gain(self, group, steps, ratio):
        return super()._gain(group, steps, 1.0)


class Balanced(Even):
    """Weight uncertainty with c = K / q^exponent."""

    def __init__(self, params, lr=3e-3, *, exponent=2.0, **settings):
        super().__init__(params, lr, **settings)
        self.exponent = exponent

    def _gather(self, batches, ok):
        super()._gather(batches, ok)
        for group, _, _, columns in batches:
            K = group["k"] * self._batch(group)
            for weight in columns[6]:
                q = (K / weight).sqrt()
                weight.copy_(K / q**self.exponent)


class Drawn(Examples):
    """Examples that keep the inputs of each layer and the slopes of the drawn labels."""

    def clear(self):
        super().clear()
        self.kept = {}

    def _collect(self, into, module, a, slope):
        super()._collect(into, module, a, slope)
        if into is self._curvature:
            self.kept |= {module.weight: (a, slope), module.bias: (None, slope)}


class Along(Even):
    """Weight uncertainty with c = K / q, where q is the best length of the step of each layer of a network of full
    layers, over the geometric mean of all. A weight and its bias are one layer."""

    def watch(self, model, loss=None):
        self._examples = Drawn(model, loss)
        self._examples.kept = {}
        self.sums, self.times = 0.0, 0

    def _gather(self, batches, ok):
        super()._gather(batches, ok)
        ((group, params, grads, columns),) = batches
        size = self._batch(group)
        K = group["k"] * size
        found, rows = [], []
        for i, (theta, g) in enumerate(zip(params, grads, strict=True)):
            a, slope = self._examples.kept[theta]
            squares, seen = self._now[0][2][i]
            H = columns[1][i] + group["curvature_rate"] * (seen - columns[1][i])
            v = 1 / (K * H + 1 / columns[5][i])
            d = v * g
            signal = (d * g).sum()
            found.append((signal, ((v * squares).sum() - signal) / max(size - 1, 1)))
            rows.append(slope @ d if a is None else ((slope @ d) * a).sum(1))
        bends = (torch.stack(rows[::2]) + torch.stack(rows[1::2])).square().mean(1)
        signal, scatter = (torch.stack([pair[j] for pair in found]) for j in (0, 1))
        new = torch.stack([signal[::2] + signal[1::2], scatter[::2] + scatter[1::2], bends])
        self.times += 1
        gain = max(group["signal_rate"], 1 / self.times)
        self.sums = self.sums + gain * (new - self.sums)
        signal, scatter, bends = self.sums
        best = ((1 - scatter / signal).clamp(0.01, 1) * signal / bends).log()
        for i, q in enumerate((best - best.mean()).exp()):
            for weight in columns[6][2 * i : 2 * i + 2]:
                weight.copy_(K / q)
