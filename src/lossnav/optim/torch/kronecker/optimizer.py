"""KroneckerNavigator: the family in a basis that is learnt for each matrix."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lossnav._base import checks
from lossnav.optim.torch.base import Batch, Group, state_dtype
from lossnav.optim.torch.finite import finite_here
from lossnav.optim.torch.kronecker.basis import SIDES
from lossnav.optim.torch.kronecker.pieces import Job, pieces, size
from lossnav.optim.torch.kronecker.step import (
    as_matrix,
    begin,
    learn,
    moves,
    plain_move,
    refresh,
    shift,
    stacked,
)  # fmt: skip
from lossnav.optim.torch.navigator import Navigator
from lossnav.optim.torch.shards import gathered, is_sharded, shared_out
from lossnav.optim.torch.step import numbers_of, numbers_traced
from lossnav.rules.bases import phases, sides


class KroneckerNavigator(Navigator):
    r"""The optimal step under a belief about each whole matrix: SOAP, and what lies beyond it.

    The learner believes that the gradient G of a matrix varies independently along the eigenvectors of
    :math:`L=E[GG^T]` and :math:`R=E[G^TG]`. In that basis, :math:`G'=Q_L^TGQ_R`, it takes the step of
    `Navigator`, with all of its settings, and turns it back:

    .. math:: \Delta\theta=-\mathrm{lr}\;Q_L\Bigl[\frac{1+c}{1+z}\frac mD\Bigr]Q_R^T,\qquad
              m=E[G'],\quad v=E[G'^2].

    One optimizer serves a whole model. A convolution kernel is a matrix of its first axis and the rest.
    Vectors, single numbers, and matrices without a basis get exactly the step of `Navigator`. With
    ``betas=(0.95, 0.95), nesterov=False, saturation=0`` it is SOAP without decay, but that vectors move at the
    first step, that ``eps`` is added after the correction for bias, and that directions without gradients are not left
    to rounding.

    *The first gradient* of a matrix sets up its basis; nothing moves but by decay. (In the basis of
    that gradient alone most coordinates would be rounding errors, and v would raise them to full
    steps.) A later gradient is seen in the basis of those before it, and then becomes part of it.

    *Memory*: two numbers for each parameter, and :math:`2n^2` for each side of length n with a basis.

    Args:
        params: Parameters, named parameters, or groups; each setting may differ between groups.
        lr: Step of a typical coordinate whose mean gradient is one standard deviation; may be a tensor.
        betas: How much a step leaves of the old mean and of the old variance.
        eps: Added to D.
        weight_decay: Rate of decay for each unit of ``lr``, as in AdamW, before the step.
        basis_beta: How much a step leaves of the old L and R.
        refresh: Steps between two refreshes of a basis. Matrices take turns, so that each step has
            about the same work to do.
        gamma, gain, centred, nesterov, saturation, shared: As in `Navigator`, in the basis.
        max_dim: A longer side keeps its own axes, so that an embedding has a basis for its
            columns only; so does a side too long for the gradients remembered to fill it.
        matrix: ``"auto"`` as above, True for a basis on every side whatever its length, or False for
            none. Meant for single groups.
        maximize, differentiable, nonfinite: As in `Navigator`. Autograd takes the basis as constant.
        foreach: False works on one matrix after the other. None and True work on stacks.
        capturable: Refused except with ``matrix=False``: a factorisation cannot be captured.

    Complex parameters are pairs of reals: a complex column is a real and an imaginary one. A parameter
    that is sharded (FSDP2, tensor parallel; any DTensor) shares out its memory by rows over the same
    processes. For its step one matrix after the other is gathered, and each process works it out.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
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
        centred: bool = False,
        nesterov: bool = True,
        saturation: float = 4.0,
        shared: float = 0.75,
        max_dim: int = 4096,
        matrix: bool | Literal["auto"] = "auto",
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
    ) -> None:
        settings = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "basis_beta": basis_beta, "refresh": refresh, "gamma": gamma, "gain": gain,
            "centred": centred, "nesterov": nesterov, "saturation": saturation, "shared": shared,
            "max_dim": max_dim, "matrix": matrix, "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable, "nonfinite": nonfinite,
        }  # fmt: skip
        super(Navigator, self).__init__(params, settings)

    def _check(self, group: Group) -> None:
        checks.fraction("basis_beta", group["basis_beta"])
        for name in ("refresh", "max_dim"):
            value = group[name]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, but it must be a whole number, 1 or more.")
        if group["matrix"] not in (True, False, "auto"):
            raise ValueError(
                f'matrix is {group["matrix"]!r}, but it must be True, False or "auto".'
            )
        if group["capturable"] and group["matrix"] is not False:
            raise RuntimeError(
                "capturable=True cannot be had with a basis: its refresh looks at the number of the "
                "step. Leave capturable=False, or use matrix=False."
            )
        super()._check(group)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _fresh(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        rows, columns = size(theta)
        chosen = _sides(theta, group)
        if not chosen:
            return super()._fresh(theta, group)
        dtype = state_dtype(theta)
        dtype = dtype.to_real() if dtype.is_complex else dtype
        at: dict[str, Any] = {"dtype": dtype, "device": theta.device}
        state = {
            "step": torch.zeros((), dtype=torch.float32),
            "phase": torch.tensor(self._phase(theta, group)),
            "mean": torch.zeros(rows, columns, **at),
            "variance": torch.zeros(rows, columns, **at),
        }
        for side in chosen:
            n = rows if side == "row" else columns
            state[f"{side}_covariance"] = torch.zeros(n, n, **at)
            state[f"{side}_basis"] = torch.eye(n, **at)
        return {key: shared_out(t, theta) if t.ndim else t for key, t in state.items()}

    def _phase(self, theta: Tensor, group: Group) -> int:
        """The turn of a matrix among all that are refreshed as often."""
        costs: list[float] = []
        place = 0
        for own in self.param_groups:
            if own["refresh"] == group["refresh"]:
                for other in own["params"]:
                    place = len(costs) if other is theta else place
                    lengths = dict(zip(SIDES, size(other), strict=True))
                    costs.append(sum(lengths[side] ** 3.0 for side in _sides(other, own)))
        return phases(tuple(costs), group["refresh"])[place] if costs else 0

    def _split(self, batch: Batch) -> tuple[Batch, list[Job]]:
        """What has no basis, and what has one."""
        group, params, grads, columns = batch
        jobs: list[Job] = []
        rest: list[int] = []
        for i, theta in enumerate(params):
            state = self.state[theta]
            if "phase" in state:
                jobs.append((theta, grads[i], state))
            else:
                rest.append(i)
        pick = [[column[i] for i in rest] for column in (params, grads, *columns)]
        return super()._here((group, pick[0], pick[1], pick[2:])), jobs

    def _here(self, batch: Batch) -> Batch:
        return batch  # `_split` must know the parameters again

    def _finite(self, batches: list[Batch]) -> bool:
        rest, matrices = [], []
        for group, params, grads, columns in batches:
            diagonal = ["phase" not in self.state[theta] for theta in params]
            keep = [i for i, alone in enumerate(diagonal) if alone]
            matrices += [grad for grad, alone in zip(grads, diagonal, strict=True) if not alone]
            if keep:
                picked = [[column[i] for i in keep] for column in (params, grads, *columns)]
                rest.append(super()._here((group, picked[0], picked[1], picked[2:])))
        return super()._finite(rest) and finite_here(matrices)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        group = batch[0]
        if group["capturable"]:
            super()._update(super()._here(batch), ok)
            return
        if ok is not None and not bool(ok):
            return
        rest, jobs = self._split(batch)
        if rest[1]:
            super()._update(rest, None)
        self._advance(group, [job for job in jobs if not is_sharded(job[0])])
        for theta, grad, state in jobs:
            if is_sharded(theta):
                renew = not state["step"] or self._due(group, state)
                with gathered(state, renew=renew) as memory:
                    self._advance(group, [(theta, grad, memory)])

    def _advance(self, group: Group, jobs: list[Job]) -> None:
        """The step of some matrices."""
        climb = group["maximize"]
        seen = [as_matrix(grad, state["mean"].dtype) for _, grad, state in jobs]
        jobs = [(x, -G if climb else G, s) for (x, _, s), G in zip(jobs, seen, strict=True)]
        new = [job for job in jobs if not job[2]["step"]]
        old = [job for job in jobs if job[2]["step"]]
        plain = group["differentiable"] or group["foreach"] is False
        for piece in pieces(new, plain):
            self._begin(group, piece)
        for piece in pieces(old, plain):
            if plain:
                self._walk_plainly(group, piece[0])
            else:
                self._walk(group, piece)

    def _begin(self, group: Group, jobs: list[Job]) -> None:
        if group["saturation"]:
            numbers_of(self._form(group), self._settings(group), [1.0])  # notes the peak of lr
        for theta, _, _ in jobs:
            if group["weight_decay"]:
                shift(theta, None, 1 - group["lr"] * group["weight_decay"])
        # A gradient of zeros says nothing of a basis: the first of another kind will.
        jobs = [job for job in jobs if bool(job[1].any())]
        if jobs:
            states = [state for _, _, state in jobs]
            begin(group, stacked([G.detach() for _, G, _ in jobs]), states)
            for state in states:
                state["step"] += 1

    def _walk(self, group: Group, jobs: list[Job]) -> None:
        form = self._form(group)
        states = [state for _, _, state in jobs]
        G = stacked([g for _, g, _ in jobs])
        # The first gradient is no part of mean and variance: the count of theirs is one less.
        ns = numbers_of(form, self._settings(group), [state["step"].item() for state in states])
        for (theta, _, _), n, move in zip(jobs, ns, moves(form, ns, G, states), strict=True):
            shift(theta, move, n.shrink)
        learn(group, G, states)
        self._turn(group, states)

    def _walk_plainly(self, group: Group, job: Job) -> None:
        form = self._form(group)
        theta, g, state = job
        n = numbers_traced(form, self._settings(group), state["step"], g, None)
        shift(theta, plain_move(form, n, g, state), n.shrink)
        learn(group, g.unsqueeze(0), [state])
        self._turn(group, [state])

    def _turn(self, group: Group, states: list[dict[str, Tensor]]) -> None:
        """Refresh the bases that are due, and count."""
        due = [state for state in states if self._due(group, state)]
        if due:
            refresh(due)
        for state in states:
            state["step"] += 1

    def _due(self, group: Group, state: dict[str, Tensor]) -> bool:
        return int(state["step"]) % group["refresh"] == int(state["phase"]) % group["refresh"]


def _sides(theta: Tensor, group: Group) -> tuple[str, ...]:
    """Which sides of a parameter have a basis."""
    if theta.ndim < 2:
        return ()
    settings = {name: group[name] for name in ("matrix", "max_dim", "basis_beta")}
    return tuple(SIDES[i] for i in sides(*size(theta), **settings))
