"""Parameters in bfloat16 keep what rounding takes off, and so train as in float32."""

import copy

import pytest

torch = pytest.importorskip("torch")

from lossnav.optim.torch import (  # noqa: E402
    Ballistic,
    KroneckerNavigator,
    Navigator,
    WeightUncertainty,
    create,
    from_rule,
)
from lossnav.rules import zoo  # noqa: E402

ADAM = {"saturation": 0.0, "nesterov": False}
FORMS = {
    "single": {"foreach": False}, "lists": {"foreach": True}, "fused": {"fused": True},
    "captured": {"capturable": True},
}  # fmt: skip
# Each by a function of parameters and flags.
MAKERS = {
    **{
        f"{name}, {form}": lambda p, make=make, form=form, **more: make(p, **FORMS[form], **more)
        for form in FORMS
        for name, make in {
            "navigator": lambda p, **kw: Navigator(p, 1e-3, weight_decay=0.1, **kw),
            "ballistic": lambda p, **kw: Ballistic(p, 1e-3, beta2=0.9, **kw),
            "uncertain": lambda p, **kw: WeightUncertainty(p, 1e-3, batch_size=8, **kw),
        }.items()
    },
    "navigator, differentiable": lambda p, **kw: Navigator(
        [q.requires_grad_(False) for q in p], 1e-3, differentiable=True, **kw
    ),
    "kronecker": lambda p, **kw: KroneckerNavigator(p, 1e-3, weight_decay=0.1, **kw),
    "kronecker, one by one": lambda p, **kw: KroneckerNavigator(p, 1e-3, foreach=False, **kw),
    "rule": lambda p, **kw: from_rule(p, zoo.AdamW(1e-3, weight_decay=0.1), **kw),
}


def tensors(dtype, seed=0):
    rng = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=rng).bfloat16() for shape in ((6, 5), (4,), (3, 4))]
    return [torch.nn.Parameter(x.to(dtype)) for x in values]


