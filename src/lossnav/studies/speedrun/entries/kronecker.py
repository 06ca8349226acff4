"""KroneckerNavigator with a linear decay, which its damping delays."""

from lossnav.optim.torch import KroneckerNavigator

NAME = "KroneckerNavigator"
AUTHOR = "the lossnav developers"
TUNING = "not tuned: a rate from other measurements"


def make(model, steps, lr=4e-3, beta1=0.9, schedule="linear"):
    return KroneckerNavigator(model.parameters(), lr, (beta1, 0.99)), schedule
