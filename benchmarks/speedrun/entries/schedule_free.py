"""Schedule-free AdamW of pytorch_optimizer: it averages in place of a decay."""

from pytorch_optimizer import ScheduleFreeAdamW

NAME = "Schedule-Free AdamW"
AUTHOR = "the lossnav developers"
TUNING = "lr, in factors of 2, at 200 steps on seed 0"


def make(model, steps, lr=2e-3, beta1=0.9):
    # The rule weights its average by the squared rate, and has a warm-up of its own for that.
    warm = round(0.1 * steps)
    settings = {"betas": (beta1, 0.99), "weight_decay": 0.0, "warmup_steps": warm}
    return ScheduleFreeAdamW(model.parameters(), lr, **settings), lambda step: 1.0
