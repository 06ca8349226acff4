"""One of several processes that share a model; `test_distributed.py` starts them.

    python distributed_worker.py RANK WORLD FOLDER

It runs all checks that suit its number of processes and writes what came of each to
``FOLDER/result-WORLD-RANK.json``. Every check compares with the same training in one process, without
any of this, which each worker does for itself.
"""

import json
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from lossnav.optim.torch import (
    Ballistic,
    Examples,
    KroneckerNavigator,
    Navigator,
    WeightUncertainty,
    create,
)

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
RANK, WORLD, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
STEPS, BATCH = 8, 12
MOST = {"gamma": 0.01, "centered": True, "nesterov": True, "weight_decay": 0.1}
RULES = {
    "navigator": (Navigator, {}),
    "navigator, adam": (Navigator, {"saturation": 0.0, "nesterov": False}),
    "navigator, most settings": (Navigator, MOST),
    "navigator, kalman": (Navigator, {"gain": "kalman"}),
    "navigator, saturation": (Navigator, {"saturation": 2.0}),
    "navigator, all": (Navigator, {**MOST, "gain": "kalman", "saturation": 1.0}),
    "navigator, all, one by one": (
        Navigator,
        {**MOST, "gain": "kalman", "saturation": 1.0, "foreach": False},
    ),
    "navigator, fused": (Navigator, {**MOST, "fused": True}),
    "navigator, fused, all": (
        Navigator,
        {**MOST, "gain": "kalman", "saturation": 1.0, "fused": True},
    ),
    "navigator, capturable": (Navigator, {**MOST, "capturable": True}),
    "ballistic": (Ballistic, {"beta2": 0.9}),
    "kronecker": (KroneckerNavigator, {"refresh": 3}),
    "kronecker, all": (
        KroneckerNavigator,
        {**MOST, "gain": "kalman", "saturation": 1.0, "refresh": 2},
    ),
    "kronecker, one by one": (KroneckerNavigator, {"refresh": 3, "foreach": False}),
    "kronecker, every side": (KroneckerNavigator, {"refresh": 3, "matrix": True}),
    "kronecker, one side": (KroneckerNavigator, {"refresh": 3, "max_dim": 7}),
    "uncertain": (WeightUncertainty, {"batch_size": BATCH}),
}


