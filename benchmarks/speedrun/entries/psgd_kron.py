"""PSGD with Kronecker factors, of pytorch_optimizer."""

from pytorch_optimizer import Kron

NAME = "PSGD-Kron"
AUTHOR = "the lossnav developers"
TUNING = "not tuned: a rate from other measurements"


def make(model, steps, lr=1e-3, momentum=0.9, schedule="wsd"):
    return Kron(model.parameters(), lr, momentum=momentum), schedule
