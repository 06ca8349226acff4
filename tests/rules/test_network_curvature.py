"""Fisher and Gauss-Newton of networks, against Jacobians and Hessians written out in full."""

import numpy as np
import pytest

import lossnav as ln
from lossnav.rules.build import learning_rule
from lossnav.rules.local import LocalRule
from lossnav.rules.operators import dense
from lossnav.solvers.curvature import Dense

torch = pytest.importorskip("torch")

from lossnav.rules.network_curvature import Fisher, GaussNewton  # noqa: E402


def net(*, bias=True, seed=0):
    torch.manual_seed(seed)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Tanh(), nn.Linear(4, 2, bias=bias))
    return model.double()


def batch(n, shape=(3,), seed=1):
    return torch.randn(
        n, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def whole(F, theta):
    """F from the full Jacobian of the outputs, sample by sample."""
    z = F._rows(F.named(theta), F.inputs)
    J = torch.autograd.functional.jacobian(lambda t: _outputs(F, t), theta)
    total = torch.zeros(len(theta), len(theta), dtype=theta.dtype)
    for row, jacobian in zip(z, J, strict=True):
        p = torch.softmax(row, 0)
        inner = (
            torch.diag(p) - torch.outer(p, p)
            if F.loss == "cross_entropy"
            else torch.eye(len(row)).double()
        )
        total += jacobian.T @ inner @ jacobian / len(z)
    return total + F.damping * torch.eye(len(theta), dtype=theta.dtype)


def _outputs(F, theta):
    parts = theta.split([s.numel() for s in F.shapes.values()])
    named = {n: part.reshape(F.shapes[n]) for n, part in zip(F.shapes, parts, strict=True)}
    z = torch.func.functional_call(F.model, named, (F.inputs,))
    return z.reshape(-1, z.shape[-1])


def by_products(F, theta):
    return torch.stack([F.product(theta, e) for e in torch.eye(len(theta), dtype=theta.dtype)])


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
def test_products_are_those_of_the_full_matrix(loss):
    model = net()
    F = GaussNewton(model, batch(7), loss=loss, damping=0.1)
    theta = F.flat(dict(model.named_parameters()))
    assert torch.allclose(by_products(F, theta), whole(F, theta), rtol=1e-12, atol=1e-13)
    v = dict(model.named_parameters())
    assert torch.allclose(F.flat(F.product(v, v)), F.product(theta, theta), rtol=1e-12)


def test_rows_of_a_sequence_count_each():
    model = net()
    F = GaussNewton(model, batch(3, (5, 3)))
    theta = F.flat(dict(model.named_parameters()))
    assert torch.allclose(by_products(F, theta), whole(F, theta), rtol=1e-12, atol=1e-13)
    assert torch.allclose(F.diagonal(theta), whole(F, theta).diagonal(), rtol=1e-12)
    with pytest.raises(ValueError, match="15 rows of outputs for 3 inputs"):
        F.kronecker(theta)
    drawn = GaussNewton(model, batch(3, (5, 3)), samples=4000)
    flat = GaussNewton(model, batch(3, (5, 3)).reshape(15, 3))
    for mine, exact in zip(
        drawn.kronecker(theta).values(), flat.kronecker(theta).values(), strict=True
    ):
        assert torch.allclose(mine[0], exact[0], atol=0.1 * float(exact[0].abs().max()))


def test_the_hessian_of_a_linear_softmax_model():
    """There Gauss-Newton leaves nothing out, whatever the labels are."""
    model = torch.nn.Linear(3, 4).double()
    x, y = batch(6), torch.tensor([0, 1, 2, 3, 1, 1])
    F = GaussNewton(model, x)
    theta = F.flat(dict(model.named_parameters()))
    cost = lambda t: torch.nn.functional.cross_entropy(_outputs(F, t), y)  # noqa: E731
    H = torch.autograd.functional.hessian(cost, theta)
    assert torch.allclose(by_products(F, theta), H, rtol=1e-11, atol=1e-13)
    assert torch.allclose(F.diagonal(theta), H.diagonal(), rtol=1e-11, atol=1e-13)
    squared = GaussNewton(model, x, loss="squared")
    cost = lambda t: (_outputs(F, t) ** 2).sum(-1).mean() / 2  # noqa: E731
    assert torch.allclose(
        by_products(squared, theta), torch.autograd.functional.hessian(cost, theta), atol=1e-12
    )


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
def test_the_diagonal_exactly_and_by_draws(loss):
    model = net()
    F = Fisher(model, batch(5), loss=loss, damping=0.01)
    theta = F.flat(dict(model.named_parameters()))
    exact = whole(F, theta).diagonal()
    assert torch.allclose(F.diagonal(theta), exact, rtol=1e-12)
    assert F.flat(F.diagonal(F.named(theta))).equal(F.diagonal(theta))
    gaps = []
    for samples in (20, 8000):
        drawn = Fisher(model, batch(5), loss=loss, damping=0.01, samples=samples, seed=2)
        gaps.append(float((drawn.diagonal(theta) - exact).norm() / (exact - 0.01).norm()))
    assert gaps[1] < 0.06
    assert gaps[1] < gaps[0] / 3


def test_kronecker_factors_are_exact_for_one_input():
    """B (x) A is the whole block of each layer, weights in row order."""
    model = net()
    F = GaussNewton(model, batch(1))
    theta = F.flat(dict(model.named_parameters()))
    factors, full = F.kronecker(theta), whole(F, theta).numpy()
    start = 0
    for name, shape in F.shapes.items():
        block = full[start : start + shape.numel(), start : start + shape.numel()]
        mine = np.ones((1, 1))
        for factor in factors[name]:
            mine = np.kron(mine, factor.numpy())
        assert mine == pytest.approx(block, rel=1e-10, abs=1e-13)
        start += shape.numel()


def test_kronecker_factors_are_exact_for_linear_least_squares():
    model = torch.nn.Linear(3, 2, bias=False).double()
    F = GaussNewton(model, batch(9), loss="squared")
    theta = F.flat(dict(model.named_parameters()))
    B, A = F.kronecker(theta)["weight"]
    assert np.kron(B.numpy(), A.numpy()) == pytest.approx(
        whole(F, theta).numpy(), rel=1e-12, abs=1e-14
    )
    drawn = GaussNewton(model, batch(9), loss="squared", samples=3000)
    assert drawn.kronecker(theta)["weight"][0].numpy() == pytest.approx(np.eye(2), abs=0.05)


def test_blocks_of_a_network_with_other_layers():
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).double()
    F = GaussNewton(model, batch(1), damping=0.0)
    theta = F.flat(dict(model.named_parameters()))
    blocks, full = F.blocks(theta), whole(F, theta).numpy()
    found = [dense(block) for block in blocks.blocks]
    assert sum(len(block) for block in found) == len(theta)
    assert np.diag(found[2]) == pytest.approx(np.diag(full)[16:20])  # the norm's weights
    assert found[0] == pytest.approx(full[:12, :12], rel=1e-9, abs=1e-12)


