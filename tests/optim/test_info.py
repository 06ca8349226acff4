"""PyTorch's own description of an optimizer under test, filled in for ours, and what it checks by it.

PyTorch's tests of its optimizers go over an `OptimizerInfo` for each: the settings to try, the ways
to compute, the errors to expect. They are not shipped, but this description is.
"""

import copy
import inspect

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

import warnings  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_optimizers as shipped

from lossnav.optim.torch import Ballistic, Navigator  # noqa: E402


def inputs(cls):
    made = [{}, {"lr": 0.01}, {"lr": torch.tensor(0.001)}, {"weight_decay": 0.1},
            {"weight_decay": 0.1, "maximize": True}, {"capturable": True}, {"eps": 1e-3},
            {"weight_decay": 0.1, "capturable": True, "lr": torch.tensor(0.001)}]  # fmt: skip
    if cls is Navigator:
        made += [{"gamma": 0.1}, {"gain": "kalman"}, {"centered": True, "nesterov": True},
                 {"saturation": 1.0, "betas": (0.8, 0.99)}]  # fmt: skip
    return [shipped.OptimizerInput(params=None, kwargs=kwargs, desc=str(kwargs)) for kwargs in made]


def errors(cls, device, dtype):
    bad = {"lr": "lr is -1", "eps": "eps is -1", "weight_decay": "weight_decay is -1"}
    own = [
        shipped.ErrorOptimizerInput(
            shipped.OptimizerInput(params=None, kwargs={name: -1}, desc=name),
            error_type=ValueError, error_regex=text,
        )
        for name, text in bad.items()
    ]  # fmt: skip
    return shipped.get_error_inputs_for_all_optims(device, dtype) + own


INFOS = [
    shipped.OptimizerInfo(
        cls,
        optim_inputs_func=lambda device, cls=cls: inputs(cls),
        optim_error_inputs_func=lambda device, dtype, cls=cls: errors(cls, device, dtype),
        supported_impls=("foreach", "differentiable", "fused"),
        has_capturable_arg=True,
        supports_fused_on=("cpu",),
    )
    for cls in (Navigator, Ballistic)
]
CASES = [
    pytest.param(info, case.kwargs, id=f"{info.name}-{case.desc}")
    for info in INFOS
    for case in info.optim_inputs_func("cpu")
]


def parameters(seed=0):
    rng = torch.Generator().manual_seed(seed)
    shapes = [(4, 3), (3,), (), (0,), (2, 3, 5)]
    params = [torch.nn.Parameter(torch.randn(s, generator=rng)) for s in shapes]
    for k, p in enumerate(params):
        p.grad = None if k == 1 else torch.randn(p.shape, generator=rng)
    return params


def run(info, kwargs, times=7):
    """Steps during which one parameter has a gradient only now and then."""
    params, rng = parameters(), torch.Generator().manual_seed(9)
    optimizer = info.optim_cls(params, **kwargs)
    for t in range(times):
        for k, p in enumerate(params):
            p.grad = None if k == t % 3 else torch.randn(p.shape, generator=rng)
        optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_errors(info):
    for case in info.optim_error_inputs_func("cpu", torch.float32):
        given = case.optimizer_error_input
        params = parameters() if given.params is None else given.params
        with pytest.raises(case.error_type, match=case.error_regex):
            info.optim_cls(params, **given.kwargs)


@pytest.mark.parametrize(("info", "kwargs"), CASES)
@pytest.mark.parametrize("impl", ["foreach", "fused"])
def test_every_way_to_compute_matches_the_loop(info, kwargs, impl):
    assert impl in info.supported_impls
    expected, loop = run(info, {**kwargs, "foreach": False})
    params, optimizer = run(info, {**kwargs, impl: True})
    for p, q in zip(params, expected, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)
        for name, held in loop.state[q].items():
            torch.testing.assert_close(optimizer.state[p][name], held, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("info", "kwargs"), CASES)
def test_states(info, kwargs):
    """Non-empty, printed, deterministic, the same after a copy and after loading."""
    params, optimizer = run(info, kwargs)
    assert all(optimizer.state[p] for p in params)
    assert info.name in repr(optimizer)
    assert list(optimizer.state_dict()["state"]) == list(run(info, kwargs)[1].state_dict()["state"])
    twin = copy.deepcopy(optimizer)
    assert str(twin.state_dict()) == str(optimizer.state_dict())
    named = info.optim_cls([(str(i), p) for i, p in enumerate(parameters())], **kwargs)
    named.load_state_dict(optimizer.state_dict())
    back = info.optim_cls(parameters(), **kwargs)
    back.load_state_dict(named.state_dict())
    held = optimizer.state_dict()["state"]
    assert str(back.state_dict()["state"]) == str(dict(sorted(held.items())))


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_the_signature_is_that_of_pytorch(info):
    ours = inspect.signature(info.optim_cls).parameters
    flags = {"foreach", "fused", "maximize", "capturable", "differentiable"}
    theirs = inspect.signature(torch.optim.AdamW).parameters
    for name in flags | {"lr", "weight_decay", "eps"}:
        if name not in ("lr", "weight_decay"):
            assert ours[name].default == theirs[name].default
        assert name in ours
    assert not any(flag in case.kwargs for flag in ("foreach", "fused", "differentiable")
                   for case in info.optim_inputs_func("cpu"))  # fmt: skip


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_default_dtype_and_lists(info):
    """A changed default dtype changes nothing about float32 parameters."""
    expected, _ = run(info, {"foreach": True})
    torch.set_default_dtype(torch.float64)
    try:
        params = parameters()
        for p in params:
            p.data = p.data.float()
        for flags in ({"foreach": True}, {"foreach": False}, {"fused": True}):
            optimizer = info.optim_cls(params, **flags)
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()
            assert all(s["variance"].dtype == torch.float32 for s in optimizer.state.values())
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(p.dtype == torch.float32 for p in expected)
