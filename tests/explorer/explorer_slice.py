"""A slice among the explorer's landscapes, for the time of one test."""

import contextlib

import numpy as np

import lossnav as ln
from lossnav.explorer import landscapes, paths

FORMULA = "((x**2 + y - 11)**2 + (x + y**2 - 7)**2)/20"


def himmelblau(n=81):
    """A twentieth of Himmelblau's function from its values on a grid."""
    nodes = np.linspace(-5, 5, n)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1)
    return ln.GridLoss(nodes, nodes, ln.Himmelblau()(grid) / 20, ("alpha", "beta"))


@contextlib.contextmanager
def offered(landscape):
    """Offers it, and takes it back in the end."""
    field, before = dict(paths.FIELDS["landscape"]), landscapes.LANDSCAPES.get(landscapes.SLICE)
    try:
        paths.offer(landscape)
        yield landscape
    finally:
        landscapes.LANDSCAPES.pop(landscapes.SLICE, None)
        paths.FIELDS["landscape"].update(field)
        landscapes._traced.cache_clear()
        landscapes._prepared.cache_clear()
        paths._objective.cache_clear()
        if before is not None:
            paths.offer(before)
