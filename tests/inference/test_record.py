"""The recorder: what it writes is what happened, at any time, in any loop."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from lossnav.inference.log import record_file, recorder
from lossnav.inference.log.recorder import record


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2))


def train(model, optimizer, steps, hook=None, rng=None):
    rng = rng or torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6, generator=rng)).square().mean().backward()
        if hook:
            hook()
        optimizer.step()


def flat(tensors):
    return [t.detach().clone().flatten() for t in tensors]


def test_the_record_is_what_a_loop_sees_itself(tmp_path):
    """Parameters, gradients and updates against copies that the loop makes of everything."""
    model = network()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
    params = list(model.parameters())
    before, grads, after = [], [], []

    def copy():
        before.append(flat(params))
        grads.append(flat(p.grad for p in params))

    rng = torch.Generator().manual_seed(1)
    with record(optimizer, tmp_path / "run.npz", every=10, burst=4, coordinates=5) as log:
        for _ in range(25):
            train(model, optimizer, 1, copy, rng)
            after.append(flat(params))
    found = record_file.read(tmp_path / "run.npz")
    assert log.steps == 25
    assert found.step.tolist() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert [(s.start, s.stop) for s in found.bursts()] == [(0, 4), (4, 8), (8, 12)]
    assert found.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert found.shapes == ((9, 6), (9,), (2, 9), (2,))
    assert np.bincount(found.tensor).tolist() == [5, 5, 5, 2]
    assert found.fresh
    assert found.optimizer == "SGD"
    assert (found.lr == 0.1).all()
    for row, step in enumerate(found.step):
        for column, (tensor, place) in enumerate(zip(found.tensor, found.place, strict=True)):
            assert found.theta[row, column] == before[step][tensor][place]
            assert found.grad[row, column] == grads[step][tensor][place]
            moved = after[step][tensor][place].double() - before[step][tensor][place].double()
            assert found.update[row, column] == pytest.approx(moved.item(), abs=1e-12)


def test_coordinates_lie_in_all_rows_and_columns(tmp_path):
    theta = torch.nn.Parameter(torch.zeros(64, 32))
    record(torch.optim.SGD([theta]), tmp_path / "run.npz", coordinates=64).close()
    places = record_file.read(tmp_path / "run.npz").place
    assert len(set(places // 32)) > 56
    assert len(set(places % 32)) == 32


def test_training_is_the_same_with_and_without(tmp_path):
    ends = []
    for recorded in (False, True):
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        if recorded:
            with record(optimizer, tmp_path / "run.npz", every=5, burst=3):
                train(model, optimizer, 12)
        else:
            train(model, optimizer, 12)
        ends.append(torch.cat(flat(model.parameters())))
    assert torch.equal(*ends)


def test_groups_frozen_parameters_schedules_and_missing_gradients(tmp_path):
    model = network()
    model[0].bias.requires_grad_(False)
    groups = [
        {"params": list(model[0].parameters()), "lr": 0.1},
        {"params": list(model[2].parameters()), "lr": 0.2},
    ]
    optimizer = torch.optim.SGD(groups)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with record(optimizer, tmp_path / "run.npz"):
        for step in range(4):
            # every second step has no gradient for the last bias
            train(model, optimizer, 1, lambda step=step: drop(model[2].bias, step % 2))
            schedule.step()
    found = record_file.read(tmp_path / "run.npz")
    assert found.groups == (0, 0, 1, 1)
    assert found.lr == pytest.approx(np.outer(0.5 ** np.arange(4), [0.1, 0.2]))
    assert np.isnan(found.grad[:, found.tensor == 1]).all()  # frozen
    assert not found.update[:, found.tensor == 1].any()
    last = found.grad[:, found.tensor == 3]
    assert np.isnan(last[1::2]).all()
    assert not np.isnan(last[::2]).any()


def drop(parameter, really):
    if really:
        parameter.grad = None


def test_sparse_gradients(tmp_path):
    """Against the dense gradient of the same embedding."""
    kept = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Embedding(7, 3, sparse=sparse)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record(optimizer, tmp_path / "run.npz", coordinates=21):
            for rows in ([1, 1, 4], [0], [6, 2]):
                optimizer.zero_grad()
                model(torch.tensor(rows)).square().sum().backward()
                optimizer.step()
        found = record_file.read(tmp_path / "run.npz")
        kept.append((found.grad, found.update))
    assert kept[0][0] == pytest.approx(kept[1][0], abs=1e-7)
    assert kept[0][1] == pytest.approx(kept[1][1], abs=1e-7)
    assert kept[0][0].any()


def test_other_layouts_and_types(tmp_path):
    torch.manual_seed(0)
    image = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    half = torch.nn.Parameter(torch.randn(5, dtype=torch.bfloat16))
    double = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    whole = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    optimizer = torch.optim.SGD([*image.parameters(), half, double, whole], lr=0.5)
    before = flat([image.weight])[0]
    with record(optimizer, tmp_path / "run.npz", coordinates=1000):
        loss = image(torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)).square().sum()
        (loss + half.float().sum() + double.sum()).backward()
        optimizer.step()
    found = record_file.read(tmp_path / "run.npz")
    assert found.theta[0, found.tensor == 0] == pytest.approx(before.numpy())
    assert found.update[0, found.tensor == 0] == pytest.approx(
        -0.5 * image.weight.grad.flatten().numpy(), rel=1e-3
    )
    assert found.update[0, found.tensor == 3] == pytest.approx(-0.5)
    assert found.unit[2] == 2.0**-7
    assert found.unit[3] == 2.0**-52
    assert 4 not in found.tensor  # complex


def test_a_closure_is_recorded_with_its_first_gradient(tmp_path):
    theta = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = torch.optim.LBFGS([theta], lr=0.1, max_iter=3)
    start = theta.item()

    def closure():
        optimizer.zero_grad()
        loss = theta.square().sum()
        loss.backward()
        return loss

    with record(optimizer, tmp_path / "run.npz"):
        optimizer.step(closure)
        optimizer.step(closure=closure)
    found = record_file.read(tmp_path / "run.npz")
    assert found.theta[0, 0] == start
    assert found.grad[:, 0] == pytest.approx(2 * found.theta[:, 0])
    assert found.theta[0, 0] + found.update[0, 0] == pytest.approx(found.theta[1, 0])


def test_an_exception_in_the_loop_keeps_the_steps_before_it(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters())

    def crash():
        with record(optimizer, tmp_path / "run.npz"):
            train(model, optimizer, 7)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        crash()
    assert record_file.read(tmp_path / "run.npz").step.tolist() == list(range(7))
    train(model, optimizer, 3)  # and nothing is recorded after it
    assert len(record_file.read(tmp_path / "run.npz").step) == 7


KILLED = """
import os, sys, torch
from lossnav.inference import record
theta = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([theta], lr=0.1)
record(optimizer, sys.argv[1], every=4, burst=2)
for step in range(11):
    optimizer.zero_grad()
    theta.square().sum().backward()
    optimizer.step()
