"""AdamW of PyTorch, without weight decay: the entry that the target is taken from."""

import torch

NAME = "AdamW"
AUTHOR = "the lossnav developers"
TUNING = "lr, in factors of 2, at 200 steps on seed 0"


def make(model, steps, lr=1e-3, beta1=0.9, schedule="wsd"):
    betas = beta1, 0.99
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas, weight_decay=0.0, fused=True)
    return optimizer, schedule
