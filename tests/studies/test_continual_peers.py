"""The rivals of weight uncertainty against their published formulas, in plain NumPy loops."""

import importlib.util
import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

FOLDER = Path(__file__).parents[2] / "benchmarks" / "continual"
SIZES = (3, 5, 4, 2)


def loaded(name):
    """A module of the benchmark, under a name that no other folder has."""
    spec = importlib.util.spec_from_file_location(f"continual_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


peers, unit_peers = loaded("peers"), loaded("unit_peers")


class Net:
    """Full layers with ReLU and a squared error, without torch: the gradient by the chain rule."""

    def __init__(self, model):
        layers = [layer for layer in model if isinstance(layer, nn.Linear)]
        self.theta = [
            p.detach().numpy().copy() for layer in layers for p in (layer.weight, layer.bias)
        ]

    def outputs(self, x):
        """What goes into each layer, and what comes out at the end."""
        found = [x]
        for i in range(0, len(self.theta), 2):
            z = found[-1] @ self.theta[i].T + self.theta[i + 1]
            found.append(np.maximum(z, 0) if i + 2 < len(self.theta) else z)
        return found

    def gradient(self, x, y):
        found = self.outputs(x)
        slope = 2 * (found[-1] - y) / y.size
        grads = []
        for i in range(len(self.theta) - 2, -1, -2):
            a = found[i // 2]
            grads = [slope.T @ a, slope.sum(0), *grads]
            slope = (slope @ self.theta[i]) * (a > 0)
        return grads


def a_model(seed=0):
    torch.manual_seed(seed)
    layers = []
    for before, after in itertools.pairwise(SIZES):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def data(steps, batch=6, seed=1):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(batch, 3)), rng.normal(size=(batch, 2))) for _ in range(steps)]


def trained(make, examples, seed=7):
    """The parameters after each step of a rule in torch."""
    model = a_model()
    optimizer = make(model.parameters())
    if hasattr(optimizer, "watch"):
        optimizer.watch(model, "mse")
    torch.manual_seed(seed)
    found = []
    for x, y in examples:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = (model(torch.tensor(x)) - torch.tensor(y)).square().mean()
            loss.backward()
            return loss

        if isinstance(optimizer, peers.VariationalNewton):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        with torch.no_grad():  # a look at the network in between is no training
            model(torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator()))
        found.append([p.detach().numpy().copy() for p in model.parameters()])
    return found


def normal(like):
    """Noise as the rules draw it: for all parameters at once, from torch's generator."""
    flat = torch.randn(sum(a.size for a in like), dtype=torch.float64).numpy()
    parts = np.split(flat, np.cumsum([a.size for a in like])[:-1])
    return [part.reshape(a.shape) for part, a in zip(parts, like, strict=True)]


def each(theta):
    """Every single parameter: which array, and where in it."""
    return [(i, at) for i, a in enumerate(theta) for at in np.ndindex(a.shape)]


def agree(found, expected):
    for step, (ours, byhand) in enumerate(zip(found, expected, strict=True)):
        for a, b in zip(ours, byhand, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12, err_msg=f"step {step}")


def expected(examples, rule, seed=7):
    """Parameters after each step of a rule ``rule(t, net, x, y)`` that changes ``net.theta``."""
    net, found = Net(a_model()), []
    torch.manual_seed(seed)
    for t, (x, y) in enumerate(examples, start=1):
        rule(t, net, x, y)
        found.append([a.copy() for a in net.theta])
    return found


def test_the_reference_has_the_right_gradient():
    model, ((x, y),) = a_model(), data(1)
    (model(torch.tensor(x)) - torch.tensor(y)).square().mean().backward()
    for p, g in zip(model.parameters(), Net(model).gradient(x, y), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), g, rtol=1e-12, atol=1e-15)


def test_parameters_stay_those_of_the_model():
    model = a_model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = peers.L2Init(model.parameters(), 0.1)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    optimizer.theta.fill_(2.0)
    assert all(bool((p == 2.0).all()) for p in model.parameters())


def test_l2_init():
    """Kumar et al.: descent on L + lambda |theta - theta_0|^2."""
    examples, start = data(12), Net(a_model()).theta

    def rule(t, net, x, y):
        for i, g in enumerate(net.gradient(x, y)):
            net.theta[i] = net.theta[i] - 0.1 * (g + 2 * 0.3 * (net.theta[i] - start[i]))

    agree(trained(lambda p: peers.L2Init(p, 0.1, strength=0.3), examples), expected(examples, rule))


