"""Peers for the studies in this folder that are not one optimizer of one library."""

import torch
from pytorch_optimizer import ScheduleFreeAdamW

from lossnav.optim.torch import from_rule
from lossnav.rules import zoo


class Both(torch.optim.Optimizer):
    """Two optimizers for two parts of a model, with one list of groups for schedules to find."""

    def __init__(self, first, second):
        self.parts = [first, second]
        params = [p for part in self.parts for group in part.param_groups for p in group["params"]]
        super().__init__(params, {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.parts:
            part.step()
        for part in self.parts:
            self.state.update(part.state)


def muon(
    named_parameters,
    lr,
    momentum=0.95,
    ratio=0.2,
    betas=(0.9, 0.99),
    outside=("letter", "place", "head"),
):
    """Muon for the matrices inside the network; AdamW at ``ratio * lr`` for embeddings, head and vectors.

    PyTorch's own works in bfloat16, which many CPUs must emulate; this is the same rule in float32. A
    convolution is a matrix of its outputs and all the rest. ``outside`` begins the names of what AdamW keeps.
    """
    inner, others = [], []
    for name, p in named_parameters:
        matrix = p.ndim >= 2 and not name.startswith(tuple(outside))
        (inner if matrix else others).append(p)
    return Both(
        from_rule(zoo.Muon(lr, momentum=momentum, weight_decay=0.0, half=False), inner),
        torch.optim.AdamW(others, ratio * lr, betas=betas, weight_decay=0.0),
    )


class ScheduleFree(ScheduleFreeAdamW):
    """Schedule-free AdamW: it follows a warm-up, and then keeps the largest rate for good."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = max(group["lr"], group["lr_max"])
        return super().step(closure)


class SophiaLike(torch.optim.Optimizer):
    """Sophia's clipped step, with squares of the batch's gradients for its curvature.

    Sophia draws labels from the model for a Gauss-Newton diagonal every ten steps. Here the gradient at hand
    serves, at each step, so that it costs what the others cost: step = lr clip(m / (bend h), -1, 1).
    """

    def __init__(self, params, lr, betas=(0.96, 0.99), bend=1.0, eps=1e-12):
        super().__init__(params, {"lr": lr, "betas": betas, "bend": bend, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p] = {"m": torch.zeros_like(p), "h": torch.zeros_like(p)}
            m, h = ([self.state[p][name] for p in params] for name in ("m", "h"))
            torch._foreach_lerp_(m, grads, 1 - beta1)
            torch._foreach_mul_(h, beta2)
            torch._foreach_addcmul_(h, grads, grads, 1 - beta2)
            divisor = torch._foreach_mul(h, group["bend"])
            torch._foreach_clamp_min_(divisor, group["eps"])
            steps = torch._foreach_div(m, divisor)
            torch._foreach_clamp_min_(steps, -1.0)
            torch._foreach_clamp_max_(steps, 1.0)
            torch._foreach_add_(params, steps, alpha=-group["lr"])
