"""The fused step keeps its table from step to step: whatever happens in between, it must do as the plain step does."""

import copy
import gc
import weakref
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lossnav.optim.torch import Ballistic, KroneckerNavigator, Navigator, WeightUncertainty

MAKERS = {
    "navigator": Navigator,
    "discount": lambda p, **s: Navigator(p, gamma=0.01, **s),
    "centered": lambda p, **s: Navigator(p, centered=True, **s),
    "kalman": lambda p, **s: Navigator(p, gain="kalman", **s),
    "adamw": lambda p, **s: Navigator(p, nesterov=False, saturation=0.0, **s),
    "ballistic": Ballistic,
}


def channels_last(params, optimizer):
    params[2].data = params[2].data.to(memory_format=torch.channels_last)


def new_memory(params, optimizer):
    for p in params:
        p.data = p.data.clone()


def edited(params, optimizer):
    for p in params:
        optimizer.state[p]["variance"].mul_(3.0)


def swapped(params, optimizer):
    for p in params:
        optimizer.state[p]["variance"] = optimizer.state[p]["variance"] * 2


def swapped_data(params, optimizer):
    for p in params:
        optimizer.state[p]["variance"].data = optimizer.state[p]["variance"] * 2


def loaded(params, optimizer):
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def absent(params, optimizer):
    params[0].grad = params[3].grad = None


def turned(params, optimizer):
    g = params[1].grad
    params[1].grad = g.t().contiguous().t()


def climbing(params, optimizer):
    optimizer.param_groups[0]["maximize"] = True


def other_lr(params, optimizer):
    optimizer.param_groups[0]["lr"] *= 0.3


def not_a_number(params, optimizer):
    params[1].grad = torch.full_like(params[1], torch.nan)


def one_more(params, optimizer):
    params.append(torch.nn.Parameter(torch.ones(7, dtype=params[0].dtype)))
    params[-1].grad = torch.ones(7, dtype=params[0].dtype)
    optimizer.add_param_group({"params": [params[-1]]})


EVENTS = [
    channels_last, new_memory, edited, swapped, swapped_data, loaded, absent, turned, climbing, other_lr,
    not_a_number, one_more,
]  # fmt: skip


def history(make, event, dtype, **flags):
    torch.manual_seed(0)
    shapes = [(5,), (70, 600), (4, 3, 2, 2), (), (0, 3)]
    params = [torch.nn.Parameter(torch.randn(s, dtype=dtype)) for s in shapes]
    optimizer = make(params, **flags)
    for step in range(7):
        for p in params:
            p.grad = torch.randn_like(p) * (1 + step)
        if step in (3, 5):
            event(params, optimizer)
        optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_happens_between_steps_changes_nothing(maker, event, dtype):
    (ours, one), (plain, other) = (
        history(MAKERS[maker], event, dtype, **flags)
        for flags in ({"fused": True}, {"foreach": False})
    )
    assert one.skipped == other.skipped
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(
            mine, theirs, rtol=3e-6 if dtype == torch.float32 else 1e-12, atol=1e-7
        )


@pytest.mark.parametrize("bad", [False, True])
def test_gradients_are_let_go_after_the_step(bad):
    p = torch.nn.Parameter(torch.ones(9))
    optimizer = Navigator([p], fused=True)
    p.grad = torch.full((9,), torch.nan if bad else 1.0)
    seen = weakref.ref(p.grad)
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    assert seen() is None


def test_a_copy_of_an_optimizer_has_plans_of_its_own():
    p = torch.nn.Parameter(torch.ones(9))
    optimizer = Navigator([p], fused=True)
    p.grad = torch.ones(9)
    optimizer.step()
    q, other = copy.deepcopy((p, optimizer))
    (q,) = other.param_groups[0]["params"]
    q.grad = torch.ones(9)
    before = p.detach().clone()
    other.step()
    assert torch.equal(p, before)
    optimizer.step()
    assert torch.equal(p, q)


