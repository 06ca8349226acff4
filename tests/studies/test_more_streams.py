"""Settings of streams that published experiments need, and streams of other kinds: what is in them."""

import importlib.util
import itertools
import math
import tomllib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from lossnav.studies import tasks
from lossnav.studies.trial import training
from test_streams import (
    FOLDER,
    a,
    accuracy,
    blocks,
    by_hand,
    cross_entropy,
    known_digits,
    one_thread,
    rng,
    stream,
)  # fmt: skip

__all__ = ["one_thread"]  # a fixture that all tests use


# Images


@pytest.mark.parametrize(("steps", "times"), [(6, 1), (13, 2)])
def test_a_fixed_set_of_images_is_gone_through_in_passes(steps, times):
    """L2-Init's protocol: each task shows the same images, each as often, in another order."""
    task = stream("permuted-labels", pooling=1, images=30, batch_size=5, steps=steps, tasks=3)
    sets, orders = [], []
    for x, _ in blocks(task):
        shown = [bytes(image.numpy()) for image in x.reshape(-1, 64)]
        counts = {image: shown[: 30 * times].count(image) for image in shown[: 30 * times]}
        assert set(counts.values()) == {times}
        assert len(set(shown[:30])) == len(set(shown)) == 30
        sets.append(frozenset(shown))
        orders.append(tuple(shown))
    assert len(set(sets)) == 1
    assert len(set(orders)) == 3
    other = next(iter(blocks(task, seed=1)))[0].reshape(-1, 64)
    assert frozenset(bytes(image.numpy()) for image in other) != sets[0]


def test_standardized_pixels():
    """Mean 0 and variance 1, from the plain pixels by one affine map; also the tested images."""
    settings = {"steps": 50, "tasks": 2, "pooling": 1}
    plain, scaled = (stream("permuted-pixels", standardize=on, **settings) for on in (False, True))
    x, z = (torch.cat([x for x, _ in blocks(task)]) for task in (plain, scaled))
    assert float(z.mean()) == pytest.approx(0, abs=0.03)
    assert float(z.std()) == pytest.approx(1, abs=0.03)
    torch.testing.assert_close(z * 0.3760 + 0.3053, x)
    torch.testing.assert_close(scaled._tested * 0.3760 + 0.3053, plain._tested)


def test_a_blend_of_two_tasks():
    """The share of names from the new task grows linearly; before and after it is 0 and 1."""
    known, blend, size = known_digits(), 5, 400
    task = stream("permuted-labels", pooling=1, blend=blend, batch_size=size, steps=8, tasks=3)
    ends = []
    for n, (x, y) in enumerate(blocks(task)):
        classes = [
            [known[bytes(image)] for image in step.mul(16).round().byte().numpy()] for step in x
        ]
        names = dict(zip(classes[-1], y[-1].tolist(), strict=True))
        assert len(names) == 10
        ends.append(names)
        for step in range(8):
            pairs = list(zip(classes[step], y[step].tolist(), strict=True))
            new = np.mean(
                [names[c] == name for c, name in pairs if names[c] != ends[n - 1][c]] or [1]
            )
            assert all(name in (names[c], ends[n - 1][c]) for c, name in pairs) or n == 0
            expected = 1.0 if n == 0 else min((step + 0.5) / blend, 1.0)
            assert new == pytest.approx(expected, abs=0.12 if expected < 1 else 0)
    assert ends[0] != ends[1] != ends[2]


def test_blended_pixels_are_those_of_one_of_the_two_tasks():
    task = stream("permuted-pixels", blend=10, tasks=2)
    _, (x, y) = blocks(task)
    known, back = known_digits(), []
    for order in task._orders:
        image = torch.empty_like(x)
        image[..., order] = x
        back.append(image.mul(16).round().to(torch.uint8).reshape(-1, 64).numpy())
    found = [[known.get(bytes(image)) for image in images] for images in back]
    right = [[c == t for c, t in zip(row, y.flatten().tolist(), strict=True)] for row in found]
    assert all(old != new for old, new in zip(*right, strict=True))
    assert 0.3 < np.mean(right[1]) < 0.7
    assert np.mean(right[1][:48]) < np.mean(right[1][-48:])


