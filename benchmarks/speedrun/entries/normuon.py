"""NorMuon of pytorch_optimizer for the matrices inside the blocks, AdamW for all else."""

import torch
from pytorch_optimizer import NorMuon

from lossnav.studies.speedrun import parted

NAME = "NorMuon"
AUTHOR = "the lossnav developers"
TUNING = "lr, in factors of 2, at 200 steps on seed 0"


def make(model, steps, lr=1e-2, ratio=0.2, momentum=0.9, schedule="wsd"):
    inner, others = parted(model)
    # 0.2 in NorMuon is the root mean square of a step, as of Muon in AdamW's units.
    settings = {"momentum": momentum, "update_scale": "match_rms"}
    normuon = NorMuon([{"params": inner, "use_muon": True}], lr, **settings)
    betas = 0.9, 0.99
    adamw = torch.optim.AdamW(others, ratio * lr, betas, weight_decay=0.0, fused=True)
    return [normuon, adamw], schedule
