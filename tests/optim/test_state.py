"""Checkpoints: exact, by name or by order, in their own precision, and refused as a whole if they do not fit."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

from lossnav.optim.torch import (  # noqa: E402
    Ballistic,
    KroneckerNavigator,
    Navigator,
    WeightUncertainty,
)


class Uncertain(WeightUncertainty):
    """Knows how many examples are in its batches, as it must."""

    def __init__(self, params, lr=3e-3, **settings):
        super().__init__(params, lr, **{"batch_size": 2, **settings})


CLASSES = [Navigator, Ballistic, Uncertain]
SHAPES = {"a": (4, 3), "b": (3,), "c": ()}


def parameters(dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    return {
        k: torch.nn.Parameter(torch.randn(s, generator=rng).to(dtype)) for k, s in SHAPES.items()
    }


def step(optimizer, params, seed=1, times=1):
    rng = torch.Generator().manual_seed(seed)
    for _ in range(times):
        for p in params.values():
            p.grad = torch.randn(p.shape, generator=rng).to(p.dtype)
        optimizer.step()


def flat(optimizer):
    """All that an optimizer holds, to compare before and after."""
    held = copy.deepcopy(optimizer.state_dict())
    return [(k, name, t.dtype, t) for k, s in held["state"].items() for name, t in s.items()], [
        dict(g) for g in held["param_groups"]
    ]


def same(one, other):
    (states, groups), (others, other_groups) = one, other
    assert len(states) == len(others)
    for (k, name, dtype, t), (k2, name2, dtype2, t2) in zip(states, others, strict=True):
        assert (k, name, dtype) == (k2, name2, dtype2)
        assert torch.equal(t, t2)
    assert str(groups) == str(other_groups)


def through_disk(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def clones(params):
    return {k: torch.nn.Parameter(p.detach().clone()) for k, p in params.items()}


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("form", [{"foreach": False}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_run_goes_on_exactly_as_if_never_stopped(cls, dtype, form):
    params = parameters(dtype)
    pulled = {"reset": 0.5} if cls is Uncertain else {"weight_decay": 0.1}
    optimizer = cls(params.values(), 1e-2, **pulled, **form)
    step(optimizer, params, times=3)
    others = clones(params)
    restored = cls(others.values(), 1.0)
    restored.load_state_dict(through_disk(optimizer.state_dict()))
    same(flat(optimizer), flat(restored))
    assert all(
        t.dtype in (torch.float32, torch.float64)
        for s in restored.state.values()
        for name, t in s.items()
        if name != "compensation"
    )
    step(optimizer, params, seed=2, times=3)
    step(restored, others, seed=2, times=3)
    for p, q in zip(params.values(), others.values(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_go_on_alike(cls, copied):
    params = parameters()
    optimizer = cls(params.items(), 1e-2)
    step(optimizer, params, times=2)
    twin = copied(optimizer)
    same(flat(optimizer), flat(twin))
    assert set(vars(twin)) >= {k for k in vars(optimizer) if not k.startswith("_")}
    others = dict(zip(SHAPES, twin.param_groups[0]["params"], strict=True))
    step(optimizer, params, seed=5)
    step(twin, others, seed=5)
    for p, q in zip(params.values(), others.values(), strict=True):
        assert p is not q
        assert torch.equal(p, q)


@pytest.mark.parametrize("cls", CLASSES)
def test_names_count_for_more_than_order(cls):
    params = parameters()
    groups = [
        {"params": [("a", params["a"]), ("b", params["b"])], "lr": 1e-2},
        {"params": [("c", params["c"])], "lr": 1e-3},
    ]
    optimizer = cls(groups)
    step(optimizer, params, times=2)
    others = clones(params)
    turned = cls(
        [{"params": [("c", others["c"])]}, {"params": [("b", others["b"]), ("a", others["a"])]}]
    )
    turned.load_state_dict(through_disk(optimizer.state_dict()))
    assert [g["lr"] for g in turned.param_groups] == [1e-3, 1e-2]
    assert turned.param_groups[1]["param_names"] == ["b", "a"]
    step(optimizer, params, seed=4, times=2)
    step(turned, others, seed=4, times=2)
    for name in SHAPES:
        assert torch.equal(params[name], others[name])


def test_order_counts_where_names_say_nothing():
    params, others = parameters(), parameters()
    named, plain = Navigator(params.items()), Navigator(others.values())
    step(named, params)
    plain.load_state_dict(named.state_dict())
    assert plain.param_groups[0]["param_names"] == list(SHAPES)  # as PyTorch does
    third = parameters()
    wrapped = Navigator([(f"module.{k}", p) for k, p in third.items()])
    wrapped.load_state_dict(named.state_dict())
    assert torch.equal(wrapped.state[third["a"]]["mean"], named.state[params["a"]]["mean"])
    assert wrapped.param_groups[0]["param_names"] == ["module.a", "module.b", "module.c"]


def wrong_states():
    params = parameters()

    def state(cls, shapes=SHAPES, named=False, **settings):
        ps = {k: torch.nn.Parameter(torch.ones(s)) for k, s in shapes.items()}
        optimizer = cls(ps.items() if named else ps.values(), **settings)
        step(optimizer, ps)
        return optimizer.state_dict()

    yield "SGD", state(torch.optim.SGD), "has no|have no"
    yield "AMSGrad", state(torch.optim.AdamW, amsgrad=True), "of AMSGrad"
    yield "L2 penalty", state(torch.optim.Adam, weight_decay=0.1), "penalty in the loss"
    yield "Ballistic", state(Ballistic), "not saved by Navigator"
    yield "other shapes", state(Navigator, {**SHAPES, "b": (5,)}), r"shape \(5,\), but \(3,\)"
    yield "late other shape", state(Navigator, {**SHAPES, "c": (1,)}), r"shape \(1,\), but \(\)"
    yield "fewer", state(Navigator, {"a": (4, 3)}), "1 parameters"
    yield (
        "other names",
        state(Navigator, {"a": (4, 3), "b": (3,), "x": ()}, named=True),
        "no 'c' in it",
    )
    yield (
        "groups",
        Navigator([{"params": [p]} for p in params.values()]).state_dict(),
        "3 parameter groups",
    )
    yield "nothing", {}, "no state of an optimizer"
    yield "a model", {"weight": torch.ones(2)}, "no state of an optimizer"
    half = state(Navigator)
    del half["state"][2]["variance"]
    yield "truncated", half, "variance"
    bad = state(Navigator)
    bad["param_groups"][0]["betas"] = (2.0, 0.9)
    yield "bad values", bad, r"betas\[0\] is 2"
    diverged = state(Navigator)
    diverged["state"][1]["mean"][2] = torch.nan
    yield "NaN", diverged, "mean of .*'b'.* holds NaN"
    stray = state(Navigator)
    stray["state"][77] = stray["state"][0]
    yield "unknown index", stray, "memory of 77"
    text = state(Navigator)
    text["state"][2]["variance"] = "much"
    yield "text", text, "variance of .*'c'.* is a str"


@pytest.mark.parametrize(
    ("state", "message"), [pytest.param(s, m, id=n) for n, s, m in wrong_states()]
)
def test_a_state_that_does_not_fit_changes_nothing(state, message):
    params = parameters()
    optimizer = Navigator(params.items(), 1e-2)
    step(optimizer, params)
    before, kept = flat(optimizer), copy.deepcopy(state)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    same(before, flat(optimizer))
    assert str(kept) == str(state)
    step(optimizer, params)


def test_a_loaded_state_is_a_copy():
    params, others = parameters(), parameters()
    optimizer, second = Navigator(params.values()), Navigator(others.values())
    step(optimizer, params)
    saved = optimizer.state_dict()
    second.load_state_dict(saved)
    before = copy.deepcopy(saved)
    step(second, others)
    second.param_groups[0]["skipped"] += 5
    assert str(before) == str(saved)


def test_state_moves_to_the_precision_of_the_new_parameters():
    """A float64 run goes on in float32, and a bfloat16 one keeps float32."""
    wide, narrow = parameters(torch.float64), parameters(torch.bfloat16)
    first, second = Navigator(wide.values()), Navigator(narrow.values())
    step(first, wide)
    second.load_state_dict(first.state_dict())
    mean = second.state[narrow["a"]]["mean"]
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean.double(), first.state[wide["a"]]["mean"], rtol=1e-7, atol=0)


def test_older_states_without_flags_or_with_plain_numbers_load():
    params, others = parameters(), parameters()
    optimizer, second = Navigator(params.values()), Navigator(others.values(), fused=False)
    step(optimizer, params)
    saved = copy.deepcopy(optimizer.state_dict())
    for flag in (
        "maximize",
        "foreach",
        "fused",
        "capturable",
        "differentiable",
        "nonfinite",
        "skipped",
        "peak_lr",
    ):
        del saved["param_groups"][0][flag]
    for state in saved["state"].values():
        state["step"] = state["step"].item()
    second.load_state_dict(saved)
    assert second.param_groups[0]["fused"] is False
    assert second.skipped == 0
    step(second, others)
    assert second.state[others["a"]]["step"] == 2


def test_hooks_see_states_on_their_way():
    params = parameters()
    optimizer = Navigator(params.values())
    step(optimizer, params)
    seen = []
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("save"))
    optimizer.register_state_dict_post_hook(lambda o, s: {**s, "mine": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda o, s: {k: v for k, v in s.items() if k != "mine"}
    )
    optimizer.register_load_state_dict_pre_hook(lambda o, s: seen.append("mine" in s), prepend=True)
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    saved = optimizer.state_dict()
    assert saved["mine"] == 1
    optimizer.load_state_dict(saved)
    assert seen == ["save", True, "loaded"]


def test_skips_and_the_peak_survive_a_checkpoint():
    params = parameters()
    optimizer = Navigator(params.values(), lr=0.5, saturation=1.0)
    step(optimizer, params)
    params["a"].grad = torch.full((4, 3), torch.inf)
    optimizer.step()
    second = Navigator(parameters().values())
    second.load_state_dict(through_disk(optimizer.state_dict()))
    assert second.skipped == 1
    assert second.param_groups[0]["peak_lr"] == 0.5


def test_parameters_without_gradient_yet_have_no_state():
    params = parameters()
    optimizer = Navigator(params.values())
    params["a"].grad = torch.ones(4, 3)
    optimizer.step()
    assert list(optimizer.state) == [params["a"]]
    others = parameters()
    second = Navigator(others.values())
    second.load_state_dict(through_disk(optimizer.state_dict()))
    assert list(second.state) == [others["a"]]
    step(second, others)
    assert [int(second.state[p]["step"]) for p in others.values()] == [2, 1, 1]


@pytest.mark.parametrize("kind", [Navigator, KroneckerNavigator])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_warm_up_from_zero_is_no_peak(kind, foreach):
    """The largest lr so far is the largest there was, from the first step on."""
    theta = torch.nn.Parameter(torch.eye(2))
    optimizer = kind([theta], lr=0.0, saturation=1.0, foreach=foreach)
    peaks = []
    for lr in (0.0, 0.1, 0.05):
        optimizer.param_groups[0]["lr"] = lr
        theta.grad = torch.tensor([[1.0, 2.0], [0.5, 1.0]])
        optimizer.step()
        peaks.append(float(optimizer.param_groups[0]["peak_lr"]))
    assert peaks == pytest.approx([0.0, 0.1, 0.1])
