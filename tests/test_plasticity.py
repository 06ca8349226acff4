"""The meter: what it measures on networks built by hand, and that it leaves nothing behind."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

import lossnav as ln
from lossnav.optim.torch import WeightUncertainty
from lossnav.optim.torch.per_example import Examples
from lossnav.plasticity import Meter, effective_rank, signal_share, silent_units, stable_rank

SIGMAS = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)


def mlp(*sizes):
    layers = []
    for n, m in itertools.pairwise(sizes):
        layers += [nn.Linear(n, m), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def switch_off(layer, units):
    """Units that no input turns on."""
    with torch.no_grad():
        layer.weight[units] = 0.0
        layer.bias[units] = -1.0


def a_batch(count=32, inputs=6, classes=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, inputs, generator=rng)
    return x, torch.randint(classes, (count,), generator=rng)


# Functions


def matrix(sigma, rows=9, columns=7, seed=0):
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (rows, columns))
    return torch.tensor(u[:, : len(sigma)] @ np.diag(sigma) @ v[: len(sigma)])


@given(SIGMAS)
def test_ranks_are_those_of_the_singular_values(sigma):
    """Entropy by SciPy; and stable rank <= effective rank <= rank."""
    found = effective_rank(matrix(sigma)), stable_rank(matrix(sigma))
    p, squares = np.array(sigma) / sum(sigma), np.square(sigma)
    assert found[0] == pytest.approx(math.exp(stats.entropy(p)), rel=1e-9)
    assert found[1] == pytest.approx(squares.sum() / squares.max(), rel=1e-9)
    assert 1 - 1e-9 <= found[1] <= found[0] + 1e-9 <= len(sigma) + 2e-9


@given(arrays.arrays(np.float64, (5, 4), elements=st.floats(-8, 8, width=16)), st.floats(0.1, 100))
def test_ranks_know_no_scale_order_or_side(x, scale):
    x = torch.tensor(x)
    for rank in (effective_rank, stable_rank):
        value = rank(x)
        others = x * scale, x.flip(0), x.T
        assert [rank(y) for y in others] == pytest.approx([value] * 3, rel=1e-6)
        assert bool(x.any()) == (value >= 1 - 1e-9)


def test_a_silent_unit_is_relative_to_its_layer():
    h = torch.tensor([[3.0, 0.02, 0.0, -3.0], [3.0, -0.02, 0.0, 3.0]])
    mean = (3.0 + 0.02 + 3.0) / 4
    assert silent_units(h, 0.0).tolist() == [False, False, True, False]
    assert silent_units(h, 0.02 / mean * 0.99).tolist() == [False, False, True, False]
    assert silent_units(h, 0.02 / mean * 1.01).tolist() == [False, True, True, False]
    assert silent_units(torch.zeros(3, 2)).all()


def test_the_share_of_signal_of_a_known_stream():
    """Gradients mu + noise: the mean of m of them has |mu|^2 / (|mu|^2 + d s^2 / m)."""
    rng = torch.Generator().manual_seed(0)
    d, m, spread = 40_000, 10, 1.7
    for size in (0.1, 0.5, 2.0):
        noise = spread * torch.randn(m, d, generator=rng, dtype=torch.float64)
        mu = torch.full((d,), size, dtype=torch.float64)
        expected = size**2 / (size**2 + spread**2 / m)
        assert signal_share(mu + noise) == pytest.approx(expected, abs=0.02)
    assert signal_share([mu, mu]) == 1.0
    assert signal_share([mu, -mu]) == 0.0
    assert signal_share(torch.randn(m, d, generator=rng)) < 0.05


def test_the_noise_is_estimated_without_bias():
    """The mean of |g|^2 (1 - share) is the noise, d / m, also where little is known."""
    rng = torch.Generator().manual_seed(0)
    noise = []
    for _ in range(2000):
        g = 3.0 + torch.randn(3, 2, generator=rng, dtype=torch.float64)
        noise.append((1 - signal_share(g)) * float(g.mean(0).square().sum()))
    assert np.mean(noise) == pytest.approx(2 / 3, rel=0.05)


# Features


@pytest.mark.parametrize("by_layer", [False, True])
def test_silent_units_are_counted_over_all_layers(by_layer):
    torch.manual_seed(0)
    model = mlp(6, 20, 10, 3)
    for layer in (model[0], model[2]):
        nn.init.constant_(layer.bias, 3.0)  # the others are on
    switch_off(model[0], slice(0, 4))
    switch_off(model[2], slice(0, 1))
    found = Meter(model, by_layer=by_layer).measure(a_batch()[0])
    assert found["silent"] == 5 / 30
    layers = {name: value for name, value in found.items() if name.startswith("silent/")}
    assert layers == ({"silent/2": 0.2, "silent/4": 0.1} if by_layer else {})


class Functional(nn.Module):
    """Convolutions, then a normalized layer, without modules for the nonlinearity."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3)
        self.again = nn.Conv2d(8, 4, 3)
        self.norm = nn.LayerNorm(4 * 4)
        self.left, self.right = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.again(torch.relu(self.conv(x))))
        x = self.norm(x.flatten(1))
        return self.left(x) + self.right(x)


