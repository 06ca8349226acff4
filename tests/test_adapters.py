"""Every kind of optimizer behind one interface: the same steps, and the same refusals."""

import numpy as np
import optax
import pytest
import torch

from lossnav.adapters import WrongStep, adapt, kind_of
from lossnav.rules import zoo

RNG = np.random.default_rng(0)
GRADS = RNG.standard_normal((6, 3, 4, 2))
START = RNG.standard_normal((3, 4, 2))


def moves(optimizer, **options):
    step = adapt(optimizer, (4, 2)).start(START.copy(), **options)
    return np.stack([step(lambda theta, g=g: (0.0, g), START) for g in GRADS])


@pytest.mark.parametrize(
    "makers",
    [
        (zoo.SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1), optax.sgd(0.1), lambda g, x: -0.1 * g),
        (zoo.Adam(0.1), lambda p: torch.optim.Adam(p, lr=0.1), optax.adam(0.1)),
    ],
)
def test_all_libraries_make_the_same_steps(makers):
    kinds = [kind_of(one) for one in makers]
    assert kinds == ["rule", "torch", "optax", "function"][: len(makers)]
    for one in makers[1:]:
        assert moves(one) == pytest.approx(moves(makers[0]), rel=1e-9, abs=1e-12)


def test_a_rate_scales_the_steps_of_what_has_one():
    for one in (zoo.SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)):
        assert adapt(one, (4, 2)).has_rate
        assert moves(one, rate=2.0) == pytest.approx(2 * moves(one))
    assert not adapt(optax.sgd(0.1), (4, 2)).has_rate


def test_weights_are_those_that_are_given_at_each_step():
    """Decay acts on the present weights, wherever the optimizer would have taken them."""
    step = adapt(lambda p: torch.optim.SGD(p, lr=1.0, weight_decay=0.5), (2,)).start(
        np.ones((1, 2))
    )
    for theta in (np.ones((1, 2)), np.full((1, 2), 4.0)):
        assert step(lambda x: (0.0, np.zeros_like(x)), theta) == pytest.approx(-0.5 * theta)


def test_a_closure_looks_again_at_the_moved_weights():
    seen = []

    def look(theta):
        seen.append(theta.copy())
        return float((theta**2).sum()), 2 * theta

    step = adapt(lambda p: torch.optim.LBFGS(p, lr=0.5), (2,)).start(np.ones((1, 2)), closure=True)
    step(look, np.ones((1, 2)))
    assert len(seen) > 1
    assert not np.allclose(seen[0], seen[1])


def test_an_optax_transformation_that_cannot_be_traced_runs_as_it_is():
    def update(grads, state, params):
        return [-g if float(g.sum()) > 0 else 0 * g for g in grads], state

    branching = optax.GradientTransformation(lambda params: (), update)
    expected = np.where(GRADS.sum(axis=(2, 3), keepdims=True) > 0, -GRADS, 0.0)
    assert moves(branching) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (lambda g, x: g.ravel(), r"The step has shape \(8,\), but theta has \(4, 2\)"),
        (lambda g, x: None, "The step is None, but it must be an array of real numbers"),
        (lambda g, x: 1j * g, "The step is a ndarray, but it must be an array of real numbers"),
    ],
)
def test_steps_of_another_form_are_refused(step, sentence):
    with pytest.raises(WrongStep, match=sentence):
        moves(step)


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(
        TypeError, match="My rule is a str, but it must be a lossnav Rule, an optax"
    ):
        adapt("adam", (2,), "My rule")
    with pytest.raises(TypeError, match="must return a torch optimizer, but it returned a list"):
        adapt(lambda params: params, (2,))
