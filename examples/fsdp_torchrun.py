"""FSDP2: a sharded model, its optimizer, and a checkpoint that any number of processes can take up.

    torchrun --nproc-per-node 2 examples/fsdp_torchrun.py

Each process holds its part of every parameter, and the same part of the optimizer's memory. Nothing
is said to `Navigator` about it; `KroneckerNavigator` could stand in its place. A NaN that only one
process sees makes all of them skip the step. The run stops half-way and goes on from a checkpoint on
disk. It must end where the run without a stop ends.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from lossnav.optim.torch import Navigator

STEPS, BATCH = 60, 64


def prepare():
    """A sharded model and its optimizer, the same each time. Build the optimizer after sharding."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 33), torch.nn.Tanh(), torch.nn.Linear(33, 33), torch.nn.Tanh(),
        torch.nn.Linear(33, 1),
    )  # fmt: skip
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, Navigator(model.named_parameters(), lr=1e-2, gain="kalman", weight_decay=1e-2)


def train(model, optimizer, steps):
    """Each process sees other data; the gradient is the mean over all."""
    losses = []
    for step in steps:
        rng = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        x = torch.randn(BATCH, 10, generator=rng)
        y = torch.sin(x[:, :1]) * x[:, 1:2]
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_())
        losses.append(loss.item() / dist.get_world_size())
    return losses


dist.init_process_group("gloo")
whole = train(*prepare(), range(STEPS))

model, optimizer = prepare()
train(model, optimizer, range(STEPS // 2))
folder = [tempfile.TemporaryDirectory()] if dist.get_rank() == 0 else [None]
where = [folder[0].name if folder[0] else None]
dist.broadcast_object_list(where)
dcp.save(dict(zip("mo", get_state_dict(model, optimizer), strict=True)), checkpoint_id=where[0])

model, optimizer = prepare()  # as a new job would, perhaps with more or fewer processes
held = dict(zip("mo", get_state_dict(model, optimizer), strict=True))
dcp.load(held, checkpoint_id=where[0])
set_state_dict(model, optimizer, model_state_dict=held["m"], optim_state_dict=held["o"])
resumed = train(model, optimizer, range(STEPS // 2, STEPS))

gap = max(abs(a - b) for a, b in zip(whole[STEPS // 2 :], resumed, strict=True))
if dist.get_rank() == 0:
    folder[0].cleanup()
    print(f"loss {whole[0]:.3f} -> {whole[-1]:.3f}, resumed run off by {gap:.1e}", flush=True)
assert whole[-1] < 0.7 * whole[0]
assert gap < 1e-6
dist.destroy_process_group()
os._exit(0)  # FSDP2 keeps gloo's threads alive; one that frees a tensor after Python ended aborts
