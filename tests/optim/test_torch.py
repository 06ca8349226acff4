"""Navigator and Ballistic against the optimizers they contain, the pure rule, and each other."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lossnav.optim.torch import Ballistic, Navigator  # noqa: E402
from lossnav.optim.torch import diagonal as family  # noqa: E402
from lossnav.rules.diagonal import BeliefRule  # noqa: E402

SHAPES = [(7, 5), (3,), (), (0, 4), (60, 50)]
ADAMW = {"betas": (0.9, 0.999), "nesterov": False, "saturation": 0.0}
FORMS = {"single": {"foreach": False}, "lists": {"foreach": True}, "fused": {"fused": True},
         "captured": {"capturable": True}}  # fmt: skip


def trained(make, dtype=torch.float32, steps=20, shapes=SHAPES):
    """The parameters after some steps on gradients that depend on where they are."""
    rng = torch.Generator().manual_seed(1)
    params = [torch.randn(s, generator=rng, dtype=torch.float64).to(dtype) for s in shapes]
    params = [p.requires_grad_() for p in params]
    optimizer = make(params)
    for _ in range(steps):
        for p in params:
            noise = torch.randn(p.shape, generator=rng, dtype=torch.float64).to(p.dtype)
            p.grad = noise * (0.1 + p.detach().abs()) + p.detach() / 2
        optimizer.step()
    return [p.detach() for p in params]


def gap(one, other):
    return max(
        (a.double() - b.double()).abs().max().item()
        for a, b in zip(one, other, strict=True)
        if a.numel()
    )


class ByRule:
    """A pure rule as an optimizer: nothing in place, no forms, no shortcuts."""

    def __init__(self, params, rule):
        self.params, self.rule = params, rule
        self.states = [rule.init(p.detach()) for p in params]

    def step(self):
        for i, p in enumerate(self.params):
            if p.numel():
                move, self.states[i] = self.rule.update(p.grad, self.states[i], p.detach())
                p.data.add_(move)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_adamw_is_a_member(form, dtype, tol):
    settings = {"lr": 1e-2, "weight_decay": 0.1}
    ours = trained(lambda p: Navigator(p, **ADAMW, **settings, **FORMS[form]), dtype, steps=300)
    adamw = trained(lambda p: torch.optim.AdamW(p, **settings), dtype, steps=300)
    assert gap(ours, adamw) < tol


@pytest.mark.parametrize("form", FORMS)
def test_look_ahead_is_nadam_without_its_schedule(form):
    ahead = {**ADAMW, "nesterov": True}
    ours = trained(lambda p: Navigator(p, 1e-2, **ahead, **FORMS[form]))
    assert gap(ours, _nadam(0.9)) < 2e-6


def _nadam(beta1):
    """NAdam's published form, one coordinate at a time, in float64."""

    def make(params):
        class Plain:
            t = 0
            m = [0.0] * len(params)
            v = [0.0] * len(params)

            def step(self):
                self.t += 1
                for i, p in enumerate(params):
                    g = p.grad
                    self.m[i] = beta1 * self.m[i] + (1 - beta1) * g
                    self.v[i] = 0.999 * self.v[i] + 0.001 * g * g
                    ahead = beta1 * self.m[i] / (1 - beta1 ** (self.t + 1))
                    mean = ahead + (1 - beta1) * g / (1 - beta1**self.t)
                    root = (self.v[i] / (1 - 0.999**self.t)).sqrt()
                    p.data -= 1e-2 * mean / (root + 1e-8)

        return Plain()

    return trained(make)


@pytest.mark.parametrize("form", FORMS)
def test_centered_is_adabelief(form):
    reference = pytest.importorskip("pytorch_optimizer").AdaBelief
    # The reference adds eps to its memory as well, at each step: it is made too small to be seen.
    settings = {"lr": 1e-2, "eps": 1e-30}
    own = {"centered": True, **ADAMW, **settings}
    ours = trained(lambda p: Navigator(p, **own, **FORMS[form]), torch.float64)
    theirs = trained(lambda p: reference(p, rectify=False, **settings), torch.float64)
    assert gap(ours, theirs) < 1e-9


@pytest.mark.parametrize("form", FORMS)
def test_strong_discount_is_gradient_descent(form):
    Gamma = 1e5
    settings = {**ADAMW, "betas": (0.0, 0.999), "gamma": Gamma, **FORMS[form]}
    ours = trained(lambda p: Navigator(p, 0.05 * 2 * Gamma, **settings), torch.float64)
    sgd = trained(lambda p: torch.optim.SGD(p, 0.05), torch.float64)
    assert gap(ours, sgd) < 1e-8


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_ballistic_is_rmsprop_of_the_paper(form, dtype, tol):
    ours = trained(lambda p: Ballistic(p, 1e-3, beta2=0.9, eps=1e-30, **FORMS[form]), dtype)
    rmsprop = trained(lambda p: torch.optim.RMSprop(p, 1e-3, alpha=0.9, eps=0.0), dtype)
    assert gap(ours, rmsprop) < tol


