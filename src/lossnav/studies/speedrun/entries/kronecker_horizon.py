"""KroneckerNavigator with a horizon: the track adds the warm-up alone."""

from lossnav.optim.torch import KroneckerNavigator

NAME = "KroneckerNavigator(horizon)"
AUTHOR = "the lossnav developers"
TUNING = "lr, in factors of 2, at 200 steps on seed 0"


def make(model, steps, lr=4e-3, beta1=0.9):
    optimizer = KroneckerNavigator(model.parameters(), lr, (beta1, 0.99), horizon=steps)
    return optimizer, "constant"
