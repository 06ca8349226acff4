"""from_rule on networks: steps of NumPy rules that are given the Hessian of torch.func."""

import copy
import math

import numpy as np
import pytest

import lossnav as ln
from lossnav.rules import LocalRule
from lossnav.rules.horizon import HorizonRule
from lossnav.rules.local import DriftedRule
from lossnav.rules.sources import SquaredGradients, signs

torch = pytest.importorskip("torch")
from lossnav.optim.torch import from_rule  # noqa: E402
from lossnav.rules.network_curvature import GaussNewton  # noqa: E402

TWO = ln.Quadratic([4.0, 1.0])
CONSTANTS = {"eta": 0.7, "k": 1.3, "gamma": 1.5}
X = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(12, 2).sin()
Y = (X[:, :1] * X[:, 1:]).tanh()


def network():
    torch.manual_seed(3)
    layers = torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)
    return torch.nn.Sequential(*layers).double()


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def loss_of(model):
    return lambda: (model(X) - Y).square().mean()


def outputs(model, theta):
    """The network's outputs with its parameters from one vector."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    parts = theta.split([shape.numel() for shape in shapes.values()])
    named = {n: part.reshape(shapes[n]) for n, part in zip(shapes, parts, strict=True)}
    return torch.func.functional_call(model, named, (X,))


def of_flat(model):
    """The network's loss as a function of one vector."""
    return lambda theta: (outputs(model, theta) - Y).square().mean()


def by_hand(model, rule_of, steps, state=None):
    """Points of a NumPy rule that is given the gradient and the Hessian of torch.func."""
    loss, theta, points = of_flat(model), flat(model), []
    for t in range(steps):
        H = torch.func.jacrev(torch.func.grad(loss))(theta).numpy()
        g = torch.func.grad(loss)(theta).numpy()
        rule = rule_of(H, t)
        state = state or rule.init(theta.numpy())
        step, state = rule.update(g, state, theta.numpy())
        theta = theta + torch.from_numpy(step)
        points.append(theta)
    return torch.stack(points)


def trained(model, optimizer, steps, closure=True):
    points = []
    for _ in range(steps):
        if closure:
            optimizer.step(loss_of(model))
        else:
            optimizer.zero_grad()
            loss_of(model)().backward()
            optimizer.step()
        points.append(flat(model))
    return torch.stack(points)


def averaged_signs(dim):
    """Hutchinson's running average, written out."""
    mean = np.zeros(dim)

    def rule_of(H, t):
        z = signs(np.asarray(t), np.zeros(dim))
        mean[:] += (1 - 0.99) / (1 - 0.99 ** (t + 1)) * (z * (H @ z) - mean)
        return LocalRule(0.3, mean.copy(), **CONSTANTS)

    return rule_of


FORMS = {
    "exact": lambda H, t: LocalRule(0.3, H, **CONSTANTS),
    "lanczos": lambda H, t: LocalRule(0.3, H, **CONSTANTS),
    "diagonal": lambda H, t: LocalRule(0.3, np.diagonal(H).copy(), **CONSTANTS),
    "hutchinson": None,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_curvature_is_the_networks(form):
    model = network()
    rule = ln.learning_rule(ln.Objective(TWO, **CONSTANTS), dt=0.3, curvature=form)
    expected = by_hand(model, FORMS[form] or averaged_signs(13), 5)
    got = trained(model, from_rule(model.parameters(), rule), 5)
    assert (expected[-1] - expected[0]).abs().max() > 0.01
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-7 if form == "lanczos" else 1e-11)


@pytest.mark.parametrize(
    ("drift", "horizon", "rule_of"),
    [
        (ln.Decay(0.4), None, lambda H, t: LocalRule(0.3, H, decay=0.4, **CONSTANTS)),
        (
            lambda theta: [-0.4 * x for x in theta],
            None,
            lambda H, t: DriftedRule(0.3, H, lambda theta: [-0.4 * x for x in theta], **CONSTANTS),
        ),
        (None, 3.0, lambda H, t: HorizonRule(0.3, H, 3.0, **CONSTANTS)),
    ],
    ids=["decay", "drift", "horizon"],
)
def test_drift_and_horizon_on_a_network(drift, horizon, rule_of):
    model = network()
    objective = ln.Objective(TWO, drift=drift, **CONSTANTS)
    rule = ln.learning_rule(objective, dt=0.3, horizon=horizon)
    expected = by_hand(model, rule_of, 3)
    got = trained(model, from_rule(model.parameters(), rule), 3)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_a_metric_of_any_size_and_one_from_gradients():
    model, one = network(), network()
    double = ln.Metric(lambda theta: 2 * np.eye(len(theta), dtype=int))
    rule = ln.learning_rule(ln.Objective(TWO, metric=double, **CONSTANTS), dt=0.3)
    expected = by_hand(model, lambda H, t: LocalRule(0.3, H, metric=2 * np.eye(13), **CONSTANTS), 3)
    torch.testing.assert_close(
        trained(model, from_rule(model.parameters(), rule), 3), expected, rtol=0, atol=1e-10
    )
    squares = ln.learning_rule(
        ln.Objective(TWO, **CONSTANTS), dt=0.01, curvature="diagonal", metric=SquaredGradients()
    )
    before = loss_of(one)().item()
    trained(one, from_rule(one.parameters(), squares), 5)
    assert loss_of(one)().item() < before