def colours(monkeypatch, folder):
    """A CIFAR-10 of forty random images."""
    draws = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = draws.integers(0, 256, (40, 32, 32, 3)).astype(np.uint8)
        arrays[f"y_{part}"] = (np.arange(40) % 10).astype(np.uint8)
    np.savez(folder / "cifar10.npz", **arrays)
    monkeypatch.setenv("LOSSNAV_DATA", str(folder))
    return arrays["x_train"]


def test_convolutions_see_images_with_their_channels(monkeypatch, tmp_path):
    images = colours(monkeypatch, tmp_path)
    settings = {"data": "cifar10", "pooling": 2, "channels": [6, 7], "hidden": [5], "images": 40}
    task = stream("permuted-labels", **settings, batch_size=4)
    torch.manual_seed(0)
    model = task.model()
    kinds = [type(layer).__name__ for layer in model]
    block = ["Conv2d", "ReLU", "MaxPool2d"]
    assert kinds == ["Unflatten", *block, *block, "Flatten", "Linear", "ReLU", "Linear"]
    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim > 1]
    assert shapes == [(6, 3, 3, 3), (7, 6, 3, 3), (5, 7 * 4 * 4), (10, 5)]
    x, _ = next(iter(task.batches(rng())))
    pooled = images.reshape(40, 16, 2, 16, 2, 3).mean((2, 4)) / 255
    known = {bytes(np.round(image * 1020).astype(np.int16)) for image in pooled}
    for image in model[0](x).movedim(1, -1):
        assert bytes(np.round(image.numpy() * 1020).astype(np.int16)) in known
    assert model(x).shape == (4, 10)
    wide = stream("permuted-labels", **{**settings, "channels": [300, 200]}).model()
    for layer in (wide[1], wide[4]):
        inputs = layer.weight[0].numel()
        assert not layer.bias.any()
        assert float(layer.weight.detach().square().mean()) * inputs == pytest.approx(2, rel=0.1)


def test_layer_norm_before_each_hidden_relu():
    model = stream("permuted-pixels", hidden=[12, 9], layer_norm=True).model()
    kinds = [type(layer) for layer in model]
    assert kinds == [*[nn.Linear, nn.LayerNorm, nn.ReLU] * 2, nn.Linear]
    assert [model[i].normalized_shape for i in (1, 4)] == [(12,), (9,)]


def test_random_labels_belong_to_images():
    """In a task an image has one class; the next task has drawn all anew."""
    task = stream("random-labels", pooling=1, images=200, batch_size=50, steps=12, tasks=3)
    labels = []
    for x, y in blocks(task):
        names = {}
        for image, name in zip(x.reshape(-1, 64).numpy(), y.flatten().tolist(), strict=True):
            assert names.setdefault(bytes(image), name) == name
        assert len(names) == 200
        assert set(names.values()) == set(range(10))
        labels.append(names)
    for one, other in itertools.combinations(labels, 2):
        same = np.mean([one[image] == other[image] for image in one])
        assert same == pytest.approx(0.1, abs=0.08)


def test_all_tasks_can_count():
    """With part = 1 the metric is the mean over the whole stream."""
    trial = a(task_settings={**a().task_settings, "part": 1})
    _, scores, _, _ = by_hand(trial, accuracy, cross_entropy)
    assert training.run_trial(trial).final["accuracy"] == pytest.approx(scores.mean(), abs=1e-6)


# Regressions


@pytest.mark.parametrize("flips", [1, 4])
def test_slow_bits_that_flip(flips):
    """Published: one of the slow bits, drawn uniformly, flips; nothing else of the task changes."""
    task, slow = stream("slow-bits", flips=flips, steps=3, tasks=200), []
    targets = {}
    for x, y in blocks(task):
        assert len(x[:, 0, :15].unique(dim=0)) == 1
        slow.append(x[0, 0, :15])
        for bits, target in zip(x[:, 0].tolist(), y.flatten().tolist(), strict=True):
            assert targets.setdefault(tuple(bits), target) == target
    changes = torch.stack([one != other for one, other in itertools.pairwise(slow)])
    assert set(changes.sum(1).tolist()) == {flips}
    assert changes.float().mean(0).min() > 0.2 * flips / 15  # each bit in its turn


