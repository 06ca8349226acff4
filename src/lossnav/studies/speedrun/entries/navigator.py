"""Navigator with a linear decay, which its damping delays."""

from lossnav.optim.torch import Navigator

NAME = "Navigator"
AUTHOR = "the lossnav developers"
TUNING = "not tuned: a rate from other measurements"


def make(model, steps, lr=1e-3, beta1=0.9, schedule="linear"):
    return Navigator(model.parameters(), lr, (beta1, 0.99)), schedule