class Network(torch.nn.Module):
    """Sides of 1, 2, 3, 7 and 12: none but one can be shared out evenly, and some not at all."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.kernel = torch.nn.Conv1d(1, 3, 2)
        self.hidden = torch.nn.Linear(12, 7)
        self.head = torch.nn.Linear(7, 2)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = torch.tanh(self.kernel(x.unsqueeze(1))).flatten(1)
        return self.scale * self.head(torch.tanh(self.hidden(x)))


def data(step, part=slice(None)):
    rng = torch.Generator().manual_seed(100 + step)
    x = torch.randn(BATCH, 5, generator=rng)
    y = torch.stack([x[:, :2].sum(1), x[:, 2] * x[:, 3]], 1)
    return x[part], (y + 0.3 * torch.randn(BATCH, 2, generator=rng))[part]


def rate(rule):
    # Sums in another order differ by 1e-16. In one process, too, a basis raises that, through the
    # directions that early gradients leave open: to some 1e-6 in ten steps at 0.03, ten times the
    # default. At the default rate what is left is the error of sharding, if there is one.
    return 0.003 if rule.startswith("kronecker") else 0.03


def build(rule):
    make, settings = RULES[rule]
    model = Network()
    return model, lambda: make(model.named_parameters(), lr=rate(rule), **settings)


def train(model, optimizer, steps, part=slice(None)):
    for step in steps:
        optimizer.param_groups[0]["lr"] = optimizer.defaults["lr"] * (1 + step % 3)
        x, y = data(step, part)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


def mine():
    return slice(RANK, None, WORLD)


def alone(rule, steps=STEPS):
    """The same training in one process."""
    model, make = build(rule)
    train(model, make(), range(steps))
    return {name: p.detach() for name, p in model.named_parameters()}


def sharded(rule):
    model, make = build(rule)
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in (model.kernel, model.hidden, model.head):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, make()


def full(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def close(found, expected, bound=1e-6):
    for name, value in expected.items():
        gap = (full(found[name]) - value).abs().max().item()
        assert gap <= bound, f"{name} is {gap:.3g} off"


def parameters(model):
    return {name.removeprefix("module."): p for name, p in model.named_parameters()}


# Checks. Each runs on all processes at once.


def replicated_training(rule):
    model, make = build(rule)
    optimizer = make()
    wrapped = DistributedDataParallel(model)
    train(wrapped, optimizer, range(STEPS), mine())
    close(parameters(model), alone(rule))


def by_name():
    """Sharded parameters are grouped by their whole shapes, and take the same steps."""
    ends = []
    for parted in (False, True):
        model = sharded("kronecker")[0] if parted else Network()
        optimizer = create(model, "kronecker", lr=0.003, weight_decay=0.1, verbose=False)
        roles = {group["name"]: group["param_names"] for group in optimizer.param_groups}
        assert roles["matrices"] == ["kernel.weight", "hidden.weight"]
        assert roles["heads"] == ["head.weight"]
        train(model, optimizer, range(3))
        ends.append({name: full(p) for name, p in model.named_parameters()})
    close(*ends)


def replicas_that_watch():
    """Squares of examples that each process saw are those of the whole batch."""

    def made():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2))
        return model, WeightUncertainty(model.named_parameters(), lr=0.01, curvature="fisher")

    alone, one = made()
    model, many = made()
    wrapped = DistributedDataParallel(model)
    many.watch(model)
    train(wrapped, many, range(STEPS), mine())
    for step in range(STEPS):  # one that does not know of the other processes
        one.param_groups[0]["lr"] = one.defaults["lr"] * (1 + step % 3)
        x, y = data(step)
        one.zero_grad()
        with Examples(alone) as seen:
            (alone(x) - y).square().mean().backward()
        one.observe({p: seen.squares(p) for p in alone.parameters()}, batch_size=BATCH)
        one.step()
    close(parameters(model), parameters(alone), 1e-9)
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        close({"variance": many.variance(p)}, {"variance": one.variance(q)}, 1e-9)


def partitioned_training(rule):
    """Each process updates some of the parameters, and all have them: ZeRO-1."""
    make, settings = RULES[rule]
    model = Network()
    wrapped = DistributedDataParallel(model)
    settings = {**settings, "lr": rate(rule)}
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), make, **settings)
    assert optimizer.optim.skipped == 0
    train(wrapped, optimizer, range(STEPS // 2), mine())
    before = {key: p.detach().clone() for key, p in parameters(model).items()}
    for nonfinite in ("skip", "raise"):
        optimizer.param_groups[0]["nonfinite"] = nonfinite
        train_gradients(wrapped)
        model.hidden.weight.grad[0, 0] = float("nan")  # only one of the processes updates it
        if nonfinite == "skip":
            optimizer.step()
        else:
            with pytest.raises(FloatingPointError, match="nothing was changed"):
                optimizer.step()
        close(parameters(model), before, 0.0)
    assert optimizer.param_groups[0]["skipped"] == 1
    train(wrapped, optimizer, range(STEPS // 2, STEPS), mine())
    close(parameters(model), alone(rule))


def partitions_that_are_refused():
    """What compares all layers cannot do with some of them."""
    with pytest.raises(RuntimeError, match="ZeroRedundancyOptimizer: it compares all layers"):
        ZeroRedundancyOptimizer(Network().parameters(), WeightUncertainty, batch_size=BATCH)


def sharded_training(rule):
    model, optimizer = sharded(rule)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    train(model, optimizer, range(STEPS), mine())
    close(parameters(model), alone(rule))
    assert optimizer.skipped == 0


def a_nan_on_one_process(rule):
    """It skips the step on all, or raises on all; the training goes on as if it had not been."""
    model, optimizer = sharded(rule)
    train(model, optimizer, range(STEPS // 2), mine())
    for name in ("hidden.weight", "head.bias"):
        before = {key: full(p).clone() for key, p in parameters(model).items()}
        train_gradients(model)
        grad = parameters(model)[name].grad.to_local()
        holder = 1 % WORLD  # the last may hold nothing
        if holder == RANK:
            grad.view(-1)[0] = float("nan")
        optimizer.step()
        close(parameters(model), before, 0.0)
    assert optimizer.skipped == 2
    optimizer.param_groups[0]["nonfinite"] = "raise"
    train_gradients(model)
    if RANK == 0:
        parameters(model)["hidden.weight"].grad.to_local().view(-1)[0] = float("inf")
    with pytest.raises(FloatingPointError, match=r"'hidden\.weight'"):
        optimizer.step()
    train(model, optimizer, range(STEPS // 2, STEPS), mine())
    close(parameters(model), alone(rule))


def train_gradients(model):
    x, y = data(77, mine())
    model.zero_grad()
    (model(x) - y).square().mean().backward()


def a_nan_with_replicas(rule):
    model, make = build(rule)
    optimizer = make()
    wrapped = DistributedDataParallel(model)
    train(wrapped, optimizer, range(3), mine())
    before = {key: p.detach().clone() for key, p in parameters(model).items()}
    x, y = data(77, mine())
    x = x * (float("nan") if RANK == 0 else 1.0)
    wrapped.zero_grad()
    (wrapped(x) - y).square().mean().backward()
    optimizer.step()
    close(parameters(model), before, 0.0)
    assert optimizer.skipped == 1


LAYOUTS = {"rows": [Shard(0)], "columns": [Shard(1)], "copies": [Replicate()]}


def any_layout(rule, layout):
    """Parameters that are DTensors by themselves, as tensor-parallel layers have them."""
    make, settings = RULES[rule]
    if layout == "copies of shards":
        mesh, places = init_device_mesh("cpu", (1, WORLD)), [Replicate(), Shard(0)]
    else:
        mesh, places = init_device_mesh("cpu", (WORLD,)), LAYOUTS[layout]
    shapes = [(5, 4), (4, 7), (1, 3), (2, 2), (7, 2, 3)]
    rng = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=rng) for shape in shapes]
    plain = [torch.nn.Parameter(x.clone()) for x in start]
    spread = [torch.nn.Parameter(distribute_tensor(x, mesh, places)) for x in start]
    one, many = make(plain, lr=0.03, **settings), make(spread, lr=0.03, **settings)
    for _ in range(5):
        for p, q in zip(plain, spread, strict=True):
            p.grad = torch.randn(p.shape, generator=rng)
            q.grad = distribute_tensor(p.grad, mesh, places)
        one.step()
        many.step()
    for p, q in zip(plain, spread, strict=True):
        close({"theta": q}, {"theta": p.detach()}, 1e-9)


def low_precision(rule):
    """What parameters in bfloat16 lose by rounding is kept in their shards."""
    make, settings = RULES[rule]
    mesh = init_device_mesh("cpu", (WORLD,))
    rng = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=rng).bfloat16() for shape in ((5, 4), (3,))]
    plain = [torch.nn.Parameter(x.clone()) for x in start]
    spread = [torch.nn.Parameter(distribute_tensor(x, mesh, [Shard(0)])) for x in start]
    one, many = make(plain, lr=1e-3, **settings), make(spread, lr=1e-3, **settings)
    for _ in range(8):
        for p, q in zip(plain, spread, strict=True):
            p.grad = torch.randn(p.shape, generator=rng).bfloat16()
            q.grad = distribute_tensor(p.grad, mesh, [Shard(0)])
        one.step()
        many.step()
    for p, q in zip(plain, spread, strict=True):
        lost = many.state[q]["compensation"]
        assert lost.placements == q.placements
        assert full(lost).any()
        # Another order of sums may round elsewhere; both parts together are the same.
        kept = p.detach().double() * (1 + one.state[p]["compensation"].double() / 256)
        close({"theta": full(q).double() * (1 + full(lost).double() / 256)}, {"theta": kept}, 1e-4)


def sums_to_come(rule):
    """A gradient whose sum over processes is still to be made is summed before it is used."""
    from torch.distributed.tensor import Partial

    make, settings = RULES[rule]
    mesh = init_device_mesh("cpu", (WORLD,))
    start = torch.arange(12.0).reshape(4, 3)
    p = torch.nn.Parameter(start.clone())
    q = torch.nn.Parameter(distribute_tensor(start, mesh, [Replicate()]))
    one, many = make([p], lr=0.03, **settings), make([q], lr=0.03, **settings)
    for step in range(4):
        rng = torch.Generator().manual_seed(step)
        terms = torch.randn(WORLD, 4, 3, generator=rng)
        p.grad = terms.sum(0)
        q.grad = DTensor.from_local(terms[RANK], mesh, [Partial()])
        one.step()
        many.step()
    close({"theta": q}, {"theta": p.detach()}, 1e-9)


def memory(rule):
    """Each process holds its share of the state, and small things besides."""
    model, optimizer = sharded(rule)
    train(model, optimizer, range(2), mine())
    held = [t for state in optimizer.state.values() for t in state.values() if t.ndim]
    assert held
    assert all(isinstance(t, DTensor) for t in held)
    here = torch.tensor(float(sum(t.to_local().numel() for t in held)))
    dist.all_reduce(here)
    assert here.item() == sum(t.numel() for t in held)


def saving(rule):
    model, optimizer = sharded(rule)
    train(model, optimizer, range(STEPS // 2), mine())
    optimizer.param_groups[0]["skipped"] += 3
    weights, state = get_state_dict(model, optimizer)
    where = FOLDER / "checkpoints" / rule.replace(", ", "-").replace(" ", "-")
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=where)


def loading(rule):
    """A checkpoint of two processes, taken up by however many there are now."""
    model, optimizer = sharded(rule)
    weights, state = get_state_dict(model, optimizer)
    where = FOLDER / "checkpoints" / rule.replace(", ", "-").replace(" ", "-")
    both = {"model": weights, "optimizer": state}
    dcp.load(both, checkpoint_id=where)
    set_state_dict(
        model, optimizer, model_state_dict=both["model"], optim_state_dict=both["optimizer"]
    )
    assert optimizer.skipped == 3
    train(model, optimizer, range(STEPS // 2, STEPS), mine())
    close(parameters(model), alone(rule))


def whole_state(rule):
    """A full state, as one process would save it, goes out to shards and comes back."""
    plain, make = build(rule)
    first = make()
    train(plain, first, range(STEPS // 2))
    whole = StateDictOptions(full_state_dict=True)
    weights, state = get_state_dict(plain, first, options=whole)
    model, optimizer = sharded(rule)
    second, third = sharded(rule)[1], build(rule)[1]()
    second.load_state_dict(first.state_dict())
    third.load_state_dict(second.state_dict())
    for index, held in first.state_dict()["state"].items():
        for other in (second, third):
            close(other.state_dict()["state"][index], held, 0.0)
    set_state_dict(
        model, optimizer, model_state_dict=weights, optim_state_dict=state, options=whole
    )
    train(model, optimizer, range(STEPS // 2, STEPS), mine())
    close(parameters(model), alone(rule))
    _, gathered = get_state_dict(model, optimizer, options=whole)
    if RANK == 0:
        train(plain, first, range(STEPS // 2, STEPS))
        _, expected = get_state_dict(plain, first, options=whole)
        for name, held in expected["state"].items():
            for key, value in held.items():
                gap = (gathered["state"][name][key] - value).abs().max()
                assert gap < 1e-6, f"{key} of {name} is {gap:.3g} off"


# Three processes have other shards to deal with, but no other code: these are enough for them.
OFTEN = (
    "navigator",
    "navigator, all",
    "navigator, fused",
    "ballistic",
    "kronecker",
    "kronecker, all",
    "uncertain",
)
KEPT = ("navigator, all", "ballistic", "kronecker", "kronecker, all", "uncertain")


def checks():
    """What this number of processes has to do: a name, a function and its arguments."""
    found = []
    if WORLD == 2:
        found.append(("by name", by_name))
    if WORLD > 1:
        rules = RULES if WORLD == 2 else OFTEN
        found += [(f"shards: {rule}", sharded_training, rule) for rule in rules]
        for rule in ("navigator, all", "kronecker", "uncertain"):
            found += [
                (f"replicas: {rule}", replicated_training, rule),
                (f"NaN: {rule}", a_nan_on_one_process, rule),
                (f"NaN, replicas: {rule}", a_nan_with_replicas, rule),
            ]
            if WORLD == 2:
                found.append((f"sums to come: {rule}", sums_to_come, rule))
                found.append((f"memory: {rule}", memory, rule))
        found.append(("NaN: navigator, fused", a_nan_on_one_process, "navigator, fused"))
        found.append(("sums to come: navigator, fused", sums_to_come, "navigator, fused"))
        found.append(("replicas that watch", replicas_that_watch))
        for rule in ("navigator, all", "kronecker"):
            found.append((f"partitions: {rule}", partitioned_training, rule))
        found.append(("partitions: uncertain", partitions_that_are_refused))
        for rule in ("navigator, all", "navigator, fused", "kronecker, all", "uncertain"):
            found.append((f"bfloat16: {rule}", low_precision, rule))
        for layout in (*LAYOUTS, "copies of shards"):
            for rule in ("navigator, fused", "navigator, all", "kronecker, all", "uncertain"):
                if WORLD == 2 or "fused" not in rule:
                    found.append((f"{layout}: {rule}", any_layout, rule, layout))
    for rule in KEPT:
        found += [(f"save: {rule}", saving, rule)] if WORLD == 2 else []
        found.append((f"load: {rule}", loading, rule))
        found += [(f"whole state: {rule}", whole_state, rule)] if WORLD == 2 else []
    return found


def main():
    dist.init_process_group(
        "gloo", init_method=f"file://{FOLDER}/meeting-{WORLD}", rank=RANK, world_size=WORLD,
        timeout=timedelta(seconds=20),
    )  # fmt: skip
    result = {}
    only = sys.argv[4:]
    for name, check, *arguments in checks():
        if only and not any(part in name for part in only):
            continue
        print(f"{time.monotonic():.1f} {name}", flush=True)
        try:
            check(*arguments)
            said = ""
        except (Exception, dcp.api.CheckpointException):  # the second is none of the first
            said = traceback.format_exc()
        # All must end a check before any begins the next.
        heard = [None] * WORLD
        dist.all_gather_object(heard, said)
        result[name] = "\n".join(f"process {i}: {text}" for i, text in enumerate(heard) if text)
        path = FOLDER / f"result-{WORLD}-{RANK}.json"
        path.write_text(json.dumps(result))
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # FSDP2 keeps gloo's threads alive, which may abort once Python has ended


if __name__ == "__main__":
    main()
