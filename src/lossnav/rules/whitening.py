"""A function of curvature where motion has a metric: of G^{-1/2} H G^{-1/2}, in whatever form each comes."""

from __future__ import annotations

from collections.abc import Callable

from array_api_compat import array_namespace

from lossnav.rules.arrays import like, times
from lossnav.rules.base import Array
from lossnav.rules.operators import Kronecker, applied, entries, product, spread
from lossnav.solvers.curvature import Curvature, Diagonal, Lanczos


def in_metric(H: Curvature, G: Curvature | None, fn: Callable[[Array], Array], g: Array) -> Array:
    r""":math:`G^{-1/2}\,\mathrm{fn}(G^{-1/2} H G^{-1/2})\,G^{-1/2} g`: a function of curvature, with a metric."""
    if G is None:
        return applied(H, fn, g)
    if H is G:
        gain = fn(array_namespace(g).ones_like(g[..., :1]))  # in its own units the curvature is one
        return gain * applied(G, lambda h: 1 / h, g)
    if isinstance(H, Diagonal) and isinstance(G, Diagonal):
        m = entries(G, g)
        scale = array_namespace(g).sqrt(m)
        return times(fn(entries(H, g) / m), g / scale) / scale
    H, G = _both_dense(H, G)
    if isinstance(H, Kronecker) and isinstance(G, Kronecker) and H.sizes == G.sizes:
        roots = [(Q * h**-0.5) @ Q.T for h, Q in zip(G.values, G.vectors, strict=True)]
        inner = [_congruent(F, root, g) for F, root in zip(H.factors, roots, strict=True)]
        root = Kronecker.of(G.values, G.vectors)
        moved = Kronecker(*inner).apply(fn, root.apply(_rsqrt, g))
        return root.apply(_rsqrt, moved)
    metric = G
    whole = Lanczos(
        lambda v: applied(metric, _rsqrt, product(H, applied(metric, _rsqrt, v))),
        tol=getattr(H, "tol", 1e-8),
        steps=getattr(H, "steps", 60),
    )
    return applied(metric, _rsqrt, whole.apply(fn, applied(metric, _rsqrt, g)))


def _rsqrt(h: Array) -> Array:
    return 1 / array_namespace(h).sqrt(h)


def _congruent(F: Array, root: Array, g: Array) -> Array:
    """root F root; where the two are of different kinds, in the kind of ``g``."""
    if array_namespace(F) is not array_namespace(root):
        F, root = like(F, g), like(root, g)
    whole = root @ F @ root
    return (whole + whole.T) / 2


def _both_dense(H: Curvature, G: Curvature) -> tuple[Curvature, Curvature]:
    """A diagonal beside a dense matrix is a dense matrix too."""
    if isinstance(H, Diagonal) and isinstance(G, Kronecker) and len(G.sizes) == 1:
        return Kronecker(spread(H._raised(H.h))), G
    if isinstance(G, Diagonal) and isinstance(H, Kronecker) and len(H.sizes) == 1:
        return H, Kronecker(spread(G._raised(G.h)))
    return H, G