def test_convolutions_layer_norm_and_shared_inputs():
    """A channel is a unit, places are examples; features of two layers count once."""
    torch.manual_seed(0)
    model = Functional()
    nn.init.constant_(model.conv.bias, 1.0)
    switch_off(model.conv, slice(0, 3))
    x = torch.randn(5, 2, 6, 6)
    found = Meter(model, by_layer=True, rows=40).measure(x)
    assert {name for name in found if name.startswith(("silent/", "rank/"))} == {
        "silent/again", "silent/left", "rank/again", "rank/left",
    }  # fmt: skip
    assert found["silent/again"] == 3 / 8
    assert found["silent"] == 3 / (8 + 16)
    h = torch.relu(model.conv(x)).permute(0, 2, 3, 1).reshape(-1, 8)
    rows = h[np.linspace(0, len(h) - 1, 40).round()]
    assert found["rank/again"] == pytest.approx(effective_rank(rows), rel=1e-12)
    normed = model.norm(torch.relu(model.again(torch.relu(model.conv(x)))).flatten(1))
    assert found["rank"] == found["rank/left"] == pytest.approx(effective_rank(normed), rel=1e-5)


def test_each_place_of_a_sequence_is_an_example():
    torch.manual_seed(0)
    model, x = mlp(6, 8, 3), torch.randn(12, 6)
    switch_off(model[0], slice(0, 2))
    assert Meter(model).measure(x.reshape(3, 4, 6)) == pytest.approx(Meter(model).measure(x))


