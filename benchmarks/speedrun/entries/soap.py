"""SOAP of pytorch_optimizer, without weight decay."""

from pytorch_optimizer import SOAP

NAME = "SOAP"
AUTHOR = "the lossnav developers"
TUNING = "not tuned: a rate from other measurements"


def make(model, steps, lr=4e-3, beta1=0.9, schedule="wsd"):
    optimizer = SOAP(model.parameters(), lr, betas=(beta1, 0.95), weight_decay=0.0)
    return optimizer, schedule
