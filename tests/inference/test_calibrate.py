"""calibrate: the likelihood against brute force, the loop against simulations, and the whole on models."""

import copy
import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from lossnav.inference import Estimate, calibrate, calibration
from lossnav.inference.calibration import choices, likelihood
from lossnav.inference.calibration.rehearsal import _probe, rehearse, rule_of
from lossnav.inference.log.recorder import samples_of
from lossnav.optim.torch import Navigator

# The belief: gradients from the model with known constants.


def wandering(rng, steps, coordinates, a, ratio, *, common=0.0):
    """Gradients and noise variances of the belief; ``common`` noise is shared by coordinates."""
    R = np.exp(rng.normal(size=coordinates))
    m = np.sqrt(R * ratio / (1 - a * a)) * rng.normal(size=coordinates)
    seen = []
    for _ in range(steps):
        n, w = rng.normal(size=(2, coordinates))
        if common:
            n = np.sqrt(1 - common) * n + np.sqrt(common) * rng.normal()
            w = np.sqrt(1 - common) * w + np.sqrt(common) * rng.normal()
        seen.append(m + np.sqrt(R) * n)
        m = a * m + np.sqrt(ratio * R) * w
    return np.array(seen), R


@pytest.mark.parametrize(("a", "ratio"), [(0.85, 0.07), (0.999, 1e-4), (0.3, 5.0)])
def test_the_filter_has_the_likelihood_of_one_large_normal_law(a, ratio):
    """Against the density of all gradients at once, which knows of no filter."""
    rng = np.random.default_rng(0)
    T, R = 60, np.array([0.5, 2.0])
    g = rng.normal(size=(T, 2))
    t = np.arange(T)
    law = ratio / (1 - a * a) * a ** np.abs(t[:, None] - t) + np.eye(T)
    expected = sum(multivariate_normal.logpdf(g[:, i], cov=R[i] * law) for i in range(2))
    e, F = likelihood.innovations(g, a, ratio)
    found = norm.logpdf(e, scale=np.sqrt(F[:, None] * R)).sum()
    assert found == pytest.approx(expected, rel=1e-11)


def test_the_steady_gain_is_where_the_filter_settles():
    for a, ratio in ((1.0, 0.01), (0.9, 0.3), (0.2, 4.0)):
        P = 1.0
        for _ in range(10_000):
            before = a * a * P + ratio
            K = before / (before + 1)
            P = K
        assert likelihood.steady_gain(a, ratio) == pytest.approx(K, rel=1e-12)


@pytest.mark.parametrize("common", [0.0, 0.3])
def test_intervals_of_the_belief_hold_the_truth(common):
    """Also where coordinates share their noise, as those of one batch do."""
    rng = np.random.default_rng(1)
    a, ratio, repeats = 0.9, 0.1, 30
    beta1 = a * (1 - likelihood.steady_gain(a, ratio))
    held = np.zeros(3)
    for _ in range(repeats):
        g, _ = wandering(rng, 250, 12, a, ratio, common=common)
        found = likelihood.fit(g)
        held += [
            found.alpha.holds(-np.log(a)), found.ratio.holds(ratio), found.beta1.holds(beta1)
        ]  # fmt: skip
    assert (held >= 0.85 * repeats).all(), held
    assert found.alpha.high / found.alpha.low < 6  # and say something


def test_the_noise_of_each_coordinate_is_found():
    g, R = wandering(np.random.default_rng(2), 400, 30, 0.9, 0.05)
    assert likelihood.fit(g).noise == pytest.approx(R, rel=0.35)


def test_gradients_that_tell_nothing_are_refused():
    with pytest.raises(ValueError, match="cannot show a memory"):
        likelihood.fit(np.zeros((50, 3)))
    with pytest.raises(ValueError, match="at least 8 gradients"):
        likelihood.fit(np.ones((3, 3)))


# The loop: our own moves.


