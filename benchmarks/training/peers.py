"""Peers for the studies in this folder that are not one optimizer of one library."""

import torch


class Both(torch.optim.Optimizer):
    """Two optimizers for two parts of a model, with one list of groups for schedules to find."""

    def __init__(self, first, second):
        self.parts = [first, second]
        params = [p for part in self.parts for group in part.param_groups for p in group["params"]]
        super().__init__(params, {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.parts:
            part.step()
        for part in self.parts:
            self.state.update(part.state)


def muon(named_parameters, lr, momentum=0.95, ratio=0.2, betas=(0.9, 0.99)):
    """Muon for the matrices inside the network; AdamW at ``ratio * lr`` for embeddings, head and vectors."""
    outside = ("letter", "place", "head")
    inner, others = [], []
    for name, p in named_parameters:
        matrix = p.ndim == 2 and not name.startswith(outside)
        (inner if matrix else others).append(p)
    return Both(
        torch.optim.Muon(inner, lr, weight_decay=0.0, momentum=momentum),
        torch.optim.AdamW(others, ratio * lr, betas=betas, weight_decay=0.0),
    )
