"""Transformations by name: the groups that paths in a tree make, and what they refuse."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp  # noqa: E402

import lossnav as ln  # noqa: E402
from lossnav.optim.optax import create, from_rule, navigator  # noqa: E402
from lossnav.rules import zoo  # noqa: E402
from optax_runs import gap, run  # noqa: E402

SHAPES = {
    "embed": {"embedding": (9, 4)},
    "layers": [
        {"dense": {"kernel": (4, 5), "bias": (5,)}, "norm": {"scale": (4,), "weight": (2, 2)}},
        {"w": (5, 4), "b": (4,)},
    ],
    "lm_head": {"kernel": (4, 9)},
    "temperature": (),
}
ROLES = {
    "embed": {"embedding": "embeddings"},
    "layers": [
        {
            "dense": {"kernel": "matrices", "bias": "vectors"},
            "norm": {"scale": "vectors", "weight": "vectors"},
        },
        {"w": "matrices", "b": "vectors"},
    ],
    "lm_head": {"kernel": "heads"},
    "temperature": "vectors",
}


def draw(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: rng.normal(size=shape).astype("float32"),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


START, GRADS = draw(0), [draw(1 + i) for i in range(4)]
DECAYED = jax.tree.map(lambda kind: kind in ("matrices", "heads"), ROLES)


def test_the_mask_is_that_of_optax():
    """A prefix of the tree, or a function; and with AdamW's settings, AdamW's own steps."""
    start = {"a": np.ones(2), "b": {"c": np.ones(3), "d": np.ones(2)}}
    plain = {"b2": 0.999, "saturation": 0.0, "nesterov": False, "weight_decay": 0.3}
    whole = {"a": True, "b": {"c": False, "d": True}}
    for mask in ({"a": False, "b": True}, lambda params: whole):
        got, _ = run(navigator(0.01, **plain, mask=mask), start=start, grads=[start])
        own = optax.adamw(0.01, weight_decay=0.3, mask=mask)
        assert gap(got, run(own, start=start, grads=[start])[0]) < 1e-6


@pytest.mark.parametrize("name", ["navigator", "kronecker", "soap"])
def test_groups_by_paths(name, capsys):
    create(START, name, 0.01, weight_decay=0.3)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:-1]]
    kinds = {"matrices": "2", "heads": "1", "embeddings": "1", "vectors": "5"}
    if name == "navigator":
        kinds = {"matrices": "3", "embeddings": "1", "vectors": "5"}
    assert {row[0]: row[1] for row in rows} == kinds
    decays = {row[0]: row[-3] for row in rows}
    assert {kind for kind, rate in decays.items() if rate == "0.3"} == set(kinds) & {
        "matrices",
        "heads",
    }


@pytest.mark.parametrize("name", ["navigator", "adamw"])
def test_groups_decay_as_their_mask_would(name):
    optimizer = create(START, name, 0.01, weight_decay=0.3, verbose=False)
    masked = navigator(0.01, weight_decay=0.3, mask=DECAYED)
    if name == "adamw":
        masked = optax.adamw(0.01, weight_decay=0.3, mask=DECAYED)
    ends = [run(o, start=START, grads=GRADS[:1])[0] for o in (optimizer, masked)]
    assert gap(*ends) < 1e-6


def test_muon_is_for_matrices_only(capsys):
    start = {"w": START["layers"][1]["w"], "wte": START["embed"]["embedding"]}
    grads = [jax.tree.map(lambda a, i=i: (0.5 - i) * a, start) for i in range(2)]
    got, _ = run(create(start, "muon", 0.01), start=start, grads=grads)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in said[2:-1]] == ["Muon", "AdamW"]
    for key, own in (
        ("w", from_rule(zoo.Muon(0.01, scale="match_rms_adamw"))),
        ("wte", optax.adam(0.01)),
    ):
        alone, _ = run(own, start=start[key], grads=[g[key] for g in grads])
        assert gap(got[key], alone) < 1e-6, key


def test_names_roles_and_refusals(capsys):
    optimizer = ln.optim.create(START, "uncertain", lr=0.01, batch_size=4)
    assert capsys.readouterr().out.splitlines()[2].split()[:2] == ["all", "9"]
    assert int(optimizer.init(START).count) == 0
    create(jax.eval_shape(lambda: START), "muon", roles={"lm_head/*": "matrices"})
    assert "heads" not in capsys.readouterr().out
    create(START, "ballistic", verbose=False)
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="None of the 1 trainable parameters is a matrix"):
        create(jnp.zeros(20), "kronecker")
    with pytest.raises(ValueError, match="There is no parameter"):
        create({}, "navigator")
    with pytest.raises(ValueError, match="matches 'dec/' in roles"):
        create(START, roles={"dec/": "heads"})
