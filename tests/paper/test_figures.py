"""The numbers behind the figures, each against a route that the figure does not take."""

import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import linalg
from scipy.integrate import simpson, solve_ivp

import lossnav as ln
from lossnav.optim.torch import Ballistic
from lossnav.paper.figures import (
    double_well,
    network,
    quadratic,
    save_csv,
    training_panels,
    uncertainty,
)
from lossnav.paper.figures.double_well import basins, fig1
from lossnav.paper.figures.network import Network
from lossnav.paper.figures.quadratic import fig2, fig3, mixed, spiral
from lossnav.paper.figures.uncertainty import transients
from lossnav.studies import spec as study_file

ROOT = Path(__file__).parents[2]


def test_fig1_crosses_over_and_gradient_flow_does_not():
    tables = fig1.data()
    table = tables["fig1b"]
    assert table["theta1"][-1] == pytest.approx(double_well.MINIMUM[0])
    assert table["flow theta1"][-1] == pytest.approx(-0.9304, abs=1e-3)
    # The costs of panel c add up to the least J.
    cost = (tables["fig1c"]["kinetic"] + tables["fig1c"]["potential"]) * np.exp(-0.1 * table["t"])
    assert simpson(cost, table["t"]) == pytest.approx(0.61943561774, rel=1e-5)
    assert tables["fig1c"]["potential"].max() > tables["fig1c"]["potential"][0]  # it first climbs
    assert double_well.height(np.array([-2, 2]), 0) == pytest.approx([-1, -0.5], abs=1e-4)


def test_fig2_paths_are_the_closed_form():
    """One exponential for each direction; and four times the curvature, as the caption says."""
    tables = fig2.data()
    for gamma in quadratic.GAMMAS:
        rate = np.sqrt(gamma**2 / 4 + 1) - gamma / 2
        t = tables["fig2a"]["t"]
        assert tables["fig2a"][f"theta gamma={gamma:g}"] == pytest.approx(
            1 - np.exp(-rate * t), abs=1e-12
        )
        assert tables["fig2b"][f"loss gamma={gamma:g}"] == pytest.approx(
            np.exp(-2 * rate * t) / 2, abs=1e-12
        )
        slow = np.sqrt(gamma**2 / 4 + 1 / 9) - gamma / 2
        far = tables["fig2c"]["t"]
        assert tables["fig2c"][f"theta1 gamma={gamma:g}"] == pytest.approx(
            -3 * np.exp(-slow * far), abs=1e-11
        )
    ratios = {name: column[-1] for name, column in tables["fig2d"].items()}
    assert ratios["ratio gamma=0"] == pytest.approx(2.0)
    assert 3.8 < ratios["ratio gamma=10"] < 4.0


def test_fig3_paths_end_where_they_should():
    tables = fig3.data()
    for letter, end in (("a", -0.5), ("b", -0.5), ("c", -0.5 * 4 / 104), ("d", -0.5 * 4 / 104)):
        assert tables[f"fig3{letter} end"]["theta2"][0] == pytest.approx(end, rel=1e-6)
        assert tables[f"fig3{letter}"]["theta2"][-1] == pytest.approx(end, abs=1e-6)


def test_basins_switch_where_a_sum_over_steps_says():
    """The least J of a midpoint sum, from straight lines to both minima, on either side."""
    critical = double_well.switch()
    costs = [double_well.best(0.1, end)[0] for end in double_well.ENDS]
    assert costs == pytest.approx([-2.831, 5.156], abs=5e-4)
    assert critical == pytest.approx(0.6646, abs=5e-5)
    assert double_well.switch((-0.9304, 0.0)) == pytest.approx(0.5390, abs=2e-4)
    gains = []
    for gamma in (critical - 0.01, critical + 0.01):
        objective = ln.Objective(double_well.LOSS, gamma=gamma)
        costs = {}
        for end, point in double_well.ENDS.items():
            path = ln.solve(objective, double_well.START, 4.5, point, ln.Direct(steps=600))
            rest = objective.potential(np.array(point)) / gamma
            costs[end] = path.J + np.exp(-gamma * 4.5) * rest
        gains.append(float(costs["local"] - costs["global"]))
    assert gains[0] > 0 > gains[1]


