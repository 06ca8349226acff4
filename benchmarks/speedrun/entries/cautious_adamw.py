"""Adam that leaves out coordinates whose mean disagrees in sign with the gradient."""

import torch

NAME = "Cautious AdamW"
AUTHOR = "the lossnav developers"
TUNING = "lr, in factors of 2, at 200 steps on seed 0"


class CautiousAdam(torch.optim.Optimizer):
    """theta -= lr * mask / mean(mask) * m / (sqrt(v) + eps), with mask = (m g > 0)."""

    def __init__(self, params, lr, betas, eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "step": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] += 1
            (beta1, beta2), params = group["betas"], group["params"]
            for p in params:
                if not self.state[p]:
                    self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
            m, v = ([self.state[p][name] for p in params] for name in ("m", "v"))
            grads = [p.grad for p in params]
            torch._foreach_lerp_(m, grads, 1 - beta1)
            torch._foreach_mul_(v, beta2)
            torch._foreach_addcmul_(v, grads, grads, 1 - beta2)
            divisor = torch._foreach_sqrt(v)
            torch._foreach_div_(divisor, (1 - beta2 ** group["step"]) ** 0.5)
            torch._foreach_add_(divisor, group["eps"])
            moves = torch._foreach_div(m, divisor)
            for move, mean, grad in zip(moves, m, grads, strict=True):
                mask = mean * grad > 0
                move.mul_(mask).div_(mask.float().mean().clamp_(min=1e-3))
            rate = group["lr"] / (1 - beta1 ** group["step"])
            torch._foreach_add_(params, moves, alpha=-rate)


def make(model, steps, lr=2e-3, beta1=0.9, schedule="wsd"):
    return CautiousAdam(model.parameters(), lr, (beta1, 0.99)), schedule
