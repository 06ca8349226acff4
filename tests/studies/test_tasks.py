"""Tasks: what their batches hold, what their numbers are, and that they can be trained."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lossnav.studies import data, tasks
from lossnav.studies.tasks.convex import Point
from lossnav.studies.tasks.images import cropped

KINDS = [
    "digits",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "characters",
    "noisy-quadratic",
    "logistic-regression",
]
SMALL = {
    "characters": {"layers": 2, "width": 32, "heads": 4, "context": 16, "batch_size": 8},
    "cifar10": {"batch_size": 20},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small files of the real formats; each class has its own pattern, which can be learnt."""
    place, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name, shape in (("mnist", (28, 28)), ("fashion_mnist", (28, 28)), ("cifar10", (32, 32, 3))):
        # Crops and mirrors leave a colour as it is.
        patterns = rng.integers(0, 200, (10, 1, 1, 3) if len(shape) == 3 else (10, *shape))
        arrays = {}
        for part, count in (("train", 260 if len(shape) == 2 else 110), ("test", 60)):
            y = rng.integers(0, 10, count)
            noise = rng.integers(0, 56, (count, *shape))
            arrays[f"x_{part}"] = (patterns[y] + noise).astype(np.uint8)
            arrays[f"y_{part}"] = y.astype(np.uint8)
        np.savez_compressed(place / f"{name}.npz", **arrays)
    (place / "tinyshakespeare.txt").write_text("the quick brown fox jumps over the lazy dog. " * 90)
    return place


@pytest.fixture(autouse=True)
def small(folder, monkeypatch):
    monkeypatch.setenv("LOSSNAV_DATA", str(folder))
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_it_trains(kind):
    """A few steps of Adam lower both the loss of the training and that on data not seen."""
    task = tasks.named(kind, SMALL.get(kind))
    model = task.model()
    optimizer = torch.optim.Adam(model.parameters(), 3e-2 if "-" in kind else 1e-3)
    before = [task.evaluate(model, split) for split in ("validation", "test")]
    passes = {"cifar10": 2, "characters": 1}.get(kind, 5)
    for one in range(passes):
        losses = []
        for batch in task.batches(rng(one)):
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            assert loss.shape == ()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert len(losses) == task.batch_count()
    after = [task.evaluate(model, split) for split in ("validation", "test")]
    for old, new in zip(before, after, strict=True):
        assert new["loss"] < 0.9 * old["loss"]
        assert new.keys() == old.keys() >= {task.metric}
        assert all(type(value) is float for value in new.values())


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_decided_by_the_generator(kind):
    def first(task, seed):
        batch = next(iter(task.batches(rng(seed))))
        return batch[0] if isinstance(batch, tuple) else batch

    task = tasks.named(kind, SMALL.get(kind))
    assert torch.equal(first(task, 0), first(tasks.named(kind, SMALL.get(kind)), 0))
    assert not torch.equal(first(task, 0), first(task, 1))


def test_the_paper_models():
    """MATHS 8: the sizes of Fig. 2e and 2f, counted by hand."""
    mnist, cifar = tasks.named("mnist"), tasks.named("cifar10")
    assert [type(m).__name__ for m in mnist.model()] == [
        "Linear",
        "ReLU",
        "Linear",
        "ReLU",
        "Linear",
    ]
    assert [tuple(p.shape) for p in mnist.model().parameters()] == [
        (512, 784),
        (512,),
        (256, 512),
        (256,),
        (10, 256),
        (10,),
    ]
    assert [tuple(p.shape) for p in cifar.model().parameters() if p.ndim > 1] == [
        (64, 3, 3, 3),
        (64, 64, 3, 3),
        (128, 64, 3, 3),
        (128, 128, 3, 3),
        (256, 8192),
        (10, 256),
    ]
    assert [type(m).__name__ for m in cifar.model()][:5] == [
        "Conv2d",
        "ReLU",
        "Conv2d",
        "ReLU",
        "MaxPool2d",
    ]
    assert mnist.batch_size == cifar.batch_size == 128


def test_a_pass_holds_every_training_image_once_and_none_held_out():
    task = tasks.named("mnist", {"validation": 0.25})
    assert task.batch_count() == 2  # 195 images, 128 at a time
    train = torch.cat([x for x, _ in task.batches(rng())])
    back = (train * 0.3081 + 0.1307).mul(255).round().to(torch.uint8)
    images = data.load("mnist").x_train.reshape(260, -1)
    seen = sorted(map(bytes, back.numpy()))
    held = sorted(map(bytes, images[task._seen["validation"]]))
    assert len(seen) == 195
    assert sorted(seen + held) == sorted(map(bytes, images))


