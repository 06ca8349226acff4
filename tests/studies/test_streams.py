"""Streams of tasks: what is in them, what the score is, and rules that look at the network."""

import copy
import importlib.util
import itertools
import sys
import tomllib
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from lossnav.optim.torch import WeightUncertainty
from lossnav.studies import data, tasks
from lossnav.studies import spec as file
from lossnav.studies.trial import Trial, training
from lossnav.studies.trial.setup import batch_rng

FOLDER = Path(__file__).parents[2] / "benchmarks"
OURS = "lossnav.optim.torch:WeightUncertainty"
PIXELS = {"data": "digits", "pooling": 1, "hidden": [12], "steps": 10, "tasks": 10, "tested": 200}
LABELS = {"data": "digits", "pooling": 2, "hidden": [12], "steps": 10, "tasks": 6}
BITS = {"steps": 20, "tasks": 6}
STREAMS = {
    "permuted-pixels": PIXELS,
    "permuted-labels": LABELS,
    "random-labels": {**LABELS, "images": 40},
    "slow-bits": BITS,
    "growing-frequency": {**BITS, "hidden": [8]},
    "changing-rewards": {**BITS, "hidden": [8]},
}
FIRST = ("permuted-pixels", "permuted-labels", "slow-bits")
BASE = Trial(
    task="stream",
    rule="sgd",
    task_kind="permuted-pixels",
    task_settings=PIXELS,
    rule_kind="torch.optim.SGD",
    settings={"lr": 0.1},
    point={"lr": 0.1},
    seed=3,
    phase="reporting",
    epochs=1,
    evaluations=4,
)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def stream(kind, **changes):
    return tasks.named(kind, {**STREAMS[kind], **changes})


def a(kind="permuted-pixels", **changes):
    return replace(BASE, **{"task_kind": kind, "task_settings": STREAMS[kind], **changes})


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def blocks(task, seed=0):
    """The batches of each task, stacked."""
    found = list(task.batches(rng(seed)))
    assert len(found) == task.batch_count()
    for at in range(0, len(found), task.steps):
        part = found[at : at + task.steps]
        yield torch.stack([x for x, _ in part]), torch.stack([y for _, y in part])


def known_digits():
    """The class of each training digit, by its bytes."""
    digits = data.load("digits")
    return {bytes(x): int(y) for x, y in zip(digits.x_train, digits.y_train, strict=True)}


def looked_up(images):
    """Which training digit each image is."""
    known = known_digits()
    return [known[bytes(image)] for image in images]


def test_each_task_has_its_own_order_of_the_pixels():
    """From the images alone: the sorted pixels name the digit, and one order restores all."""
    task = stream("permuted-pixels")
    digits, orders = data.load("digits"), []
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for x, y in blocks(task):
        assert x.shape == (10, 16, 64)
        assert x.min() == 0
        assert x.max() == 1
        orders.append(task._orders[len(orders)])
        back = torch.empty_like(x)
        back[..., orders[-1]] = x
        images = back.mul(16).round().to(torch.uint8).reshape(-1, 8, 8).numpy()
        assert looked_up(images) == y.flatten().tolist()
    assert torch.equal(
        torch.get_rng_state(), before
    )  # nothing but the given generator is drawn from
    assert len({tuple(order.tolist()) for order in orders}) == task.tasks
    assert all(sorted(order.tolist()) == list(range(64)) for order in orders)
    assert len(digits.x_train) > 1000