@pytest.mark.parametrize("form", FORMS)
def test_ballistic_has_eps_under_the_root(form):
    p = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = Ballistic([p], 0.1, beta2=0.9, eps=0.25, **FORMS[form])
    p.grad = torch.tensor([3.0], dtype=torch.float64)
    optimizer.step()
    assert p.item() == pytest.approx(1 - 0.1 * 3 / (0.1 * 9 + 0.25) ** 0.5, abs=1e-14)


MEMBERS = list(
    itertools.product(
        (0.0, 0.7),
        ("betas", "kalman"),
        (False, True),
        (False, True),
        ((0.0, 0.0), (0.8, 0.0), (3.0, 0.6)),
    )
)


@pytest.mark.parametrize(("gamma", "gain", "centered", "nesterov", "bent"), MEMBERS)
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 3e-6), (torch.float64, 1e-13)])
def test_every_form_is_the_pure_rule(gamma, gain, centered, nesterov, bent, dtype, tol):
    same = {"lr": 1e-2, "betas": (0.9, 0.99), "gamma": gamma, "gain": gain, "nesterov": nesterov,
            "saturation": bent[0], "shared": bent[1], "weight_decay": 0.1}  # fmt: skip
    rule = BeliefRule.practical(**same, second="centered" if centered else "plain")
    pure = trained(lambda p: ByRule(p, rule), dtype)
    for name, flags in FORMS.items():
        ours = trained(lambda p, f=flags: Navigator(p, **same, centered=centered, **f), dtype)
        assert gap(ours, pure) < tol, name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gain", ["betas", "kalman"])
def test_nothing_seen_is_nothing_moved(form, gain):
    """Zero gradients, with nothing to keep the division from 0/0."""
    p = torch.nn.Parameter(torch.ones(5))
    optimizer = Navigator([p], eps=0.0, gain=gain, saturation=1.0, **FORMS[form])
    for _ in range(3):
        p.grad = torch.zeros(5)
        optimizer.step()
    assert torch.equal(p.detach(), torch.ones(5))