def test_scaling_is_that_of_the_paper():
    task = tasks.named("cifar10", {"augment": False, "batch_size": 300, "validation": 0})
    assert task.splits == ("test",)
    x, y = next(iter(task.batches(rng())))
    assert x.shape == (110, 3, 32, 32)
    images, mean, std = data.load("cifar10"), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    byhand = (images.x_train / 255 - mean) / std
    ours = x.numpy().transpose(0, 2, 3, 1)
    for image, label in zip(ours[:20], y[:20], strict=True):
        gap = np.abs(byhand - image).max((1, 2, 3))
        assert gap.min() < 1e-5
        assert images.y_train[gap.argmin()] == label
    assert y.dtype == torch.long


def test_evaluation_is_over_the_whole_split(monkeypatch):
    """Against one plain pass, with parts that do not divide the whole."""
    monkeypatch.setattr("lossnav.studies.tasks.images.ImageTask.judged_at_once", 7)
    task = tasks.named("fashion-mnist")
    model = task.model()
    images = data.load("fashion-mnist")
    x = torch.tensor((images.x_test.reshape(60, -1) / 255 - 0.2860) / 0.3530).float()
    y = torch.tensor(images.y_test).long()
    found = task.evaluate(model, "test")
    assert found["loss"] == pytest.approx(cross_entropy(model(x), y).item(), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float((model(x).argmax(1) == y).float().mean()))


def test_crops_are_those_of_a_slow_loop():
    """Pad, cut and mirror one image at a time; every shift and both mirrors occur."""
    images = torch.randint(1, 256, (400, 6, 5, 3), dtype=torch.uint8, generator=rng())
    found = cropped(images, rng(1), margin=2)
    assert found.dtype == torch.uint8
    seen = set()
    for image, crop in zip(images.numpy(), found.numpy(), strict=True):
        padded = np.zeros((10, 9, 3), np.uint8)
        padded[2:8, 2:7] = image
        fits = [
            (i, j, flip)
            for i in range(5)
            for j in range(5)
            for flip in (False, True)
            if (padded[i : i + 6, j : j + 5][:, :: -1 if flip else 1] == crop).all()
        ]
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) == 50


def test_text_is_cut_by_place():
    task = tasks.named("characters", SMALL["characters"])
    text = data.load_text()
    letters = sorted(set(text))
    codes = np.array([letters.index(letter) for letter in text])
    windows = np.concatenate([batch.numpy() for batch in task.batches(rng(3))])
    assert windows.shape[1] == 17
    cut = len(text) * 9 // 10
    places = {codes[i : i + 17].tobytes() for i in range(cut - 16)}
    assert {row.tobytes() for row in windows} <= places
    # Windows of one pass meet end to end: what one has to predict last, the next one sees first.
    assert {row[16] for row in windows} <= set(codes[:cut])
    assert len(windows) * 16 > cut - 3 * 16
    half = cut + (len(text) - cut) // 2
    for split, start in (("validation", cut), ("test", half)):
        np.testing.assert_array_equal(task._seen[split][0], codes[start : start + 17])


def test_the_transformer_does_not_see_what_is_to_come():
    task = tasks.named("characters", SMALL["characters"])
    model = task.model()
    codes = torch.zeros(1, 16, dtype=torch.long)
    changed = codes.clone()
    changed[0, 9] = 1
    differ = (model(codes) - model(changed)).abs().amax(2)[0] > 0
    assert differ.tolist() == [False] * 9 + [True] * 7


def test_noisy_quadratic_has_the_noise_it_says():
    """Mean and covariance of the gradient, against H and noise^2 H from many draws."""
    task = tasks.named(
        "noisy-quadratic", {"dimension": 4, "condition": 10.0, "noise": 0.5, "epoch_steps": 8000}
    )
    model = Point(4)
    grads = torch.stack(
        [
            torch.autograd.grad(task.loss(model, noise), [model.theta])[0]
            for noise in task.batches(rng())
        ]
    )
    mean = task.H @ (model.theta.detach() - task.minimum)
    assert torch.allclose(grads.mean(0), mean, atol=0.03)
    assert torch.allclose(torch.cov(grads.T), 0.25 * task.H, atol=0.015)
    off = task.H - torch.diag(task.H.diag())
    assert off.abs().max() > 0.05  # rotated
    straight = tasks.named("noisy-quadratic", {"dimension": 4, "rotated": False}).H
    assert torch.equal(straight, torch.diag(straight.diag()))


def test_logistic_regression_is_ill_conditioned():
    task = tasks.named("logistic-regression", {"dimension": 10, "condition": 1e4, "examples": 5000})
    x, y = task._parts["train"]
    values = torch.linalg.eigvalsh(torch.cov(x.T.double()))
    assert float(values[-1] / values[0]) == pytest.approx(1e4, rel=0.15)
    assert 0.4 < float(y.mean()) < 0.6
    again = tasks.named(
        "logistic-regression", {"dimension": 10, "condition": 1e4, "examples": 5000}
    )
    assert torch.equal(x, again._parts["train"][0])
    assert not torch.equal(x, task._parts["test"][0])


