"""The fused step keeps its table from step to step: whatever happens in between, it must do as the plain step does."""

import copy
import gc
import weakref

import pytest
import torch

from lossnav.optim.torch import Ballistic, Navigator

MAKERS = {
    "navigator": Navigator,
    "discount": lambda p, **s: Navigator(p, gamma=0.01, **s),
    "centred": lambda p, **s: Navigator(p, centred=True, **s),
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
