"""What PyTorch promises of its optimizers, for ours: schedules, scaling, compiling, hooks, bad gradients."""

import copy
import math
import os
import shutil

import pytest

torch = pytest.importorskip("torch")

from torch.optim import lr_scheduler  # noqa: E402

from lossnav.optim.torch import (  # noqa: E402
    Ballistic,
    KroneckerNavigator,
    Navigator,
    WeightUncertainty,
    from_rule,
)
from lossnav.rules import zoo  # noqa: E402


class Uncertain(WeightUncertainty):
    """Knows how many examples are in its batches, as it must."""

    def __init__(self, params, lr=3e-3, **settings):
        super().__init__(params, lr, **{"batch_size": 2, **settings})


# The compiler itself uses what PyTorch calls deprecated, and looks at gradients that are not there.
compiling = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")
CLASSES = [Navigator, Ballistic, Uncertain]
ADAMW = {"betas": (0.9, 0.999), "nesterov": False, "saturation": 0.0}
FORMS = {"single": {"foreach": False}, "lists": {"foreach": True}, "fused": {"fused": True},
         "captured": {"capturable": True}}  # fmt: skip
CASES = [(cls, form) for cls in CLASSES for form in FORMS]
# What draws weights towards somewhere, and what keeps tensors from knowing of each other.
PULLED = {Uncertain: {"pull": 3.0}}
APART = {Uncertain: {"balance": False}}


def pulled(cls):
    return PULLED.get(cls, {"weight_decay": 0.1})


def model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(
        dtype
    )


def data(seed=1, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 5, generator=rng, dtype=dtype)
    return x, x.sum(1, keepdim=True).sin()


def loss_of(net, seed=1):
    x, y = data(seed, next(net.parameters()).dtype)
    return (net(x) - y).square().mean()


def train(net, optimizer, steps=5, after=lambda loss: None):
    for k in range(steps):
        optimizer.zero_grad()
        loss = loss_of(net, k)
        loss.backward()
        optimizer.step()
        after(loss)
    return [p.detach().clone() for p in net.parameters()]


def close(one, other, tol=0.0):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tol)


SCHEDULES = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda k: 0.9),
    "constant": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "linear": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=3),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 5, 2.0),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, 2, cycle_momentum=False),
    "cyclic momentum": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, 2),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=10),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(o, 4)], [2]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "averaged": lambda o: torch.optim.swa_utils.SWALR(o, 1e-4, 2),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_schedules_do_to_us_what_they_do_to_adamw(schedule, form, kind):
    if kind is torch.tensor and form == "captured" and "momentum" in schedule:
        pytest.skip("as float")
    results = []
    for make in (
        lambda p: Navigator(p, kind(3e-3), **ADAMW, **FORMS[form]),
        lambda p: torch.optim.AdamW(p, 3e-3, weight_decay=0.0),
    ):
        net = model()
        optimizer = make(net.parameters())
        steady = SCHEDULES[schedule](optimizer)
        plateau = schedule == "plateau"
        results.append(
            train(
                net,
                optimizer,
                8,
                lambda loss, s=steady, p=plateau: s.step(loss.detach()) if p else s.step(),
            )
        )
    close(*results, tol=2e-6)


@pytest.mark.parametrize(("cls", "form"), CASES)
def test_a_tensor_lr_is_that_number(cls, form):
    results = []
    for lr in (1e-2, torch.tensor(1e-2), torch.tensor([1e-2], dtype=torch.float64)):
        net = model()
        results.append(train(net, cls(net.parameters(), lr, **pulled(cls), **FORMS[form])))
    close(results[0], results[1], 1e-6)
    close(results[0], results[2], 1e-6)


@pytest.mark.parametrize(("cls", "form"), CASES)
def test_groups_have_settings_of_their_own(cls, form):
    """Two groups move as two optimizers would."""
    settings = [{"lr": 1e-2, "weight_decay": 0.5}, {"lr": 1e-3, "maximize": True, "eps": 1e-3}]
    if cls is Uncertain:
        settings = [
            {"lr": 1e-2, "pull": 5.0, "k": 10.0},
            {"lr": 1e-3, "maximize": True, "reset": 0.9},
        ]
        settings = [{**s, "balance": False} for s in settings]
    if cls is Navigator:
        settings[0] |= {"gain": "kalman", "saturation": 1.0}
        settings[1] |= {"gamma": 0.3, "nesterov": True, "centered": True, "betas": (0.5, 0.9)}
    one, two = model(), model()
    first = cls(
        [{"params": net.parameters(), **s} for net, s in zip(one[::2], settings, strict=True)],
        **FORMS[form],
    )
    parts = [
        cls(net.parameters(), **s, **FORMS[form]) for net, s in zip(two[::2], settings, strict=True)
    ]
    for k in range(5):
        for net in (one, two):
            net.zero_grad()
            loss_of(net, k).backward()
        for optimizer in (first, *parts):
            optimizer.step()
    close(one.parameters(), two.parameters())


