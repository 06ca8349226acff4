"""Squares of per-example gradients, against torch.func, which differentiates each example by itself."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from lossnav.optim.torch.per_example import Examples  # noqa: E402

B = 6


class Sequence(nn.Module):
    """Layers on several places of an example, an embedding, a norm and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.inner = nn.Linear(4, 3)
        self.head = nn.Linear(3, 4, bias=False)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(self.norm(self.table(x)))).mean(1))


def models():
    torch.manual_seed(0)
    image = torch.randn(B, 2, 6, 5, dtype=torch.float64)
    yield (
        "linear",
        nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 4)),
        torch.randn(B, 5, dtype=torch.float64),
    )
    yield (
        "convolution",
        nn.Sequential(
            nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(27, 4),
        ),
        image,
    )
    yield (
        "other convolutions",
        nn.Sequential(
            nn.Conv2d(2, 4, 3, groups=2, padding="same", padding_mode="circular"),
            nn.Tanh(),
            nn.Conv2d(4, 2, 1, bias=False),
            nn.GroupNorm(1, 2),
            nn.Flatten(2),
            nn.Conv1d(2, 1, 3),
            nn.Flatten(),
            nn.Linear(28, 4),
        ),
        image,
    )
    yield "sequence", Sequence(), torch.randint(0, 5, (B, 3))


MODELS = {name: (model.double(), x) for name, model, x in models()}  # fmt: skip
TARGETS = torch.tensor([0, 3, 1, 1, 2, 0])


def each(model, x, loss):
    """The gradient of every example's own loss."""
    params = dict(model.named_parameters())

    def one(params, x, y):
        return loss(torch.func.functional_call(model, params, (x.unsqueeze(0),)), y.unsqueeze(0))

    def apart(x, y):
        return torch.func.vmap(torch.func.grad(one), (None, 0, 0))(params, x, y)

    return apart


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", MODELS)
def test_squares_are_those_of_each_example(name, reduction):
    model, x = MODELS[name]
    # In place is fine for us, but not for the reference.
    plain = nn.Sequential(model[0], nn.ReLU(), model[2]) if name == "linear" else model
    single = each(plain, x, F.cross_entropy)(x, TARGETS)
    with Examples(model, reduction=reduction) as examples:
        F.cross_entropy(model(x), TARGETS, reduction=reduction).backward()
    assert examples.count == B
    for key, p in model.named_parameters():
        wanted = single[key.replace("module.", "")].square().mean(0)
        torch.testing.assert_close(examples.squares(p), wanted, rtol=1e-9, atol=1e-12)
        assert examples.curvature(p) is None


def test_passes_that_are_accumulated_are_one_batch():
    model, x = MODELS["linear"]
    with Examples(model) as whole:
        F.cross_entropy(model(x), TARGETS).backward()
    with Examples(model) as parts:
        for rows in (slice(0, 2), slice(2, 6)):
            loss = F.cross_entropy(model(x[rows]), TARGETS[rows], reduction="sum") / B
            loss.backward()
    for p in model.parameters():
        torch.testing.assert_close(parts.squares(p), whole.squares(p))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "binary_cross_entropy"])
def test_curvature_is_the_gauss_newton_diagonal_on_average(loss, reduction):
    """E over draws, against J^T (Hessian of the loss at the outputs) J, from autograd alone."""
    model, x = MODELS["linear"]
    plain = nn.Sequential(model[0], nn.ReLU(), model[2])
    params = dict(plain.named_parameters())
    outputs = plain(x).detach()
    targets = {
        "cross_entropy": TARGETS, "mse": torch.zeros(B, 4).double(), "binary_cross_entropy": torch.zeros(B, 4).double(),
    }[loss]  # fmt: skip
    names = {"binary_cross_entropy": "binary_cross_entropy_with_logits", "mse": "mse_loss"}
    measure = getattr(F, names.get(loss, loss))

    def total(o, y):
        return measure(o.unsqueeze(0), y.unsqueeze(0), reduction=reduction)

    bends = torch.stack([
        torch.func.jacrev(torch.func.jacrev(total))(o, y) for o, y in zip(outputs, targets, strict=True)
    ])  # fmt: skip
    jacobians = torch.func.jacrev(lambda p: torch.func.functional_call(plain, p, (x,)))(params)
    generator = torch.Generator().manual_seed(1)
    draws, many = 6, x.repeat(300, 1)
    with Examples(model, loss, reduction=reduction, generator=generator) as examples:
        for _ in range(draws):
            model(many)
    assert examples.count == len(many) * draws
    for key, p in model.named_parameters():
        J = jacobians[key].flatten(2)
        wanted = torch.einsum("bop,bon,bnp->p", J, bends, J) / B
        found = examples.curvature(p).flatten()
        gap = (found - wanted).abs().max() / wanted.max()
        assert gap < 0.15, (key, gap)
        assert (found.sum() / wanted.sum() - 1).abs() < 0.05