@pytest.mark.parametrize("form", FORMS)
def test_saturation_follows_the_schedule(form):
    """A typical coordinate steps by lr at the peak; late small steps are longer, and not bent."""
    ways = {0.0: 0.0, 2.0: 0.0, 4.0: 0.25}  # saturation, and how much of it is shared
    params = {c: torch.nn.Parameter(torch.zeros(50, dtype=torch.float64)) for c in ways}
    grads = torch.randn(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moves = {}
    for c, p in params.items():
        settings = {
            "betas": (0.0, 0.999),
            "eps": 0.0,
            "nesterov": False,
            "saturation": c,
            "shared": ways[c],
        }
        optimizer = Navigator([p], lr=1.0, **settings, **FORMS[form])
        moves[c] = []
        for lr, grad in zip((1.0, 1e-6), grads, strict=True):
            optimizer.param_groups[0]["lr"] = lr
            p.grad, before = grad, p.detach().clone()
            optimizer.step()
            moves[c].append(p.detach() - before)
    size = grads[0].abs() / grads[0].square().mean().sqrt()
    torch.testing.assert_close(moves[2.0][0] / moves[0.0][0], 3 / (1 + 2 * size))
    torch.testing.assert_close(moves[2.0][1], 3 * moves[0.0][1], rtol=1e-4, atol=0)
    torch.testing.assert_close(moves[4.0][0] / moves[0.0][0], 5 / (2 + 3 * size))
    torch.testing.assert_close(moves[4.0][1], 5 * moves[0.0][1], rtol=1e-4, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_maximize_climbs(form):
    for settings in (
        {},
        {"centered": True, "nesterov": True},
        {"gain": "kalman", "saturation": 1.0},
    ):
        p, q = (torch.nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2))
        up = Navigator([p], maximize=True, **settings, **FORMS[form])
        down = Navigator([q], **settings, **FORMS[form])
        for k in range(5):
            p.grad, q.grad = torch.tensor([1.0, -k]), torch.tensor([-1.0, k])
            up.step()
            down.step()
        torch.testing.assert_close(p, q, rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_complex_parameters_are_pairs_of_reals(form):
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(6, 2, generator=rng)
    pair, whole = (
        torch.nn.Parameter(z.clone()),
        torch.nn.Parameter(torch.view_as_complex(z.clone())),
    )
    settings = {"lr": 1e-2, "gain": "kalman", "saturation": 1.0, "weight_decay": 0.1}
    optimizers = [Navigator([p], **settings, **FORMS[form]) for p in (pair, whole)]
    for _ in range(10):
        pair.grad = torch.randn(6, 2, generator=rng)
        whole.grad = torch.view_as_complex(pair.grad.clone()).conj().resolve_conj().conj()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(torch.view_as_real(whole.detach()), pair.detach(), rtol=0, atol=1e-7)
    assert optimizers[1].state[whole]["mean"].dtype == torch.complex64


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_memory_in_float32(form, dtype):
    """Equal to a float32 optimizer whose parameters are rounded after each step."""
    rng = torch.Generator().manual_seed(0)
    half = torch.nn.Parameter(torch.randn(50, generator=rng).to(dtype))
    full = torch.nn.Parameter(half.detach().float())
    ours = Navigator([half], 1e-2, compensate=False, **ADAMW, **FORMS[form])
    reference = torch.optim.AdamW([full], 1e-2, weight_decay=0.0)
    for _ in range(20):
        half.grad = torch.randn(50, generator=rng).to(dtype)
        full.grad = half.grad.float()
        ours.step()
        reference.step()
        full.data.copy_(full.detach().to(dtype).float())
    assert ours.state[half]["mean"].dtype == ours.state[half]["variance"].dtype == torch.float32
    torch.testing.assert_close(half.detach().float(), full.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("settings", "tol"), [(ADAMW, 0.0), ({}, 3e-7)])
def test_any_order_in_memory(form, settings, tol):
    """Channels last, a transposed weight, a gradient in another order, a strided view.

    A mean over a tensor is rounded by the order in which it is summed; nothing else is.
    """
    rng = torch.Generator().manual_seed(0)
    base = torch.randn(4, 3, 5, 5, generator=rng)
    layouts = [base, base.to(memory_format=torch.channels_last),
               base.mT.contiguous().mT, torch.stack([base, base], -1)[..., 0]]  # fmt: skip
    grads = [torch.randn(base.shape, generator=rng) for _ in range(3)]
    results = []
    for layout in layouts:
        for flip in (False, True):
            p = torch.nn.Parameter(torch.empty(0))
            p.data = torch.empty_strided(base.shape, layout.stride()).copy_(base)
            optimizer = Navigator([p], 1e-2, **settings, **FORMS[form])
            for grad in grads:
                p.grad = grad.to(memory_format=torch.channels_last) if flip else grad.clone()
                optimizer.step()
            results.append(p.detach().contiguous())
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=tol)


def test_large_tensors_are_shared_out_over_threads():
    """Several blocks and threads, lengths that fill no block, and one thread: the same numbers."""
    shapes = [(100_003,), (1,), (65_536,), (7, 9_999)]
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(
                trained(lambda p: Navigator(p, gain="kalman", fused=True), shapes=shapes)
            )
    finally:
        torch.set_num_threads(before)
    single = trained(lambda p: Navigator(p, gain="kalman", foreach=False), shapes=shapes)
    assert gap(results[0], results[1]) == gap(results[0], results[2]) == 0
    assert gap(results[0], single) < 2e-6


def test_without_numba(monkeypatch):
    """AdamW's settings go to PyTorch's fused kernel; others say what is missing, and None works."""
    monkeypatch.setattr(family, "kernels", lambda: None)
    ours = trained(lambda p: Navigator(p, 1e-2, weight_decay=0.1, fused=True, **ADAMW))
    adamw = trained(lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1))
    assert gap(ours, adamw) < 1e-6
    with pytest.raises(RuntimeError, match=r"lossnav\[fast\]"):
        trained(lambda p: Navigator(p, gamma=1.0, fused=True))
    large = [(1100, 1000)]
    free = trained(lambda p: Navigator(p, gamma=1.0), shapes=large, steps=2)
    assert (
        gap(free, trained(lambda p: Navigator(p, gamma=1.0, foreach=False), shapes=large, steps=2))
        < 1e-6
    )


