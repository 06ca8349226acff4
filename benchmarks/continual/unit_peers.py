"""Gradient descent that draws useless hidden units anew: continual backprop, ReDo, self-normalized resets.

All look at what the units of each hidden layer put out, which `watch` collects. A new unit has weights drawn as at
the start (uniform, with variance 2 / inputs), no bias, and no weight in the next layer.
"""

import math

import torch


class Units(torch.optim.Optimizer):
    """Base: gradient descent, then `test` of each hidden layer with the sizes of its outputs."""

    def __init__(self, params, settings):
        super().__init__(params, settings)
        self.count = 0
        self.layers = []
        self.outputs = {}

    def watch(self, model, loss=None):
        """Look at a network of full layers, one after the other."""
        self.layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        for before, layer in zip(self.layers, self.layers[1:], strict=False):
            if layer.in_features != before.out_features:
                raise ValueError("These rules know only networks of full layers in a row.")
            layer.register_forward_pre_hook(self.see)
        for layer in self.layers[:-1]:
            self.state[layer.weight] = self.fresh(layer)

    def see(self, layer, inputs):
        if torch.is_grad_enabled():
            self.outputs[layer] = inputs[0].detach()

    def fresh(self, layer):
        """The memory of a hidden layer."""
        raise NotImplementedError

    def test(self, state, outputs, layer, after, settings):
        """Units of ``layer`` to draw anew, by its ``outputs`` into the layer ``after``; None for none."""
        raise NotImplementedError

    def drawn(self, units, layer, after):
        """Draw units anew."""
        bound = math.sqrt(6 / layer.in_features)
        new = layer.weight.new_empty(len(units), layer.in_features)
        layer.weight[units] = new.uniform_(-bound, bound)
        layer.bias[units] = 0.0
        after.weight[:, units] = 0.0

    @torch.no_grad()
    def step(self, closure=None):
        if not self.layers:
            raise RuntimeError("Call watch(model) before the first step.")
        self.count += 1
        settings = self.param_groups[0]
        params = settings["params"]
        torch._foreach_add_(params, [p.grad for p in params], alpha=-settings["lr"])
        for layer, after in zip(self.layers, self.layers[1:], strict=False):
            state = self.state[layer.weight]
            units = self.test(state, self.outputs[after], layer, after, settings)
            if units is not None:
                self.drawn(units, layer, after)


class ContinualBackprop(Units):
    r"""Draw anew, one by one, the units of least utility among those old enough.

    A unit's utility is a running mean, with rate 1 - decay, of

    - ``"contribution"`` (Dohare et al. 2024, "Loss of plasticity in deep continual learning", Eq. 1): |h| sum |w_out|;
    - ``"adaptable"`` (Dohare, Sutton, Mahmood 2021, "Continual Backprop"): |h - mean h| sum |w_out| / sum |w_in|. Both means
      are corrected for their start, and the next layer's bias takes over the mean of a unit that goes.

    Units older than ``maturity`` steps count; ``rate`` of them are replaced at each step, adding up fractions.
    """

    def __init__(self, params, lr, rate=1e-4, maturity=100, decay=0.99, utility="adaptable"):
        if utility not in ("contribution", "adaptable"):
            raise ValueError(f"utility is {utility!r}, but it is 'contribution' or 'adaptable'.")
        settings = {
            "lr": lr, "rate": rate, "maturity": maturity, "decay": decay, "utility": utility
        }  # fmt: skip
        super().__init__(params, settings)

    def fresh(self, layer):
        zeros = layer.weight.new_zeros(layer.out_features)
        return {
            "utility": zeros,
            "mean": zeros.clone(),
            "age": zeros.clone(),
            "due": 0.0,
            "young": [],
        }

    def test(self, state, outputs, layer, after, settings):
        decay, age, utility, mean = settings["decay"], state["age"], state["utility"], state["mean"]
        age += 1
        reach = after.weight.abs().sum(0)
        if settings["utility"] == "contribution":
            utility.lerp_(outputs.abs().mean(0).mul_(reach), 1 - decay)
        else:
            mean.lerp_(outputs.mean(0), 1 - decay)
            away = (outputs - mean / (1 - decay**age)).abs_().mean(0)
            utility.lerp_(away.mul_(reach).div_(layer.weight.abs().sum(1)), 1 - decay)
        # Units of the start mature together, and later ones in the order in which they came.
        young, ripe = state["young"], self.count - settings["maturity"]
        while young and young[0] < ripe:
            young.pop(0)
        eligible = len(age) - len(young) if ripe > 0 else 0
        state["due"] += settings["rate"] * eligible
        number = min(int(state["due"]), eligible)
        if not number:
            return None
        state["due"] -= number
        judged = utility / (1 - decay**age) if settings["utility"] == "adaptable" else utility
        judged = torch.where(age > settings["maturity"], judged, math.inf)
        units = judged.topk(number, largest=False).indices
        if settings["utility"] == "adaptable":
            means = mean[units] / (1 - decay ** age[units])
            after.bias += after.weight[:, units] @ means
        for values in (utility, mean, age):
            values[units] = 0.0
        young += [self.count] * number
        return units


