"""NAdam of PyTorch, AdamW with Nesterov's look-ahead and its own schedule of momentum."""

import torch

NAME = "NAdamW"
AUTHOR = "the lossnav developers"
TUNING = "not tuned: a rate from other measurements"


def make(model, steps, lr=1e-3, beta1=0.9, schedule="wsd"):
    return torch.optim.NAdam(model.parameters(), lr, (beta1, 0.99), foreach=True), schedule