@pytest.mark.parametrize("loss", ["mse", "binary_cross_entropy"])
def test_of_one_output_the_curvature_is_exact(loss):
    """A single draw, against J^T J times the loss's second derivative at the output."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(B, 3, dtype=torch.float64)
    with Examples(model, loss) as examples:
        p = model(x).detach().sigmoid()
    bend = 2.0 if loss == "mse" else (p * (1 - p)).squeeze(1)
    params = dict(model.named_parameters())
    jacobians = torch.func.jacrev(lambda q: torch.func.functional_call(model, q, (x,)))(params)
    for key, parameter in params.items():
        squares = jacobians[key].squeeze(1).square()
        wanted = torch.einsum("b...,b->...", squares, torch.as_tensor(bend).expand(B).double()) / B
        torch.testing.assert_close(examples.curvature(parameter), wanted)


def test_signs_scatter_less_than_labels():
    """Of a confident softmax, over many draws; both have the same mean."""
    layer = nn.Linear(1, 5, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[4.0], [0.0], [0.0], [-1.0], [-2.0]]))
    x, generator = torch.ones(1, 1, dtype=torch.float64), torch.Generator().manual_seed(0)

    def label(output):
        p = output.softmax(1)
        return p - F.one_hot(torch.multinomial(p, 1, generator=generator)[:, 0], 5)

    found = []
    for loss in ("cross_entropy", label):
        with Examples(layer, loss, generator=generator) as examples:
            rows = []
            for _ in range(2000):
                layer(x)
                rows.append(examples.curvature(layer.weight).flatten())
                examples.clear()
        found.append(torch.stack(rows))
    p = layer(x).softmax(1).flatten().detach()
    torch.testing.assert_close(found[0].mean(0), p * (1 - p), rtol=0.1, atol=0.0)
    torch.testing.assert_close(found[1].sum(1).mean(), (p * (1 - p)).sum(), rtol=0.2, atol=0.0)
    assert (found[0].std(0) < 0.4 * found[1].std(0)).all()


def test_slopes_that_are_drawn_do_not_change_the_gradient_or_the_squares():
    model, x = MODELS["linear"]
    results = []
    for loss in (None, "cross_entropy"):
        model.zero_grad()
        with Examples(model, loss) as examples:
            F.cross_entropy(model(x), TARGETS).backward()
        results.append([(p.grad.clone(), examples.squares(p)) for p in model.parameters()])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_a_loss_of_ones_own():
    """A fixed slope of the outputs: the squares of that slope's gradients."""
    model, x = MODELS["linear"]
    with Examples(model, lambda output: torch.ones_like(output)) as examples:
        model(x)
    plain = nn.Sequential(model[0], nn.ReLU(), model[2])
    single = each(plain, x, lambda o, y: o.sum())(x, TARGETS)
    for key, p in model.named_parameters():
        torch.testing.assert_close(examples.curvature(p), single[key].square().mean(0))


def test_nothing_is_seen_without_gradients_or_after_removal():
    model, x = MODELS["linear"]
    examples = Examples(model, "cross_entropy")
    with torch.no_grad():
        model(x)
    assert examples.count == 0
    model(x).sum().backward()
    assert examples.count == B
    examples.clear()
    assert examples.count == 0
    assert examples.squares(model[0].weight) is None
    examples.remove()
    model(x).sum().backward()
    assert examples.count == 0


def test_frozen_layers_are_left_out():
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 4)).double()
    model[0].weight.requires_grad_(False)
    x = MODELS["linear"][1]
    with Examples(model) as examples:
        F.cross_entropy(model(x), TARGETS).backward()
    assert examples.squares(model[0].weight) is None
    wanted = each(model, x, F.cross_entropy)(x, TARGETS)["0.bias"].square().mean(0)
    torch.testing.assert_close(examples.squares(model[0].bias), wanted)


def test_half_precision_is_squared_in_single():
    layer = nn.Linear(3, 2).bfloat16()
    with Examples(layer) as examples:
        layer(torch.ones(4, 3, dtype=torch.bfloat16)).mean().backward()
    assert examples.squares(layer.weight).dtype == torch.float32


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x):
        return self.layer(self.layer(x))


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x):
        return {"logits": self.layer(x)}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), "1 is a BatchNorm1d, in which"),
        (lambda: nn.LSTM(5, 3), "LSTM is a LSTM"),
        (Twice, "Linear was called twice in one pass"),
        (Named, "The model returned a dict"),
        (lambda: nn.Bilinear(5, 5, 2), "Bilinear was called with other than one tensor"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(make, sentence):
    model = make()

    def watched():
        with Examples(model):
            model(*[torch.ones(2, 5)] * (2 if isinstance(model, nn.Bilinear) else 1))

    with pytest.raises(ValueError, match=sentence):
        watched()


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="no loss named 'crossentropy'"):
        Examples(nn.Linear(1, 1), "crossentropy")
    with pytest.raises(ValueError, match="no reduction named 'none'"):
        Examples(nn.Linear(1, 1), reduction="none")