def loop(H, noise, push, lr, beta, nesterov, steps, seed=0):
    """Gradients and losses of a noisy quadratic, step by step, many copies at once."""
    rng = np.random.default_rng(seed)
    copies, n = 40, len(H)
    x, m = np.zeros((2, copies, n))
    root = np.linalg.cholesky(noise)
    losses, grads = [], []
    for _ in range(steps):
        g = x @ H + rng.normal(size=(copies, n)) @ root.T
        losses.append(0.5 * np.mean(np.sum((x @ H) * x, axis=1)))
        grads.append(g)
        m = beta * m + (1 - beta) * g
        x = x - lr * (beta * m + (1 - beta) * g if nesterov else m)
        x = x + push * rng.normal(size=(copies, n))
    return np.array(grads), np.array(losses)


@pytest.fixture(scope="module")
def quadratic():
    """Curvatures over three decades in turned axes, with noise in proportion and a moving minimum."""
    rng = np.random.default_rng(3)
    turn, _ = np.linalg.qr(rng.normal(size=(12, 12)))
    values = np.geomspace(0.02, 12.0, 12)
    H = turn * values @ turn.T
    return H, H + 0.05 * np.eye(12), 0.02


@pytest.mark.parametrize("nesterov", [False, True])
def test_correlations_of_the_loop_are_those_of_a_simulation(quadratic, nesterov):
    H, noise, push = quadratic
    lr, beta = 0.3, 0.8
    grads, _ = loop(H, noise, push, lr, beta, nesterov, 1500)
    grads = grads[500:]
    measured = [np.sum(grads[: len(grads) - k] * grads[k:]) / (len(grads) - k) for k in range(12)]
    values, vectors = np.linalg.eigh(H)
    of_noise, of_push = choices.correlations(lr * values, beta, nesterov, 12)
    R = np.diag(vectors.T @ noise @ vectors)
    Q = (push * values) ** 2  # a push of the minimum, in units of the gradient
    expected = 40 * (R @ of_noise + Q @ of_push)
    assert measured == pytest.approx(expected, abs=0.02 * expected[0])


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_limit_of_the_loop(nesterov):
    """Against the eigenvalues on both sides of it."""
    for beta in (0.0, 0.3, 0.9, 0.99):
        edge = choices.limit(beta, nesterov)
        for z, stable in ((0.999 * edge, True), (1.001 * edge, False)):
            A, _ = choices.loop(np.array([z]), beta, nesterov)
            assert (np.abs(np.linalg.eigvals(A[0])).max() < 1) == stable


def test_other_memories_lose_what_a_simulation_of_them_loses(quadratic):
    """Correlations under one memory; losses under others, each run for itself."""
    H, noise, push = quadratic
    lr, used = 0.3, 0.9
    grads, _ = loop(H, noise, push, lr, used, False, 2500)
    flat = grads[500:].reshape(2000, -1)
    C = np.array(
        [np.mean(np.sum(flat[: 2000 - k] * flat[k:], axis=1)) for k in range(choices.LAGS)]
    )
    mixture = choices.Mixture.fit(C, used, False)
    assert mixture.residual < 0.05
    settings = [(0.6, False), (0.8, False), (0.9, False), (0.97, False), (0.8, True), (0.9, True)]
    told = np.array([mixture.lost(*s) for s in settings]) * C[0] / 40 * lr / 2
    seen = [loop(H, noise, push, lr, *s, 2500, seed=4)[1][500:].mean() for s in settings]
    assert told - told[2] == pytest.approx(np.array(seen) - seen[2], abs=0.12 * np.ptp(seen))
    assert np.argmin(told) == np.argmin(seen)


def test_the_choice_is_the_memory_that_loses_least(quadratic):
    H, noise, push = quadratic
    lr, used = 0.25, 0.95
    grads, _ = loop(H, noise, push, lr, used, False, 900)
    flat = grads[300:].reshape(600, -1)
    found = choices.choose_beta1(flat, np.ones(flat.shape[1]), used)
    tried = {
        (b, s): loop(H, noise, push, lr, b, s, 1500, seed=5)[1][300:].mean()
        for b in (0.6, 0.7, 0.8, 0.9, 0.95)
        for s in (False, True)
    }
    mine = loop(H, noise, push, lr, found.beta1, found.nesterov, 1500, seed=5)[1][300:].mean()
    own, best = tried[(0.95, False)], min(tried.values())
    assert found.sure
    assert mine < own
    assert mine - best < 0.2 * (own - best)


