"""Losses on a grid and slices of networks, against losses whose slices are known exactly."""

import pickle
import re

import numpy as np
import pytest
import torch

import lossnav as ln
from lossnav.problem import slices

GEN = torch.Generator().manual_seed(1)
SIZE = 24
"""Weights of the quadratic model, beyond those whose whole Hessian is decomposed."""
ROOT = torch.randn(SIZE, SIZE, generator=GEN, dtype=torch.float64)
H = ROOT @ ROOT.T / SIZE + torch.diag(torch.linspace(0.1, 3, SIZE, dtype=torch.float64))
WEIGHTS = {
    "conv": torch.randn(2, 3, 2, generator=GEN, dtype=torch.float64),
    "bias": torch.randn(4, generator=GEN, dtype=torch.float64),
    "last": torch.randn(2, 4, generator=GEN, dtype=torch.float64),
}


def flat(state):
    return torch.cat([state[name].reshape(-1) for name in WEIGHTS])


def quadratic(state):
    x = flat(state) - flat(WEIGHTS)
    return x @ H @ x / 2 + 0.25


def smooth(x, y):
    return np.exp(-x) * np.cos(2 * y) + x * y


def gridded(n, m=12):
    x, y = np.linspace(-1, 2, n), np.linspace(-1, 1, m)
    return ln.GridLoss(x, y, smooth(x[:, None], y))


def test_the_spline_converges_with_the_sixth_order_and_its_hessian_with_the_fourth():
    points = np.random.default_rng(0).uniform([-0.5, -0.6], [1.5, 0.6], (400, 2))
    x, y = points.T
    hess = np.exp(-x) * np.array(
        [
            [np.cos(2 * y), 2 * np.sin(2 * y) + np.exp(x)],
            [2 * np.sin(2 * y) + np.exp(x), -4 * np.cos(2 * y)],
        ]
    )

    def errors(n):
        loss = gridded(n, n)
        return [
            np.linalg.norm(loss(points) - smooth(x, y)),
            np.linalg.norm(loss.hess(points) - np.moveaxis(hess, -1, 0)),
        ]

    orders = np.log2(np.array(errors(26)) / errors(51))
    assert orders == pytest.approx([6, 4], abs=0.5)


def test_it_goes_through_every_value_and_any_shape_of_points():
    loss = gridded(9)
    grid = np.stack(np.meshgrid(loss.x, loss.y, indexing="ij"), axis=-1)
    np.testing.assert_allclose(loss(grid), loss.values, atol=1e-12)
    parts, alone = loss.jet(grid), loss.jet_at(grid[3, 4])
    assert [part.shape for part in parts] == [(9, 12), (9, 12, 2), (9, 12, 2, 2)]
    for part, one in zip(parts, alone, strict=True):
        np.testing.assert_array_equal(part[3, 4], one)
    assert len(loss.jet([0.0, 0.0], 0)) == 1
    assert np.isnan(loss([np.nan, 0.0]))
    again = pickle.loads(pickle.dumps(loss))  # as it is sent to the explorer's workers
    np.testing.assert_array_equal(again(grid), loss(grid))


def test_derivatives_belong_to_each_other_and_do_not_jump_at_the_border():
    loss, h = gridded(9), 1e-6
    points = np.random.default_rng(1).uniform(-3, 4, (300, 2))
    for axis, step in enumerate(h * np.eye(2)):
        slope = (loss(points + step) - loss(points - step)) / (2 * h)
        np.testing.assert_allclose(loss.grad(points)[:, axis], slope, atol=1e-5)
        bend = (loss.grad(points + step) - loss.grad(points - step)) / (2 * h)
        np.testing.assert_allclose(loss.hess(points)[:, axis], bend, atol=2e-4)
    border = np.array([[-1.0, 0.3], [2.0, 1.0], [0.4, -1.0], [2.0, -0.2]])
    for inner, outer in zip(
        loss.jet(border * (1 - 1e-9)), loss.jet(border * (1 + 1e-9)), strict=True
    ):
        np.testing.assert_allclose(inner, outer, atol=1e-6)


