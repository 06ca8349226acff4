r"""One step for matrices of equal shape: into the basis, the diagonal family there, and back.

The memory of a matrix is a dict: ``mean`` and ``variance`` in the basis, and for each side that has a
basis its covariance and its eigenvectors. When the basis changes, the mean is turned along, so that
it stays the same mean, exactly. A variance cannot be turned: it keeps to its directions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lossnav.optim.torch.base import Group
from lossnav.optim.torch.diagonal import Form, Numbers, advance, advance_lists
from lossnav.optim.torch.kronecker.basis import (
    SIDES,
    Basis,
    eigenbasis,
    observe,
    refreshed,
    turned,
    turned_back,
)  # fmt: skip
from lossnav.optim.torch.shards import is_sharded, part, whole

State = dict[str, Tensor]


def as_matrix(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """A gradient with its first axis as rows; a complex column is a real and an imaginary one.

    Examples:
        >>> as_matrix(torch.zeros(4, 3, 2, 2), torch.float64).shape
        torch.Size([4, 12])
    """
    grad = whole(grad)
    if grad.is_complex():
        grad = torch.view_as_real(grad.resolve_conj())
    return grad.reshape(grad.shape[0], -1).to(dtype)


def basis_of(states: list[State]) -> Basis:
    """The eigenvectors of matrices of equal shape."""
    return {
        side: stacked([state[f"{side}_basis"] for state in states])
        for side in SIDES
        if f"{side}_basis" in states[0]
    }


def stacked(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors) if len(tensors) > 1 else tensors[0].unsqueeze(0)


def begin(group: Group, G: Tensor, states: list[State]) -> None:
    """Set up the basis from the first gradients."""
    learn(group, G, states)
    for side in SIDES:
        if f"{side}_basis" in states[0]:
            for state, Q in zip(states, eigenbasis(side, G), strict=True):
                state[f"{side}_basis"].copy_(Q)


def heard(seen: Tensor) -> Tensor:
    """Gradients in their basis, with zero for what is only the rounding error of having been turned.

    A basis is made to have few large coordinates; if a gradient comes again, all others are rounding
    errors, and division by the root of their variance would raise them to full steps.
    """
    norm = torch.linalg.vector_norm(seen.detach(), dim=(-2, -1), keepdim=True)
    return torch.where(seen.detach().abs() > torch.finfo(seen.dtype).eps * norm, seen, 0.0)


def moves(form: Form, ns: list[Numbers], G: Tensor, states: list[State]) -> Tensor:
    """The moves for gradients ``G``, without decay; mean and variance change in place."""
    basis = basis_of(states)
    seen = heard(turned(G, basis))
    found = torch.zeros_like(seen)
    ms, vs = ([state[name] for state in states] for name in ("mean", "variance"))
    ns = [n._replace(shrink=1.0) for n in ns]
    advance_lists(form, ns, list(found.unbind(0)), list(seen.unbind(0)), ms, vs)
    return turned_back(found, basis)


def plain_move(form: Form, n: Numbers, g: Tensor, state: State) -> Tensor:
    """The same for one matrix with nothing changed but the memory; autograd can follow it."""
    # Copies, as a refresh changes the basis in place, and a backward pass needs it as it was.
    basis = {side: Q.clone() for side, Q in basis_of([state]).items()}
    seen = heard(turned(g.unsqueeze(0), basis))[0]
    still = torch.zeros_like(seen)
    m, v = state["mean"].clone(), state["variance"].clone()
    found, mean, variance = advance(form, n._replace(shrink=1.0), still, seen, m, v, None)
    state["mean"].copy_(mean)
    state["variance"].copy_(variance)
    return turned_back(found.unsqueeze(0), basis)[0]


def learn(group: Group, G: Tensor, states: list[State]) -> None:
    """Average the gradients into the covariances."""
    for side in SIDES:
        if f"{side}_basis" in states[0]:
            held = [state[f"{side}_covariance"] for state in states]
            if is_sharded(held[0]):
                observe_rows(side, held[0], G[0].detach(), group["basis_beta"])
            else:
                observe(side, held, G.detach(), group["basis_beta"])


def observe_rows(side: str, covariance: Tensor, G: Tensor, beta: float) -> None:
    """Average a gradient into the rows of a sharded covariance that this process holds."""
    A = G if side == "row" else G.mT
    own = part(A.contiguous(), covariance).to_local()
    covariance.to_local().addmm_(own, A.mT, beta=beta, alpha=1 - beta)


def refresh(states: list[State]) -> None:
    """Let the basis follow the covariances; mean and variance go along."""
    old = basis_of(states)
    new: Basis = {}
    m, v = (stacked([state[name] for state in states]) for name in ("mean", "variance"))
    for side, Q in old.items():
        held = [state[f"{side}_covariance"] for state in states]
        new[side], order, good = refreshed(stacked(held), Q)
        where = order.unsqueeze(-1) if side == "row" else order.unsqueeze(-2)
        v = v.gather(-2 if side == "row" else -1, where.expand_as(v))
        if not bool(good.all()):
            for covariance, fine in zip(held, good.tolist(), strict=True):
                if not fine:
                    covariance.zero_()
    m = turned(turned_back(m, old), new)
    for i, state in enumerate(states):
        state["mean"].copy_(m[i])
        state["variance"].copy_(v[i])
        for side, Q in new.items():
            state[f"{side}_basis"].copy_(Q[i])


def shift(theta: Tensor, move: Tensor | None, shrink: Any) -> None:
    """Decay a parameter and then add a move, in place; one rounding if it has a low precision."""
    if is_sharded(theta):
        if move is not None:
            pair = (2,) if theta.is_complex() else ()
            move = part(move.reshape(*theta.shape, *pair), theta).to_local()
        theta = theta.to_local()
    x = torch.view_as_real(theta) if theta.is_complex() else theta
    if move is None:
        x.mul_(shrink)
        return
    move = move.reshape(x.shape)
    if x.dtype != move.dtype or isinstance(shrink, Tensor):
        x.copy_(x.clone().to(move.dtype) * shrink + move)
        return
    if shrink != 1:
        x.mul_(shrink)
    x.add_(move)