def test_each_task_has_its_own_names_of_the_classes():
    """Images, averaged over squares by hand, tell the class; each class has one name in a task."""
    task, digits = stream("permuted-labels"), data.load("digits")
    squares = digits.x_train.reshape(-1, 4, 2, 4, 2).astype(float)
    pooled = (
        squares[:, :, 0, :, 0]
        + squares[:, :, 0, :, 1]
        + squares[:, :, 1, :, 0]
        + squares[:, :, 1, :, 1]
    ) / 64
    known = {}
    for x, y in zip(pooled.reshape(-1, 16).astype(np.float32), digits.y_train, strict=True):
        known.setdefault(bytes(x), set()).add(int(y))
    names = []
    for x, y in blocks(task):
        assert x.shape == (10, 16, 16)
        pairs = set()
        for image, name in zip(x.reshape(-1, 16).numpy(), y.flatten().tolist(), strict=True):
            classes = known[bytes(image)]
            if len(classes) == 1:
                pairs.add((*classes, name))
        assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs}) == 10
        names.append(tuple(sorted(pairs)))
    assert len(set(names)) == task.tasks


def test_examples_are_drawn_with_replacement_and_anew():
    x = torch.cat([x for x, _ in blocks(stream("permuted-labels", tasks=20))]).flatten(0, 1)
    assert len(x) == 3200
    # 3200 draws of 1437 digits leave about exp(-2.23) of them out.
    assert len(x.unique(dim=0)) == pytest.approx(1437 * (1 - np.exp(-3200 / 1437)), rel=0.03)


def test_slow_bits_by_the_formula():
    """The target of the issue, unit by unit, from the same draws."""
    draws = rng(4)

    def signs(*shape):
        return (torch.randint(2, shape, generator=draws) * 2 - 1).tolist()

    w, b, u, bias = signs(20, 100), signs(100), signs(100, 1), signs()
    seen, values = [], []
    for x, y in blocks(stream("slow-bits"), seed=4):
        assert x.shape == (20, 1, 20)
        assert y.shape == (20, 1, 1)
        assert len(x[:, 0, :15].unique(dim=0)) == 1
        seen.append(tuple(x[0, 0, :15].tolist()))
        values += x[:, 0, 15:].flatten().tolist()
        for bits, target in zip(x[:, 0].tolist(), y.flatten().tolist(), strict=True):
            total = bias
            for i in range(100):
                column = [w[j][i] for j in range(20)]
                tau = 0.7 * 21 - (20 - sum(column) + b[i]) / 2
                on = sum(c * bit for c, bit in zip(column, bits, strict=True)) + b[i] > tau
                total += u[i][0] * on
            assert target == total
    assert len(set(seen)) == 6
    assert 0.4 < np.mean(values) < 0.6


def test_the_sizes_by_default(monkeypatch, tmp_path):
    """A: 196-50-50-10, 150 tasks of 200 steps of 16; B: 100 tasks; C: 20-5-1, 60 of 1000 of 1."""
    rows = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = rows.integers(0, 256, (30, 28, 28)).astype(np.uint8)
        arrays[f"y_{part}"] = (np.arange(30) % 10).astype(np.uint8)
    np.savez(tmp_path / "mnist.npz", **arrays)
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    for kind, count, shapes in (
        ("permuted-pixels", 150, [(50, 196), (50,), (50, 50), (50,), (10, 50), (10,)]),
        ("permuted-labels", 100, [(50, 196), (50,), (50, 50), (50,), (10, 50), (10,)]),
        ("slow-bits", 60, [(5, 20), (5,), (1, 5), (1,)]),
    ):
        task = tasks.named(kind)
        assert [tuple(p.shape) for p in task.model().parameters()] == shapes
        assert task.tasks == count
        assert task.batch_count() == count * (1000 if kind == "slow-bits" else 200)
        x, _ = next(iter(task.batches(rng())))
        assert len(x) == (1 if kind == "slow-bits" else 16)
    assert x.shape == (1, 20)
    large = tasks.named("permuted-pixels", {"pooling": 1, "hidden": [300, 150], "tasks": 400})
    assert [tuple(p.shape) for p in large.model().parameters() if p.ndim > 1] == [
        (300, 784),
        (150, 300),
        (10, 150),
    ]