def test_damping_of_factors_keeps_them_positive():
    model = net()
    F = GaussNewton(model, batch(2), damping=0.04)
    B, A = F.kronecker(F.flat(dict(model.named_parameters())))["0.weight"]
    plain = GaussNewton(model, batch(2)).kronecker(dict(model.named_parameters()))["0.weight"]
    added = [float((X - Y)[0, 0]) for X, Y in zip((B, A), plain, strict=True)]
    assert added[0] * added[1] == pytest.approx(0.04)
    assert torch.linalg.eigvalsh(B)[0] > 0


# As curvature and as metric of a rule


def steps(model, F, **forms):
    theta = F.flat(dict(model.named_parameters()))
    grad = torch.linspace(-1, 1, len(theta), dtype=theta.dtype)
    rule = LocalRule(0.3, gamma=0.5, eta=0.7, **forms)
    return (
        rule.update(grad, rule.init(theta), theta)[0].numpy(),
        grad.numpy(),
        whole(F, theta).numpy(),
    )


def test_as_curvature():
    model = net()
    F = GaussNewton(model, batch(7), damping=0.1, tol=1e-11)
    move, grad, full = steps(model, F, curvature=F)
    assert move == pytest.approx(Dense(full).step(grad, dt=0.3, gamma=0.5, eta=0.7), rel=1e-8)
    move, grad, full = steps(model, F, curvature=F.diagonal)
    expected = LocalRule(0.3, np.diag(full).copy(), gamma=0.5, eta=0.7).update(grad, {}, grad)[0]
    assert move == pytest.approx(expected, rel=1e-9)


