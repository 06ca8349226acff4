"""From Adam, AdamW and NAdam to Navigator, and back."""

import copy

import pytest

torch = pytest.importorskip("torch")

from lossnav.optim.torch import KroneckerNavigator, Navigator  # noqa: E402

PLAIN = {"saturation": 0.0, "nesterov": False}
SHAPES = [(4, 3), (3,), ()]
# Twenty steps of at most lr = 0.01 each, rounded in another order: some 1e-16 each.
ROUNDING = 1e-14


def parameters():
    rng = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(s, generator=rng, dtype=torch.float64)) for s in SHAPES]


def grouped(params, named=False):
    some = [(f"p{i}", p) for i, p in enumerate(params)] if named else params
    return [{"params": some[:1], "lr": 0.02}, {"params": some[1:], "weight_decay": 0.0}]


def train(optimizer, params, seed=1, steps=5):
    rng = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=rng, dtype=p.dtype)
        optimizer.step()


def apart(one, other):
    return max((p - q).abs().max().item() for p, q in zip(one, other, strict=True))


KINDS = {
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.3}),
    "adam": (torch.optim.Adam, {"weight_decay": 0.0, "betas": (0.8, 0.99), "maximize": True}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["like", "like a state", "load"])
def test_a_run_goes_on_as_the_other_optimizers_own(kind, way, capsys):
    cls, settings = KINDS[kind]
    params = parameters()
    theirs = cls(grouped(params, named=way == "load"), lr=0.01, eps=1e-6, **settings)
    train(theirs, params)
    saved = copy.deepcopy(theirs.state_dict())
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    if way == "like":
        ours = Navigator.like(theirs, **PLAIN)
        twins, params = params, twins  # ours has the parameters themselves
        theirs = cls(grouped(params))
        theirs.load_state_dict(saved)
    elif way == "like a state":
        ours = Navigator.like(saved, grouped(twins), **PLAIN)
    else:
        ours = Navigator(grouped(twins, named=True)[::-1], **PLAIN)
        ours.load_state_dict(saved)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert said.startswith("Taken from ")
    assert "lr 0.02, betas" in said
    assert "and 1 more group; state of 3 of 3 parameters after 5 steps" in said
    assert float(ours.param_groups[0]["peak_lr"]) in (0.01, 0.02)
    train(theirs, params, seed=2, steps=20)
    train(ours, twins, seed=2, steps=20)
    assert apart(params, twins) < ROUNDING


def test_the_way_back():
    params = parameters()
    ours = Navigator(grouped(params), 0.01, weight_decay=0.2, betas=(0.9, 0.999), **PLAIN)
    train(ours, params)
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    theirs = torch.optim.AdamW(grouped(twins), lr=7.0)
    theirs.load_state_dict(ours.adamw_state_dict())
    assert set(theirs.param_groups[0]) == set(torch.optim.AdamW(twins).param_groups[0])
    train(ours, params, seed=2, steps=20)
    train(theirs, twins, seed=2, steps=20)
    assert apart(params, twins) < ROUNDING
    for settings in ({"centered": True}, {"gain": "kalman"}):
        with pytest.raises(ValueError, match="its averages are others"):
            Navigator(params, **settings).adamw_state_dict()


def test_nadam_and_schedulers_and_settings_of_ones_own(capsys):
    params = parameters()
    theirs = torch.optim.NAdam(params, lr=0.04)
    schedule = torch.optim.lr_scheduler.StepLR(theirs, 1, 0.5)
    train(theirs, params)
    schedule.step()
    ours = Navigator.like(theirs, verbose=False, gamma=0.5, weight_decay=0.1)
    assert capsys.readouterr().out == ""
    group = ours.param_groups[0]
    assert (group["lr"], group["initial_lr"], float(group["peak_lr"])) == (0.02, 0.04, 0.04)
    assert (group["gamma"], group["weight_decay"], group["nesterov"]) == (0.5, 0.1, True)
    assert torch.equal(ours.state[params[0]]["mean"], theirs.state[params[0]]["exp_avg"])
    assert ours.state[params[0]]["mean"] is not theirs.state[params[0]]["exp_avg"]
    torch.optim.lr_scheduler.StepLR(ours, 1, 0.5, last_epoch=1)


def test_a_matrix_with_a_basis_begins_anew(capsys):
    params = parameters()
    theirs = torch.optim.AdamW(params, lr=0.01)
    train(theirs, params)
    ours = KroneckerNavigator.like(theirs)
    assert "state of 2 of 3 parameters" in capsys.readouterr().out
    assert params[0] not in ours.state
    train(ours, params)
    with pytest.raises(ValueError, match="in a basis of its own"):
        ours.adamw_state_dict()


def test_what_cannot_be_taken_is_refused():
    params = parameters()
    with pytest.raises(ValueError, match="but this SGD has other settings"):
        Navigator.like(torch.optim.SGD(params, lr=0.1))
    with pytest.raises(ValueError, match="penalty in the loss"):
        Navigator.like(torch.optim.Adam(params, weight_decay=0.1))
    with pytest.raises(ValueError, match="pass params, too"):
        Navigator.like(torch.optim.Adam(params).state_dict())