def test_weights_at_the_start():
    torch.manual_seed(0)
    layers = [
        m for m in stream("permuted-pixels", hidden=[300, 200]).model() if isinstance(m, nn.Linear)
    ]
    for layer, gain in zip(layers, (2, 2, 1), strict=True):
        assert not layer.bias.any()
        spread = layer.weight.detach()
        assert spread.square().mean() * layer.in_features == pytest.approx(gain, rel=0.1)
        limit = (3 * gain / layer.in_features) ** 0.5
        assert 0.97 * limit < spread.abs().max() <= limit


def by_hand(trial, right, price):
    """A plain loop: the score of each step from its own pass, and the model after each task."""
    task = tasks.named(trial.task_kind, trial.task_settings)
    torch.manual_seed(trial.seed)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), **trial.settings)
    scores, losses, ends = [], [], []
    for n, (x, y) in enumerate(task.batches(batch_rng(trial.seed)), start=1):
        with torch.no_grad():
            scores.append(float(right(model(x), y)))
        optimizer.zero_grad()
        loss = price(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if n % task.steps == 0:
            ends.append(copy.deepcopy(model))
    return task, np.array(scores), np.array(losses, np.float32), ends


def accuracy(said, y):
    return (said.argmax(1) == y).float().mean()


@pytest.mark.parametrize("kind", FIRST)
def test_the_score_is_that_of_a_plain_loop(kind):
    """Predictions before each update; the last fifth (third) of the tasks; the recent curve."""
    trial = a(kind, settings={"lr": 0.01 if kind == "slow-bits" else 0.1})
    result = training.run_trial(trial)
    assert result.status == "done"
    right, price, part = (
        (mse_loss, mse_loss, 3) if kind == "slow-bits" else (accuracy, cross_entropy, 5)
    )
    task, scores, losses, _ = by_hand(trial, right, price)
    np.testing.assert_array_equal(result.curves["training_loss"], losses)
    last = {10: 2, 6: 2}[task.tasks] * task.steps
    assert result.final[task.metric] == pytest.approx(scores[-last:].mean(), abs=1e-6)
    at = result.curves["step"].astype(int)
    assert at[0] == 0
    for seen, value in zip(at[1:], result.curves[task.metric][1:], strict=True):
        each = scores[: seen // task.steps * task.steps].reshape(-1, task.steps).mean(1)
        assert value == pytest.approx(each[-max(1, -(-len(each) // part)) :].mean(), abs=1e-6)
    pieces = [scores[i:j].mean() for i, j in itertools.pairwise(at)]
    np.testing.assert_allclose(result.curves["recent"][1:], pieces, atol=1e-6)
    assert task.better == ("lower" if kind == "slow-bits" else "higher")
    start = result.curves[task.metric][0]
    assert 0.0 < start < 0.4 if kind != "slow-bits" else 0.5 < start < 200


def test_forgetting_is_that_of_a_plain_loop():
    """Accuracy at the end of a task minus that one task later, from copies of the model."""
    trial = a(epochs=None, steps=100, settings={"lr": 0.3})
    result = training.run_trial(trial)
    task, _, _, ends = by_hand(trial, accuracy, cross_entropy)
    images = torch.tensor(data.load("digits").x_test[:200].reshape(200, 64) / 16).float()
    answers = torch.tensor(data.load("digits").y_test[:200]).long()

    def right(model, order):
        return float(accuracy(model(images[:, order]), answers))

    lost = [right(ends[i], task._orders[i]) - right(ends[i + 1], task._orders[i]) for i in range(9)]
    assert result.final["forgetting"] == pytest.approx(np.mean(lost[-2:]), abs=1e-6)
    assert result.final["forgetting"] > 0.02
    # After 25, 50, 75 and 100 steps, 2, 5, 7 and 10 tasks are complete; 1, 1, 2, 2 count.
    expected = [0.0, lost[0], lost[3], np.mean(lost[4:6]), np.mean(lost[7:9])]
    np.testing.assert_allclose(result.curves["forgetting"], expected, atol=1e-6)


@pytest.mark.parametrize("kind", STREAMS)
def test_looking_changes_nothing(kind):
    few, many = (training.run_trial(a(kind, evaluations=n)) for n in (1, 30))
    np.testing.assert_array_equal(few.curves["training_loss"], many.curves["training_loss"])
    assert few.final.keys() == many.final.keys()
    for name in set(few.final) - {"recent"}:
        assert few.final[name] == many.final[name]


def test_a_seed_is_a_stream():
    one, again, other = (training.run_trial(a(seed=seed, epochs=0.2)) for seed in (1, 1, 2))
    assert one.final == again.final != other.final
    tuned = training.run_trial(a(seed=1, epochs=0.2, phase="tuning"))
    assert tuned.final == one.final


def test_only_the_first_pass_over_a_batch_counts():
    """A rule that asks for the loss again and again is judged by what it said at first."""
    task = stream("permuted-labels", tasks=1)
    torch.manual_seed(0)
    model = task.model()
    optimizer, scores = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4), []
    for batch in task.batches(rng()):
        with torch.no_grad():
            scores.append(float(accuracy(model(batch[0]), batch[1])))
            task.loss(model, batch)  # a look without gradients is no training

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert task.evaluate(model, "test")["accuracy"] == pytest.approx(np.mean(scores), abs=1e-6)


def test_a_stream_that_is_cut_short_has_a_score():
    """No task is over then, so the score is of what there was."""
    _, scores, losses, _ = by_hand(a(), accuracy, cross_entropy)
    result = training.run_trial(a(epochs=None, steps=7))
    assert result.final["accuracy"] == pytest.approx(scores[:7].mean(), abs=1e-6)
    np.testing.assert_array_equal(result.curves["training_loss"], losses[:7])
    assert training.run_trial(a(epochs=2)).cost["steps"] == 200


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("permuted-pixels", {"data": "cifar100"}, "no data set of this stream named 'cifar100'"),
        ("permuted-pixels", {"pooling": 3}, "pooling is 3, but an image of 8 x 8 pixels"),
        ("permuted-pixels", {"tested": 0}, "tested is 0"),
        ("permuted-labels", {"tasks": 0}, "tasks is 0"),
        ("permuted-labels", {"hidden": 50}, "hidden is 50"),
        ("slow-bits", {"slow": 20}, "slow is 20, but of 20 bits at least one"),
        ("slow-bits", {"threshold": -1.0}, "threshold is -1"),
        ("slow-bits", {"flips": 16}, "flips is 16, but only 15 bits are slow"),
        ("slow-bits", {"flips": 0}, "flips is 0"),
        ("slow-bits", {"part": 0}, "part is 0"),
        ("permuted-labels", {"images": 1438}, "images is 1438, but digits has 1437"),
        ("permuted-labels", {"images": 0}, "images is 0"),
        ("permuted-labels", {"blend": -1}, "blend is -1"),
        ("permuted-labels", {"channels": [4, 4, 4]}, "channels has 3 convolutions"),
        ("random-labels", {"images": None}, "random labels belong to a number of images"),
        ("growing-frequency", {"lowest": 0.0}, "lowest is 0"),
        ("changing-rewards", {"discount": 1.0}, "discount is 1"),
    ],
)
def test_wrong_settings_get_a_sentence(kind, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        stream(kind, **settings)


# Rules that look at the network


def watched(trial, **settings):
    """The losses of a plain loop with our optimizer, watching if it is told a loss."""
    task = tasks.named(trial.task_kind, trial.task_settings)
    torch.manual_seed(trial.seed)
    model = task.model()
    loss_kind = settings.pop("watch", None)
    optimizer = WeightUncertainty(model.parameters(), **settings)
    if loss_kind:
        optimizer.watch(model, loss_kind)
    losses = []
    for batch in task.batches(batch_rng(trial.seed)):
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses, np.float32)


@pytest.mark.parametrize(
    ("kind", "settings", "loss"),
    [
        ("permuted-pixels", {"curvature": "ggn"}, "cross_entropy"),
        ("permuted-labels", {"curvature": "fisher"}, "cross_entropy"),
        ("slow-bits", {"curvature": "ggn"}, "mse"),
        ("permuted-pixels", {"curvature": "squared-batch", "batch_size": 16}, None),
    ],
)
def test_weight_uncertainty_is_shown_the_network_where_it_asks(kind, settings, loss):
    trial = a(kind, rule_kind=OURS, settings=settings, point={})
    result = training.run_trial(trial)
    assert result.reason == ""
    expected = watched(trial, **settings, watch=loss)
    np.testing.assert_array_equal(result.curves["training_loss"], expected)


def test_a_task_that_does_not_say_its_loss_cannot_serve_ggn():
    trial = a(
        rule_kind=OURS, settings={"curvature": "ggn"}, task_kind="noisy-quadratic", task_settings={}
    )
    result = training.run_trial(trial)
    assert result.status == "failed"
    assert "must know the loss" in result.reason


def test_parts_of_batches_are_refused(monkeypatch):
    monkeypatch.setattr(tasks.Task, "watchable", False)
    settings = {"curvature": "fisher"}
    result = training.run_trial(replace(a(), rule_kind=OURS, settings=settings, point={}))
    assert result.status == "failed"
    assert "needs the examples of a whole batch" in result.reason


def test_any_rule_with_watch_is_given_the_model(monkeypatch):
    module, seen = types.ModuleType("watching"), []

    class Watching(torch.optim.SGD):
        def watch(self, model, loss):
            seen.append((list(model.parameters()) == self.param_groups[0]["params"], loss))

    module.Watching = Watching
    monkeypatch.setitem(sys.modules, "watching", module)
    trial = a("slow-bits", rule_kind="watching:Watching", settings={"lr": 0.01})
    assert training.run_trial(trial).status == "done"
    assert seen == [(True, "mse")]


# The study files


FILES = sorted((FOLDER / "continual").glob("*.toml"))


@pytest.fixture
def beside(monkeypatch):
    """The modules beside the study files, found and then forgotten."""
    monkeypatch.syspath_prepend(FOLDER / "continual")
    before = {name: sys.modules.pop(name, None) for name in ("peers", "unit_peers")}
    yield
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


STRUCTURE = ("blend", "channels", "flips", "layer_norm", "part", "standardize")


def small(task):
    """A short stream on little data, of the same structure."""
    kept = {name: value for name, value in task.settings.items() if name in STRUCTURE}
    return {**STREAMS[task.kind], **kept, "tasks": 2, "steps": 4}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_rule_of_a_study_file_runs(path, beside):
    """Every point can be made, and the first of each trains small streams of the same kinds."""
    study = file.read(path)
    grids = {tuple(study.rules[name].grid) for name in study.rules}
    assert grids
    for place, task in enumerate(study.tasks.values()):
        tiny = a(task.kind, task_settings=small(task), evaluations=2)
        for rule in study.rules.values():
            points = list(_points(rule.grid))
            for point in points[: None if place == 0 else 1]:
                settings = {**rule.settings, **point}
                trial = replace(tiny, rule_kind=rule.kind, settings=settings, point=point)
                training.check(trial)
            result = training.run_trial(replace(trial, settings={**rule.settings, **points[0]}))
            assert result.status == "done", f"{rule.kind}: {result.reason}"


def _points(grid):
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def test_study_files_ask_for_the_streams_as_they_are_described():
    values = {path.stem: tomllib.loads(path.read_text()) for path in FILES}
    assert {"A", "B", "C", "D"} <= set(values)
    kinds = {name: [t["kind"] for t in v["tasks"].values()] for name, v in values.items()}
    assert kinds["A"] == ["permuted-pixels"]
    assert kinds["B"] == ["permuted-labels"]
    assert kinds["C"] == ["slow-bits"]
    assert set(kinds["D"]) == {"permuted-pixels"}
    for name, least in (("A", 5), ("B", 5), ("C", 20), ("D", 5)):
        for study in (values[name], values[f"{name}_defaults"]):
            assert len(study["seeds"]["reporting"]) >= least
            assert study["budget"]["epochs"] == 1
        ours = values[f"{name}_defaults"]
        assert ours["tasks"] == values[name]["tasks"]
        assert ours["seeds"]["reporting"] == values[name]["seeds"]["reporting"]
        assert all("grid" not in rule for rule in ours["rules"].values())
    settings = [
        [rule for rule in v["rules"].values() if rule["kind"] == "lossnav.WeightUncertainty"]
        for name, v in values.items()
        if name.endswith(("_defaults", "_again"))
    ]
    assert all(one == settings[0] for one in settings)  # one set of defaults for all streams
    for name in ("A", "B", "D"):
        used = {seed for seeds in values[name]["seeds"].values() for seed in seeds}
        assert not used & set(values[f"{name}_again"]["seeds"]["reporting"])


def test_the_table_of_the_benchmark(tmp_path):
    """Ratios from the studies' summaries; a rule without a mean is named, and never the best."""
    spec = importlib.util.spec_from_file_location("continual_table", FOLDER / "continual.py")
    continual = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(continual)

    def write(name, rows, metric="accuracy", better="higher"):
        """What a study of five seeds leaves; a rule without a mean lost a seed."""
        (tmp_path / name).mkdir()
        summary = ["task,rule,metric,better,mean,edge"]
        curves = ["rule,phase,seed,step,metric,value"]
        for rule, mean in rows.items():
            summary.append(f"s,{rule},{metric},{better},{mean},{'lr=0.1' if rule == 'sgd' else ''}")
            for seed, step in itertools.product(range(10, 15), (0, 50, 100)):
                value = (mean or 0.9) if step == 100 else 0.1
                curves.append(f"{rule},reporting,{seed},{step},{metric},{value}")
                curves.append(f"{rule},tuning,{seed},{step},{metric},0.99")
                if metric == "accuracy":
                    curves.append(f"{rule},reporting,{seed},{step},forgetting,{value / 10}")
        (tmp_path / name / "summary.csv").write_text("\n".join(summary))
        (tmp_path / name / "curves.csv").write_text("\n".join(curves))

    ours = "weight-uncertainty (defaults)"
    write("A", {"sgd": 0.6, "cbp": 0.75, "adam": ""})
    write("A_defaults", {ours: 0.8})
    write("C", {"sgd": 1.2, "cbp": 1.0}, "error", "lower")
    write("C_defaults", {ours: 1.1}, "error", "lower")
    write("C_again", {ours: 1.0, "cbp": 0.8, "redo": 2.0}, "error", "lower")  # all in one study
    write("D", {"sgd": 0.6})  # ours is still missing
    a, c, again = continual.table(tmp_path)
    assert (a.stream, c.stream, again.stream) == ("A", "C", "C")
    assert (again.best, again.ratio) == ("cbp", pytest.approx(1.25))
    assert (a.best, a.lost, a.edges, a.reached) == ("cbp", ["adam"], ["sgd (lr=0.1)"], True)
    assert (a.ours, a.theirs, a.ratio) == pytest.approx((0.2, 0.25, 0.8))
    assert (a.low, a.high) == pytest.approx((0.8, 0.8))
    assert a.forgotten == pytest.approx((0.08, 0.075))
    assert c.ratio == pytest.approx(1.1)
    assert not c.reached
    assert c.forgotten is None
    lines = continual.text([a, c]).splitlines()
    assert "holds" in lines[1]
    assert "MISSES" in lines[-2]
    assert "no mean: adam" in lines[2]