def test_what_is_best_already_is_kept(quadratic):
    H, noise, push = quadratic
    first = choices.choose_beta1(
        loop(H, noise, push, 0.3, 0.95, False, 900)[0][300:].reshape(600, -1), np.ones(480), 0.95
    )
    g = loop(H, noise, push, 0.3, first.best.value, first.nesterov, 900)[0][300:].reshape(600, -1)
    again = choices.choose_beta1(g, np.ones(480), first.best.value, first.nesterov)
    assert again.nesterov == first.nesterov
    assert abs(np.log((1 - again.beta1) / (1 - first.best.value))) < 0.7


# Curvature against variance.


@pytest.mark.parametrize(("power", "gamma"), [(1.0, 0.0), (0.5, None), (None, 0.3)])
def test_the_law_of_curvature_is_found(power, gamma):
    rng = np.random.default_rng(6)
    v = np.exp(rng.uniform(-8, 2, size=1500))
    truth = v**power if power else (gamma + np.sqrt(gamma**2 + v)) ** 2
    h = 7.0 * truth + 20 * np.sqrt(truth) * rng.normal(size=(24, 1500))
    weight = rng.uniform(1, 5, size=1500)
    found = choices.fit_law(h, v, weight)
    assert found.kappa.holds(7.0 * (weight @ truth) / (weight @ v))
    if power:
        assert found.exponent.holds(power)
        assert found.exponent.high - found.exponent.low < 0.4
    if gamma is not None:
        assert found.gamma.holds(gamma)
        assert (found.gamma.low > 0) == (gamma > 0)


@pytest.mark.parametrize("best", [0.9, 0.99])
def test_the_memory_that_follows_curvature_is_found(best):
    """Variances that change at a known pace, and a curvature that is their average at that pace."""
    rng = np.random.default_rng(7)
    T, n = 300, 1500
    level = np.cumsum(0.1 * rng.normal(size=(T, n)), axis=0)
    g = np.exp(level / 2) * rng.normal(size=(T, n))
    share = best ** np.arange(T)[::-1]
    v = share @ g**2 / share.sum()
    h = 3.0 * v + 3.0 * np.sqrt(v) * rng.normal(size=(24, n))
    found = choices.choose_beta2(g, h, np.ones(n), 0.999)
    assert found.sure
    assert found.best.low <= best <= found.best.high
    assert abs(np.log((1 - found.best.value) / (1 - best))) < 0.5


def test_probes_are_the_diagonal_of_the_hessian():
    """The mean of many, against the whole Hessian by reverse mode twice."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x, y = torch.randn(20, 3), torch.randn(20, 1)

    def loss(model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    samples = samples_of(torch.optim.SGD(model.parameters()), 100, np.random.default_rng(0))
    probes = np.array([_probe(model, samples, loss, (x, y)) for _ in range(300)])
    names = [name for name, _ in model.named_parameters()]

    def value(*params):
        made = torch.func.functional_call(model, dict(zip(names, params, strict=True)), (x,))
        return (made - y).square().mean()

    params = tuple(p.detach() for p in model.parameters())
    whole = torch.autograd.functional.hessian(value, params)
    diagonal = np.concatenate(
        [torch.diagonal(whole[i][i].reshape(p.numel(), -1)).numpy() for i, p in enumerate(params)]
    )
    error = probes.std(axis=0) / np.sqrt(len(probes))
    assert (np.abs(probes.mean(axis=0) - diagonal) < 4.5 * error + 1e-6).all()
    assert np.corrcoef(probes.mean(axis=0), diagonal)[0, 1] > 0.9


# The whole.


def logistic(batch_size, seed=0):
    """Classes drawn from the model itself, so that the Hessian is the covariance of one gradient."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(6000, 10, generator=rng) * torch.logspace(-1, 0.3, 10)
    weights = torch.randn(10, 1, generator=rng)
    y = (torch.rand(6000, 1, generator=rng) < torch.sigmoid(x @ weights)).float()
    model = torch.nn.Linear(10, 1)
    with torch.no_grad():
        model.weight.copy_(weights.T)
        model.bias.zero_()
    batches = list(zip(x.split(batch_size), y.split(batch_size), strict=True))

    def loss(model, batch):
        return torch.nn.functional.binary_cross_entropy_with_logits(model(batch[0]), batch[1])

    return model, loss, batches