def test_memory_is_eight_bytes_for_each_parameter():
    p = torch.nn.Parameter(torch.randn(1000, 100))
    for optimizer, least in (
        (Navigator([p], gain="kalman", saturation=1.0), 8),
        (Ballistic([p]), 4),
    ):
        p.grad = torch.randn_like(p)
        optimizer.step()
        held = sum(t.numel() * t.element_size() for t in optimizer.state[p].values())
        assert least <= held / p.numel() < least + 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lr is -1"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"lr": torch.ones(2)}, "must be 1-element"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\] is 1"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\] is -0.1"),
        ({"eps": -1e-8}, "eps is -1e-08"),
        ({"weight_decay": -1.0}, "weight_decay is -1"),
        ({"gamma": -1.0}, "gamma is -1"),
        ({"saturation": -1.0}, "saturation is -1"),
        ({"shared": 1.5}, "shared is 1.5, but it is a share: at most one."),
        ({"gain": "kalmann"}, "Did you mean 'kalman'"),
        ({"gain": "kalman", "betas": (0.0, 0.9)}, "above zero"),
        ({"nonfinite": "stop"}, "skip, raise, ignore"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_for_the_optimizer_and_for_a_group(settings, message):
    p, q = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=message):
        Navigator([p], **settings)
    with pytest.raises(ValueError, match=message):
        Navigator([{"params": [p], **settings}])
    optimizer = Navigator([p])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [q], **settings})
    assert len(optimizer.param_groups) == 1


def test_flags_that_exclude_each_other():
    p = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match="cannot be `True` together"):
        Navigator([p], fused=True, foreach=True)
    with pytest.raises(RuntimeError, match="does not support `differentiable`"):
        Navigator([p], fused=True, differentiable=True)
    with pytest.raises(ValueError, match="beta2 is 1"):
        Ballistic([p], beta2=1.0)


@pytest.mark.parametrize("t", [1, 5])
def test_lists_take_a_typical_variance_that_is_known(t):
    """What sharded tensors are given: lists make the steps of one tensor at a time."""
    generator = torch.Generator().manual_seed(t)
    x, g, m, v = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    rule = BeliefRule.practical(
        0.01, betas=(0.9, 0.99), weight_decay=0.1, saturation=1.5, shared=0.3
    )
    n = rule.scalars(float(t), 0.01, 0.02)
    scale = torch.tensor(0.7, dtype=torch.float64)
    expected = family.advance(rule, n, x, g, m, v * v, scale)
    lists = [[x.clone()], [g.clone()], [m.clone()], [v * v]]
    family.advance_lists(rule, [n], *lists, scale.reshape(1))
    torch.testing.assert_close(lists[0][0], expected[0], rtol=1e-12, atol=0)


def test_the_old_spelling_of_centered_warns_and_loads():
    p = torch.nn.Parameter(torch.ones(2))
    with pytest.warns(FutureWarning, match="now spelled centered"):
        old = Navigator([p], centred=True)
    with pytest.warns(FutureWarning, match="now spelled centered"):
        group = Navigator([{"params": [p], "centred": True}])
    assert all(o.param_groups[0]["centered"] is True for o in (old, group))
    with pytest.warns(FutureWarning, match='second="centered"'):
        assert BeliefRule(dt=0.1, second="centred").second == "centered"
    p.grad = torch.ones(2)
    old.step()
    saved = old.state_dict()
    saved["param_groups"][0]["centred"] = saved["param_groups"][0].pop("centered")
    new = Navigator([p])
    new.load_state_dict(saved)
    assert new.param_groups[0]["centered"] is True
    assert "centred" not in new.param_groups[0]


DAMAGED = """
import warnings, torch
from lossnav.optim.torch import Navigator
p = torch.nn.Parameter(torch.ones(9))
p.grad = torch.ones(9)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    optimizer = Navigator([p], fused=True)
    optimizer.step()
    optimizer.step()
print(p[0].item() < 1, [str(w.message)[:35] for w in caught if w.category is RuntimeWarning])
"""


def test_a_damaged_cache_of_compiled_code_is_not_used(tmp_path):
    pytest.importorskip("numba")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run():
        done = subprocess.run(
            [sys.executable, "-c", DAMAGED],
            env=environment,
            capture_output=True,
            check=True,
            text=True,
        )
        return done.stdout.strip()

    assert run() == "True []"
    files = [path for path in tmp_path.rglob("*.nb?") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:200])
    assert run() == "True ['The compiled code that numba keeps ']"


def _sum(x, y):
    return x.sum() if y is None else x.sum() + y.sum()


def test_processes_that_compile_at_once_do_not_mix_up_their_code(tmp_path, monkeypatch):
    """The index of one and the code of the other were written last."""
    caching = pytest.importorskip("numba.core.caching")
    from numba import config

    from lossnav.optim.torch import kernel

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    x, written = np.ones(3), []
    with monkeypatch.context() as at_once:
        at_once.setattr(caching.IndexDataCacheFile, "_load_index", lambda self: {})
        at_once.setattr(caching.IndexDataCacheFile, "_save_data", lambda *how: written.append(how))
        assert (kernel.compiled(_sum)(x, None), kernel.compiled(_sum)(x, x)) == (3, 6)
    for file, *how in reversed(written):
        file._save_data(*how)
    later = kernel.compiled(_sum)
    assert (later(x, x), later(x, None)) == (6, 3)
    assert later.stats.cache_hits  # so the files are used
