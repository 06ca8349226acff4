"""KroneckerNavigator against a plain reference with explicit Kronecker products, SOAP, and its contract."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from pytorch_optimizer import SOAP

from lossnav.optim.torch import KroneckerNavigator
from lossnav.optim.torch.kronecker import average_covariances
from lossnav.optim.torch.navigator import Navigator
from lossnav.rules.kronecker import KroneckerRule, phases, sides

PLAIN = {"nesterov": False, "saturation": 0.0}
OF_SOAP = {"betas": (0.95, 0.95), **PLAIN}
FAMILY = {
    "defaults": {},
    "soap": PLAIN,
    "gamma": {**PLAIN, "gamma": 0.3},
    "kalman": {**PLAIN, "gain": "kalman"},
    "centered": {**PLAIN, "centered": True},
    "nesterov": {**PLAIN, "nesterov": True},
    "kalman, nesterov": {**PLAIN, "gain": "kalman", "nesterov": True},
    "saturated": {**PLAIN, "saturation": 2.0, "shared": 0.0},
    "alike": {**PLAIN, "saturation": 2.0, "shared": 1.0},
    "decay": {**PLAIN, "weight_decay": 0.5},
    "all": {
        "gamma": 0.1,
        "gain": "kalman",
        "centered": True,
        "nesterov": True,
        "saturation": 0.7,
        "weight_decay": 0.2,
    },
}


def gradients(shape, steps, seed=0, dtype=torch.float64):
    """Noisy gradients with scales that differ along hidden directions."""
    rng = np.random.default_rng(seed)
    rows, columns = shape[0], int(np.prod(shape[1:]))
    A = rng.normal(size=(rows, rows)) * np.logspace(0, -1, rows)
    B = rng.normal(size=(columns, columns)) * np.logspace(0, -1, columns)
    mean = rng.normal(size=(rows, columns))
    found = [A @ (mean + rng.normal(size=(rows, columns))) @ B for _ in range(steps)]
    return [torch.tensor(g, dtype=dtype).reshape(shape) for g in found]


def run(make, theta, grads, lrs=None):
    theta = torch.nn.Parameter(theta.clone())
    optimizer = make([theta])
    path = []
    for i, g in enumerate(grads):
        if lrs is not None:
            optimizer.param_groups[0]["lr"] = lrs[i]
        theta.grad = g.clone()
        optimizer.step()
        path.append(theta.detach().clone())
    return torch.stack(path)


def gram_schmidt(A):
    Q = np.zeros_like(A)
    for j in range(A.shape[1]):
        q = A[:, j].copy()
        for _ in range(2):
            q -= Q[:, :j] @ (Q[:, :j].T @ q)
        Q[:, j] = q / np.linalg.norm(q)
    return Q


def shifted(L, Q):
    return L + 1e-11 * np.diag(Q.T @ L @ Q).max() * np.eye(len(L))


def reference(theta, grads, lrs, *, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, basis_beta=0.95,
              refresh=10, gamma=0.0, gain="betas", centered=False, nesterov=True, saturation=4.0,
              shared=0.75, row=True, column=True):  # fmt: skip
    """The family on vec(G) in the basis Q_L (x) Q_R, all explicit; the mean stays in plain coordinates."""
    x = theta.numpy().copy()
    r, c = x.shape
    b1, b2 = betas
    L, R = np.zeros((r, r)), np.zeros((c, c))
    QL, QR = np.eye(r), np.eye(c)
    m, v = np.zeros(r * c), np.zeros(r * c)
    peak, path = 0.0, []
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True)):
        G = g.numpy()
        x = x * (1 - lr * weight_decay)
        if t > 0:
            peak = max(peak, lr)
            K = np.kron(QL, QR)
            q, mean = K.T @ G.ravel(), K.T @ m
            before = v.mean() / (1 - b2 ** (t - 1)) if t > 1 else None
            v = b2 * v + (1 - b2) * (b1 * (q - mean) if centered else q) ** 2
            level = v / (1 - b2**t)
            typical = level.mean() if before is None else before
            if gain == "betas":
                mean = b1 * mean + (1 - b1) * q
                used = mean / (1 - b1**t)
                if nesterov:
                    used = b1 * mean / (1 - b1 ** (t + 1)) + (1 - b1) * q / (1 - b1**t)
            else:
                wander = typical * (1 - b1) ** 2 / b1
                k = np.maximum(1 / t, 2 / (1 + np.sqrt(1 + 4 * level / wander)))
                mean = mean + k * (q - mean)
                used = mean + k * (q - mean) if nesterov else mean
            D = gamma + np.sqrt(gamma**2 + level) + eps
            z = saturation * lr / peak * (shared + (1 - shared) * level / (D * math.sqrt(typical)))
            step = (1 + saturation) * lr * used / D / (1 + z)
            m = K @ mean
            x = x - (K @ step).reshape(r, c)
        L = basis_beta * L + (1 - basis_beta) * G @ G.T
        R = basis_beta * R + (1 - basis_beta) * G.T @ G
        if t == 0:
            QL = np.linalg.eigh(L)[1][:, ::-1] if row else QL
            QR = np.linalg.eigh(R)[1][:, ::-1] if column else QR
        elif t % refresh == 0:
            V = v.reshape(r, c)
            if row:
                order = np.argsort(-np.diag(QL.T @ L @ QL))
                QL, V = gram_schmidt(shifted(L, QL) @ QL[:, order]), V[order]
            if column:
                order = np.argsort(-np.diag(QR.T @ R @ QR))
                QR, V = gram_schmidt(shifted(R, QR) @ QR[:, order]), V[:, order]
            v = V.ravel()
        path.append(torch.tensor(x))
    return torch.stack(path)


def warm_up(steps, peak):
    return [peak * min((i + 1) / 5, (steps - i) / steps) for i in range(steps)]


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("name", FAMILY)
def test_equals_explicit_kronecker_products(name, foreach):
    grads = gradients((4, 4), 40)
    theta = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4)
    lrs = warm_up(40, 0.03)
    settings = {"refresh": 7, "betas": (0.9, 0.97), "basis_beta": 0.8, **FAMILY[name]}
    expected = reference(theta, grads, lrs, **settings)
    ours = run(lambda p: KroneckerNavigator(p, **settings, foreach=foreach), theta, grads, lrs)
    assert (expected[-1] - theta).abs().max() > 0.1
    assert (ours - expected).abs().max() < 1e-9


@pytest.mark.parametrize(("shape", "row", "column"), [((6, 3), False, True), ((3, 6), True, False)])
def test_a_side_longer_than_max_dim_keeps_its_axes(shape, row, column):
    grads = gradients(shape, 25)
    theta = torch.zeros(shape, dtype=torch.float64)
    expected = reference(theta, grads, [0.01] * 25, row=row, column=column)
    ours = run(lambda p: KroneckerNavigator(p, 0.01, max_dim=4), theta, grads)
    assert (ours - expected).abs().max() < 1e-9


@pytest.mark.parametrize("shape", [(5, 5), (8, 6), (6, 8), (12, 12)])
def test_equals_soap(shape):
    """The reference keeps its mean in plain coordinates, and factorises in single precision.

    One gradient leaves part of a longer side's basis to chance, so the longer side goes without.
    """
    short = min(shape)
    single = gradients(shape, 100, dtype=torch.float32)
    double = [g.double() for g in single]

    def soap(grads):
        made = lambda p: SOAP(p, lr=1e-2, weight_decay=0.0, max_precondition_dim=short)  # noqa: E731
        return run(made, torch.zeros_like(grads[0]), grads).double()

    def ours(grads):
        made = lambda p: KroneckerNavigator(p, 1e-2, max_dim=short, **OF_SOAP)  # noqa: E731
        return run(made, torch.zeros_like(grads[0]), grads).double()

    exact = soap(double)
    assert exact[-1].abs().max() > 0.1
    assert (ours(double) - exact).abs().max() < 1e-4
    # In single precision the gradients' small directions are uncertain, by how much depends on the processor.
    theirs = (soap(single) - exact).abs().max()
    assert (ours(single) - exact).abs().max() < min(1e-3, 2 * theirs)


def test_equals_the_pure_rule():
    grads = gradients((6, 6), 60)
    theta = torch.zeros(6, 6, dtype=torch.float64)
    rule = KroneckerRule(dt=0.01, finite=False, refresh=4, eps=1e-12)
    state, x, path = rule.init(theta), theta, []
    for g in grads:
        move, state = rule.update(g, state, x)
        x = x + move
        path.append(x)
    settings = {"refresh": 4, "eps": 1e-12, **OF_SOAP}
    ours = run(lambda p: KroneckerNavigator(p, 0.01, **settings), theta, grads)
    assert (ours - torch.stack(path)).abs().max() < 1e-8


def test_a_kernel_is_a_matrix():
    grads = gradients((4, 2, 3, 2), 30)
    theta = torch.zeros(4, 2, 3, 2, dtype=torch.float64)
    flat = run(
        lambda p: KroneckerNavigator(p), theta.reshape(4, 12), [g.reshape(4, 12) for g in grads]
    )
    ours = run(lambda p: KroneckerNavigator(p), theta, grads)
    assert torch.equal(ours, flat.reshape(ours.shape))
    theta = theta.to(memory_format=torch.channels_last)
    grads = [g.to(memory_format=torch.channels_last) for g in grads]
    assert torch.equal(run(lambda p: KroneckerNavigator(p), theta, grads), ours)


def test_rotating_the_problem_rotates_the_path():
    """No axes are special: only the covariances of gradients choose the basis."""
    rng = np.random.default_rng(3)
    U, V = (torch.tensor(np.linalg.qr(rng.normal(size=(5, 5)))[0]) for _ in range(2))
    target = torch.tensor(rng.normal(size=(5, 5)))
    A, B = (torch.tensor(rng.normal(size=(5, 5))) for _ in range(2))

    noise = torch.tensor(rng.normal(size=(40, 5, 5)))

    def descend(optimizer_of, turn, back):
        theta = torch.nn.Parameter(turn(torch.zeros(5, 5, dtype=torch.float64)))
        optimizer = optimizer_of([theta])
        for each in noise:
            optimizer.zero_grad()
            x = back(theta)
            ((A @ (x - target) @ B).square().sum() + (each * x).sum()).backward()
            optimizer.step()
        return back(theta.detach())

    def gap(optimizer_of):
        plain = descend(optimizer_of, lambda x: x, lambda x: x)
        rotated = descend(optimizer_of, lambda x: U @ x @ V.T, lambda x: U.T @ x @ V)
        assert plain.abs().max() > 0.3
        return (plain - rotated).abs().max()

    assert gap(lambda p: KroneckerNavigator(p, 0.05, refresh=3, gain="kalman", saturation=1)) < 1e-8
    assert gap(lambda p: Navigator(p, 0.05)) > 0.1


def test_a_gradient_that_comes_again_is_not_drowned_by_rounding():
    """In its own basis a gradient is diagonal: the first move is its polar factor, not noise."""
    G = torch.randn(40, 40, generator=torch.manual_seed(0))
    U, _, Vt = torch.linalg.svd(G)
    path = run(lambda p: KroneckerNavigator(p, lr=0.1, **PLAIN), torch.zeros(40, 40), [G, G])
    assert path[0].abs().max() == 0
    assert (path[1] + 0.1 * U @ Vt).abs().max() < 1e-4


@pytest.mark.parametrize("shape", [(7,), (), (1, 9), (9, 1), (0, 3), (3, 0)])
@pytest.mark.parametrize("name", FAMILY)
def test_vectors_get_the_diagonal_step(name, shape):
    generator = torch.manual_seed(1)
    grads = [torch.randn(shape, generator=generator) for _ in range(20)]
    theta = torch.ones(shape)
    settings = {"lr": 0.01, "betas": (0.9, 0.95), "shared": 0.75, **FAMILY[name]}
    ours = run(lambda p: KroneckerNavigator(p, **settings), theta, grads)
    assert torch.equal(ours, run(lambda p: Navigator(p, **settings), theta, grads))


@pytest.mark.parametrize("matrix", [False, "auto"])
def test_matrices_without_a_basis_get_the_diagonal_step(matrix):
    grads = gradients((5, 6), 20)
    theta = torch.zeros(5, 6, dtype=torch.float64)
    ours = run(lambda p: KroneckerNavigator(p, 0.1, matrix=matrix, max_dim=4), theta, grads)
    diagonal = run(lambda p: Navigator(p, 0.1, shared=0.75), theta, grads)
    assert torch.equal(ours, diagonal)


def test_which_sides_have_a_basis():
    auto = {"matrix": "auto", "max_dim": 100, "basis_beta": 0.9}
    assert sides(100, 100, **auto) == (0, 1)
    assert sides(101, 100, **auto) == (1,)
    assert sides(100, 10, **auto) == (0, 1)  # ten gradients of ten directions fill it
    assert sides(100, 9, **auto) == (1,)
    assert sides(500, 400, **auto) == ()
    assert sides(500, 400, **{**auto, "matrix": True}) == (0, 1)
    assert sides(500, 1, **{**auto, "matrix": True}) == (0,)
    assert sides(5, 5, **{**auto, "matrix": False}) == ()


@pytest.mark.parametrize("side", ["row", "column"])
@pytest.mark.parametrize("n", [5, 256, 700])
def test_covariances_by_strips(side, n):
    """Only the lower triangle counts; strips up to the diagonal give it whole."""
    generator = torch.manual_seed(0)
    G = torch.randn(2, n, 3, generator=generator, dtype=torch.float64)
    held = torch.randn(2, n, n, generator=generator, dtype=torch.float64)
    expected = 0.9 * held + 0.1 * G @ G.mT
    A = G if side == "row" else G.mT.contiguous().mT  # columns are given as a view
    average_covariances(list(held.unbind(0)), A, 0.9)
    assert (held - expected).tril().abs().max() < 1e-13


def test_refreshes_are_spread_over_the_cycle():
    costs = tuple(float(i % 3 + 1) for i in range(40))
    found = phases(costs, 8)
    loads = [sum(c for c, p in zip(costs, found, strict=True) if p == slot) for slot in range(8)]
    assert max(loads) - min(loads) <= 1
    params = [torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(20)]
    optimizer = KroneckerNavigator(params, refresh=5)
    bases, changed = None, []
    for i in range(12):
        for j, p in enumerate(params):
            p.grad = torch.randn(4, 4, generator=torch.manual_seed(100 * i + j))
        optimizer.step()
        now = [optimizer.state[p]["row_basis"].clone() for p in params]
        if bases is not None:
            changed.append(sum(not torch.equal(a, b) for a, b in zip(bases, now, strict=True)))
        bases = now
    assert changed == [4] * 11


def model_and_data(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 16),
        torch.nn.LayerNorm(16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 3),
    )  # fmt: skip
    return model, torch.randn(12, 1, 4, 4), torch.randint(0, 3, (12,))


def train(model, optimizer, x, y, steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(model):
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def test_stacks_equal_one_by_one():
    """With enough equal matrices to be stacked, of small and of large sides."""
    shapes = [(8, 8)] * 5 + [(300, 40)] * 2 + [(40, 300)] + [(8,)] * 2
    found = []
    for foreach in (None, False):
        params = [torch.nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in shapes]
        optimizer = KroneckerNavigator(params, lr=0.1, refresh=3, foreach=foreach, saturation=1.0)
        for i in range(8):
            for j, p in enumerate(params):
                noise = torch.randn(
                    p.shape, generator=torch.manual_seed(100 * i + j), dtype=p.dtype
                )
                p.grad = None if (i + j) % 7 == 6 else noise
            optimizer.step()
        found.append([p.detach() for p in params])
    for a, b in zip(*found, strict=True):
        assert a.abs().max() > 0.1
        assert (a - b).abs().max() < 1e-5


@pytest.mark.parametrize("shape", [(12, 3), (3, 12), (6, 6)])
def test_rounding_does_not_choose_the_path(shape):
    """A first gradient without many directions leaves them to be chosen: always alike."""
    grads = gradients(shape, 30)
    thin = (
        torch.linspace(-1, 2, shape[0], dtype=torch.float64)[:, None] * grads[0][:1]
    )  # of rank one
    theta = torch.zeros(shape, dtype=torch.float64)
    generator = torch.manual_seed(0)
    shaken = [
        g * (1 + 1e-15 * torch.randn(g.shape, generator=generator, dtype=g.dtype))
        for g in [thin, *grads]
    ]
    made = lambda p: KroneckerNavigator(p, 0.01, refresh=2)  # noqa: E731
    a, b = run(made, theta, [thin, *grads]), run(made, theta, shaken)
    assert a[-1].abs().max() > 0.05
    assert (a - b).abs().max() < 1e-6


@pytest.mark.parametrize("route", ["dict", "file", "deepcopy", "pickle", "names"])
def test_a_saved_state_goes_on_exactly(route):
    model, x, y = model_and_data()
    settings = {"lr": 0.01, "refresh": 4, "saturation": 1.0}
    optimizer = KroneckerNavigator(model.named_parameters(), **settings)
    train(model, optimizer, x, y, 7)
    other = copy.deepcopy(model)
    if route == "deepcopy":
        other, twin = copy.deepcopy((model, optimizer))
    elif route == "pickle":
        other, twin = pickle.loads(pickle.dumps((model, optimizer)))
    else:
        named = list(other.named_parameters())
        twin = KroneckerNavigator(named[::-1] if route == "names" else named, lr=1.0)
        saved = optimizer.state_dict()
        if route == "file":
            file = io.BytesIO()
            torch.save(saved, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
        twin.load_state_dict(saved)
    train(model, optimizer, x, y, 9)
    train(other, twin, x, y, 9)
    assert torch.equal(weights(model), weights(other))


def test_a_state_that_does_not_fit_is_refused():
    model, x, y = model_and_data()
    optimizer = KroneckerNavigator(model.parameters())
    train(model, optimizer, x, y, 3)
    before = copy.deepcopy(optimizer.state_dict())
    diagonal = Navigator(model.parameters())
    train(model, diagonal, x, y, 2)
    with pytest.raises(ValueError, match="not saved by KroneckerNavigator"):
        optimizer.load_state_dict(diagonal.state_dict())
    wider = copy.deepcopy(before)
    wider["state"][0]["row_basis"] = torch.eye(5)
    with pytest.raises(ValueError, match="row_basis of parameter 0 has shape"):
        optimizer.load_state_dict(wider)
    after = optimizer.state_dict()
    for i, held in before["state"].items():
        assert all(torch.equal(value, after["state"][i][key]) for key, value in held.items())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["soap", "decay", "all"])
def test_compiled_step_equals_eager(name):
    def finish(compiled):
        model, x, y = model_and_data()
        optimizer = KroneckerNavigator(model.parameters(), lr=0.01, refresh=3, **FAMILY[name])
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for i in range(8):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            if i == 4:
                model[0].weight.grad[0] = math.nan
            step()
        assert optimizer.skipped == 1
        return weights(model)

    assert (finish(True) - finish(False)).abs().max() < 1e-6


def test_autograd_through_the_step():
    """d(final loss)/d(lr) against a difference; the basis of the first gradient is constant."""
    grads = gradients((3, 4), 7)
    theta = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)

    def final(lr):
        x = theta.clone().requires_grad_(True) * 1.0
        optimizer = KroneckerNavigator(
            [x], lr=lr, refresh=3, differentiable=True, saturation=0.5, nesterov=True
        )
        for g in grads:
            x.grad = g.clone()  # an open loop, so that the basis does not depend on lr
            optimizer.step()
        return x.square().sum()

    lr = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    final(lr).backward()
    h = 1e-6
    with torch.no_grad():
        difference = (final(0.05 + h) - final(0.05 - h)) / (2 * h)
    assert lr.grad.item() == pytest.approx(difference.item(), rel=1e-6)


def test_half_precision_keeps_single_precision_memory():
    grads = gradients((6, 6), 30, dtype=torch.float32)
    theta = torch.zeros(6, 6)
    fine = run(lambda p: KroneckerNavigator(p, 0.01), theta, [g.bfloat16().float() for g in grads])
    half = torch.nn.Parameter(theta.bfloat16())
    optimizer = KroneckerNavigator([half], 0.01)
    for g in grads:
        half.grad = g.bfloat16()
        optimizer.step()
    held = optimizer.state[half]
    assert held.pop("compensation").dtype == torch.float16
    assert {value.dtype for key, value in held.items() if key != "phase"} == {torch.float32}
    assert (half.float() - fine[-1]).abs().max() < 0.02
    twin = KroneckerNavigator([half], 0.01)
    twin.load_state_dict(optimizer.state_dict())
    assert twin.state[half]["mean"].dtype == torch.float32


def test_complex_matrices_are_pairs_of_reals():
    grads = gradients((4, 6), 20)
    real = run(lambda p: KroneckerNavigator(p, 0.01), torch.zeros(4, 6, dtype=torch.float64), grads)
    pairs = [torch.view_as_complex(g.reshape(4, 3, 2)) for g in grads]
    ours = run(
        lambda p: KroneckerNavigator(p, 0.01), torch.zeros(4, 3, dtype=torch.complex128), pairs
    )
    assert torch.equal(torch.view_as_real(ours).reshape(real.shape), real)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_gradients_change_nothing(bad):
    model, x, y = model_and_data()
    optimizer = KroneckerNavigator(model.parameters(), weight_decay=0.1)
    train(model, optimizer, x, y, 3)
    before, memory = weights(model), copy.deepcopy(optimizer.state_dict()["state"])
    model[3].weight.grad[0, 0] = bad
    optimizer.step()
    assert optimizer.skipped == 1
    assert torch.equal(weights(model), before)
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(v, after[i][k]) for i in memory for k, v in memory[i].items())
    for group in optimizer.param_groups:
        group["nonfinite"] = "raise"
    with pytest.raises(FloatingPointError, match="nothing was changed"):
        optimizer.step()
    assert torch.equal(weights(model), before)


def test_covariances_that_overflow_do_not_poison():
    """Gradients of 1e25 are finite, but their squares are not, in single precision."""
    theta = torch.nn.Parameter(torch.zeros(4, 4))
    optimizer = KroneckerNavigator([theta], lr=0.01, refresh=2)
    for i in range(12):
        scale = 1e25 if i in (3, 4) else 1.0
        theta.grad = scale * torch.randn(4, 4, generator=torch.manual_seed(i))
        optimizer.step()
    state = optimizer.state[theta]
    assert torch.isfinite(theta).all()
    assert torch.isfinite(state["row_covariance"]).all()
    Q = state["row_basis"]
    assert (Q.T @ Q - torch.eye(4)).abs().max() < 1e-5


def test_zero_gradients_do_not_fix_the_basis():
    grads = gradients((4, 4), 10)
    theta = torch.zeros(4, 4, dtype=torch.float64)
    plain = run(lambda p: KroneckerNavigator(p), theta, grads)
    late = run(lambda p: KroneckerNavigator(p), theta, [torch.zeros_like(theta)] * 3 + grads)
    assert torch.equal(late[3:], plain)


def test_the_basis_stays_orthogonal():
    theta = torch.nn.Parameter(torch.zeros(32, 8))
    optimizer = KroneckerNavigator([theta], refresh=1)
    for i in range(300):
        theta.grad = torch.randn(32, 8, generator=torch.manual_seed(i)) * 1e-6
        theta.grad[:5] = 0
        optimizer.step()
    for side in ("row", "column"):
        Q = optimizer.state[theta][f"{side}_basis"]
        assert (Q.T @ Q - torch.eye(len(Q))).abs().max() < 1e-5


def test_maximize_closure_schedule_and_tensor_lr():
    grads = gradients((4, 5), 12)
    theta = torch.zeros(4, 5, dtype=torch.float64)
    down = run(lambda p: KroneckerNavigator(p, 0.1), theta, grads)
    up = run(lambda p: KroneckerNavigator(p, 0.1, maximize=True), theta, [-g for g in grads])
    assert torch.equal(down, up)
    same = run(
        lambda p: KroneckerNavigator(p, torch.tensor(0.1, dtype=torch.float64)), theta, grads
    )
    assert (down - same).abs().max() < 1e-12
    model, x, y = model_and_data()
    optimizer = KroneckerNavigator(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=40)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    first = optimizer.step(closure).item()
    for _ in range(39):
        schedule.step()
        last = optimizer.step(closure).item()
    assert last < 0.1 * first


def test_the_old_spelling_of_centered_is_accepted():
    with pytest.warns(FutureWarning, match="centered, as in PyTorch"):
        optimizer = KroneckerNavigator([torch.nn.Parameter(torch.zeros(2, 2))], centred=True)
    assert optimizer.param_groups[0]["centered"] is True
    assert "centred" not in optimizer.param_groups[0]


def test_groups_override():
    params = [torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(3)]
    groups = [
        {"params": params[:1]},
        {"params": params[1:2], "matrix": False},
        {"params": params[2:], "max_dim": 3, "lr": 0.5},
    ]
    optimizer = KroneckerNavigator(groups, **PLAIN)
    for p in params:
        p.grad = torch.randn(4, 4, generator=torch.manual_seed(0))
    optimizer.step()
    assert ["row_basis" in optimizer.state[p] for p in params] == [True, False, False]
    assert params[0].abs().max() == 0
    assert params[2].abs().max().item() == pytest.approx(0.5, rel=1e-4)


def test_step_in_backward_hooks():
    models = [model_and_data()[0] for _ in range(2)]
    _, x, y = model_and_data()
    whole = KroneckerNavigator(models[0].parameters(), refresh=1)
    train(models[0], whole, x, y, 5)
    own = {p: KroneckerNavigator([p], refresh=1) for p in models[1].parameters()}

    def hook(p):
        own[p].step()
        own[p].zero_grad()

    for p in models[1].parameters():
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(5):
        torch.nn.functional.cross_entropy(models[1](x), y).backward()
    assert torch.equal(weights(models[0]), weights(models[1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"refresh": 0}, "refresh is 0"),
        ({"max_dim": 2.5}, "max_dim is 2.5"),
        ({"basis_beta": 1.0}, "basis_beta is 1"),
        ({"matrix": "always"}, "matrix is 'always'"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\]"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        KroneckerNavigator([torch.nn.Parameter(torch.zeros(2, 2))], **settings)


def test_capturable_and_sparse_are_refused():
    with pytest.raises(RuntimeError, match="matrix=False"):
        KroneckerNavigator([torch.nn.Parameter(torch.zeros(2, 2))], capturable=True)
    KroneckerNavigator([torch.nn.Parameter(torch.zeros(2, 2))], capturable=True, matrix=False)
    theta = torch.nn.Parameter(torch.zeros(2, 2))
    theta.grad = torch.eye(2).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        KroneckerNavigator([theta]).step()