def test_the_published_regression():
    """Dohare et al.: 20 bits, 15 of them slow, a target of 100 units, a learner of 5."""
    task = tasks.named("slow-bits", {"flips": 1, "steps": 10_000})
    assert (task.bits, task.slow, task.units, task.threshold, task.batch_size) == (
        20,
        15,
        100,
        0.7,
        1,
    )
    shapes = [tuple(p.shape) for p in task.model().parameters()]
    assert shapes == [(5, 20), (5,), (1, 5), (1,)]


def test_sines_become_faster():
    """Least squares of each task's own sine and cosine leaves the noise, and only that."""
    task = stream("growing-frequency", steps=60, tasks=5, lowest=0.5, highest=8.0, noise=0.05)
    phases = []
    for n, (x, y) in enumerate(blocks(task)):
        assert x.shape == y.shape == (60, 16, 1)
        assert -1 <= x.min() < -0.9 < 0.9 < x.max() <= 1
        t, y = x.flatten().double() * math.pi * 0.5 * 2.0**n, y.flatten().double()
        basis = torch.stack([t.sin(), t.cos()], 1)
        found = torch.linalg.lstsq(basis, y[:, None])
        rest = y - (basis @ found.solution)[:, 0]
        assert float(found.solution.norm()) == pytest.approx(1.0, abs=0.01)
        assert float(rest.std()) == pytest.approx(0.05, rel=0.15)
        phases.append(float(torch.atan2(*found.solution.flip(0))))
    assert len({round(phase, 3) for phase in phases}) == 5


def test_values_of_changing_rewards():
    """Bellman's equation from the walk alone: rewards and successors as they were observed."""
    task = stream("changing-rewards", states=5, branches=2, discount=0.7, steps=6000, tasks=2)
    rewards, walks, following = [], [], None
    for x, y in blocks(task):
        assert following is None or torch.equal(x[0], following)  # across tasks, too
        following = y[-1, :, 2:]
        assert x.shape == (6000, 1, 16)
        assert torch.equal(y[:-1, :, 2:], x[1:])  # the next example is the next state
        shown, state = x[:, 0].unique(dim=0, return_inverse=True)
        assert len(shown) == 5
        assert state.bincount().min() > 1000  # of 6000 for five states
        value, reward = torch.zeros(5), torch.zeros(5)
        value[state], reward[state] = y[:, 0, 0], y[:, 0, 1]
        assert torch.equal(value[state], y[:, 0, 0])  # one value for each state
        moves = torch.zeros(5, 5)
        for one, other in itertools.pairwise(state.tolist()):
            moves[one, other] += 1
        moves /= moves.sum(1, keepdim=True)
        torch.testing.assert_close(value, reward + 0.7 * moves @ value, atol=0.1, rtol=0)
        rewards.append(reward)
        walks.append(moves > 0)
    assert not torch.equal(*rewards)
    assert torch.equal(*walks)


def test_the_loss_of_temporal_differences():
    """Its gradient is 2 (V(s) - r - gamma V(s')) dV(s); the score is from the true value."""
    task = stream("changing-rewards", tasks=1, batch_size=3)
    torch.manual_seed(0)
    model = task.model()
    x, y = next(iter(task.batches(rng())))
    task.loss(model, (x, y)).backward()
    with torch.no_grad():
        gap = model(x) - y[:, 1:2] - 0.8 * model(y[:, 2:])
    expected = torch.autograd.grad(model(x), list(model.parameters()), 2 * gap / 3)
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g)
    first = mse_loss(model(x), y[:, :1]).item()
    assert task.evaluate(model, "test")["error"] == pytest.approx(first, rel=1e-6)


@pytest.mark.parametrize("kind", ["random-labels", "growing-frequency", "changing-rewards"])
def test_a_rule_that_watches_runs_on_each(kind):
    settings = {"curvature": "ggn", "fused": False}
    rule = "lossnav.optim.torch:WeightUncertainty"
    result = training.run_trial(a(kind, rule_kind=rule, settings=settings, point={}))
    assert (result.status, result.reason) == ("done", "")


# The study files

