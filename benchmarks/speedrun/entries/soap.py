"""SOAP of pytorch_optimizer, without weight decay."""

from pytorch_optimizer import SOAP

NAME = "SOAP"
AUTHOR = "the lossnav developers"
TUNING = "lr, in factors of 2, at 200 steps on seed 0"


def make(model, steps, lr=4e-3, beta1=0.9, schedule="wsd"):
    optimizer = SOAP(model.parameters(), lr, betas=(beta1, 0.95), weight_decay=0.0)
    return optimizer, schedule
