r"""The basis in which the gradients of a matrix vary independently, and how it follows them.

For gradients G of a matrix with r rows and c columns the averages :math:`L=E[GG^T]` and
:math:`R=E[G^TG]` are kept, and their eigenvectors :math:`Q_L, Q_R`. The first eigenvectors are exact.
From then on a refresh sorts them by :math:`\mathrm{diag}(Q^TLQ)`, largest first, and takes one step of
orthogonal iteration, :math:`Q\leftarrow\mathrm{qr}(LQ)`: it costs as much as a few products, and it
follows averages that change slowly.

All functions here work on stacks: the first axis numbers matrices of equal shape. Of a covariance
only the lower triangle counts, which saves part of its products.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from lossnav.rules.bases import LEAST

SIDES = ("row", "column")
Basis = dict[str, Tensor]
"""The eigenvectors of the sides that have some, as a stack each."""
BLOCK = 128
"""Covariances from twice this length on are updated by strips, up to the diagonal."""
RAMP = 1e-8
"""What orders the directions that a first gradient lacks, in units of its square."""


def turned(G: Tensor, basis: Basis) -> Tensor:
    r""":math:`Q_L^TGQ_R`: a stack of matrices in its basis."""
    G = torch.bmm(basis["row"].mT, G) if "row" in basis else G
    return torch.bmm(G, basis["column"]) if "column" in basis else G


def turned_back(G: Tensor, basis: Basis) -> Tensor:
    r""":math:`Q_LGQ_R^T`: a stack of matrices back from its basis."""
    G = torch.bmm(G, basis["column"].mT) if "column" in basis else G
    return torch.bmm(basis["row"], G) if "row" in basis else G


def observe(side: str, covariances: list[Tensor], G: Tensor, beta: float) -> None:
    """Average the gradients ``G`` into the covariances of one side, in place."""
    A = G if side == "row" else G.mT
    n = A.shape[-2]
    if n < 2 * BLOCK:
        torch._foreach_lerp_(covariances, list(torch.bmm(A, A.mT).unbind(0)), 1 - beta)
        return
    strips = min(n // BLOCK, 8)
    edges = [n * i // strips for i in range(strips + 1)]
    for covariance, a in zip(covariances, A.unbind(0), strict=True):
        for low, high in pairwise(edges):
            part = covariance[low:high, :high]
            part.addmm_(a[low:high], a[:high].mT, beta=beta, alpha=1 - beta)


def eigenbasis(side: str, G: Tensor) -> Tensor:
    """The eigenvectors of the covariance of one gradient, largest first, for each of a stack.

    In double precision: squares of singular values have twice their range. Directions that the
    gradient lacks have no order of their own. They get that of the axes, by a term too small to
    matter elsewhere; else rounding would choose them, and with them the path.
    """
    wide = G.to(torch.float64 if G.device.type != "mps" else torch.float32)
    A = wide if side == "row" else wide.mT
    C = torch.bmm(A, A.mT)
    if A.shape[-2] <= A.shape[-1]:
        values, Q = torch.linalg.eigh(C)
        if bool((values[:, 0] > 1e-10 * values[:, -1]).all()):
            return Q.flip(-1).to(G.dtype)
    ramp = torch.linspace(RAMP, 0.0, C.shape[-1], dtype=C.dtype, device=C.device)
    diagonal = C.diagonal(dim1=-2, dim2=-1)
    diagonal += ramp * diagonal.sum(-1, keepdim=True)
    return torch.linalg.eigh(C)[1].flip(-1).to(G.dtype)


def refreshed(C: Tensor, Q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""The next eigenvectors, the order that sorts the old ones, and which of the stack are good.

    The iteration is with :math:`L+\delta I`, which has the same eigenvectors: a direction in which
    no gradient was seen stays what it was, where it would be the rounding error of a zero.
    A covariance that overflowed gives no basis; its matrix keeps the old one.
    """
    C = C.tril() + C.tril(-1).mT
    ahead = torch.bmm(C, Q)
    values = (Q * ahead).sum(-2)
    order = values.argsort(dim=-1, descending=True)
    delta = max(8 * torch.finfo(Q.dtype).eps, LEAST) * values.amax(-1)
    ahead = ahead + delta[:, None, None] * Q
    ahead = ahead.gather(-1, order.unsqueeze(-2).expand_as(ahead))
    finite = torch.isfinite(ahead.sum((-1, -2)))
    ahead = torch.where(finite[:, None, None], ahead, 0.0)
    new = torch.linalg.householder_product(*torch.geqrf(ahead))  # a QR that leaves out R
    good = finite & torch.isfinite(new.sum((-1, -2)))
    same = torch.arange(Q.shape[-1], device=Q.device)
    return (
        torch.where(good[:, None, None], new, Q),
        torch.where(good[:, None], order, same),
        good,
    )
