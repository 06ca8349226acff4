"""Optimizers by name: the groups they make, what they print, and what they refuse."""

import fnmatch
import itertools
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import lossnav as ln  # noqa: E402
from lossnav.optim.grouping import multiplications  # noqa: E402
from lossnav.optim.torch import KroneckerNavigator, Navigator, create, from_rule  # noqa: E402
from lossnav.rules import zoo  # noqa: E402


class Small(nn.Module):
    """A transformer's kinds of parameters, under the names that people give them."""

    def __init__(self, tied=False):
        super().__init__()
        self.wte = nn.Embedding(11, 6)
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 6))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 6))
        self.norm = nn.LayerNorm((5, 6))  # two axes, and a norm all the same
        self.attention = nn.MultiheadAttention(6, 2)
        self.patch_embed = nn.Conv2d(3, 6, 2)
        self.mlp = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(()))
        self.last = nn.Linear(6, 11, bias=False)
        if tied:
            self.last.weight = self.wte.weight

    def loss(self):
        return sum((p.double() ** 2).sum() for p in self.parameters() if p.requires_grad)


def names(optimizer):
    return {group["name"]: group["param_names"] for group in optimizer.param_groups}


EXPECTED = {
    "matrices": [
        "attention.in_proj_weight", "attention.out_proj.weight", "mlp.weight", "patch_embed.weight",
    ],
    "embeddings": ["pos_embed", "wte.weight"],
    "heads": ["last.weight"],
}  # fmt: skip


@pytest.mark.parametrize("name", ["navigator", "kronecker", "adamw", "muon"])
@pytest.mark.parametrize("tied", [False, True])
def test_groups_are_those_made_by_hand(name, tied, capsys):
    model = Small(tied)
    optimizer = create(model, name, lr=1e-2, weight_decay=0.3)
    found = {kind: sorted(chosen) for kind, chosen in names(optimizer).items()}
    expected = {kind: sorted(chosen) for kind, chosen in EXPECTED.items()}
    if tied:
        del expected["heads"]
    elif name in ("navigator", "adamw"):
        expected["matrices"] = sorted(expected["matrices"] + expected.pop("heads"))
    vectors = found.pop("vectors")
    assert found == expected
    assert sorted([*vectors, *itertools.chain(*expected.values())]) == sorted(
        key for key, _ in model.named_parameters()
    )
    decays = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert all(decays[kind] == 0.3 * (kind in ("matrices", "heads")) for kind in decays)
    assert {group["lr"] for group in optimizer.param_groups} == {1e-2}
    said = capsys.readouterr().out
    *table, last = said.splitlines()[2:]
    assert [line.split()[0] for line in table] == list(decays)
    assert last.startswith("estimated share of training time: ")
    model.loss().backward()
    optimizer.step()
    held = sum(t.numel() * t.element_size() for s in optimizer.state.values() for t in s.values())
    assert f"{held / 1000:.1f} kB of state" in said


