"""Adam with look-ahead and a delayed decay: Navigator's schedule without its damping."""

from lossnav.optim.torch import Navigator

NAME = "Adam, look-ahead, late"
AUTHOR = "the lossnav developers"
TUNING = "lr, in factors of 2, at 200 steps on seed 0"


def make(model, steps, lr=1e-3, beta1=0.9, schedule="late"):
    return Navigator(model.parameters(), lr, (beta1, 0.99), saturation=0.0), schedule