def test_features_of_known_rank():
    """Three orthogonal directions of equal length have rank 3, whatever the layer's width."""
    model = nn.Sequential(nn.Linear(3, 12, bias=False), nn.Identity(), nn.Linear(12, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.linalg.qr(torch.randn(12, 3)).Q)
    found = Meter(model).measure(torch.eye(3).repeat(4, 1))
    assert found["rank"] == pytest.approx(3.0, rel=1e-5)
    assert found["stable_rank"] == pytest.approx(3.0, rel=1e-5)


def test_a_network_without_hidden_layers_has_no_features():
    assert set(Meter(nn.Linear(6, 3)).measure(a_batch()[0])) == {"norm", "distance"}


def test_a_network_that_diverged_is_measured_too():
    model = mlp(6, 4, 3)
    nn.init.constant_(model[2].weight, math.nan)
    nn.init.constant_(model[0].weight, math.inf)
    found = Meter(model, cross_entropy).measure(*a_batch())
    assert math.isnan(found["rank"])
    assert math.isnan(found["signal"])


# Gradients


class Mean(nn.Module):
    """Its output is w x, so the gradient of the mean output is the mean of x."""

    def __init__(self, size):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x @ self.w


@pytest.mark.parametrize(("count", "parts"), [(32, 8), (30, 8), (5, 8)])
def test_signal_of_a_batch(count, parts):
    """Also with parts of unequal size, and with fewer examples than parts."""
    rng = torch.Generator().manual_seed(1)
    model, found = Mean(3000), []
    meter = Meter(model, lambda outputs, _: outputs.mean(), parts=parts, by_layer=True)
    for _ in range(20):
        x = 0.2 + torch.randn(count, 3000, generator=rng)
        found.append(meter.measure(x, x[:, 0]))
    expected = 0.04 / (0.04 + 1 / count)
    assert np.mean([one["signal"] for one in found]) == pytest.approx(expected, abs=0.01)
    assert found[0]["signal/w"] == found[0]["signal"]
    assert found[0]["signal/unused"] == 0.0


def test_parts_count_by_their_examples():
    """Three examples in two parts: the gradients 3 and 3 with the weights 2/3 and 1/3."""
    x = torch.tensor([[4.0, 1.0], [2.0, 1.0], [3.0, -2.0]])
    found = Meter(Mean(2), lambda outputs, _: outputs.mean(), parts=2).measure(x, x)["signal"]
    assert found == pytest.approx(1 - (2 / 3 * 10 + 1 / 3 * 13 - 9) / 9, rel=1e-6)


def test_one_part_for_each_example_agrees_with_the_squares_of_examples():
    """The noise from another route: one backward pass with the squares of each example."""
    torch.manual_seed(0)
    model, (x, y) = mlp(6, 8, 3).double(), a_batch()
    x = x.double()
    found = Meter(model, cross_entropy, parts=len(x)).measure(x, y)["signal"]
    with Examples(model) as examples:
        cross_entropy(model(x), y).backward()
    squares = sum(float(examples.squares(p).sum()) for p in model.parameters())
    first = sum(float(p.grad.square().sum()) for p in model.parameters())
    assert found == pytest.approx(1 - (squares - first) / (len(x) - 1) / first, rel=1e-9)


# Weights


def test_norm_and_distance():
    torch.manual_seed(0)
    model = mlp(6, 5, 3)
    before = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    meter = Meter(model, by_layer=True)
    first = meter.measure(a_batch()[0])
    assert first["norm"] == pytest.approx(np.linalg.norm(before), rel=1e-6)
    assert first["distance"] == 0.0
    with torch.no_grad():
        model[0].weight[0, 0] += 3.0
        model[2].bias[1] -= 4.0
    found = meter.measure(a_batch()[0])
    assert found["distance"] == pytest.approx(5.0, rel=1e-6)
    assert [found[f"distance/{n}"] for n in ("0.weight", "2.bias", "0.bias")] == pytest.approx(
        [3.0, 4.0, 0.0], rel=1e-6
    )
    assert found["norm/2.bias"] == pytest.approx(np.linalg.norm(model[2].bias.detach()), rel=1e-6)


class Known(torch.optim.SGD):
    """An optimizer with a variance of each weight of those parameters that it has moved."""

    def __init__(self, params, ratios):
        super().__init__(params, lr=0.1)
        for p, ratio in zip(self.param_groups[0]["params"], ratios, strict=True):
            if ratio is not None:
                self.state[p] = {"prior_variance": torch.tensor(0.5), "ratio": ratio}

    def variance(self, p):
        return 0.5 * self.state[p]["ratio"]


def test_the_variance_of_weights_where_there_is_one():
    """Means over weights, not over tensors; parameters without a step are left out."""
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    ratios = (
        torch.tensor([[0.1, 0.6, 0.95], [1.0, 0.91, 0.3]]),
        torch.tensor([1.0, 0.5]),
        None,
        None,
    )
    optimizer = Known(model.parameters(), ratios)
    found = Meter(model, optimizer=optimizer, by_layer=True).measure(torch.randn(4, 3))
    assert found["variance"] == pytest.approx((0.1 + 0.6 + 0.95 + 1.0 + 0.91 + 0.3 + 1.5) / 8)
    assert found["free"] == 4 / 8
    assert found["free/0.weight"] == 3 / 6
    assert found["variance/0.bias"] == pytest.approx(0.75)
    assert "variance/2.weight" not in found
    for other in (torch.optim.Adam(model.parameters()), None):
        assert "variance" not in Meter(model, optimizer=other).measure(torch.randn(4, 3))


def test_the_variance_of_weight_uncertainty():
    torch.manual_seed(0)
    model, (x, y) = mlp(6, 8, 3), a_batch()
    optimizer = WeightUncertainty(model.parameters(), curvature="ggn", fused=False)
    optimizer.watch(model, "cross_entropy")
    meter = Meter(model, optimizer=optimizer)
    assert "variance" not in meter.measure(x)
    for _ in range(20):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    ratios = [
        optimizer.variance(p) / optimizer.state[p]["prior_variance"] for p in model.parameters()
    ]
    mean = float(torch.cat([ratio.flatten() for ratio in ratios]).mean())
    assert 0 < mean < 1
    assert meter.measure(x)["variance"] == pytest.approx(mean, rel=1e-5)


# What is left behind


def hooks(model):
    return [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), m.training)
        for m in model.modules()
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_on_the_model(fails):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    model[1].eval()
    x, y = a_batch()
    cross_entropy(model(x), y).backward()
    before = hooks(model), copy.deepcopy(model.state_dict()), torch.get_rng_state()
    grads = [p.grad.clone() for p in model.parameters()]

    def loss(outputs, targets):
        if fails:
            raise RuntimeError("no loss")
        return cross_entropy(outputs, targets)

    meter = Meter(model, loss)
    if fails:
        with pytest.raises(RuntimeError, match="no loss"):
            meter.measure(x, y)
        assert meter.history == []
    else:
        with torch.no_grad():  # a common place for measurements
            assert meter.measure(x, y)["signal"] > 0
    assert hooks(model) == before[0]
    assert all(torch.equal(v, before[1][k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), before[2])
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))


