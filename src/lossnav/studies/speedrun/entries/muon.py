"""Muon for the matrices inside the blocks, AdamW for all else; in float32."""

import torch

from lossnav.optim.torch import from_rule
from lossnav.rules import zoo
from lossnav.studies.speedrun import parted

NAME = "Muon"
AUTHOR = "the lossnav developers"
TUNING = "lr, in factors of 2, at 200 steps on seed 0"


def make(model, steps, lr=1e-2, ratio=0.2, momentum=0.9, schedule="wsd"):
    inner, others = parted(model)
    rule = zoo.Muon(lr, momentum=momentum, weight_decay=0.0, half=False, scale="match_rms_adamw")
    betas = 0.9, 0.99
    adamw = torch.optim.AdamW(others, ratio * lr, betas, weight_decay=0.0, fused=True)
    return [from_rule(inner, rule), adamw], schedule