def test_basins_table(monkeypatch):
    monkeypatch.setattr(double_well, "STARTS", (-0.65, -0.6, -0.55))
    tables = basins.data()
    gain = tables["basins gain"]
    assert (np.diff(gain["gain"]) < 0).all()
    # Below gamma_c the best path starts to the right, to the global minimum; above it to the left.
    assert np.sign(np.delete(gain["velocity"], 13)).tolist() == [1.0] * 13 + [-1.0]
    assert np.sign(np.delete(gain["gain"], 13)).tolist() == [1.0] * 13 + [-1.0]
    # At gamma_c both cost the same, so the speeds are equal. The loss is a sum over coordinates, so
    # both paths move alike along theta2: they start as mirror images, and either is right.
    assert gain["gamma"][13] == pytest.approx(0.6646, abs=5e-5)
    assert gain["gain"][13] == pytest.approx(0.0, abs=1e-6)
    objective = ln.Objective(double_well.LOSS, gamma=gain["gamma"][13])
    for point in double_well.ENDS.values():
        way = ln.solve(objective, double_well.START, 4.5, point, ln.Direct(steps=600))
        assert abs(gain["velocity"][13]) == pytest.approx(abs(way.velocity0[0]), abs=1e-4)
    assert (np.diff(tables["basins switch"]["gamma_c"]) > 0).all()
    ends = {g: tables["basins paths"][f"theta1 gamma={g:g}"][-1] > 0 for g in double_well.SHOWN}
    assert ends == {0.1: True, 0.5: True, 0.66: True, 0.67: False, 1.5: False}


def test_mixed_directions_follow_the_closed_form():
    tables = mixed.data()
    rule, gamma = tables["mixed rule"], quadratic.GAMMA
    exact = 1 / (gamma / 2 + np.sqrt(gamma**2 / 4 + rule["h"]))
    assert rule["speed"] == pytest.approx(exact, rel=1e-8)
    flat, steep = rule["h"] < 1e-3, rule["h"] > 1e3
    assert rule["speed"][flat] == pytest.approx(rule["gradient descent"][flat], rel=1e-3)
    assert rule["speed"][steep] == pytest.approx(rule["ballistic"][steep], rel=2e-2)
    for name, h in zip(("flat", "steep"), quadratic.PAIR, strict=True):
        path = tables[f"mixed {name}"]
        rate = np.sqrt(gamma**2 / 4 + h) - gamma / 2
        assert path["theta"] == pytest.approx(np.exp(-rate * path["t"]), abs=1e-10)


def test_spirals_end_at_the_printed_limit_and_not_at_the_least_potential():
    tables, mu = spiral.data(), np.array([0.0, -0.5])
    for gamma in quadratic.SPIRAL_GAMMAS:
        table = tables[f"spiral gamma={gamma:g}"]
        for i, q in enumerate(quadratic.TURNS):
            J = q * np.array([[0.0, -1.0], [1.0, 0.0]])
            limit = 4 * linalg.solve(4 * np.eye(2) - J @ (J + gamma * np.eye(2)), mu)
            end = [table["end theta1"][i], table["end theta2"][i]]
            assert end == pytest.approx(limit, abs=1e-9)
            lowest = [table["V_eff theta1"][i], table["V_eff theta2"][i]]
            assert lowest == pytest.approx(4 / (4 + q**2) * mu, abs=1e-12)
        assert (table["distance"] < 1e-9).all() == (gamma == 0)


def test_variance_rises_to_a_new_balance_or_only_for_a_while():
    """App. I: a flatter basin raises v for good; a moved one raises it while the mean moves."""
    tables = transients.data()
    flatter, moved, both = (tables[f"transient {name}"] for name in uncertainty.SWITCHES)
    assert [flatter["v"][0], moved["v"][0]] == pytest.approx([0.25, 0.25])
    assert (np.diff(flatter["v"]) > -1e-9).all()
    assert flatter["v"][-1] == pytest.approx(1.0, abs=3e-3)
    assert moved["v"].max() > 0.4
    assert moved["v"][-1] == pytest.approx(0.25, abs=1e-3)
    assert (both["v"][1:60] > flatter["v"][1:60]).all()  # driven by both terms
    assert moved["v overdamped"] == pytest.approx(np.full(len(moved["t"]), 0.25))
    law = solve_ivp(
        lambda t, v: (v - uncertainty.K * v**2) / uncertainty.GAMMA, (0, 10), [0.25],
        t_eval=flatter["t"], rtol=1e-10, atol=1e-12,
    ).y[0]  # fmt: skip
    assert flatter["v overdamped"] == pytest.approx(law, rel=1e-7)


def test_gradient_covariance_of_the_process():
    """Against the stationary covariance of the same chain, from its discrete Lyapunov equation."""
    h, variance = uncertainty.process()
    dt = 0.05 * uncertainty.TAU / h[-1]
    chain = uncertainty.SIGMA**2 * dt / (1 - (1 - h * dt / uncertainty.TAU) ** 2) * h**2
    # The slowest direction decorrelates in 632 steps: 2000 or more samples of a thousand chains.
    assert variance == pytest.approx(chain, rel=4 * np.sqrt(2 / 2000))
    assert uncertainty.proportion(h, variance)[0] == pytest.approx(1.0, abs=0.03)