def test_as_metric():
    """Natural rules: beside another curvature, and as its own."""
    model = net()
    F = GaussNewton(model, batch(7), damping=0.1, tol=1e-12)
    H = np.diag(np.linspace(0.5, 2.0, 26))
    move, grad, full = steps(model, F, curvature=H, metric=F)
    expected = LocalRule(0.3, H, full, gamma=0.5, eta=0.7).update(grad, {}, grad)[0]
    assert move == pytest.approx(expected, rel=1e-6)
    move, grad, full = steps(model, F, curvature=F, metric=F)
    expected = LocalRule(0.3, full, full.copy(), gamma=0.5, eta=0.7).update(grad, {}, grad)[0]
    assert move == pytest.approx(expected, rel=1e-8)
    one = GaussNewton(model, batch(1), damping=0.1)
    move, grad, _ = steps(model, one, curvature=one.blocks, metric=one.blocks)
    theta = one.flat(dict(model.named_parameters()))
    cut = np.zeros((26, 26))
    start = 0
    for block in one.blocks(theta).blocks:
        part = dense(block)
        cut[start : start + len(part), start : start + len(part)] = part
        start += len(part)
    expected = LocalRule(0.3, cut, cut.copy(), gamma=0.5, eta=0.7).update(grad, {}, grad)[0]
    assert move == pytest.approx(expected, rel=1e-8)


def test_a_network_learns_in_few_steps():
    """Gauss-Newton steps through learning_rule, on the loss of a network in float32."""
    model = net().float()
    x = batch(64).float()
    y = (x[:, 0] * x[:, 1] > 0).long()
    F = GaussNewton(model, x, damping=1e-2)
    theta = F.flat(dict(model.named_parameters()))
    cost = lambda t: torch.nn.functional.cross_entropy(_outputs(F, t), y)  # noqa: E731
    objective = ln.Objective(ln.TorchLoss(cost), gamma=1.0)
    rule = learning_rule(objective, 3.0, curvature=F)
    state, start = rule.init(theta), float(cost(theta))
    for _ in range(25):
        move, state = rule.update(torch.func.grad(cost)(theta), state, theta)
        theta = theta + move
    assert theta.dtype == torch.float32
    assert float(cost(theta)) < 0.75 * start
    other = F.on(x[:5])
    assert len(other.inputs) == 5
    assert len(F.inputs) == 64


def test_refusals_are_sentences():
    model = net()
    F = GaussNewton(model, batch(2))
    with pytest.raises(ValueError, match=r"has 26 numbers, but its shape is \(3,\)"):
        F.product(torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match=r"do not match the model's: 0\.bias"):
        F.named({"w": torch.ones(1)})
    with pytest.raises(ValueError, match="no loss named 'hinge'"):
        GaussNewton(model, batch(2), loss="hinge")
    with pytest.raises(ValueError, match="samples is 0"):
        GaussNewton(model, batch(2), samples=0)
    with pytest.raises(ValueError, match="damping is -1"):
        GaussNewton(model, batch(2), damping=-1)