def test_l2_init_with_adam():
    examples, start = data(12), Net(a_model()).theta
    m, v = ([np.zeros_like(a) for a in start] for _ in range(2))

    def rule(t, net, x, y):
        for i, g in enumerate(net.gradient(x, y)):
            g = g + 2 * 0.3 * (net.theta[i] - start[i])
            m[i] = 0.8 * m[i] + 0.2 * g
            v[i] = 0.9 * v[i] + 0.1 * g**2
            net.theta[i] -= 0.05 * (m[i] / (1 - 0.8**t)) / (np.sqrt(v[i] / (1 - 0.9**t)) + 1e-6)

    def make(p):
        return peers.L2InitAdam(p, 0.05, strength=0.3, betas=(0.8, 0.9), eps=1e-6)

    agree(trained(make, examples), expected(examples, rule))


def test_without_strength_it_is_adam():
    examples = data(10)
    ours = trained(lambda p: peers.L2InitAdam(p, 0.03, strength=0.0), examples)
    agree(ours, trained(lambda p: torch.optim.Adam(p, 0.03), examples))


def test_shrink_and_perturb():
    """Ash and Adams: theta <- lambda theta + p, here after each step of gradient descent."""
    examples = data(12)

    def rule(t, net, x, y):
        grads, noise = net.gradient(x, y), normal(net.theta)
        for i, at in each(net.theta):
            moved = net.theta[i][at] - 0.1 * grads[i][at]
            net.theta[i][at] = (1 - 0.02) * moved + 0.03 * noise[i][at]

    def make(p):
        return peers.ShrinkPerturb(p, 0.1, shrink=0.02, noise=0.03)

    agree(trained(make, examples), expected(examples, rule))


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_upgd(decay):
    """Elsayed and Mahmood, Alg. 1, weight by weight."""
    examples = data(12)
    utility = [np.zeros_like(a) for a in Net(a_model()).theta]

    def rule(t, net, x, y):
        grads, noise = net.gradient(x, y), normal(net.theta)
        largest = -math.inf
        for i, at in each(net.theta):
            utility[i][at] = 0.9 * utility[i][at] - 0.1 * grads[i][at] * net.theta[i][at]
            largest = max(largest, utility[i][at])
        for i, at in each(net.theta):
            corrected = utility[i][at] / (1 - 0.9**t)
            useful = 1 / (1 + math.exp(-corrected / largest))
            push = (grads[i][at] + 0.2 * noise[i][at]) * (1 - useful)
            net.theta[i][at] = (1 - 0.1 * decay) * net.theta[i][at] - 0.1 * push

    def make(p):
        return peers.UPGD(p, 0.1, noise=0.2, beta=0.9, decay=decay)

    agree(trained(make, examples), expected(examples, rule))


def test_upgd_without_any_utility():
    """A network without gradients at first must not be divided by its largest utility."""
    theta = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = peers.UPGD([theta], 0.1, noise=0.0)
    theta.grad = torch.zeros(2)
    optimizer.step()
    assert theta.tolist() == [1.0, 2.0]


def test_variational_newton():
    """Shen et al., Alg. 1; the gradient is that at a draw of the weights."""
    examples = data(12)
    held, h = ([np.full_like(a, begin) for a in Net(a_model()).theta] for begin in (0.0, 0.7))

    def rule(t, net, x, y):
        noise, mean = normal(net.theta), [a.copy() for a in net.theta]
        sigma = [1 / np.sqrt(50.0 * (a + 0.1)) for a in h]
        net.theta = [m + s * e for m, s, e in zip(mean, sigma, noise, strict=True)]
        grads, drawn = net.gradient(x, y), net.theta
        net.theta = mean
        for i, at in each(mean):
            seen = grads[i][at] * (drawn[i][at] - mean[i][at]) / sigma[i][at] ** 2
            held[i][at] = 0.8 * held[i][at] + 0.2 * grads[i][at]
            off = 0.5 * 0.3**2 * (h[i][at] - seen) ** 2 / (h[i][at] + 0.1)
            h[i][at] = 0.7 * h[i][at] + 0.3 * seen + off
            pulled = held[i][at] / (1 - 0.8**t) + 0.1 * mean[i][at]
            mean[i][at] -= 0.05 * pulled / (h[i][at] + 0.1)

    def make(p):
        return peers.VariationalNewton(p, 0.05, size=50.0, begin=0.7, betas=(0.8, 0.7), decay=0.1)

    agree(trained(make, examples), expected(examples, rule))
    assert min(a.min() for a in h) > -0.1  # Alg. 1 keeps the precision positive