@pytest.mark.parametrize(("cls", "form"), CASES)
def test_closures(cls, form):
    one, two = model(), model()
    first, second = (cls(net.parameters(), 1e-2, **FORMS[form]) for net in (one, two))

    def closure():
        first.zero_grad()
        loss = loss_of(one)
        loss.backward()
        return loss

    two.zero_grad()
    expected = loss_of(two)
    expected.backward()
    second.step()
    assert first.step(closure).item() == expected.item()
    close(one.parameters(), two.parameters())


@pytest.mark.parametrize(("cls", "form"), CASES)
def test_every_form_descends(cls, form):
    net = model()
    optimizer = cls(net.parameters(), 1e-3 if cls is Ballistic else 1e-2, **FORMS[form])
    first = loss_of(net, 3).item()
    train(net, optimizer, 200)
    assert loss_of(net, 3).item() < first / 2


@pytest.mark.parametrize("form", FORMS)
def test_gradients_scaled_for_half_precision(form):
    """A scaler changes nothing, and a step it skips does not touch us."""
    one, two = model(), model()
    first, second = (Navigator(net.parameters(), 1e-2, **FORMS[form]) for net in (one, two))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for k in range(4):
        for net, optimizer in ((one, first), (two, second)):
            optimizer.zero_grad()
            loss = loss_of(net, k)
            (scaler.scale(loss) if net is one else loss).backward()
        if k == 2:
            one[0].weight.grad[0, 0] = math.inf
        scaler.step(first)
        scaler.update()
        if k != 2:
            second.step()
    close(one.parameters(), two.parameters(), 1e-6)
    assert first.skipped == 0
    assert scaler.get_scale() == 2.0**9