def test_outside_it_rises_above_all_values():
    loss = gridded(9)
    turns = np.linspace(0, 2 * np.pi, 33)
    ring = np.array([0.5, 0.0]) + 4 * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    assert (loss(ring) > loss.values.max()).all()
    outward = (loss.grad(ring) * (ring - [0.5, 0.0])).sum(1)
    assert (outward > 0).all()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"x": [0, 1, 2, 3, 4]}, "x has 5 nodes"),
        ({"x": [0, 1, 2, 3, 3, 4, 5]}, "increasing"),
        ({"values": np.zeros((7, 6))}, r"values has shape \(7, 6\)"),
        ({"values": np.full((7, 7), np.inf)}, "values is inf"),
        ({"names": ["x"]}, "two coordinates"),
    ],
)
def test_a_wrong_grid_is_refused(wrong, word):
    given = {"x": np.arange(7), "y": np.arange(7), "values": np.zeros((7, 7))} | wrong
    with pytest.raises(ValueError, match=word):
        ln.GridLoss(**given)


@pytest.mark.parametrize("directions", ["random", "hessian"])
def test_the_optimal_path_on_the_slice_of_a_quadratic_is_the_known_one(directions):
    found = ln.loss_slice(quadratic, WEIGHTS, directions=directions, seed=2, resolution=11)
    d = torch.stack(
        [flat({n: one.get(n, torch.zeros_like(w)) for n, w in WEIGHTS.items()})
         for one in found.directions]
    )  # fmt: skip
    exact = ln.Quadratic((d @ H @ d.T).numpy())
    points = np.random.default_rng(0).uniform(-1, 1, (20, 2))
    np.testing.assert_allclose(found(points), exact(points) + 0.25, rtol=1e-9)
    np.testing.assert_allclose(found.gram, d @ d.T, atol=1e-9)
    assert found.error < 1e-9
    on_slice, known = (
        ln.solve(ln.Objective(loss, gamma=0.7), [0.6, -0.5], tol=1e-8) for loss in (found, exact)
    )
    assert on_slice.J == pytest.approx(known.J + 0.25 / 0.7, rel=1e-8)
    times = np.linspace(0, 2, 9)
    np.testing.assert_allclose(on_slice.at(times), known.at(times), atol=1e-6)
    state = found.weights([0.3, -0.2])
    assert quadratic(state).item() == pytest.approx(found([0.3, -0.2]).item(), rel=1e-9)


@pytest.mark.parametrize("dense", [0, SIZE])
def test_hessian_directions_are_the_leading_eigenvectors(dense, monkeypatch):
    monkeypatch.setattr(slices, "_DENSE", dense)  # by Lanczos, and whole
    found = ln.loss_slice(quadratic, WEIGHTS, directions="hessian", resolution=11)
    values, vectors = np.linalg.eigh(H.numpy())
    np.testing.assert_allclose(found.eigenvalues, values[[-1, -2]], rtol=1e-8)
    for one, known in zip(found.directions, vectors.T[[-1, -2]], strict=True):
        assert abs(flat(one).numpy() @ known) == pytest.approx(1, abs=1e-8)
        assert flat(one)[flat(one).abs().argmax()] > 0
    np.testing.assert_allclose(found.gram, np.eye(2), atol=1e-8)


def test_random_directions_are_normalized_by_filter():
    found = ln.loss_slice(quadratic, WEIGHTS, seed=5, resolution=11)
    draws = torch.Generator().manual_seed(5)
    for direction in found.directions:
        assert set(direction) == {"conv", "last"}  # a bias stays as it is
        for name in direction:
            w, d = (
                WEIGHTS[name],
                torch.randn(WEIGHTS[name].shape, generator=draws, dtype=torch.float64),
            )
            for i in range(len(w)):
                by_hand = d[i] * ((w[i] ** 2).sum() / (d[i] ** 2).sum()) ** 0.5
                torch.testing.assert_close(direction[name][i], by_hand)
    other = ln.loss_slice(quadratic, WEIGHTS, seed=6, resolution=11)
    assert not torch.equal(other.directions[0]["last"], found.directions[0]["last"])


def test_given_directions_scale_and_progress():
    one, two = ({"bias": row} for row in torch.eye(4, dtype=torch.float64)[:2])
    told = []
    found = ln.loss_slice(
        *(quadratic, WEIGHTS), directions=(one, two), extent=0.5, resolution=13, progress=lambda *n: told.append(n)
    )  # fmt: skip
    block = H[12:14, 12:14].numpy()
    np.testing.assert_allclose(found.hess([0.1, 0.2]), block, rtol=1e-8)
    assert found.box == (-0.5, 0.5, -0.5, 0.5)
    assert told[-1] == (169, 169)
    for wrong, word in [({"bais": one["bias"]}, "did you mean 'bias'"), ({"bias": torch.ones(3)}, "shape")]:  # fmt: skip
        with pytest.raises(ValueError, match=word):
            ln.loss_slice(quadratic, WEIGHTS, directions=(one, wrong), resolution=11)


