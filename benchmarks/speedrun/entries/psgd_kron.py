"""PSGD with Kronecker factors, of pytorch_optimizer."""

from pytorch_optimizer import Kron

NAME = "PSGD-Kron"
AUTHOR = "the lossnav developers"
TUNING = "lr, in factors of 2, at 200 steps on seed 0"


def make(model, steps, lr=1e-3, momentum=0.9, schedule="wsd"):
    return Kron(model.parameters(), lr, momentum=momentum), schedule