def train(params, optimizer, steps, seed=1):
    """Gradients are drawn, and the same in every precision."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in params:
            p.grad = (0.3 + torch.randn(p.shape, generator=rng)).bfloat16().to(p.dtype)
        optimizer.step()


def values(params, optimizer):
    """The parameters with what they have lost."""
    held = [optimizer.state[p].get("compensation", torch.zeros(())) for p in params]
    return [p.detach().float() * (1 + e.float() / 256) for p, e in zip(params, held, strict=True)]


def gap(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_a_thousand_small_steps_move_a_weight(form):
    """Each is below half a unit in the last place of 1, which is 2^-9 on its lower side."""
    x, lost = (torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = Navigator([x], 1e-4, **ADAM, **FORMS[form])
    plain = Navigator([lost], 1e-4, compensate=False, **ADAM, **FORMS[form])
    for _ in range(1000):
        x.grad, lost.grad = torch.ones_like(x), torch.ones_like(x)
        optimizer.step()
        plain.step()
    assert x.tolist() == [0.8984375] * 3  # the nearest to 0.9
    assert lost.tolist() == [1.0] * 3
    assert "compensation" not in plain.state[lost]


@pytest.mark.parametrize("name", MAKERS)
def test_every_form_is_the_one_in_float32(name):
    """A step rounds what is kept by 2^-12 of itself, and that is up to 2^-8 of the weight."""
    steps, make = 60, MAKERS[name]
    low, wide, lossy = tensors(torch.bfloat16), tensors(torch.float32), tensors(torch.bfloat16)
    first, second, third = make(low), make(wide), make(lossy, compensate=False)
    for params, optimizer in ((low, first), (wide, second), (lossy, third)):
        train(params, optimizer, steps)
    bound = steps * 2**-20 * max(p.abs().max().item() for p in wide)
    exact = values(wide, second)
    assert gap(values(low, first), exact) <= bound
    assert all(
        torch.equal(p, value.bfloat16()) for p, value in zip(low, values(low, first), strict=True)
    )
    assert gap(values(lossy, third), exact) > 10 * bound
    kept = first.state[low[0]]["compensation"]
    assert kept.dtype == torch.float16
    assert kept.shape == low[0].shape
    assert "compensation" not in second.state[wide[0]]


@pytest.mark.parametrize("name", ["navigator, lists", "navigator, fused", "kronecker", "rule"])
def test_float16_is_compensated_if_asked(name):

    low, plain, wide = tensors(torch.float16), tensors(torch.float16), tensors(torch.float32)
    runs = []
    for params, flags in ((low, {"compensate": True}), (plain, {}), (wide, {})):
        optimizer = MAKERS[name](params, **flags)
        train(params, optimizer, 60)
        runs.append((params, optimizer))
    assert "compensation" not in runs[1][1].state[plain[0]]
    near, far = (gap(values(*run), values(*runs[2])) for run in runs[:2])
    assert near < 60 * 2**-22 * 4 < far  # of smaller errors, what is kept is rounded by less


@pytest.mark.parametrize("form", FORMS)
def test_a_regression_ends_as_in_float32(form):
    """Within the spread over seeds; without compensation it does not."""

    def final(seed, dtype, **flags):
        rng = torch.Generator().manual_seed(seed)
        X = torch.randn(256, 16, generator=rng)
        goal = 2 * torch.randn(16, 1, generator=rng)
        y = X @ goal + torch.randn(256, 1, generator=rng)
        w = torch.nn.Parameter((4 * torch.randn(16, 1, generator=rng)).to(dtype))
        optimizer = Navigator([w], 3e-3, **flags, **FORMS[form])
        for _ in range(300):
            optimizer.zero_grad()
            loss = (X @ w.float() - y).square().mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    seeds = range(5)
    wide = torch.tensor([final(seed, torch.float32) for seed in seeds])
    low = torch.tensor([final(seed, torch.bfloat16) for seed in seeds])
    lossy = torch.tensor([final(seed, torch.bfloat16, compensate=False) for seed in seeds])
    assert (low - wide).abs().max() < 0.02 * wide.std()  # the rounding of the weights themselves
    assert (lossy - wide).abs().max() > 0.2 * wide.std()


def test_a_state_from_before_is_accepted():
    params, others = tensors(torch.bfloat16), tensors(torch.bfloat16)
    first, second = MAKERS["navigator, lists"](params), MAKERS["navigator, lists"](others)
    train(params, first, 3)
    saved = copy.deepcopy(first.state_dict())
    for state in saved["state"].values():
        del state["compensation"]
    del saved["param_groups"][0]["compensate"]
    second.load_state_dict(saved)
    assert second.param_groups[0]["compensate"] is None
    assert not second.state[others[0]]["compensation"].any()
    wide = tensors(torch.float32)  # and one that is not needed any more is left out
    third = MAKERS["navigator, lists"](wide)
    third.load_state_dict(first.state_dict())
    assert set(third.state[wide[0]]) == {"step", "mean", "variance"}
    damaged = copy.deepcopy(first.state_dict())
    damaged["state"][0]["compensation"] = torch.zeros(5, 6)
    with pytest.raises(ValueError, match="compensation of parameter 0 has shape"):
        second.load_state_dict(damaged)


def test_weights_that_are_set_to_zero_stay_there():
    """As pruned ones are: their error is relative to them."""
    for name in ("navigator, lists", "navigator, fused", "navigator, single", "rule"):
        params = tensors(torch.bfloat16)
        optimizer = MAKERS[name](params)
        train(params, optimizer, 3)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        with torch.no_grad():
            params[0][:3] = 0.0
        train(params, optimizer, 2)
        assert not params[0][:3].any()
        assert params[0][3:].all()


def test_a_skipped_step_keeps_what_was_lost():
    for form in FORMS:
        params = tensors(torch.bfloat16)
        optimizer = MAKERS[f"navigator, {form}"](params)
        train(params, optimizer, 3)
        before = [optimizer.state[p]["compensation"].clone() for p in params]
        assert any(e.any() for e in before)
        params[1].grad[0] = torch.nan
        optimizer.step()
        assert optimizer.skipped == 1
        for e, p in zip(before, params, strict=True):
            assert torch.equal(e, optimizer.state[p]["compensation"])


def test_a_model_that_is_widened_goes_on():
    """Parameters may change their precision between steps; an error of before is dropped then."""
    for name in ("navigator, lists", "navigator, fused", "uncertain, single", "kronecker", "rule"):
        params = tensors(torch.bfloat16)
        optimizer = MAKERS[name](params)
        train(params, optimizer, 3)
        for p in params:
            p.data = p.data.float()
        before = [p.detach().clone() for p in params]
        train(params, optimizer, 1)
        assert 0 < gap(before, [p.detach() for p in params]) < 0.1


def test_the_table_counts_it_and_other_values_are_refused(capsys):
    for dtype, said in ((torch.float32, "132 B"), (torch.bfloat16, "164 B")):
        create(torch.nn.Linear(4, 4, bias=False).to(dtype), "navigator")
        assert said in capsys.readouterr().out
    with pytest.raises(ValueError, match="compensate is 'yes'"):
        Navigator(tensors(torch.bfloat16), compensate="yes")
