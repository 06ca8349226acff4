"""Rules for the coordinates of an Objective, on the parameters of a network.

An elementwise rule runs on each tensor. A rule that couples coordinates (a Hessian, a metric, a
drift) runs on all tensors together, as one vector theta. If the objective's loss does not have that
many coordinates, its Hessian is that of the network's loss, through Hessian-vector products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lossnav.rules.base import Array, Rule, State, array_namespace
from lossnav.rules.local import LocalRule
from lossnav.rules.lqg import LQGRule
from lossnav.rules.operators import Kronecker
from lossnav.rules.sources import Given, Hutchinson, OfLoss, OfMetric, Source
from lossnav.rules.uncertain import Expected, UncertainRule
from lossnav.solvers.curvature import Curvature, Diagonal

Products = Callable[[Array], Array]
MOST_PRODUCTS = 4096
"""Largest number of coordinates for a Hessian computed with one product for each."""
MOST_DENSE = 1024
"""Largest number of coordinates for a rule that solves a dense Riccati equation per step."""


@dataclass(frozen=True)
class Layout:
    """How a rule runs on tensors.

    Attributes:
        joined: Whether all tensors are one theta; otherwise each is one by itself.
        products: Whether curvature comes from Hessian-vector products of the network's loss.
    """

    joined: bool
    products: bool


def layout(rule: Rule, shapes: Sequence[tuple[int, ...]]) -> Layout:
    """How ``rule`` runs on tensors of these shapes.

    Raises:
        ValueError: The rule cannot run on them; the message names one that can.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> from lossnav.problem.objective import Objective
        >>> from lossnav.rules.build import learning_rule
        >>> rule = learning_rule(Objective(Quadratic([4.0, 1.0])))
        >>> layout(rule, [(2,)])  # the objective's own coordinates
        Layout(joined=False, products=False)
        >>> layout(rule, [(3, 2), (3,)])  # a network
        Layout(joined=True, products=True)
    """
    plan = rule.plan if isinstance(rule, LQGRule) else rule
    sizes = [math.prod(shape) for shape in shapes]
    if isinstance(plan, UncertainRule) and isinstance(plan.curvature, Expected):
        dim = plan.curvature.loss.dim
        if any(dim not in (None, 2 * size) for size in sizes):
            raise ValueError(
                f"The expected curvature is that of a loss of {(dim or 0) // 2} weights, but "
                f"{_count_text(sizes)}: use learning_rule(..., curvature='squares'), or "
                "WeightUncertainty of lossnav.optim."
            )
        return Layout(False, False)
    parts = {name: getattr(plan, name, None) for name in ("curvature", "metric", "drift")}
    parts |= {"terminal cost": getattr(plan, "terminal", None)}
    decay = getattr(plan, "decay", None) if isinstance(plan, LocalRule) else None
    dims = {name: _dim(part, shapes) for name, part in parts.items() if _couples(part)}
    if isinstance(decay, tuple):
        dims["decay"] = len(decay)
    fixed = {name: dim for name, dim in dims.items() if dim is not None}
    if not dims or (fixed and all(dim == n for dim in fixed.values() for n in sizes)):
        return Layout(False, False)
    total = sum(sizes)
    network = _of_loss(parts["curvature"]) is not None and dims["curvature"] not in (None, total)
    for name, dim in fixed.items():
        if dim != total and not (name == "curvature" and network):
            raise ValueError(
                f"The {name} of the rule is for {dim} coordinates, but {_count_text(sizes)}: "
                f"{_advice(name)}"
            )
    _refuse_large(plan, parts["curvature"], total, sizes)
    _refuse_matrix_state(rule, parts["curvature"], sizes)
    return Layout(True, network)


def with_hessian(rule: Rule, product: Products, matrix: Callable[[], Array]) -> Rule:
    """``rule`` with the Hessian of the network's loss in place of the objective's.

    Args:
        rule: A rule for which `layout` has ``products``.
        product: Maps v to H v.
        matrix: Returns H; called only if needed.
    """
    if isinstance(rule, LQGRule):
        plan: Any = with_hessian(rule.plan, product, matrix)
        return replace(rule, plan=plan)
    source = getattr(rule, "curvature")  # noqa: B009
    curvature: Source
    if isinstance(source, Hutchinson):
        curvature = Hutchinson(lambda theta, v: product(v), source.decay, seed=source.seed)
    else:
        curvature = _NetworkHessian(source, product, matrix)
    return replace(rule, curvature=curvature)  # type: ignore[call-arg]


def with_zero_hessian(rule: Rule, theta: Array) -> Rule:
    """``rule`` with a Hessian of zeros, which is enough for the initial state."""
    xp, n = array_namespace(theta), theta.shape[0]
    return with_hessian(rule, xp.zeros_like, lambda: xp.zeros((n, n), dtype=theta.dtype))


class _NetworkHessian(OfLoss):
    """The Hessian of a network's loss where the rule had that of an objective's."""

    def __init__(self, source: OfLoss, product: Products, matrix: Callable[[], Array]) -> None:
        super().__init__(source.loss, source.form)
        self._product, self._matrix = product, matrix

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        if self.form != "diagonal":
            return super().observe(grad, state, theta)
        H = self.matrix(theta)
        return Diagonal(array_namespace(H).linalg.diagonal(H)), {}

    def matrix(self, theta: Array) -> Array:
        H = self._matrix()
        return (H + H.T) / 2

    def product(self, theta: Array, v: Array) -> Array:
        return self._product(v)

    def _quadratic(self, dim: int) -> Kronecker | None:
        return None


def _of_loss(source: Any) -> OfLoss | None:
    """The Hessian of a loss in a source of curvature, if it is one."""
    if isinstance(source, Hutchinson):
        source = getattr(source.product, "__self__", None)
    return source if isinstance(source, OfLoss) else None


def _couples(part: Any) -> bool:
    """Whether a part of a rule depends on which coordinates there are."""
    if isinstance(part, Given):
        constant = not callable(part.value) and getattr(part.value, "shape", None) != ()
        return constant or hasattr(_model_of(part.value), "shapes")
    if isinstance(part, Source):
        return isinstance(part, OfMetric) or _of_loss(part) is not None
    return part is not None


def _dim(part: Any, shapes: Sequence[tuple[int, ...]]) -> int | None:
    """Number of coordinates of a part; None if it accepts any."""
    loss = _of_loss(part)
    if loss is not None:
        return loss.loss.dim
    if isinstance(part, OfMetric):
        return part.metric.dim
    if not isinstance(part, Given):
        dim: int | None = part.dim
        return dim
    value = part.value
    if hasattr(_model_of(value), "shapes"):
        return sum(shape.numel() for shape in _model_of(value).shapes.values())
    if isinstance(value, Kronecker):
        return math.prod(value.sizes)
    if isinstance(value, Diagonal):
        value = value.h
    shape = tuple(getattr(value, "shape", ()))
    square = len(shape) == 2 and shape[0] == shape[1]
    if square and not all(tuple(s) == shape for s in shapes):
        return shape[0]
    return math.prod(shape) if shape else None


def _model_of(value: Any) -> Any:
    """The `GaussNewton` that a callable is, or is a method of."""
    return getattr(value, "__self__", value)


def _refuse_large(plan: Rule, curvature: Any, total: int, sizes: list[int]) -> None:
    drift, terminal = (getattr(plan, name, None) for name in ("drift", "terminal"))
    if total > MOST_DENSE and (drift is not None or terminal is not None):
        why = f"the drift {type(drift).__name__}" if drift is not None else "a terminal cost"
        raise ValueError(
            f"With {why} each step solves a dense equation, for at most {MOST_DENSE} coordinates, "
            f"but {_count_text(sizes)}: use lossnav.Decay with one rate as the drift, without a "
            "horizon, or train fewer parameters."
        )
    form = getattr(_of_loss(curvature), "form", "")
    entries = not isinstance(curvature, Hutchinson) and form in ("exact", "diagonal")
    if total > MOST_PRODUCTS and entries:
        other = "lanczos" if form == "exact" else "hutchinson"
        raise ValueError(
            f'curvature="{form}" takes one Hessian-vector product for each coordinate, at most '
            f'{MOST_PRODUCTS}, but {_count_text(sizes)}: use curvature="{other}".'
        )


def _refuse_matrix_state(rule: Rule, curvature: Any, sizes: list[int]) -> None:
    form = getattr(_of_loss(curvature), "form", "diagonal")
    if isinstance(rule, LQGRule) and form == "exact" and not isinstance(curvature, Hutchinson):
        raise ValueError(
            "A belief with the whole Hessian has a matrix over all coordinates as its state, but "
            f'{_count_text(sizes)} in tensors of their own: use curvature="hutchinson".'
        )


def _count_text(sizes: list[int]) -> str:
    if len(sizes) == 1:
        return f"the parameter has {sizes[0]}"
    return f"the {len(sizes)} parameters of the group have {sum(sizes)}"


def _advice(name: str) -> str:
    return {
        "curvature": 'give curvature="hutchinson" or "lanczos", which use the network\'s loss.',
        "metric": (
            "use metric=lossnav.rules.sources.SquaredGradients(), or a lossnav.Metric of any "
            "number of coordinates."
        ),
        "drift": "use lossnav.Decay with one rate, or a function theta -> velocity of any size.",
        "decay": "use lossnav.Decay with one rate.",
        "terminal cost": "leave it out, or set k=0 to count the network's loss only at the end.",
    }[name]