def test_the_networks_loss_as_the_objective_needs_no_closure():
    model = network()
    expected = by_hand(model, FORMS["exact"], 3)
    objective = ln.Objective(ln.TorchLoss(of_flat(copy.deepcopy(model))), **CONSTANTS)
    optimizer = from_rule(model.parameters(), ln.learning_rule(objective, dt=0.3))
    got = trained(model, optimizer, 3, closure=False)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-11)


def test_gauss_newton_of_the_model():
    model = network()
    twin = copy.deepcopy(model)
    F = GaussNewton(twin, X, loss="squared", damping=1e-2, tol=1e-6)
    rule = ln.learning_rule(ln.Objective(TWO, **CONSTANTS), dt=0.3, curvature=F)
    got = trained(model, from_rule(model.parameters(), rule), 1, closure=False)
    theta = flat(twin)
    J = torch.func.jacrev(lambda t: outputs(twin, t).reshape(-1))(theta)
    H = (J.T @ J / len(X) + 1e-2 * torch.eye(13, dtype=torch.float64)).numpy()
    g = torch.func.grad(of_flat(twin))(theta).numpy()
    step, _ = LocalRule(0.3, H, **CONSTANTS).update(g, {}, theta.numpy())
    torch.testing.assert_close(got[0], theta + torch.from_numpy(step), rtol=0, atol=1e-9)


def test_groups_are_blocks_and_maximize_turns_the_hessian():
    model = network()
    first, last = list(model[0].parameters()), list(model[2].parameters())
    rule = ln.learning_rule(ln.Objective(TWO, **CONSTANTS), dt=0.3)
    start = flat(model)
    H = torch.func.jacrev(torch.func.grad(of_flat(model)))(start).numpy()
    g = torch.func.grad(of_flat(model))(start).numpy()
    up = from_rule([{"params": first}, {"params": last, "lr": 0.1}], rule, maximize=True)
    up.step(loss_of(model))
    expected = np.concatenate(
        [
            LocalRule(dt, -H[part, part], **CONSTANTS).update(-g[part], {}, start.numpy()[part])[0]
            for part, dt in ((slice(0, 9), 0.3), (slice(9, 13), 0.1))
        ]
    )
    np.testing.assert_allclose((flat(model) - start).numpy(), expected, rtol=0, atol=1e-6)


def test_a_saved_state_goes_on_exactly():
    model = network()
    rule = ln.learning_rule(ln.Objective(TWO, **CONSTANTS), dt=0.3, curvature="hutchinson")
    optimizer = from_rule(model.named_parameters(), rule)
    trained(model, optimizer, 3)
    other = copy.deepcopy(model)
    twin = from_rule(list(other.named_parameters()), rule)
    twin.load_state_dict(optimizer.state_dict())
    assert torch.equal(trained(model, optimizer, 3), trained(other, twin, 3))


def test_a_belief_needs_a_diagonal():
    belief = ln.belief.Gaussian(noise=0.5, prior=2.0)
    objective = ln.Objective(TWO, **CONSTANTS)
    model = network()
    with pytest.raises(
        ValueError, match=r'matrix over all coordinates.*use curvature="hutchinson"'
    ):
        from_rule(model.parameters(), ln.learning_rule(objective, belief=belief))
    rule = ln.learning_rule(objective, belief=belief, curvature="diagonal")
    expected = by_hand(
        model,
        lambda H, t: type(rule)(0.1, FORMS["diagonal"](H, t), belief),
        3,
    )
    got = trained(model, from_rule(model.parameters(), rule), 3)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-11)


REFUSED = [
    ({"metric": ln.ConstantMetric([[2.0, 0.0], [0.0, 1.0]])}, {}, "metric .* for 2 .* have 13.*SquaredGradients"),
    ({"drift": ln.Rotation(1.0)}, {}, "drift .* for 2 coordinates.*Decay with one rate"),
    ({"drift": ln.Decay([0.1, 0.2])}, {"curvature": "squares"}, "decay .* for 2.*with one rate"),
    ({}, {"curvature": np.array([4.0, 1.0])}, 'curvature .* for 2 .*"hutchinson" or "lanczos"'),
    ({"terminal": TWO}, {"horizon": 3.0}, "terminal cost .* for 2 coordinates.*k=0"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "asked", "sentence"), REFUSED)
def test_what_does_not_fit_is_refused_at_construction(given, asked, sentence):
    rule = ln.learning_rule(ln.Objective(TWO, gamma=1.0, **given), dt=0.1, **asked)
    with pytest.raises(ValueError, match=sentence):
        from_rule(network().parameters(), rule)