def test_variational_newton_asks_at_the_mean_first():
    theta = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer, seen = peers.VariationalNewton([theta], 0.1, size=10.0), []

    def closure():
        optimizer.zero_grad()
        seen.append(theta.detach().clone())
        loss = theta.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 5.0
    assert torch.equal(seen[0], torch.tensor([1.0, 2.0]))
    assert len(seen) == 2
    assert not torch.equal(seen[1], seen[0])


def test_hare_and_tortoise():
    """Lee et al.: the tortoise is a slow mean of the hare, which Adam moves and which returns to it."""
    examples, start = data(13), Net(a_model()).theta
    m, v = ([np.zeros_like(a) for a in start] for _ in range(2))
    tortoise = [a.copy() for a in start]

    def rule(t, net, x, y):
        for i, g in enumerate(net.gradient(x, y)):
            m[i] = 0.8 * m[i] + 0.2 * g
            v[i] = 0.9 * v[i] + 0.1 * g**2
            net.theta[i] -= 0.05 * (m[i] / (1 - 0.8**t)) / (np.sqrt(v[i] / (1 - 0.9**t)) + 1e-6)
            tortoise[i] = 0.7 * tortoise[i] + 0.3 * net.theta[i]
            if t % 4 == 0:
                net.theta[i] = tortoise[i].copy()

    def make(p):
        return peers.HareTortoise(p, 0.05, every=4, decay=0.7, betas=(0.8, 0.9), eps=1e-6)

    agree(trained(make, examples), expected(examples, rule))


class Unmoved(peers.SpectralAdam):
    """Keeps the gradient that Adam would get, and leaves the weights."""

    def adapt(self, g, lr, betas, eps):
        self.seen = g.clone()


