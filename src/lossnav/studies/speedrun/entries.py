"""The built-in entries of the speed-run: each function is the `make` of one.

`BUILTIN` of `lossnav.studies.speedrun.entry` has their names. Comments stand before the functions:
a docstring would change the hash of the code, which results on file have.
"""

import torch

from lossnav.optim.torch import KroneckerNavigator, Navigator, from_rule
from lossnav.rules import zoo
from lossnav.studies.speedrun import parted


# Without weight decay. The target is taken from this entry.
def adamw(model, steps, lr=1e-3, beta1=0.9, schedule="wsd"):
    betas = beta1, 0.99
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas, weight_decay=0.0, fused=True)
    return optimizer, schedule


# With its own schedule of momentum.
def nadamw(model, steps, lr=1e-3, beta1=0.9, schedule="wsd"):
    return torch.optim.NAdam(model.parameters(), lr, (beta1, 0.99), foreach=True), schedule


def lion(model, steps, lr=4e-4, beta1=0.9, schedule="wsd"):
    rule = zoo.Lion(lr, betas=(beta1, 0.99))
    return from_rule(model.parameters(), rule), schedule


# Muon for the matrices inside the blocks, AdamW for all else.
def muon(model, steps, lr=1e-2, ratio=0.2, momentum=0.9, schedule="wsd"):
    inner, others = parted(model)
    settings = {"momentum": momentum, "weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"}
    betas = 0.9, 0.99
    adamw = torch.optim.AdamW(others, ratio * lr, betas, weight_decay=0.0, fused=True)
    return [torch.optim.Muon(inner, lr, **settings), adamw], schedule


# Navigator's damping delays the linear decay.
def navigator(model, steps, lr=2e-3, beta1=0.9, schedule="linear"):
    return Navigator(model.parameters(), lr, (beta1, 0.99)), schedule


def kronecker(model, steps, lr=4e-3, beta1=0.9, schedule="linear"):
    return KroneckerNavigator(model.parameters(), lr, (beta1, 0.99)), schedule


# With a horizon the track adds the warm-up alone.
def navigator_horizon(model, steps, lr=1e-3, beta1=0.9):
    optimizer = Navigator(model.parameters(), lr, (beta1, 0.99), horizon=steps)
    return optimizer, "constant"


def kronecker_horizon(model, steps, lr=4e-3, beta1=0.9):
    optimizer = KroneckerNavigator(model.parameters(), lr, (beta1, 0.99), horizon=steps)
    return optimizer, "constant"


# Bases for sides up to the model's width alone: the long sides cost the most.
def kronecker_width(model, steps, lr=4e-3, beta1=0.9, max_dim=128):
    settings = {"horizon": steps, "max_dim": max_dim}
    return KroneckerNavigator(model.parameters(), lr, (beta1, 0.99), **settings), "constant"


# Navigator's schedule without its damping.
def look_ahead(model, steps, lr=1e-3, beta1=0.9, schedule="late"):
    return Navigator(model.parameters(), lr, (beta1, 0.99), saturation=0.0), schedule
