"""KroneckerNavigator: Navigator's step in a basis that is learned for each matrix.

The basis and how it follows the gradients are in `lossnav.rules.kronecker`. Matrices of equal shape
take their steps as one stack; of a covariance only the lower triangle is kept up to date, which
saves part of its products.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lossnav.optim.torch.base import Batch, Group, add_move, as_real, new_step, state_dtype
from lossnav.optim.torch.diagonal import PIECE, advance, advance_lists, scalars_of, scalars_traced
from lossnav.optim.torch.navigator import Navigator
from lossnav.optim.torch.shards import ROUNDING, gathered, is_sharded, part, sharded_by_rows, whole
from lossnav.rules.diagonal import respelled
from lossnav.rules.kronecker import (
    check_matrix,
    first_basis,
    from_second,
    matrix_size,
    phases,
    refreshed,
    rotate,
    sides,
    zero_rounding_noise,
)

State = dict[str, Tensor]
SIDES = {"row": -2, "column": -1}
"""The names of the sides in the state of a matrix, and their axes."""
BLOCK = 128
"""Covariances from twice this length on are updated by strips, up to the diagonal."""


class MatrixStep(NamedTuple):
    """A parameter, its gradient as a matrix, and its state."""

    theta: Tensor
    grad: Tensor
    state: State


class KroneckerNavigator(Navigator):
    r"""`Navigator` in the eigenbasis of each matrix's gradient covariances; contains SOAP.

    The gradient G of a matrix is taken to vary independently along the eigenvectors of
    :math:`L=E[GG^T]` and :math:`R=E[G^TG]`. In that basis, :math:`G'=Q_L^TGQ_R`, it takes the step
    of `Navigator`, with all of its settings, and rotates it back:

    .. math:: \Delta\theta=-\mathrm{lr}\;Q_L\Bigl[\frac{1+c}{1+z}\frac mD\Bigr]Q_R^T,\qquad
              m=E[G'],\quad v=E[G'^2].

    A convolution kernel is a matrix of its first axis and the rest; a complex column counts as two
    real ones. Vectors, scalars, and matrices without a basis get the step of `Navigator`, so one
    optimizer serves a whole model. With ``betas=(0.95, 0.95), nesterov=False, saturation=0`` it is
    SOAP without decay, except that vectors move at the first step, that ``eps`` is added after bias
    correction, and that directions without gradients are not left to rounding.

    The first gradient of a matrix only initializes its basis: that step applies weight decay only.
    The state of a sharded parameter (FSDP2, tensor parallel; any DTensor) is sharded by rows over
    the same processes; a step gathers one matrix at a time, and each process computes all of it.

    State: two numbers for each parameter, and :math:`2n^2` for each side of length n with a basis.

    Args:
        params: Parameters, named parameters, or parameter groups; each group may override any
            setting.
        lr, betas, eps, weight_decay, gamma, gain, centered, nesterov: As in `Navigator`, in the
            basis.
        saturation, shared, horizon, cooldown, wandering: As in `Navigator`, in the basis.
        basis_beta: Decay rate of L and R.
        refresh: Steps between two refreshes of a basis. Matrices take turns, which balances the
            work of the steps.
        max_dim: Longer sides get no basis, so that an embedding has one for its columns only.
        matrix: ``"auto"`` gives a basis to each side that is at most ``max_dim`` long and that the
            averaged gradients can span; True to every side, False to none.
        maximize, differentiable, nonfinite, compensate, centred: As in `Navigator`. Autograd treats
            the basis as constant.
        foreach: False processes one matrix at a time; None and True stack those of equal shape.
        capturable: Only with ``matrix=False``: a factorization cannot be captured.

    Examples:
        >>> linear = torch.nn.Linear
        >>> model = torch.nn.Sequential(linear(3, 8), torch.nn.Tanh(), linear(8, 1))
        >>> optimizer = KroneckerNavigator(model.named_parameters(), lr=1e-2)
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     loss = (model(torch.eye(3)) - 1).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        >>> bool(loss < 0.1)
        True
        >>> sorted(optimizer.state[model[0].weight])
        ['column_basis', 'column_covariance', 'mean', 'phase', 'row_basis', 'row_covariance',
         'step', 'variance']
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        basis_beta: float = 0.95,
        refresh: int = 10,
        gamma: float = 0.0,
        gain: Literal["betas", "kalman"] = "betas",
        centered: bool = False,
        nesterov: bool = True,
        saturation: float = 4.0,
        shared: float = 0.75,
        horizon: int | None = None,
        cooldown: float = 0.2,
        wandering: float | None = None,
        max_dim: int = 4096,
        matrix: bool | Literal["auto"] = "auto",
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
        compensate: bool | None = None,
        centred: bool | None = None,
    ) -> None:
        settings = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "basis_beta": basis_beta, "refresh": refresh, "gamma": gamma, "gain": gain,
            "centered": respelled(centered, centred), "nesterov": nesterov,
            "saturation": saturation, "shared": shared, "horizon": horizon,
            "cooldown": cooldown, "wandering": wandering, "max_dim": max_dim, "matrix": matrix,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable, "nonfinite": nonfinite, "compensate": compensate,
        }  # fmt: skip
        super(Navigator, self).__init__(params, settings)

    def _check(self, group: Group) -> None:
        check_matrix(group["matrix"])
        if group["capturable"] and group["matrix"] is not False:
            raise RuntimeError(
                "capturable=True cannot be combined with a basis: its refresh depends on the "
                "number of the step. Leave capturable=False, or use matrix=False."
            )
        super()._check(group)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _fresh(self, theta: Tensor, group: Group) -> State:
        chosen = _sides(theta, group)
        if not chosen:
            return super()._fresh(theta, group)
        dtype = state_dtype(theta)
        dtype = dtype.to_real() if dtype.is_complex else dtype
        at: Any = {"dtype": dtype, "device": theta.device}
        rows, columns = _size(theta)
        state = {
            "step": new_step(),
            "phase": torch.tensor(self._phase(theta, group)),
            "mean": torch.zeros(rows, columns, **at),
            "variance": torch.zeros(rows, columns, **at),
        }
        for side in chosen:
            n = rows if side == "row" else columns
            state[f"{side}_covariance"] = torch.zeros(n, n, **at)
            state[f"{side}_basis"] = torch.eye(n, **at)
        return {key: sharded_by_rows(t, theta) if t.ndim else t for key, t in state.items()}

    def _phase(self, theta: Tensor, group: Group) -> int:
        """The refresh phase of a matrix, among those with the same interval."""
        costs: list[float] = []
        place = 0
        for own in self._all_groups():
            if own["refresh"] == group["refresh"]:
                for other in own["params"]:
                    place = len(costs) if other is theta else place
                    lengths = dict(zip(SIDES, _size(other), strict=True))
                    costs.append(sum(lengths[side] ** 3.0 for side in _sides(other, own)))
        return phases(tuple(costs), group["refresh"])[place] if costs else 0

    def _split(self, batch: Batch) -> tuple[Batch, list[MatrixStep]]:
        """The part of a batch without a basis, and the matrices with one."""
        group, params, grads, columns = batch
        matrices: list[MatrixStep] = []
        rest: list[int] = []
        for i, theta in enumerate(params):
            state = self.state[theta]
            if "phase" in state:
                matrices.append(MatrixStep(theta, grads[i], state))
            else:
                rest.append(i)
        xs, gs, *memory = ([column[i] for i in rest] for column in (params, grads, *columns))
        return super()._here((group, xs, gs, memory)), matrices

    def _here(self, batch: Batch) -> Batch:
        return batch  # `_split` looks up the state of the parameters themselves

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        group = batch[0]
        if group["capturable"]:
            super()._update(super()._here(batch), ok)
            return
        if ok is not None and not bool(ok):
            return
        rest, matrices = self._split(batch)
        if rest[1]:
            super()._update(rest, None)
        self._advance(group, [matrix for matrix in matrices if not is_sharded(matrix.theta)])
        for theta, grad, state in matrices:
            if is_sharded(theta):
                renew = not state["step"] or _due(group, state)
                with gathered(state, renew=renew) as memory:
                    self._advance(group, [MatrixStep(theta, grad, memory)])

    def _advance(self, group: Group, matrices: list[MatrixStep]) -> None:
        """Take the step of these matrices, in place."""
        for i, (theta, grad, state) in enumerate(matrices):
            G = as_matrix(grad, state["mean"].dtype)
            matrices[i] = MatrixStep(theta, -G if group["maximize"] else G, state)
        plain = group["differentiable"] or group["foreach"] is False
        new = [matrix for matrix in matrices if not matrix.state["step"]]
        old = [matrix for matrix in matrices if matrix.state["step"]]
        for stack in _stacks(new, plain):
            self._init_basis(group, stack)
        for stack in _stacks(old, plain):
            states = [state for _, _, state in stack]
            G = _stacked([grad for _, grad, _ in stack])
            if plain:
                self._move_differentiable(group, stack[0])
            else:
                self._move(group, stack, G)
            _update_covariances(group["basis_beta"], G.detach(), states)
            due = [state for state in states if _due(group, state)]
            if due:
                _refresh(due)
            for state in states:
                state["step"] += 1

    def _init_basis(self, group: Group, stack: list[MatrixStep]) -> None:
        """Initialize the basis from first gradients; parameters only decay."""
        if group["saturation"]:
            scalars_of(self._cached_rule(group), group, [1.0])  # records the peak of lr
        if group["weight_decay"]:
            for theta, _, state in stack:
                _apply(theta, None, 1 - group["lr"] * group["weight_decay"], state.get(ROUNDING))
        # A gradient of zeros does not determine a basis.
        stack = [matrix for matrix in stack if matrix.grad.is_meta or bool(matrix.grad.any())]
        if not stack:
            return
        states = [state for _, _, state in stack]
        G = _stacked([grad.detach() for _, grad, _ in stack])
        _update_covariances(group["basis_beta"], G, states)
        wide = G if G.device.type == "mps" else G.double()
        basis = first_basis(wide, _basis_of(states))
        for i, state in enumerate(states):
            _set_basis(state, {axis: Q[i] for axis, Q in basis.items()})
            state["step"] += 1

    def _move(self, group: Group, stack: list[MatrixStep], G: Tensor) -> None:
        form = from_second(self._cached_rule(group))
        states = [state for _, _, state in stack]
        basis = _basis_of(states)
        rotated = zero_rounding_noise(rotate(G, basis))
        # The first gradient is not part of mean and variance: their count is one less.
        ns = scalars_of(form, group, [state["step"].item() for state in states])
        moves = torch.zeros_like(rotated)
        memory = ([state[name] for state in states] for name in ("mean", "variance"))
        still = [n._replace(shrink=1.0) for n in ns]
        advance_lists(form, still, list(moves.unbind(0)), list(rotated.unbind(0)), *memory)
        back = rotate(moves, basis, back=True)
        for (theta, _, state), n, move in zip(stack, ns, back, strict=True):
            _apply(theta, move, n.shrink, state.get(ROUNDING))

    def _move_differentiable(self, group: Group, matrix: MatrixStep) -> None:
        """`_move` for one matrix, by operations that autograd can differentiate."""
        theta, grad, state = matrix
        form = from_second(self._cached_rule(group))
        n = scalars_traced(form, group, state["step"], grad, None)
        # Copies, as a refresh changes the basis in place and a backward pass needs the old one.
        basis = {axis: Q[0].clone() for axis, Q in _basis_of([state]).items()}
        rotated = zero_rounding_noise(rotate(grad, basis))
        m, v = state["mean"].clone(), state["variance"].clone()
        still = n._replace(shrink=1.0)
        move, mean, variance = advance(form, still, torch.zeros_like(rotated), rotated, m, v)
        state["mean"].copy_(mean)
        state["variance"].copy_(variance)
        _apply(theta, rotate(move, basis, back=True), n.shrink, state.get(ROUNDING))