def test_spectral_regularization():
    """Lewandowski et al.: the gradient of the penalty by autograd through exact singular values."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 5), nn.LayerNorm(5), nn.Linear(5, 2)
    ).double()
    with torch.no_grad():
        for p in model.parameters():  # the scale of the normalization stays one at first
            p += 0.1 * torch.randn_like(p) if p is not model[3].weight else 0.0
    optimizer = Unmoved(model.parameters(), 0.1, strength=0.3)
    with torch.no_grad():
        model[3].weight += 0.5
    penalty = 0.0
    for p in model.parameters():
        if p.ndim > 1:
            penalty += (torch.linalg.svdvals(p.flatten(1))[0] ** 2 - 1) ** 2
        else:
            penalty += (p - float(p is model[3].weight)).square().sum() ** 2
    model(torch.randn(4, 2, 3, 3, dtype=torch.float64)).square().mean().backward()
    wanted = []
    for p, g in zip(
        model.parameters(), torch.autograd.grad(penalty, model.parameters()), strict=True
    ):
        wanted.append((p.grad + 0.3 * g).flatten())
    for _ in range(300):  # one power iteration each
        optimizer.step()
    torch.testing.assert_close(optimizer.seen, torch.cat(wanted), rtol=1e-6, atol=1e-9)


def test_one_power_iteration_for_each_step():
    """From the vector of the step before: right = W^T left, left = W right, both of length one."""
    torch.manual_seed(0)
    W = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    optimizer = Unmoved([W], 0.1, strength=1.0)
    left, M = optimizer.rows[0].numpy().copy(), W.detach().numpy().copy()
    for _ in range(3):
        W.grad = torch.zeros_like(W)
        optimizer.step()
        right = M.T @ left / np.linalg.norm(M.T @ left)
        sigma = np.linalg.norm(M @ right)
        left = M @ right / sigma
        slope = 2 * (sigma**2 - 1) * 2 * sigma * np.outer(left, right)
        np.testing.assert_allclose(optimizer.seen.reshape(4, 3).numpy(), slope, rtol=1e-12)


def test_spectral_regularization_without_strength_is_adam():
    examples = data(10)
    ours = trained(lambda p: peers.SpectralAdam(p, 0.03, strength=0.0), examples)
    agree(ours, trained(lambda p: torch.optim.Adam(p, 0.03), examples))


def test_layer_normalization_with_weight_decay():
    """AdamW of PyTorch on the same network with layers that normalize, and no others."""
    examples, model = data(8), a_model()
    ours = trained(lambda p: peers.LayerNormAdamW(p, 0.05, weight_decay=0.3), examples)
    first, relu, second, _, third = model
    norms = [nn.LayerNorm(n, elementwise_affine=False).double() for n in SIZES[1:3]]
    normed = nn.Sequential(first, norms[0], relu, second, norms[1], relu, third)
    optimizer = torch.optim.AdamW(normed.parameters(), lr=0.05, weight_decay=0.3)
    byhand = []
    for x, y in examples:
        optimizer.zero_grad()
        (normed(torch.tensor(x)) - torch.tensor(y)).square().mean().backward()
        optimizer.step()
        byhand.append([p.detach().numpy().copy() for p in normed.parameters()])
    agree(ours, byhand)
    with pytest.raises(RuntimeError, match="watch"):
        peers.LayerNormAdamW(model.parameters(), 0.1).step()


def redraw(net, layer, units):
    """New units: their weights, bias, and what leaves them."""
    w, b, after = (net.theta[2 * layer + n] for n in (0, 1, 2))
    bound = math.sqrt(6 / w.shape[1])
    new = torch.empty(len(units), w.shape[1], dtype=torch.float64).uniform_(-bound, bound).numpy()
    for row, unit in zip(new, units, strict=True):
        w[unit], b[unit] = row, 0.0
        after[:, unit] = 0.0


@pytest.mark.parametrize("utility", ["contribution", "adaptable"])
def test_continual_backprop(utility):
    """Dohare et al. 2024 (Alg. 1) and 2021, unit by unit; replacements at this rate come often."""
    examples, rate, maturity, decay = data(60), 0.06, 8, 0.9
    hidden = [SIZES[1], SIZES[2]]
    u, mean, age = ([[0.0] * n for n in hidden] for _ in range(3))
    due, replaced = [0.0, 0.0], []

    def rule(t, net, x, y):
        seen = net.outputs(x)
        for i, g in enumerate(net.gradient(x, y)):
            net.theta[i] = net.theta[i] - 0.05 * g
        for layer, width in enumerate(hidden):
            h, w, after = seen[layer + 1], net.theta[2 * layer], net.theta[2 * layer + 2]
            value = [0.0] * width
            for i in range(width):
                age[layer][i] += 1
                correction = 1 - decay ** age[layer][i]
                leaving = sum(abs(a) for a in after[:, i])
                mean[layer][i] = decay * mean[layer][i] + (1 - decay) * np.mean(h[:, i])
                if utility == "contribution":
                    now = np.mean([abs(a) for a in h[:, i]]) * leaving
                else:
                    off = np.mean([abs(a - mean[layer][i] / correction) for a in h[:, i]])
                    now = off * leaving / sum(abs(a) for a in w[i])
                u[layer][i] = decay * u[layer][i] + (1 - decay) * now
                value[i] = u[layer][i] if utility == "contribution" else u[layer][i] / correction
            old = [i for i in range(width) if age[layer][i] > maturity]
            due[layer] += rate * len(old)
            while due[layer] >= 1:
                due[layer] -= 1
                worst = min(old, key=lambda i: value[i])
                if utility == "adaptable":
                    kept = mean[layer][worst] / (1 - decay ** age[layer][worst])
                    net.theta[2 * layer + 3] = net.theta[2 * layer + 3] + after[:, worst] * kept
                redraw(net, layer, [worst])
                u[layer][worst] = mean[layer][worst] = age[layer][worst] = 0.0
                replaced.append((layer, worst))

    def make(p):
        return unit_peers.ContinualBackprop(
            p, 0.05, rate=rate, maturity=maturity, decay=decay, utility=utility
        )

    byhand = expected(examples, rule)
    agree(trained(make, examples), byhand)
    assert {layer for layer, _ in replaced} == {0, 1}
    assert len(replaced) > 6


def test_continual_backprop_leaves_what_the_network_says():
    """A unit that goes leaves no trace: at its last step the rest is gradient descent."""
    examples = data(40)
    never = trained(lambda p: unit_peers.ContinualBackprop(p, 0.05, rate=0.0), examples)
    agree(never, trained(lambda p: torch.optim.SGD(p, 0.05), examples))


def test_redo():
    """Sokar et al.: units whose share of their layer's activity is at most tau, every few steps."""
    examples, replaced = data(40), []
    seen = [[], []]

    def rule(t, net, x, y):
        outputs = net.outputs(x)
        for i, g in enumerate(net.gradient(x, y)):
            net.theta[i] = net.theta[i] - 0.05 * g
        for layer in (0, 1):
            seen[layer].append(outputs[layer + 1])
            if t % 10 == 0:
                h = np.abs(np.concatenate(seen[layer]))
                seen[layer].clear()
                scores = [h[:, i].mean() / h.mean() for i in range(h.shape[1])]
                dormant = [i for i, score in enumerate(scores) if score <= 0.6]
                if dormant:
                    redraw(net, layer, dormant)
                    replaced.append((layer, len(dormant)))

    byhand = expected(examples, rule)
    agree(trained(lambda p: unit_peers.ReDo(p, 0.05, every=10, threshold=0.6), examples), byhand)
    assert {layer for layer, _ in replaced} == {0, 1}
    assert max(number for _, number in replaced) > 1