class ReDo(Units):
    """Every ``every`` steps, draw the dormant units of each layer anew.

    Sokar et al.: "The Dormant Neuron Phenomenon in Deep Reinforcement Learning". A unit is dormant if its mean |h| is
    at most ``threshold`` times the mean over its layer. The mean is over all examples since the last time.
    """

    def __init__(self, params, lr, every=1000, threshold=0.025):
        super().__init__(params, {"lr": lr, "every": every, "threshold": threshold})

    def fresh(self, layer):
        return {"sum": layer.weight.new_zeros(layer.out_features)}

    def test(self, state, outputs, layer, after, settings):
        state["sum"] += outputs.abs().mean(0)
        if self.count % settings["every"]:
            return None
        size = state["sum"].clone()
        state["sum"].zero_()
        units = (size <= settings["threshold"] * size.mean()).nonzero().flatten()
        return units if len(units) else None


class SelfNormalizedResets(Units):
    """Draw a unit anew once it has been silent for longer than its own past makes likely.

    Farias and Jozefiak: "Self-Normalized Resets for Plasticity in Continual Learning" (SNR), Alg. 1: a unit is reset
    if P(A >= age) <= eta, for its age, the steps since it last fired, and the law of its times A between firings.
    As in the authors' code, a unit fires in a step if any example of the batch makes it positive, and the law is
    kept as a threshold of the age:

    - the times between firings that have silent steps in them are counted, and those that a reset ended;
    - every ``every`` steps the threshold becomes the time below or at which a share 1 - eta of the counted ones lie, or
      1 if none was counted; where that is not below the old threshold, it becomes ``expansion`` times the old one. The
      counts begin again. A threshold is ``longest`` at first and at most.
    """

    def __init__(self, params, lr, eta=0.02, every=1000, longest=1000, expansion=2):
        settings = {
            "lr": lr, "eta": eta, "every": every, "longest": longest, "expansion": expansion
        }  # fmt: skip
        super().__init__(params, settings)

    def fresh(self, layer):
        longest, units = self.param_groups[0]["longest"], layer.out_features
        return {
            "age": torch.zeros(units, dtype=torch.long),
            "threshold": torch.full((units,), longest),
            "counts": torch.zeros(units, longest + 1, dtype=torch.long),
        }

    def test(self, state, outputs, layer, after, settings):
        age, counts, threshold = state["age"], state["counts"], state["threshold"]
        fires = (outputs > 0).any(0)
        ended = fires & (age > 0)
        self.count_ages(counts, age, ended)
        age.add_(1).masked_fill_(fires, 0)
        silent = age >= threshold
        self.count_ages(counts, age, silent)
        age.masked_fill_(silent, 0)
        if self.count % settings["every"] == 0:
            total = counts.sum(1, keepdim=True)
            enough = counts.cumsum(1) >= (1 - settings["eta"]) * total
            enough[:, 0] = False
            time = enough.long().argmax(1)  # the first; 1 where nothing was counted
            grown = settings["expansion"] * threshold
            threshold.copy_(
                torch.where(time < threshold, time, grown).clamp(1, settings["longest"])
            )
            counts.zero_()
        units = silent.nonzero().flatten()
        return units if len(units) else None

    @staticmethod
    def count_ages(counts, age, units):
        """Count the ages of some units."""
        at = units.nonzero().flatten()
        counts[at, age[at]] += 1
