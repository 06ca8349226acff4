"""infer(): what an optimizer assumes, from the steps that it makes after gradients that we choose."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from lossnav.inference.assumptions import Assumptions
from lossnav.inference.fit import families
from lossnav.inference.probes.black_box import BlackBox
from lossnav.inference.search import Search

MOST_ENTRIES = 1024


def infer(
    optimizer: Any,
    *,
    shape: tuple[int, ...] = (8, 6),
    seed: int = 0,
    budget: int = 1,
    name: str | None = None,
) -> Assumptions:
    r"""Which assumptions make an optimizer optimal, found by watching its steps.

    Gradients whose law we choose go in, steps come out: random signs with one turned round show the
    memory of the mean, a jump of their size the memory of the variance, eighteen decades of size the
    discount, weights of either sign the drift, rotations of gradients the metric. What these probes say
    starts a fit of the family of `lossnav.rules.family`; what no member explains is said to be outside.

    Args:
        optimizer: A function that makes a torch optimizer of a list of parameters (a class of
            torch.optim will do), an optax transformation, a `lossnav.Rule`, or a function
            ``(grad, theta) -> step`` without memory.
        shape: Of the tensors that it is tried on. A matrix shows what a vector cannot.
        seed: Of the gradients.
        budget: How many lessons to learn from. More makes intervals narrower where steps have noise
            of their own.
        name: What to call it.

    Returns:
        The `Assumptions`: print ``.report()``, or read ``.settings``, ``.nearest``, ``.outside``.

    Raises:
        ValueError: The optimizer raised, returned NaN, asked for a closure or changed shapes; the
            sentence says which.

    Examples:
        >>> from lossnav.rules import zoo
        >>> found = infer(zoo.SGD(lr=0.1, momentum=0.9), shape=(4, 3))
        >>> print(found.nearest)
        SGD(lr=0.1, momentum=0.9), at a distance of 1e-07
        >>> print(found.memory.gradient), found.discount.kind
        10
        (None, 'overdamped')
    """
    began = time.perf_counter()
    if not shape or any(not isinstance(n, int) or n < 1 for n in shape):
        raise ValueError(f"shape is {shape!r}, but it must be a tuple of whole numbers, 1 or more.")
    if math.prod(shape) > MOST_ENTRIES:
        raise ValueError(
            f"shape is {shape!r}, with {math.prod(shape)} entries, but {MOST_ENTRIES} at most can be tried; rules do "
            "with small tensors what they do with large ones."
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed is {seed!r}, but it must be a whole number, 0 or more.")
    if not isinstance(budget, int) or budget < 1:
        raise ValueError(f"budget is {budget!r}, but it must be a whole number, 1 or more.")
    box = BlackBox(optimizer, tuple(shape), name)
    found = _found(Search(box, np.random.default_rng(seed), budget))
    return replace(found, seconds=time.perf_counter() - began)


def _found(search: Search) -> Assumptions:
    search.begin()
    if search.sides.one_direction:
        search.outside.append("All its steps lie along one line, whatever the gradients are.")
        return search.assumed(None, None)
    if search.sides.one_length:
        return families.by_sign(search)
    if search.kind == "orthogonal":
        return families.by_polar(search)
    search.remember()
    return families.by_basis(search) if search.kind == "kronecker" else families.by_diagonal(search)