@pytest.mark.parametrize(("cls", "form"), CASES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_gradient_skips_the_whole_step(cls, form, bad):
    net = model()
    optimizer = cls(net.parameters(), 1e-2, **pulled(cls), **FORMS[form])
    for first in (True, False):  # before there is any state, and after
        loss_of(net).backward()
        net[2].bias.grad.fill_(bad)
        params, state = (
            copy.deepcopy(list(net.parameters())),
            copy.deepcopy(optimizer.state_dict()["state"]),
        )
        optimizer.step()
        close(net.parameters(), params)
        for name, value in ((n, v) for s in state.values() for n, v in s.items()):
            assert value.isfinite().all(), name
        if first:
            assert all(s["step"] == 0 for s in optimizer.state.values())
            train(net, optimizer, 2)
        else:
            assert str(state) == str(optimizer.state_dict()["state"])
    assert optimizer.skipped == 2
    fresh = model()
    close(train(fresh, cls(fresh.parameters(), 1e-2, **pulled(cls), **FORMS[form]), 2), params)


@pytest.mark.parametrize("form", ["single", "lists", "fused"])
def test_a_bad_gradient_may_raise_and_changes_nothing(form):
    net = model()
    optimizer = Navigator(net.named_parameters(), 1e-2, nonfinite="raise", **FORMS[form])
    train(net, optimizer, 1)
    before, held = copy.deepcopy(list(net.parameters())), str(optimizer.state_dict())
    net[2].weight.grad[0, 3] = math.nan
    with pytest.raises(
        FloatingPointError, match=r"'2\.weight' holds NaN or infinity; nothing was changed"
    ):
        optimizer.step()
    close(net.parameters(), before)
    assert held == str(optimizer.state_dict())


@pytest.mark.parametrize("form", FORMS)
def test_a_bad_gradient_may_be_ignored(form):
    p, q = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = Navigator([p, q], nonfinite="ignore", **FORMS[form])
    p.grad, q.grad = torch.tensor([1.0, math.nan, 1.0]), torch.ones(3)
    optimizer.step()
    assert p.isfinite().tolist() == [True, False, True]
    assert (q < 1).all()
    assert optimizer.skipped == 0


@pytest.mark.parametrize("form", FORMS)
def test_large_finite_gradients_are_not_bad(form):
    """Their sum overflows, and in float16 soon; each is a number all the same."""
    for dtype, size in ((torch.float32, 1e38), (torch.float16, 6e4)):
        p = torch.nn.Parameter(torch.ones(100, dtype=dtype))
        optimizer = Navigator([p], gamma=1.0, **FORMS[form])
        p.grad = torch.full((100,), size, dtype=dtype)
        optimizer.step()
        assert optimizer.skipped == 0
        assert p.isfinite().all()


@pytest.mark.parametrize(("cls", "form"), CASES)
def test_sparse_gradients_are_refused_in_one_sentence(cls, form):
    table = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = cls(table.parameters(), **FORMS[form])
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients; use sparse=False"):
        optimizer.step()


@pytest.mark.parametrize(("cls", "form"), CASES)
def test_no_gradient_no_move_and_zero_gradient_no_move(cls, form):
    net = model()
    before = copy.deepcopy(list(net.parameters()))
    optimizer = cls(net.parameters(), **FORMS[form])
    optimizer.step()
    assert not optimizer.state
    close(net.parameters(), before)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    close(net.parameters(), before)


@pytest.mark.parametrize(("cls", "form"), CASES)
def test_mixed_dtypes_in_one_group(cls, form):
    dtypes = [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.complex64,
        torch.float64,
    ]
    params = [torch.nn.Parameter(torch.ones(4, 3, dtype=d)) for d in dtypes]
    alone = [torch.nn.Parameter(torch.ones(4, 3, dtype=d)) for d in dtypes]
    settings = {**FORMS[form], **APART.get(cls, {})}
    together = cls(params, 1e-2, **settings)
    apart = [cls([p], 1e-2, **settings) for p in alone]
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        for p, q in zip(params, alone, strict=True):
            p.grad = q.grad = torch.randn(4, 3, generator=rng).to(p.dtype)
        for optimizer in (together, *apart):
            optimizer.step()
    close(params, alone)


@pytest.mark.parametrize(
    "settings",
    [{}, {"gain": "kalman", "saturation": 1.0}, {"centered": True, "nesterov": True, "gamma": 0.5}],
)
def test_autograd_goes_through_the_step(settings):
    lr = torch.tensor(1e-2, dtype=torch.float64, requires_grad=True)
    start = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)
    slope = torch.tensor([1.3, 0.4], dtype=torch.float64, requires_grad=True)

    def after(start, slope, lr):
        p = start.clone()
        optimizer = Navigator([p], lr, differentiable=True, weight_decay=0.1, **settings)
        for k in range(3):
            p.grad = slope * (k + 1) + k
            optimizer.step()
        return p

    assert torch.autograd.gradcheck(after, (start, slope, lr))


@pytest.mark.parametrize("form", FORMS)
def test_autograd_sees_that_parameters_changed(form):
    net = model()
    optimizer = Navigator(net.parameters(), **FORMS[form])
    loss = loss_of(net)
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("form", FORMS)
def test_one_optimizer_for_each_parameter_inside_the_backward_pass(form):
    one, two = model(), model()
    whole = Navigator(two.parameters(), 1e-2, **FORMS[form])
    parts = {p: Navigator([p], 1e-2, **FORMS[form]) for p in one.parameters()}

    def hook(p):
        parts[p].step()
        parts[p].zero_grad()

    for p in one.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for k in range(4):
        loss_of(one, k).backward()
        whole.zero_grad()
        loss_of(two, k).backward()
        whole.step()
    close(one.parameters(), two.parameters())
    assert all(p.grad is None for p in one.parameters())


def test_step_hooks_run_around_the_step():
    net, seen = model(), []
    optimizer = Navigator(net.parameters())
    optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
    handle = optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))
    train(net, optimizer, 1)
    handle.remove()
    train(net, optimizer, 1)
    assert seen == ["before", "after", "before"]
    assert "gamma: 0.0" in repr(optimizer)


