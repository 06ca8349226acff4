"""Parameter groups of a model, by name and shape, for PyTorch and optax alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from lossnav._base import checks
from lossnav.rules import zoo
from lossnav.rules.family import BeliefFamily

ROLES = ("matrices", "heads", "embeddings", "vectors")
"""The groups of a model: weights inside, weights of the output, tables, and biases and norms."""
DECAYED = ("matrices", "heads")
"""Roles with weight decay."""
OURS = ("navigator", "kronecker", "uncertain", "ballistic")
OF_MATRICES = ("kronecker", "muon", "soap")
"""Optimizers with a rule for whole matrices."""

_WEIGHTS = {"kernel", "w", "weight", "weights"}
_VECTORS = {"b", "beta", "gain", "gamma", "offset", "scale"}
_TABLE = re.compile(r"embed|^(wte|wpe)$|(^|_)(tokens?|pos|position|positions)($|_)")
_HEAD = re.compile(r"^((lm|cls|class|classification|output)_?)?heads?$|^(classifier|logits|score)$")
_ENTRYWISE = 100.0
"""Time of a step's passes over one entry, in multiplications, as measured on CPUs."""


class Row(NamedTuple):
    """One group of parameters, as the table shows it."""

    name: str
    tensors: int
    parameters: int
    rule: str = "-"
    decay: float | None = None
    state: int | None = None
    """Bytes of the optimizer's state."""
    work: float = 0.0
    """Multiplications in one step."""


def multiplications(
    shape: Sequence[int], bases: Sequence[int] = (), *, polar: int = 0, refresh: int = 10
) -> float:
    """Multiplications of one step on a tensor, in products of matrices and factorizations alone.

    Args:
        shape: Of the tensor.
        bases: Sizes k of the learned bases. In each, the gradient and the step are rotated and the
            covariance takes the gradient; a refresh has C Q, a QR (4/3 k^3 with its Q), and the
            mean rotated twice.
        polar: Iterations of Muon's step; each has X X^T, A A and (b A + c A A) X.
        refresh: Steps between refreshes of the bases.

    Examples:
        >>> multiplications((64, 64), polar=5), round(multiplications((64, 64), (64, 64)))
        (3932160, 1800055)
    """
    if polar and len(shape) > 1:
        m, n = sorted((shape[0], math.prod(shape[1:])))
        return polar * (2 * m * m * n + m**3)
    products = math.prod(shape) * sum(bases)
    return 3 * products + (sum(7 * k**3 for k in bases) / 3 + 2 * products) / refresh


def rule_name(name: str) -> str:
    """A name that `create` knows, in lower case."""
    return checks.choice("optimizer", name.lower(), [*OURS, *map(str.lower, zoo.MEMBERS)])


def zoo_rules(name: str, settings: dict[str, Any]) -> tuple[BeliefFamily, BeliefFamily]:
    """The rule of a known optimizer for matrices, and that for all other parameters."""
    member = next(member for key, member in zoo.MEMBERS.items() if key.lower() == name)
    if name == "muon":
        settings = {"scale": "match_rms_adamw", **settings}
    rule = member(**settings)
    return rule, zoo.AdamW(rule.dt, weight_decay=rule.decay) if name == "muon" else rule


def named_head(path: Sequence[str]) -> bool:
    """Whether a module on the path of a parameter has a name that output layers have."""
    return any(_HEAD.search(part.lower()) for part in path[:-1])


def role(path: Sequence[str], shape: Sequence[int]) -> str:
    """The role of a parameter by its path in the model and its shape.

    Examples:
        >>> role(["layer", "kernel"], (4, 3)), role(["layer", "bias"], (3,))
        ('matrices', 'vectors')
        >>> role(["wte", "weight"], (50, 3)), role(["cls_token"], (1, 1, 3))
        ('embeddings', 'vectors')
    """
    own, near = path[-1].lower(), [part.lower() for part in path[-2:]]
    weight = own in _WEIGHTS
    if "bias" in own or own in _VECTORS or "norm" in near[0] or len(shape) < 2:
        return "vectors"
    if own not in ("kernel", "w") and any(_TABLE.search(part) for part in near):
        return "embeddings" if sum(n > 1 for n in shape) > 1 else "vectors"
    if not weight and sum(n > 1 for n in shape) < 2:
        return "vectors"
    return "heads" if named_head(path) else "matrices"


def overridden(roles_by_name: dict[str, str], roles: Mapping[str, str] | None) -> dict[str, str]:
    """The role of each parameter; ``roles``, by patterns of names, takes precedence."""
    for pattern, new_role in (roles or {}).items():
        checks.choice("role", new_role, ROLES)
        matched = [name for name in roles_by_name if fnmatchcase(name, pattern)]
        if not matched:
            raise ValueError(
                f"No trainable parameter matches {pattern!r} in roles; names are like "
                f"{next(iter(roles_by_name), '')!r}."
            )
        roles_by_name = roles_by_name | dict.fromkeys(matched, new_role)
    return roles_by_name


def refuse_diagonal(name: str, count: int) -> None:
    """Raise an error: an optimizer of matrices has no matrix to work on."""
    raise ValueError(
        f"None of the {count} trainable parameters is a matrix that {name!r} can use, so it would "
        "be a diagonal rule: are they flattened (FSDP1, DeepSpeed)? Use fully_shard (FSDP2), which "
        "keeps shapes, or 'navigator'."
    )


def table(name: str, rows: Sequence[Row], *, whole: bool = True) -> str:
    """The groups as a small table; ``whole`` is False if state is sharded over processes.

    Examples:
        >>> print(table("navigator", [Row("vectors", 2, 1000, "Navigator", 0.0, 8000)]))
        navigator: 1,000 trainable parameters, 8.0 kB of state
        group    tensors  parameters  rule       decay  state
        vectors  2        1,000       Navigator  0      8.0 kB
        estimated share of training time: 3 % with 1,000 tokens a batch, 0.3 % with 10,000
    """
    trained = [row for row in rows if row.state is not None]
    total = sum(row.state or 0 for row in trained)
    lines = [("group", "tensors", "parameters", "rule", "decay", "state")]
    lines += [
        (
            row.name,
            f"{row.tensors:,}",
            f"{row.parameters:,}",
            row.rule,
            "-" if row.decay is None else f"{row.decay:.6g}",
            "-" if row.state is None else _bytes(row.state),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    title = (
        f"{name}: {sum(row.parameters for row in trained):,} trainable parameters, "
        f"{_bytes(total)} of state{'' if whole else ' over all processes'}"
    )
    work = sum(row.work for row in trained)
    parameters = max(sum(row.parameters for row in trained), 1)

    def share(tokens: int) -> str:
        """The two passes take three multiplications for each parameter and token or example."""
        own = work / parameters + _ENTRYWISE
        return f"{float(f'{100 * own / (own + 3 * tokens):.1g}'):g} %"

    last = (
        f"estimated share of training time: {share(1000)} with 1,000 tokens a batch, "
        f"{share(10_000)} with 10,000"
    )
    return "\n".join([title, *cells, last])


def _bytes(size: int) -> str:
    power = min((len(str(size)) - 1) // 3, 3)
    return f"{size / 1000**power:.{min(power, 1)}f} {('B', 'kB', 'MB', 'GB')[power]}"