os._exit(9)
"""


def test_a_killed_run_keeps_its_bursts(tmp_path):
    path = tmp_path / "run.npz"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False)
    assert done.returncode == 9
    assert record_file.read(path).step.tolist() == [0, 1, 4, 5, 8, 9]
    assert os.listdir(tmp_path) == ["run.npz"]


def test_a_failed_write_does_not_stop_the_training(tmp_path, monkeypatch):
    """A full disk: one warning, the old file stays, and a later write brings all of it."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    log = record(optimizer, tmp_path / "run.npz", every=2, burst=2)
    train(model, optimizer, 2)
    real = np.savez

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(RuntimeWarning, match="could not be written.*No space left"):
        train(model, optimizer, 2)
    train(model, optimizer, 2)
    assert len(record_file.read(tmp_path / "run.npz").step) == 2
    assert os.listdir(tmp_path) == ["run.npz"]
    with pytest.raises(OSError, match="No space left"):
        log.close()
    monkeypatch.setattr(np, "savez", real)
    log = record(optimizer, tmp_path / "run.npz", every=2, burst=2)
    train(model, optimizer, 4)
    log.close()
    assert len(record_file.read(tmp_path / "run.npz").step) == 4


def test_a_long_run_does_not_fill_memory(tmp_path, monkeypatch):
    """Bursts become rarer; the first one stays."""
    monkeypatch.setattr(recorder, "MOST_BURSTS", 4)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(optimizer, tmp_path / "run.npz", every=4, burst=2):
        train(model, optimizer, 200)
    found = record_file.read(tmp_path / "run.npz")
    starts = [int(found.step[rows.start]) for rows in found.bursts()]
    assert len(starts) <= 5
    assert starts[0] == 0
    assert starts[-1] > 100


def test_an_optimizer_with_memory_is_not_fresh(tmp_path):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 1)
    with record(optimizer, tmp_path / "run.npz"):
        train(model, optimizer, 1)
    assert not record_file.read(tmp_path / "run.npz").fresh


def test_refusals(tmp_path):
    theta = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([theta])
    with pytest.raises(TypeError, match="record needs an optimizer of PyTorch, but a Linear was"):
        record(torch.nn.Linear(1, 1), tmp_path / "run.npz")
    with pytest.raises(ValueError, match="burst is 5, but bursts start every 3 steps"):
        record(optimizer, tmp_path / "run.npz", every=3, burst=5)
    with pytest.raises(ValueError, match="coordinates is 0, but it must be a whole number, 1 or"):
        record(optimizer, tmp_path / "run.npz", coordinates=0)
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        record(optimizer, tmp_path / "nowhere" / "run.npz")
    empty = torch.optim.SGD([torch.nn.Parameter(torch.zeros(0))])
    with pytest.raises(ValueError, match="no parameter with real coordinates"):
        record(empty, tmp_path / "run.npz")


def test_files_that_are_no_records(tmp_path):
    path = tmp_path / "run.npz"
    with pytest.raises(FileNotFoundError, match="There is no record at"):
        record_file.read(path)
    for raw in (b"", b"hello", b"PK\x03\x04 cut"):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match="is not a record of a training run"):
            record_file.read(path)
    np.savez(path, a=np.zeros(2))
    with pytest.raises(ValueError, match="is not a record of a training run"):
        record_file.read(path)
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    with record(optimizer, path):
        train(model, optimizer, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="only a part of one"):
        record_file.read(path)
    path.write_bytes(whole)
    with np.load(path) as held:
        arrays = dict(held)
    arrays["grad"] = arrays["grad"][:, 1:]
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="does not fit together: grad must match 3 steps"):
        record_file.read(path)


def test_a_gradient_that_is_not_finite_is_kept_as_it_is(tmp_path):
    theta = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([theta], lr=0.1)
    with record(optimizer, tmp_path / "run.npz"):
        theta.grad = torch.tensor([math.inf, 1.0])
        optimizer.step()
    assert record_file.read(tmp_path / "run.npz").grad.tolist() == [[math.inf, 1.0]]