@pytest.mark.parametrize("batch_size", [10, 40])
def test_kappa_of_a_likelihood_is_the_size_of_a_batch(batch_size):
    """The information identity: Hessian = batch size times the covariance of a batch's gradient."""
    model, loss, batches = logistic(batch_size)
    still = lambda params: torch.optim.Adam(params, lr=1e-6)  # noqa: E731
    found = calibrate(model, loss, batches, batches=300, optimizer=still)
    assert found.kappa.value == pytest.approx(batch_size, rel=0.25)
    assert found.kappa.low < 1.1 * batch_size
    assert found.kappa.high > 0.9 * batch_size
    assert found.exponent.holds(1.0)
    assert found.gamma.low == 0
    assert found.settings["gamma"] == 0


class Noisy(torch.nn.Module):
    """Batch normalisation and dropout: buffers, random numbers, and a mode."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


def squared(model, batch):
    return (model(batch) - 1).square().mean()


class Drawn:
    """Batches in an order that uses up all three kinds of random numbers."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        some = list(self.batches)
        random.shuffle(some)
        np.random.shuffle(order := list(range(len(some))))  # noqa: NPY002
        return (some[order[i]] for i in torch.randperm(len(some)))


def test_the_model_and_the_generators_stay_as_they_were():
    torch.manual_seed(0)
    model = Noisy()
    model.layers[2].eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = Drawn([torch.randn(16, 5) for _ in range(10)])
    squared(model, batches.batches[0]).backward()
    optimizer.step()
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    grads = [p.grad.clone() for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    found = calibrate(model, squared, batches, batches=60, optimizer=optimizer)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()  # noqa: NPY002
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    for was, now in zip(state, (model.state_dict(), optimizer.state_dict()), strict=True):
        assert str(was) == str(now)
    assert found.used["name"] == "AdamW"
    assert found.used["lr"] == 0.01
    again = calibrate(model, squared, batches, batches=60, optimizer=optimizer)
    assert again == found  # the seed decides


def test_settings_go_into_the_optimizer_and_reports_say_them():
    model, loss, batches = logistic(20)
    found = calibrate(model, loss, batches, batches=120, optimizer=lambda p: Navigator(p, lr=0.01))
    Navigator(model.parameters(), lr=0.01, **found.settings)
    text = found.report()
    assert f"betas={found.settings['betas']!r}" in text
    assert "you use 0.9" in text
    plain = json.loads(found.report("json"))
    assert plain["settings"]["betas"] == list(found.settings["betas"])
    assert set(plain["alpha"]) == {"value", "low", "high"}
    assert len(found.tensors) == 2
    with pytest.raises(ValueError, match="There is no form of the report named 'html'"):
        found.report("html")


def test_momentum_is_calibrated_at_the_same_step():
    model, loss, batches = logistic(20)
    found = calibrate(
        model, loss, batches, batches=200,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.97),
    )  # fmt: skip
    assert found.beta2 is None
    new = found.settings
    assert new["lr"] / (1 - new["momentum"]) == pytest.approx(0.05 / 0.03)
    torch.optim.SGD(model.parameters(), **new)


def test_refusals():
    model, loss, batches = logistic(20)
    with pytest.raises(TypeError, match="model must be a torch module, but a function was given"):
        calibrate(loss, loss, batches)
    with pytest.raises(ValueError, match="batches is 5, but memories show only in more"):
        calibrate(model, loss, batches, batches=5)
    with pytest.raises(ValueError, match="ended after 7 batches and cannot start again"):
        calibrate(model, loss, iter(batches[:7]), batches=50)
    with pytest.raises(ValueError, match="must use the model it is given"):
        calibrate(model, lambda _, batch: loss(model, batch), batches, batches=50)
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(TypeError, match="must return a tensor of one number"):
        calibrate(model, lambda model, batch: model(batch[0]), batches)
    with pytest.raises(ValueError, match="has neither betas nor momentum"):
        calibrate(model, loss, batches, optimizer=torch.optim.Adagrad)
    with pytest.raises(TypeError, match="optimizer must be an optimizer of PyTorch"):
        calibrate(model, loss, batches, optimizer=3)
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), momentum=0.9)
    with pytest.raises(ValueError, match="parameters that the model lacks"):
        calibrate(model, loss, batches, optimizer=other)
    with pytest.raises(FloatingPointError, match="the copy diverged"):
        calibrate(
            model, lambda m, b: (m(b[0]) ** 4).mean(), batches,
            optimizer=lambda p: torch.optim.SGD(p, lr=1e3, momentum=0.9),
        )  # fmt: skip
    with pytest.raises(ValueError, match="All gradients were zero"):
        calibrate(model, lambda m, b: 0 * m(b[0]).sum(), batches, batches=40)