DEFINED = {
    "published": {
        "l2-init": (12_500, 16, [784, 100, 100, 10]),
        "upgd-pixels": (100_000, 1, [784, 300, 150, 10]),
        "upgd-labels": (100_000, 1, [784, 300, 150, 10]),
        "slow-bits": (400_000, 1, [20, 5, 1]),
    },
    "apart": {
        "cifar-labels": (12_000, 16, [3 * 9, 16 * 9, 32 * 16, 64, 10]),
        "fashion-labels": (12_000, 32, [784, 100, 100, 10]),
        "random-labels": (30_000, 16, [196, 100, 100, 10]),
        "gradual": (24_000, 16, [196, 100, 10]),
        "layer-norm": (20_000, 16, [196, 100, 100, 100, 10]),
        "growing-frequency": (30_000, 16, [1, 50, 50, 1]),
        "changing-rewards": (80_000, 1, [16, 32, 1]),
    },
}


@pytest.mark.parametrize("name", DEFINED)
def test_the_streams_of_the_study_files(name, monkeypatch, tmp_path):
    """Steps, batches and layers of each, with few images; and one set of tasks for all rules."""
    read = [
        tomllib.loads((FOLDER / "continual" / f"{name}{end}.toml").read_text(encoding="utf-8"))
        for end in ("", "_defaults")
    ]
    assert read[0]["tasks"] == read[1]["tasks"]
    assert read[0]["seeds"]["reporting"] == read[1]["seeds"]["reporting"]
    assert len(read[0]["seeds"]["reporting"]) >= 5
    assert all("grid" not in rule for rule in read[1]["rules"].values())
    colours(monkeypatch, tmp_path)
    for file in ("mnist", "fashion_mnist"):
        images = np.zeros((40, 28, 28), np.uint8)
        arrays = {
            f"{x}_{part}": images if x == "x" else images[:, 0, 0]
            for x in "xy"
            for part in ("train", "test")
        }
        np.savez(tmp_path / f"{file}.npz", **arrays)
    found = {}
    for task, settings in read[0]["tasks"].items():
        few = {"images": 40} if "images" in settings or settings["kind"] == "random-labels" else {}
        made = tasks.named(
            settings["kind"], {k: v for k, v in {**settings, **few}.items() if k != "kind"}
        )
        weights = [p for p in made.model().parameters() if p.ndim > 1]
        sizes = [p[0].numel() for p in weights] + [len(weights[-1])]
        found[task] = made.batch_count(), made.batch_size, sizes
    assert found == DEFINED[name]


def test_the_table_of_a_study_with_several_streams(tmp_path, monkeypatch):
    """A row for each stream, from its own lines alone, also from the results that are kept."""
    spec = importlib.util.spec_from_file_location("continual_table", FOLDER / "continual.py")
    continual = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(continual)
    streams = [*DEFINED["apart"]]
    assert {name: [*bounds] for name, bounds in continual.BOUNDS.items() if name in DEFINED} == {
        name: [*found] for name, found in DEFINED.items()
    }
    for name, factor in (("apart", 1.0), ("apart_defaults", 0.5)):
        (tmp_path / name).mkdir()
        summary = ["task,rule,metric,better,mean,edge"]
        curves = ["task,rule,phase,seed,step,metric,value"]
        rule = "weight-uncertainty (defaults)" if "_" in name else "sgd"
        for n, each in enumerate(streams, start=1):
            summary.append(f"{each},{rule},error,lower,{factor * n},")
            for seed, step in itertools.product((10, 11), (0, 100 * n)):
                curves.append(
                    f"{each},{rule},reporting,{seed},{step},error,{factor * n if step else 9}"
                )
        (tmp_path / name / "summary.csv").write_text("\n".join(summary))
        (tmp_path / name / "curves.csv").write_text("\n".join(curves))
    monkeypatch.setattr(continual, "HERE", tmp_path / "kept")
    continual.keep(tmp_path)
    for folder in (tmp_path, tmp_path / "kept" / "results"):
        found = continual.table(folder)
        assert [one.stream for one in found] == streams
        assert [one.theirs for one in found] == pytest.approx(range(1, 8))
        for one in found:
            assert (one.ratio, one.low, one.high) == pytest.approx((0.5,) * 3)
        assert continual.text(found).endswith("geometric mean of the ratios 0.500, largest 0.500")