def test_self_normalized_resets():
    """Farias and Jozefiak, as their code does it, unit by unit, with lists of times between firings."""
    examples, eta, every, longest, replaced, thresholds = data(150, batch=1), 0.3, 12, 9, [], set()
    hidden = [SIZES[1], SIZES[2]]
    age, limit = ([[n] * width for width in hidden] for n in (0, longest))
    times = [[[] for _ in range(width)] for width in hidden]

    def rule(t, net, x, y):
        seen = net.outputs(x)
        for i, g in enumerate(net.gradient(x, y)):
            net.theta[i] = net.theta[i] - 0.05 * g
        for layer, width in enumerate(hidden):
            over = []
            for i in range(width):
                if max(seen[layer + 1][:, i]) > 0:
                    if age[layer][i]:
                        times[layer][i].append(age[layer][i])
                    age[layer][i] = 0
                else:
                    age[layer][i] += 1
                if age[layer][i] >= limit[layer][i]:
                    times[layer][i].append(age[layer][i])
                    age[layer][i] = 0
                    over.append(i)
                if t % every == 0:
                    past = sorted(times[layer][i])
                    time = next((a for n, a in enumerate(past, 1) if n >= (1 - eta) * len(past)), 1)
                    new = time if time < limit[layer][i] else 2 * limit[layer][i]
                    limit[layer][i] = max(1, min(new, longest))
                    thresholds.add(limit[layer][i])
                    times[layer][i].clear()
            if over:
                redraw(net, layer, over)
                replaced.append((layer, len(over)))

    def make(p):
        return unit_peers.SelfNormalizedResets(p, 0.05, eta=eta, every=every, longest=longest)

    byhand = expected(examples, rule)
    agree(trained(make, examples), byhand)
    assert {layer for layer, _ in replaced} == {0, 1}
    assert len(thresholds) > 3


@pytest.mark.parametrize(
    "make", [unit_peers.ReDo, unit_peers.ContinualBackprop, unit_peers.SelfNormalizedResets]
)
def test_unit_rules_say_what_they_need(make):
    optimizer = make(a_model().parameters(), 0.1)
    with pytest.raises(RuntimeError, match="watch"):
        optimizer.step()
    twice = nn.Sequential(nn.Linear(2, 4), nn.Flatten(), nn.Linear(8, 1))
    with pytest.raises(ValueError, match="full layers in a row"):
        make(twice.parameters(), 0.1).watch(twice)


def test_a_wrong_utility_is_refused():
    with pytest.raises(ValueError, match="'contribution' or 'adaptable'"):
        unit_peers.ContinualBackprop(a_model().parameters(), 0.1, utility="none")


def test_the_modules_are_not_left_behind():
    """A study finds them beside its file by the plain name; these tests must not hide another."""
    assert "continual_peers" not in sys.modules