class Tied(torch.nn.Module):
    """Embedding and output share one weight; a normalization layer has buffers."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.embed(x))))


@pytest.fixture
def tied():
    torch.manual_seed(0)
    model, x = Tied().eval(), torch.arange(5)

    def loss_fn(state):
        logits = torch.func.functional_call(model, state, (x,))
        return torch.nn.functional.cross_entropy(logits, x)

    return model, loss_fn


@pytest.mark.parametrize("directions", ["random", "hessian"])
@pytest.mark.parametrize(
    "wrap", [lambda s: s, lambda s: {"model": s, "epoch": 3}, lambda s: {"state_dict": s}]
)
def test_a_checkpoint_of_a_model_with_tied_weights_and_buffers(tied, wrap, directions, tmp_path):
    model, loss_fn = tied
    torch.save(wrap(model.state_dict()), tmp_path / "model.pt")
    found = ln.loss_slice(loss_fn, tmp_path / "model.pt", directions=directions, resolution=11)
    for direction in found.directions:
        assert torch.equal(direction["embed.weight"], direction["head.weight"])
        assert not {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} & set(
            direction
        )
    point = [found.x[7], found.x[3]]
    model.load_state_dict(found.weights(point))
    loss = torch.nn.functional.cross_entropy(model(torch.arange(5)), torch.arange(5))
    assert loss.item() == pytest.approx(found(point).item(), rel=1e-5)


def test_training_mode_does_not_wear_the_checkpoint_out(tied):
    """Batch normalization in training mode writes its statistics into the tensors it is given."""
    model, loss_fn = tied
    model.train()
    before = {name: w.clone() for name, w in model.state_dict().items()}
    for directions in ("random", "hessian"):
        ln.loss_slice(loss_fn, model.state_dict(), directions=directions, resolution=11)
    for name, w in model.state_dict().items():
        assert torch.equal(w, before[name]), name


STEEP = {"w": torch.eye(2)}


@pytest.mark.parametrize(
    ("fn", "given", "word"),
    [
        (lambda s: s["w"], {}, r"tensor of shape \(2, 2\)"),
        (lambda s: "low", {}, "a str, but it must return one real number"),
        (lambda s: s["v"].sum(), {}, r"failed on the state dict \(KeyError: 'v'\)"),
        (lambda s: s["w"].sum() / 0, {}, "inf at the checkpoint itself"),
        (lambda s: (1.5 + s["w"].diagonal().sum() - 2).log(), {}, r"not finite at \d+ of the 121 points"),
        (lambda s: 1.0, {}, "1 on the whole slice"),
        (lambda s: s["w"].sum() + torch.rand(()), {}, "for the same weights"),
        (lambda s: s["w"].sum(), {"directions": "hessian"}, "not differentiable twice"),
        (lambda s: s["w"].detach().norm(), {"directions": "hessian"}, "not differentiable twice"),
        (lambda s: s["w"].norm(), {"directions": "hess"}, "Did you mean 'hessian'"),
        (lambda s: s["w"].norm(), {"resolution": 12}, "odd number from 11 to 301"),
        (lambda s: s["w"].norm(), {"extent": 0.0}, "extent is 0"),
    ],
)  # fmt: skip
def test_a_loss_function_that_will_not_do_is_refused(fn, given, word):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=word):
        ln.loss_slice(fn, STEEP, **{"resolution": 11, "extent": 2.0} | given)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "is missing"),
        (b"junk", r"not a checkpoint that torch.load\(..., weights_only=True\) reads"),
        ([1, 2], "holds no weights but a list"),
        ({"epoch": 1}, "holds no weights but keys epoch"),
        (torch.nn.Linear(2, 2), "UnpicklingError"),
        ({"b": torch.ones(3)}, 'directions="hessian"'),
    ],
    ids=lambda value: re.sub(r"\W+", "-", str(value))[:20],
)
def test_a_file_that_is_no_checkpoint_is_refused(content, word, tmp_path):
    path = tmp_path / "model.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ValueError, match=word):
        ln.loss_slice(lambda state: 1.0, path)