def torch_loss(net, x, y):
    shapes = [((a, b), (b,)) for a, b in zip(net.widths, net.widths[1:], strict=False)]

    def loss(theta):
        value, at = torch.tensor(x), 0
        for place, (weights, bias) in enumerate(shapes):
            count = weights[0] * weights[1]
            W = theta[at : at + count].reshape(weights)
            value = value @ W + theta[at + count : at + count + bias[0]]
            at += count + bias[0]
            if place < len(shapes) - 1:
                value = value.tanh() if net.smooth else value.relu()
        fit = torch.nn.functional.cross_entropy(value, torch.tensor(y))
        return fit + net.decay / 2 * theta @ theta

    return loss


@pytest.mark.parametrize("smooth", [True, False])
def test_gradient_of_the_network_is_that_of_torch(smooth):
    rng = np.random.default_rng(3)
    net = Network((5, 7, 4, 3), smooth=smooth, decay=0.1)
    x, y, theta = rng.normal(size=(11, 5)), rng.integers(3, size=11), net.start(rng)
    loss, slope = net.loss_and_gradient(theta, x, y)
    at = torch.tensor(theta, requires_grad=True)
    value = torch_loss(net, x, y)(at)
    value.backward()
    assert loss == pytest.approx(value.item(), rel=1e-12)
    assert slope == pytest.approx(at.grad.numpy(), abs=1e-12)
    assert net.each_gradient(theta, x, y).mean(axis=0) == pytest.approx(slope, abs=1e-12)


def test_network_noise_follows_its_hessian(monkeypatch):
    """The Hessian against torch's; the noisy network against the law; single examples roughly."""
    monkeypatch.setattr(uncertainty, "STEPS", 5000)
    theta, h, Q = uncertainty.trained()
    x, y = uncertainty.examples()
    exact = torch.autograd.functional.hessian(
        torch_loss(uncertainty.NET, x, y), torch.tensor(theta)
    ).numpy()
    assert (Q * h) @ Q.T == pytest.approx(exact, abs=1e-5)
    assert np.linalg.norm(uncertainty.NET.loss_and_gradient(theta, x, y)[1]) < 1e-4
    assert h[0] > 0
    chain = (
        uncertainty.WANDER**2 / 2 * h / (1 - 0.1 * h / h[-1])
    )  # what steps of dt = 0.2 / h make of it
    ratio = uncertainty.wandering(theta, h, Q)[-20:] / chain[-20:]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.15)
    each = (uncertainty.NET.each_gradient(theta, x, y) @ Q).var(axis=0)
    fitted = h - uncertainty.NET.decay
    keep = fitted > fitted.max() * 1e-4
    exponent, correlation = uncertainty.proportion(fitted[keep], each[keep])
    assert fitted[keep].min() < 1e-3 * fitted.max()
    assert 0.7 < exponent < 1.2
    assert correlation > 0.9


def test_every_rule_wins_under_its_own_assumptions(monkeypatch):
    monkeypatch.setattr(quadratic, "RATES", (0.0625, 0.25))
    monkeypatch.setattr(quadratic, "STEPS", 60)
    tables = quadratic.regret.data()
    table = tables["regret"]
    rules = [name for name in table if name not in ("objective", "optimal J")]
    for i, name in enumerate(table["objective"]):
        assert min(rules, key=lambda rule: table[rule][i]) == name
        assert table[name][i] > -1e-9
    assert set(tables["regret rates"]["Adam"]) <= {0.0625, 0.25}


def test_ballistic_in_numpy_is_the_optimizer():
    rng = np.random.default_rng(0)
    theta = rng.normal(size=6)
    rule = training_panels.rules("f")["ballistic"]
    parameter = torch.nn.Parameter(torch.tensor(theta))
    optimizer, state = Ballistic([parameter], lr=5e-4, beta2=0.9), rule.init(theta)
    for _ in range(50):
        g = rng.normal(size=6)
        move, state = rule.update(g, state, theta)
        theta = theta + move
        parameter.grad = torch.tensor(g)
        optimizer.step()
    assert theta == pytest.approx(parameter.detach().numpy(), rel=1e-12)