def test_the_metric_can_be_chosen():
    task = tasks.named("digits", {"metric": "accuracy"})
    assert (task.metric, task.better) == ("accuracy", "higher")
    assert (tasks.Task.metric, tasks.Task.better) == ("loss", "lower")


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("mnst", {}, "There is no built-in task named 'mnst'. Did you mean 'mnist'?"),
        (
            "digits",
            {"hiden": [3]},
            "The task 'digits' has no setting 'hiden'. Did you mean 'hidden'? It takes: "
            "batch_size, validation, metric, hidden",
        ),
        (
            "digits",
            {"hidden": [0]},
            "A width of hidden is 0, but it must be a whole number, 1 or more.",
        ),
        (
            "cifar10",
            {"widths": []},
            "widths has 0 numbers, but an image of 32 x 32 pixels can be halved from one to "
            "five times.",
        ),
        ("cifar10", {"widths": 8}, "widths is 8, but it must be a list of widths, such as [64]."),
        ("digits", {"hidden": 64}, "hidden is 64, but it must be a list of widths, such as [64]."),
        (
            "digits",
            {"batch_size": 2.5},
            "batch_size is 2.5, but it must be a whole number, 1 or more.",
        ),
        (
            "digits",
            {"validation": "some"},
            "validation must be a real number, but a str was given.",
        ),
        ("digits", {"metric": 3}, "There is no metric named '3'. Known: accuracy, loss."),
        ("digits", {"validation": 1437}, "which holds out 1437 of 1437 training images"),
        ("digits", {"validation": 1e-5}, "which holds out 0 of 1437 training images"),
        (
            "digits",
            {"metric": "acuracy"},
            "There is no metric named 'acuracy'. Did you mean 'accuracy'?",
        ),
        (
            "characters",
            {"heads": 3},
            "width is 128, but it must be a multiple of heads, which is 3.",
        ),
        ("characters", {"context": 300}, "context is 300, but the text for validation has only"),
        ("noisy-quadratic", {"condition": 0.5}, "condition is 0.5, but it must be 1 or more."),
        ("noisy-quadratic", {"noise": -1}, "noise is -1, but it must be zero or more."),
        (
            "their_tasks:nothing",
            {},
            "The task 'their_tasks:nothing' returned a NoneType, but it must return a Task.",
        ),
        (
            "their_tasks:sized",
            {},
            "The task 'their_tasks:sized' needs the setting 'size', which is not given.",
        ),
        (
            "their_tasks:broken",
            {"size": 3},
            "The task 'their_tasks:broken' cannot be made with size=3: ZeroDivisionError: "
            "division by zero",
        ),
        ("their_tasks:other", {}, "There is no 'other' in their_tasks."),
    ],
)
def test_refused(kind, settings, sentence, monkeypatch):
    module = types.ModuleType("their_tasks")
    module.nothing, module.sized = lambda: None, lambda size: None
    module.broken = lambda size: 1 / 0
    monkeypatch.setitem(sys.modules, "their_tasks", module)
    with pytest.raises(ValueError) as caught:
        tasks.named(kind, settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_data_are_refused_and_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOSSNAV_OFFLINE", "1")
    with pytest.raises(
        ValueError, match=r"The data set 'mnist' is not available: there is no mnist\.npz"
    ):
        tasks.named("mnist")


def test_tasks_of_ones_own(monkeypatch):
    points = torch.linspace(-1, 1, 60)[:, None]

    def error(model, x):
        return (model(x) - x.sin()).square().mean()

    def parts(size=20):
        return tasks.task_of(
            model=lambda: nn.Linear(1, 1),
            batches=lambda rng: points[torch.randperm(60, generator=rng)].split(size),
            loss=error,
            evaluate=lambda model, split: {"error": float(error(model, points))},
            metric="error",
            splits=("test",),
        )

    module = types.ModuleType("their_tasks")
    module.parts = parts
    monkeypatch.setitem(sys.modules, "their_tasks", module)
    task = tasks.named("their_tasks:parts", {"size": 30})
    assert task.batch_count() == 2
    assert (task.metric, task.splits) == ("error", ("test",))
    with pytest.raises(TypeError, match="loss must be a function, but a NoneType was given"):
        tasks.task_of(model=nn.Identity, batches=iter, loss=None, evaluate=print)


def test_an_endless_pass_has_no_epochs(monkeypatch):
    import itertools

    monkeypatch.setattr("lossnav.studies.tasks.MOST_BATCHES", 1000)
    task = tasks.task_of(
        model=nn.Identity, batches=lambda rng: itertools.count(), loss=print, evaluate=print
    )
    with pytest.raises(ValueError, match="give the budget in steps, not in epochs"):
        task.batch_count()