def test_large_networks_are_told_which_form_will_do():
    wide = torch.nn.Linear(5000, 1)
    objective = ln.Objective(TWO, gamma=1.0)
    for form, other in (("exact", "lanczos"), ("diagonal", "hutchinson")):
        with pytest.raises(ValueError, match=f'have 5001: use curvature="{other}"'):
            from_rule(wide.parameters(), ln.learning_rule(objective, curvature=form))
        from_rule(wide.parameters(), ln.learning_rule(objective, curvature=other))
    drifting = ln.Objective(TWO, drift=lambda theta: [-x for x in theta])
    with pytest.raises(ValueError, match=r"drift Drift .* at most 1024 .* have 5001.*Decay"):
        from_rule(wide.parameters(), ln.learning_rule(drifting, curvature="squares"))


def test_uncertain_weights_are_told_what_will_do():
    objective = ln.belief.weight_uncertainty(lambda w: w[0] ** 2 + w[1] ** 2, names=["a", "b"])
    with pytest.raises(ValueError, match=r"loss of 2 weights.*'squares'.*WeightUncertainty"):
        from_rule(network().parameters(), ln.learning_rule(objective))
    model = network()
    optimizer = from_rule(model.parameters(), ln.learning_rule(objective, curvature="squares"))
    before = loss_of(model)().item()
    trained(model, optimizer, 5, closure=False)
    assert loss_of(model)().item() < before


def test_the_closure_is_asked_for_and_must_not_call_backward():
    model = network()
    optimizer = from_rule(model.parameters(), ln.learning_rule(ln.Objective(TWO), dt=0.1))
    before = flat(model)
    loss_of(model)().backward()
    with pytest.raises(ValueError, match=r"call step\(closure\).*does not call backward"):
        optimizer.step()

    def backward():
        loss = loss_of(model)()
        loss.backward()
        return loss

    with pytest.raises(ValueError, match="closure called backward"):
        optimizer.step(backward)
    assert torch.equal(flat(model), before)
    for flag in ({"differentiable": True},):
        with pytest.raises(ValueError, match="differentiable=True needs"):
            from_rule(model.parameters(), ln.learning_rule(ln.Objective(TWO)), **flag)


def test_optax_takes_the_same_steps():
    jax = pytest.importorskip("jax")
    from lossnav.optim.optax import from_rule as for_optax

    model = network()
    with jax.enable_x64(True):
        named = {
            str(i): jax.numpy.asarray(p.detach().numpy()) for i, p in enumerate(model.parameters())
        }

        def loss(params):
            hidden = jax.numpy.tanh(X.numpy() @ params["0"].T + params["1"])
            return ((hidden @ params["2"].T + params["3"] - Y.numpy()) ** 2).mean()

        for form in FORMS:
            rule = ln.learning_rule(ln.Objective(TWO, **CONSTANTS), dt=0.3, curvature=form)
            twin = copy.deepcopy(model)
            expected = trained(twin, from_rule(twin.parameters(), rule), 2)[-1]
            optimizer, params = for_optax(rule), named
            state = optimizer.init(params)
            update = optimizer.update
            if form != "lanczos":  # which reads values
                update = jax.jit(update, static_argnames="value_fn")
            for _ in range(2):
                grads = jax.grad(loss)(params)
                with pytest.raises(ValueError, match="value_fn=loss"):
                    optimizer.update(grads, state, params)
                step, state = update(grads, state, params, value_fn=loss)
                params = jax.tree.map(jax.numpy.add, params, step)
            got = np.concatenate([np.asarray(p).ravel() for p in params.values()])
            np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=1e-7)
        turning = ln.learning_rule(ln.Objective(TWO, drift=ln.Rotation(1.0)), dt=0.1)
        with pytest.raises(ValueError, match=r"drift .* for 2 coordinates"):
            for_optax(turning).init(named)


def test_the_last_product_completes_lanczos_in_single_precision():
    g = torch.tensor([1.0, 2.0, 3.0])
    h = torch.tensor([1.0, 2.0, 4.0])
    step, _ = LocalRule(
        math.inf, lambda theta: ln.solvers.curvature.Lanczos(lambda v: h * v, tol=1e-6)
    ).update(g, {}, g)
    torch.testing.assert_close(step, -g / h)


def test_a_rule_of_one_vector_keeps_what_bfloat16_parameters_lose():
    """Steps of 1e-4 from 1 are below half a unit in the last place of bfloat16."""
    parts = [torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16)) for _ in range(2)]
    rule = ln.learning_rule(ln.Objective(TWO, gamma=1e4), dt=0.1)
    optimizer = from_rule(parts, rule)
    for _ in range(200):
        for part in parts:
            part.grad = torch.full_like(part, 10.0)
        optimizer.step()
    step, _ = rule.update(np.full(2, 10.0), rule.init(np.ones(2)), np.ones(2))
    got = torch.cat(parts).detach().double().numpy()
    assert got == pytest.approx(1 + 200 * step, abs=2**-9 + 200 * 2**-20)