@pytest.mark.parametrize(("letter", "file"), [("e", "mnist_paper.toml"), ("f", "cifar_paper.toml")])
def test_settings_of_the_paper_are_those_of_the_study_files(letter, file):
    values = tomllib.loads((ROOT / "benchmarks" / "training" / file).read_text(encoding="utf-8"))
    kept = study_file.Study.from_dict(values)
    assert study_file.Study.from_dict(training_panels.PAPER[letter]) == kept
    ballistic = values["rules"]["ballistic"]
    assert training_panels.rules(letter)["ballistic"].beta2 == ballistic["beta2"]


def test_scales_are_those_of_the_tasks():
    from lossnav.studies.tasks.images import SCALES

    for name, (top, mean, deviation) in network.SCALES.items():
        assert SCALES[name] == (top, (mean,), (deviation,))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("has_torch", [False, True])
@pytest.mark.parametrize("has_data", [False, True])
def test_what_the_training_panels_use(monkeypatch, full, has_torch, has_data):
    """Real data where they are; short runs and stand-ins say that they are."""
    monkeypatch.setattr(training_panels, "available", lambda name: has_data)
    monkeypatch.setattr(
        training_panels.importlib.util, "find_spec", lambda name: object() if has_torch else None
    )
    e, f = (training_panels.plan(letter, full) for letter in "ef")
    for plan in (e, f):
        assert isinstance(plan.run, dict | network.NumpyTraining)
        assert ("shortened" in plan.label or "digits" in plan.label) == bool(plan.note)
    if has_data and has_torch and full:
        assert [e.run, f.run] == [training_panels.PAPER[letter] for letter in "ef"]
        return
    assert ("MNIST" in e.label and "digits" not in e.label) == has_data
    assert ("narrow" in f.label) == (has_data and has_torch)
    if full and not has_torch:
        assert "pip install" in e.note
    assert ("pip install" in f.note) == ((full or has_data) and not has_torch)


def test_a_study_becomes_the_table_of_a_panel(tmp_path):
    """The study machinery on the digits: the same numbers as a trial of its own."""
    from lossnav.studies.trial import Trial
    from lossnav.studies.trial.training import run_trial

    study = {
        "name": "tiny",
        "tasks": {"digits": {"kind": "digits", "validation": 0, "metric": "accuracy"}},
        "rules": {"sgd": {"kind": "torch.optim.SGD", "lr": 0.1}},
        "budget": {"epochs": 2},
        "seeds": {"reporting": [4]},
        "training": {"clip": 5.0, "evaluations": 2},
    }
    said = []
    table = training_panels._by_study(study, False, tmp_path, said.append)
    trial = Trial(
        task="digits", rule="sgd", task_kind="digits", rule_kind="torch.optim.SGD", point={},
        task_settings={"validation": 0, "metric": "accuracy"}, settings={"lr": 0.1}, seed=4,
        phase="reporting", epochs=2, evaluations=2, clip=5.0,
    )  # fmt: skip
    result = run_trial(trial)
    losses = result.curves["training_loss"].astype(float)
    assert table["epoch"].tolist() == [0.0, 1.0, 2.0]
    assert table["test accuracy"] == pytest.approx(result.curves["accuracy"])
    assert table["training loss"] == pytest.approx(
        [losses[0], losses[:23].mean(), losses[23:].mean()]
    )
    assert any("sgd, seed 4: done" in line for line in said)
    said.clear()
    again = training_panels._by_study(study, False, tmp_path, said.append)
    assert again["training loss"].tolist() == table["training loss"].tolist()
    assert not any("done" in line for line in said)  # nothing was trained again


def test_narrow_network_for_cifar(monkeypatch):
    """A quarter of the paper's widths, on data of the right shape."""
    from lossnav.studies.data import ImageData
    from lossnav.studies.tasks import images

    rng = np.random.default_rng(0)
    x, y = (
        rng.integers(256, size=(80, 32, 32, 3), dtype=np.uint8),
        np.arange(80, dtype=np.uint8) % 10,
    )
    monkeypatch.setattr(images, "load", lambda name: ImageData(x, y, x, y))
    task = training_panels.narrow_cifar(test_images=30)
    batch = next(iter(task.batches(torch.Generator().manual_seed(0))))
    model = task.model()
    assert model(batch[0]).shape == (64, 10)
    assert sum(p.numel() for p in model.parameters()) < 0.07 * 2_360_138
    assert set(task.evaluate(model, "test")) == {"loss", "accuracy"}


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    def stopped(*given):
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopped)
        with pytest.raises(RuntimeError):
            save_csv({"x": [1.0]}, tmp_path, "a")
    assert list(tmp_path.iterdir()) == []
    save_csv({"x": [1.0]}, tmp_path, "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