@pytest.mark.parametrize("name", ["navigator", "kronecker", "uncertain", "ballistic", *zoo.MEMBERS])
def test_every_name_takes_a_step_and_resumes(name, capsys):
    settings = {"batch_size": 4} if name == "uncertain" else {}
    one, two = Small(), Small()
    first, second = (create(m, name, lr=1e-3, verbose=False, **settings) for m in (one, two))
    assert capsys.readouterr().out == ""
    before = [p.detach().clone() for p in one.parameters()]

    def train(model, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            model.loss().backward()
            optimizer.step()

    train(one, first)
    two.load_state_dict(one.state_dict())
    second.load_state_dict(first.state_dict())
    for model, optimizer in ((one, first), (two, second)):
        train(model, optimizer)
    for old, p, q in zip(before, one.parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q)
        assert not old.any() or not torch.equal(old, p)  # zeros have no gradient here


def test_zoo_optimizers_with_groups_are_their_references():
    """AdamW and SOAP with groups made by hand; Muon's own in PyTorch for matrices."""
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")

    def split(model):
        named = dict(model.named_parameters())
        chosen = EXPECTED["matrices"] + EXPECTED["heads"]
        decayed = [p for key, p in named.items() if key in chosen]
        rest = [p for p in named.values() if not any(p is q for q in decayed)]
        return [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]

    references = {
        "adamw": lambda g: torch.optim.AdamW(g, 1e-2, weight_decay=0.3),
        "soap": lambda g: pytorch_optimizer.SOAP(g, 1e-2, weight_decay=0.3),
    }
    for name, reference in references.items():
        torch.manual_seed(0)
        one, two = Small(), Small()
        two.load_state_dict(one.state_dict())
        optimizers = create(one, name, 1e-2, weight_decay=0.3, verbose=False), reference(split(two))
        rng = torch.Generator().manual_seed(1)
        for _ in range(5):
            for p, q in zip(one.parameters(), two.parameters(), strict=True):
                p.grad = torch.randn(p.shape, generator=rng)
                q.grad = p.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
        for (key, p), q in zip(one.named_parameters(), two.parameters(), strict=True):
            if name == "soap" and p.ndim > 2:
                continue  # it gives a basis to each axis there
            torch.testing.assert_close(p, q, rtol=0, atol=2e-5, msg=f"{name}: {key}")


def test_frozen_parameters_are_left_out(capsys):
    """As with LoRA: a frozen base, and two thin matrices beside it."""
    model = nn.ModuleDict({"base": nn.Linear(16, 16), "lora_A": nn.Linear(16, 2, bias=False),
                           "lora_B": nn.Linear(2, 16, bias=False)})  # fmt: skip
    model["base"].requires_grad_(False)
    optimizer = create(model, "kronecker", lr=1e-3)
    assert list(itertools.chain(*names(optimizer).values())) == ["lora_A.weight", "lora_B.weight"]
    last = capsys.readouterr().out.splitlines()[-2]
    assert last.split() == ["frozen", "2", "272", "-", "-", "-"]


def test_roles_may_be_given(capsys):
    optimizer = create(Small(), "muon", roles={"mlp.*": "heads", "last.weight": "matrices"})
    assert names(optimizer)["heads"] == ["mlp.weight", "mlp.bias"]
    assert "last.weight" in names(optimizer)["matrices"]
    rules = {group["name"]: group["rule"] for group in optimizer.param_groups}
    assert {kind for kind, rule in rules.items() if "Muon" in rule} == {"matrices"}
    with pytest.raises(ValueError, match=r"matches 'nothing\.\*' in roles"):
        create(Small(), roles={"nothing.*": "heads"})
    with pytest.raises(ValueError, match=r"no role named 'head'\. Did you mean 'heads'"):
        create(Small(), roles={"*": "head"})


def test_settings_reach_the_optimizer():
    optimizer = create(Small(), "navigator", 2e-3, saturation=1.0, verbose=False)
    assert isinstance(optimizer, Navigator)
    assert {group["saturation"] for group in optimizer.param_groups} == {1.0}
    with pytest.raises(TypeError, match="unexpected keyword argument 'satuation'"):
        create(Small(), "navigator", satuation=1.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'weight_decay'"):
        create(Small(), "adam", weight_decay=0.1)
    with pytest.raises(ValueError, match="Did you mean 'navigator'"):
        create(Small(), "navigater")


class Flat(nn.Linear):
    """What FSDP1 leaves of a layer between two steps."""

    def __init__(self):
        super().__init__(4, 3)
        self.weight = nn.Parameter(torch.zeros(6))


def flat_param():
    model = nn.Module()
    model._flat_param = nn.Parameter(torch.zeros(20))
    return model


@pytest.mark.parametrize(
    ("model", "name", "sentence"),
    [
        (Flat, "navigator", r"'weight' of shape \(6,\) is flattened, as by FSDP1"),
        (flat_param, "kronecker", "'_flat_param' of shape .* is flattened"),
        (lambda: nn.Embedding(5, 2, sparse=True), "navigator", "sparse gradients"),
        (lambda: nn.LayerNorm(5), "kronecker", "None of the 2 trainable parameters is a matrix"),
        (lambda: nn.LayerNorm(5), "muon", "None of the 2 trainable parameters is a matrix"),
        (lambda: nn.Linear(5, 1), "soap", None),
        (lambda: nn.LayerNorm(5).requires_grad_(False), "navigator", "No parameter of LayerNorm"),
    ],
)  # fmt: skip
def test_what_fits_nowhere_is_refused(model, name, sentence):
    if sentence is None:
        create(model(), name, verbose=False)
        return
    with pytest.raises(ValueError, match=sentence):
        create(model(), name)


def test_shapes_that_are_not_known_yet_and_things_that_are_no_model():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older versions call lazy modules new
        lazy = nn.LazyLinear(3)
    with pytest.raises(ValueError, match="'weight' has no shape yet: run one batch"):
        create(lazy)
    with pytest.raises(TypeError, match="create takes a model, but a list was given"):
        create([nn.Parameter(torch.zeros(3))])


def test_a_group_may_have_a_rule_of_its_own():
    params = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    rules = [zoo.Adam(0.1), zoo.SGD(0.2), zoo.Adam(0.3)]
    groups = [{"params": [p], "rule": r} for p, r in zip(params, rules, strict=True)]
    optimizer = from_rule(groups, zoo.Lion(0.4))
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2, 0.3]
    kinds = [group["rule"] for group in optimizer.param_groups]
    assert kinds == ["BeliefRule (Adam)", "BeliefRule (SGD)", "BeliefRule (Adam) 2"]
    for p in params:
        p.grad = torch.full((3,), 2.0)
    optimizer.step()
    for p, move in zip(params, (0.1, 0.4, 0.3), strict=True):
        torch.testing.assert_close(p.detach(), torch.full((3,), 1 - move))
    assert optimizer.rule.name == "Lion"
    with pytest.raises(ValueError, match="'Adam', but it must be a Rule"):
        from_rule([{"params": params, "rule": "Adam"}], rules[0])


def test_one_door_for_both_frameworks(capsys):
    model = Small()
    optimizer = ln.optim.create(model, "kronecker", lr=1e-3)
    assert isinstance(optimizer, KroneckerNavigator)
    assert fnmatch.fnmatch(capsys.readouterr().out, "kronecker: * of state\n*heads*")


@pytest.mark.parametrize("shape", [(64, 32), (24, 24)])
def test_multiplications_are_those_that_pytorch_counts(shape):
    """In a whole cycle of refreshes; PyTorch leaves out the QR, 4/3 k^3 with its Q."""

    def counted(make):
        theta, counter = nn.Parameter(torch.randn(shape)), FlopCounterMode(display=False)
        optimizer = make([theta])
        theta.grad = torch.randn(shape)
        for _ in range(2):  # the first sets up the bases
            optimizer.step()
        with counter:
            for _ in range(10):
                optimizer.step()
        return counter.get_total_flops() / 2 / 10

    assert counted(lambda p: torch.optim.Muon(p, 1e-2)) == multiplications(shape, polar=5)
    factorizations = sum(4 / 3 * k**3 for k in shape) / 10
    of_bases = counted(lambda p: KroneckerNavigator(p, 1e-2)) + factorizations
    assert of_bases == pytest.approx(multiplications(shape, shape), rel=1e-12)