def _size(theta: Tensor) -> tuple[int, int]:
    return matrix_size(tuple(theta.shape), pairs=theta.is_complex())


def _sides(theta: Tensor, group: Group) -> tuple[str, ...]:
    """The sides of a parameter that have a basis."""
    settings = {name: group[name] for name in ("matrix", "max_dim", "basis_beta")}
    return tuple(tuple(SIDES)[i] for i in sides(*_size(theta), **settings))


def _due(group: Group, state: State) -> bool:
    return int(state["step"]) % group["refresh"] == int(state["phase"]) % group["refresh"]


def as_matrix(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """A gradient with its first axis as rows; a complex column is a real and an imaginary one.

    Examples:
        >>> as_matrix(torch.zeros(4, 3, 2, 2), torch.float64).shape
        torch.Size([4, 12])
    """
    grad = as_real(whole(grad))
    return grad.reshape(grad.shape[0], -1).to(dtype)


def _stacks(matrices: list[MatrixStep], single: bool) -> Iterator[list[MatrixStep]]:
    """Stacks of matrices of one shape, dtype and device; on a CPU, as many as fit its cache."""
    alike: dict[Any, list[MatrixStep]] = {}
    for matrix in matrices:
        G = matrix.grad
        bases = [f"{side}_basis" in matrix.state for side in SIDES]
        key = (G.shape, G.dtype, G.device, *bases)
        alike.setdefault(key, []).append(matrix)
    for stack in alike.values():
        G = stack[0].grad
        most = len(stack) if G.device.type != "cpu" else max(1, PIECE // G.numel())
        most = 1 if single else most
        for i in range(0, len(stack), most):
            yield stack[i : i + most]


def _stacked(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors) if len(tensors) > 1 else tensors[0].unsqueeze(0)


def _basis_of(states: list[State]) -> dict[int, Tensor]:
    """The stacked eigenvectors of matrices of equal shape, by axis."""
    return {
        axis: _stacked([state[f"{side}_basis"] for state in states])
        for side, axis in SIDES.items()
        if f"{side}_basis" in states[0]
    }


def _set_basis(state: State, basis: dict[int, Tensor]) -> None:
    for side, axis in SIDES.items():
        if axis in basis:
            state[f"{side}_basis"].copy_(basis[axis])


def _update_covariances(beta: float, G: Tensor, states: list[State]) -> None:
    """Average the gradients into the covariances, in place."""
    for side in SIDES:
        if f"{side}_covariance" not in states[0]:
            continue
        covariances = [state[f"{side}_covariance"] for state in states]
        A = G if side == "row" else G.mT
        if is_sharded(covariances[0]):  # this process has some rows of one matrix
            own = part(A[0].contiguous(), covariances[0]).to_local()
            covariances[0].to_local().addmm_(own, A[0].mT, beta=beta, alpha=1 - beta)
        else:
            average_covariances(covariances, A, beta)


def average_covariances(covariances: list[Tensor], A: Tensor, beta: float) -> None:
    """`averaged_covariance` of `lossnav.rules` in place, for the lower triangles of a stack."""
    n = A.shape[-2]
    if n < 2 * BLOCK:
        torch._foreach_lerp_(covariances, list(torch.bmm(A, A.mT).unbind(0)), 1 - beta)
        return
    strips = min(n // BLOCK, 8)
    edges = [n * i // strips for i in range(strips + 1)]
    for covariance, a in zip(covariances, A.unbind(0), strict=True):
        for low, high in pairwise(edges):
            strip = covariance[low:high, :high]
            strip.addmm_(a[low:high], a[:high].mT, beta=beta, alpha=1 - beta)


def _refresh(states: list[State]) -> None:
    """Update the bases from the covariances, and rotate mean and variance to them."""
    covariances = {
        axis: [state[f"{side}_covariance"] for state in states]
        for side, axis in SIDES.items()
        if f"{side}_covariance" in states[0]
    }
    whole = {axis: _stacked(Cs) for axis, Cs in covariances.items()}
    whole = {axis: C.tril() + C.tril(-1).mT for axis, C in whole.items()}
    m, v = (_stacked([state[name] for state in states]) for name in ("mean", "variance"))
    new, m, v, good = refreshed(whole, _basis_of(states), m, v)
    for axis, flags in good.items():
        usable = [True] * len(states) if flags.is_meta else flags.tolist()
        for C, finite in zip(covariances[axis], usable, strict=True):
            if not finite:
                C.zero_()
    for i, state in enumerate(states):
        state["mean"].copy_(m[i])
        state["variance"].copy_(v[i])
        _set_basis(state, {axis: Q[i] for axis, Q in new.items()})


def _apply(theta: Tensor, move: Tensor | None, shrink: Any, error: Tensor | None) -> None:
    """Decay a parameter and then add a move, in place; rounded once if it has a low precision."""
    if is_sharded(theta):
        if move is not None:
            pair = (2,) if theta.is_complex() else ()
            move = part(move.reshape(*theta.shape, *pair), theta).to_local()
        theta, error = theta.to_local(), None if error is None else error.to_local()
    if move is None and error is None:
        as_real(theta).mul_(shrink)
        return
    if move is None:
        move = torch.zeros_like(as_real(theta), dtype=state_dtype(theta))
    add_move(theta, move, error, shrink)