def test_a_variance_with_gaps_in_memory_is_not_read_as_if_it_had_none():
    p, q = (torch.nn.Parameter(torch.ones(6)) for _ in range(2))
    pair = [Navigator([p], fused=True), Navigator([q], foreach=False)]
    for step in range(3):
        for theta, optimizer in zip((p, q), pair, strict=True):
            theta.grad = torch.linspace(1.0, 2.0, 6) * (step + 1)
            optimizer.step()
            held = optimizer.state[theta]
            held["variance"] = torch.stack([held["variance"], torch.full((6,), torch.nan)], -1)[
                :, 0
            ]
    torch.testing.assert_close(p, q, rtol=3e-6, atol=1e-7)


def test_a_state_that_was_replaced_is_let_go():
    p = torch.nn.Parameter(torch.ones(9))
    optimizer = Navigator([p], fused=True)
    p.grad = torch.ones(9)
    optimizer.step()
    old = weakref.ref(optimizer.state[p]["variance"])
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.step()
    gc.collect()
    assert old() is None


class Traffic(TorchDispatchMode):
    """Counts operations, and the numbers that they read and write."""

    def __init__(self):
        super().__init__()
        self.operations, self.numbers = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, result)) if torch.is_tensor(t)]
        self.operations += 1
        self.numbers += sum(t.numel() for t in tensors if t.ndim)
        return result


def traffic(make):
    params = [torch.nn.Parameter(torch.randn(30, 50)) for _ in range(4)]
    for p in params:
        p.grad = torch.randn(30, 50)
    optimizer = make(params)
    for _ in range(2):  # the first makes the state
        optimizer.step()
    with Traffic() as seen:
        optimizer.step()
    return seen.operations / 4, seen.numbers / 6000


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"saturation": 0.0, "nesterov": False}, 13),  # as torch.optim.Adam
        ({}, 20),
        ({"gamma": 1e-3}, 22),
        ({"gain": "kalman"}, 34),
    ],
)
def test_lists_pass_over_memory_no_more_often_than_they_must(settings, most):
    """What a step reads and writes, for each parameter; the look for NaN is one more."""
    adam = traffic(lambda p: torch.optim.Adam(p, foreach=True))[1]
    found = traffic(lambda p: Navigator(p, foreach=True, nonfinite="ignore", **settings))[1]
    assert found <= most - 1 + 0.1
    if "nesterov" in settings:
        assert found <= adam + 0.1


class Calls(TorchDispatchMode):
    """Counts operations, and those that wait for a value."""

    def __init__(self):
        super().__init__()
        self.operations, self.waits = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        self.waits += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def calls(make, shapes=((30, 50),) * 50, dtype=torch.float32):
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    optimizer = make(params)
    for _ in range(3):  # the first makes the state
        for p in params:
            p.grad = torch.randn_like(p)
        with Calls() as seen:
            optimizer.step()
    return seen.operations, seen.waits


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 80),
        ({"horizon": 100}, 80),
        ({"saturation": 0.0, "nesterov": False}, 30),
        ({"gamma": 1e-3, "weight_decay": 0.1}, 80),
        ({"gain": "kalman"}, 90),
    ],
    ids=str,
)
def test_lists_of_fifty_tensors_take_few_calls(settings, most):
    """Fewer than the AdamW of PyTorch, and one wait: for whether all gradients are finite.

    The largest learning rate so far is read, too, but that is in the host's memory.
    """
    peaks = 1 if settings.get("saturation") != 0 else 0
    peer = calls(lambda p: torch.optim.AdamW(p, foreach=True))[0]
    found, waits = calls(lambda p: Navigator(p, foreach=True, **settings))
    assert found <= most <= peer
    assert waits == 1 + peaks
    ignoring = calls(lambda p: Navigator(p, foreach=True, nonfinite="ignore", **settings))
    assert ignoring[1] == peaks


def test_other_steps_wait_as_rarely():
    assert calls(lambda p: Ballistic(p, foreach=True))[1] == 1
    for make in (partial(Navigator, fused=True), partial(KroneckerNavigator, matrix=False)):
        assert calls(make)[1] == 2


def test_uncertain_weights_read_each_of_their_numbers_once():
    assert traffic(lambda p: WeightUncertainty(p, batch_size=16))[0] <= 14
