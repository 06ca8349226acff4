"""The sign of the mean gradient."""

from lossnav.optim.torch import from_rule
from lossnav.rules import zoo

NAME = "Lion"
AUTHOR = "the lossnav developers"
TUNING = "not tuned: a rate from other measurements"


def make(model, steps, lr=2e-4, beta1=0.9, schedule="wsd"):
    rule = zoo.Lion(lr, betas=(beta1, 0.99))
    return from_rule(model.parameters(), rule), schedule