@compiling
@pytest.mark.parametrize(
    ("cls", "settings"),
    [*((cls, {}) for cls in CLASSES), (Navigator, {"gain": "kalman", "saturation": 1.0})],
)
@pytest.mark.parametrize("lr", [1e-2, torch.tensor(1e-2)])
def test_compiled_steps_are_equal(cls, settings, lr):
    torch._dynamo.reset()
    one, two = model(), model()
    first, second = (cls(net.parameters(), lr, **pulled(cls), **settings) for net in (one, two))
    step = torch.compile(first.step, backend="eager")
    for k in range(5):
        for net in (one, two):
            net.zero_grad()
            loss_of(net, k).backward()
            if k == 2:
                net[0].bias.grad[1] = math.nan
        step()
        second.step()
    close(one.parameters(), two.parameters(), 1e-6)
    assert first.skipped == second.skipped == 1


@compiling
def test_a_compiled_training_step_is_equal():
    """By inductor, which begins with what aot_eager does; by that alone where inductor cannot compile."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    # Told to use shorter vectors, inductor still takes longer ones from its cache.
    other = "ATEN_CPU_CAPABILITY" in os.environ
    backend = "inductor" if compiler and not other else "aot_eager"
    torch._dynamo.reset()
    one, two = model(), model()
    first, second = (
        Navigator(net.parameters(), torch.tensor(1e-2), gamma=0.1) for net in (one, two)
    )

    def whole(net, optimizer, x, y):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = torch.compile(whole, backend=backend)
    for x, y in map(data, range(4)):
        a, b = compiled(one, first, x, y), whole(two, second, x, y)
        assert a.item() == pytest.approx(b.item(), abs=1e-6)
    close(one.parameters(), two.parameters(), 1e-6)


@compiling
def test_compiled_and_plain_steps_may_alternate():
    torch._dynamo.reset()
    one, two = model(), model()
    first, second = (Navigator(net.parameters(), 1e-2) for net in (one, two))
    step = torch.compile(first.step, backend="eager")
    for k in range(4):
        for net in (one, two):
            net.zero_grad()
            loss_of(net, k).backward()
        step() if k % 2 else first.step()
        second.step()
    close(one.parameters(), two.parameters(), 1e-6)


EVERY = {
    "navigator": lambda p: Navigator(p),
    "navigator, kalman": lambda p: Navigator(p, gain="kalman", gamma=0.1),
    "navigator, single": lambda p: Navigator(p, foreach=False),
    "navigator, fused": lambda p: Navigator(p, fused=True),
    "ballistic": lambda p: Ballistic(p),
    "kronecker": lambda p: KroneckerNavigator(p, refresh=2),
    "kronecker, single": lambda p: KroneckerNavigator(p, foreach=False),
    "uncertain": lambda p: Uncertain(p, reset=0.99),
    "uncertain, captured": lambda p: Uncertain(p, capturable=True),
    "uncertain, inertia": lambda p: Uncertain(p, inertia=0.1, noise=1.0),
    "rule": lambda p: from_rule(p, zoo.Adam(0.01)),
}


@pytest.mark.parametrize("name", EVERY)
def test_meta_tensors_take_steps(name):
    """As PyTorch's own do: shapes without values, to measure memory before there is any."""
    params = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in [(4, 3), (3,)]]
    optimizer = EVERY[name](params)
    for _ in range(4):
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
    real = [torch.nn.Parameter(torch.ones(p.shape)) for p in params]
    other = EVERY[name](real)
    for p in real:
        p.grad = torch.ones_like(p)
    other.step()
    for p, q in zip(params, real, strict=True):
        found, expected = (o.state[x] for o, x in ((optimizer, p), (other, q)))
        assert {k: (t.shape, t.dtype) for k, t in found.items()} == {
            k: (t.shape, t.dtype) for k, t in expected.items()
        }
        assert all(t.is_meta for t in found.values() if t.ndim)
    if "captured" not in name:  # its counter is a meta tensor, too
        assert optimizer.skipped == 0


@pytest.mark.parametrize("name", [name for name in EVERY if name != "rule"])
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_the_count_of_steps_has_the_default_precision_as_in_torch(name, default):
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for kind in (torch.float32, torch.float64):
            found = {}
            for make in (EVERY[name], torch.optim.AdamW):
                p = torch.nn.Parameter(torch.ones(4, 3, dtype=kind))
                optimizer = make([p])
                p.grad = torch.ones_like(p)
                optimizer.step()
                found[make] = {key: t.dtype for key, t in optimizer.state[p].items()}
            ours, theirs = found[EVERY[name]], found[torch.optim.AdamW]
            assert ours.pop("step") == theirs["step"] == default
            ours.pop("phase", None)
            assert set(ours.values()) == {kind}
    finally:
        torch.set_default_dtype(before)