@pytest.mark.parametrize("kind", ["adam", "ggn", "fisher"])
def test_measuring_changes_no_training(kind):
    """Not even between a backward pass and its step, nor an optimizer that watches the model."""
    ends = []
    for every in (None, 2):
        torch.manual_seed(0)
        model = mlp(6, 8, 3)
        if kind == "adam":
            optimizer = torch.optim.Adam(model.parameters())
        else:
            optimizer = WeightUncertainty(model.parameters(), curvature=kind, fused=False)
            optimizer.watch(model, "cross_entropy")
        meter = Meter(model, cross_entropy, optimizer)
        for step in range(6):
            x, y = a_batch(seed=step)
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            if every and step % every == 0:
                meter.measure(x, y, step=step)
            optimizer.step()
            if every:
                meter.measure(x, y)
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*ends)


# The plot, and errors


def test_the_plot_shows_what_was_measured():
    plt = pytest.importorskip("matplotlib.pyplot")
    torch.manual_seed(0)
    model, (x, y) = mlp(6, 8, 3), a_batch()
    meter = Meter(model, cross_entropy, by_layer=True)
    meter.measure(x, step=5)
    meter.measure(x, y, step=20)
    axes = meter.plot()
    shown = {ax.get_ylabel().partition("\n")[0]: ax for ax in axes}
    assert list(shown) == [
        "share of silent units", "effective rank", "share of signal", "norm of the weights", "distance of the weights",
    ]  # fmt: skip
    lines = {line.get_label(): line for line in shown["effective rank"].lines}
    np.testing.assert_array_equal(lines["all"].get_xdata(), [5, 20])
    np.testing.assert_allclose(lines["2"].get_ydata(), [found["rank"] for found in meter.history])
    assert shown["share of signal"].lines[-1].get_xdata() == [20]
    assert len(axes[0].figure.axes) == 5
    _, own = plt.subplots(5)
    assert meter.plot(own) == list(own)
    meter.measure(100 * x, step=30)
    meter.plot(own, label="again")
    values = [found["rank"] for found in meter.history]
    assert own[1].get_ylim()[0] == 0 < max(values) < own[1].get_ylim()[1]
    assert own[1].lines[-1].get_label() == "again"
    assert own[1].lines[-1].get_color() != own[1].lines[1].get_color()
    with pytest.raises(ValueError, match="given 1 axes, but 5 quantities were measured"):
        meter.plot(own[0])
    plt.close("all")


def test_numbers_for_a_logger():
    meter = ln.plasticity.Meter(mlp(6, 8, 3))
    found = meter.measure((a_batch()[0],))
    assert all(type(value) is float for value in found.values())
    assert meter.steps == [0]
    found.clear()
    assert meter.history[0]


def test_wrong_arguments_get_a_sentence():
    model, (x, y) = mlp(6, 8, 3), a_batch(1)
    for settings, sentence in (
        ({"parts": 1}, "parts is 1, but it must be a whole number, 2 or more"),
        ({"rows": 0.5}, "rows is 0.5"),
        ({"threshold": -1.0}, "threshold is -1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Meter(model, **settings)
    with pytest.raises(ValueError, match="batch has 1 examples, but the noise"):
        Meter(model, cross_entropy).measure(x, y)
    with pytest.raises(ValueError, match="call measure at least once"):
        Meter(model).plot()
    with pytest.raises(ValueError, match="1 gradients were given"):
        signal_share([torch.ones(3)])