class Once(torch.autograd.Function):
    """A square that cannot be differentiated twice."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


def test_without_a_second_derivative_the_rest_is_found():
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1)
    batches = [torch.randn(16, 5) for _ in range(10)]
    found = calibrate(model, lambda m, x: Once.apply(m(x) - 1).mean(), batches, batches=60)
    assert found.kappa is None
    assert found.beta2 is None
    assert found.settings["betas"][1] == Navigator(model.parameters()).defaults["betas"][1]
    assert any("cannot be differentiated twice" in note for note in found.notes)
    assert "Curvature was not measured" in found.report()


def test_a_rehearsal_trains_as_the_optimizer_would():
    """Gradients against the same loop written out: those after a step show the step."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    batches = [torch.randn(8, 3) for _ in range(40)]
    seen = rehearse(
        model, squared, batches, batches=40, optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
        probes=0, seed=0,
    )  # fmt: skip
    twin = copy.deepcopy(model)
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.01)
    grads = []
    for batch in batches:
        optimizer.zero_grad()
        squared(twin, batch).backward()
        grads.append(torch.cat([p.grad.flatten() for p in twin.parameters()]).numpy())
        optimizer.step()
    assert seen.grad == pytest.approx(np.array(grads), rel=1e-6, abs=1e-9)
    assert seen.weight.tolist() == [1.0] * 8


@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_the_loop_counts_saturation(shared):
    """Against the steps that Navigator makes after signs of one size for each coordinate."""
    sizes = torch.tensor([0.1, 1.0, 3.0, 0.5], dtype=torch.float64)
    theta = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = Navigator([theta], lr=0.1, betas=(0.0, 0.9), gamma=0.2, shared=shared)
    for _ in range(3):
        before, theta.grad = theta.detach().clone(), sizes.clone()
        optimizer.step()
    moved = (before - theta.detach()).numpy()
    v, tensor = (sizes**2).numpy(), np.zeros(4, dtype=int)
    D = calibration._divisor(rule_of(optimizer), v, tensor)
    assert moved == pytest.approx(0.1 * sizes.numpy() / D, rel=1e-6)


def test_a_discount_is_proposed_with_its_learning_rate():
    v = np.array([1.0, 1.0])
    rule = {"lr": 0.1, "beta2": 0.9, "gamma": 0.0, "saturation": 0.0}
    seen = SimpleNamespace(rule=rule, weight=np.ones(2), tensor=np.zeros(2, dtype=int))
    note = calibration._with_discount(seen, v, Estimate(0.75, 0.5, 1.0))
    assert "gamma = 0.75" in note
    assert "lr = 0.2 " in note  # D = 0.75 + sqrt(0.75**2 + 1) = 2
    assert not calibration._with_discount(seen, v, Estimate(0.75, 0.0, 1.0))


def test_correlations_are_shown_for_a_unit_of_power():
    """Measured beside fitted, in the same unit: ten times the gradients change neither."""
    g = np.random.default_rng(0).standard_normal((400, 6))
    found, large = (choices.choose_beta1(x * g, np.ones(6), 0.9) for x in (1.0, 10.0))
    assert found.measured[0] == pytest.approx(1.0)
    assert large.measured == pytest.approx(found.measured)
    gap = np.linalg.norm(found.fitted - found.measured) / np.linalg.norm(found.measured)
    assert gap == pytest.approx(found.residual)
