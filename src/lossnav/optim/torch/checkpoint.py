"""Saved states: match one to an optimizer by name or by order, and convert those of Adam.

Adam, AdamW, NAdam and Navigator all store averages of the gradient and of its square, from zero and
without bias correction, so only names and settings differ.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from lossnav.optim.torch.shards import ROUNDING, local, part, print_once, whole

Group = dict[str, Any]
Memory = dict[tuple[int, int], dict[str, Any]]
"""The saved state of each parameter, by the numbers of its group and of its place in the group."""


def aligned(owner: str, saved: dict[str, Any], groups: list[Group]) -> tuple[list[Group], Memory]:
    """The saved groups with the parameters of ``groups`` in their order, and the state of each.

    Args:
        owner: Name of the optimizer, for error messages.
        saved: A ``state_dict``.
        groups: The groups of the optimizer that loads it; they are not changed.
    """
    if not isinstance(saved.get("param_groups"), list) or not isinstance(saved.get("state"), dict):
        raise ValueError(
            f"This is no state of an optimizer: {owner} needs a dict with 'state' and "
            "'param_groups'. Nothing was changed."
        )
    saved_groups = saved["param_groups"]
    if len(saved_groups) != len(groups):
        raise ValueError(
            f"The loaded state dict has {len(saved_groups)} parameter groups, but {owner} has "
            f"{len(groups)}: build it with the same groups. Nothing was changed."
        )
    unknown = set(saved["state"]) - {p for group in saved_groups for p in group["params"]}
    if unknown:
        raise ValueError(
            f"The loaded state dict has memory of {sorted(map(str, unknown))[0]}, which is in "
            "none of its groups: it is damaged. Nothing was changed."
        )
    # Disjoint names (a wrapper's prefix) match nothing: then parameters are matched by order.
    match = _by_name if _names(saved_groups) & _names(groups) else _by_order
    pairs = match(owner, saved_groups, groups)
    result: list[Group] = []
    memory: Memory = {}
    for i, (group, other, order) in enumerate(pairs):
        own = {key: group[key] for key in ("params", "param_names") if key in group}
        result.append(deepcopy({k: v for k, v in other.items() if k != "params"}) | own)
        for j, place in enumerate(order):
            state = saved["state"].get(other["params"][place])
            if state is not None:
                memory[i, j] = state
    return result, memory


Pair = tuple[Group, Group, list[int]]


def _names(groups: list[Group]) -> set[str]:
    return {name for group in groups for name in group.get("param_names", [])}


def _by_order(owner: str, saved_groups: list[Group], groups: list[Group]) -> list[Pair]:
    for i, (group, other) in enumerate(zip(groups, saved_groups, strict=True)):
        if len(group["params"]) != len(other["params"]):
            raise ValueError(
                f"Group {i} of the loaded state dict has {len(other['params'])} parameters, but "
                f"that of {owner} has {len(group['params'])}. Nothing was changed."
            )
    order = [list(range(len(group["params"]))) for group in groups]
    return list(zip(groups, saved_groups, order, strict=True))


def _by_name(owner: str, saved_groups: list[Group], groups: list[Group]) -> list[Pair]:
    pairs: list[Pair] = []
    rest = list(saved_groups)
    for group in groups:
        names = group["param_names"]
        same = [other for other in rest if sorted(other.get("param_names", [])) == sorted(names)]
        if not same:
            new = [name for name in names if name not in _names(saved_groups)]
            what = f"there is no {new[0]!r} in it" if new else f"{names[0]!r} has other neighbours"
            raise ValueError(
                f"No group of the loaded state dict holds the parameters of this {owner}: {what}. "
                "Nothing was changed."
            )
        other = same[0]
        rest = [group for group in rest if group is not other]
        place = {name: i for i, name in enumerate(other["param_names"])}
        pairs.append((group, other, [place[name] for name in names]))
    return pairs


def restored(what: str, fresh: dict[str, Tensor], saved: dict[str, Any]) -> dict[str, Tensor]:
    """Copy saved values into a ``fresh`` state, which keeps its precision and device.

    A missing rounding error becomes zero; that of a parameter which is now wide is dropped.
    """
    if isinstance(saved, dict) and (ROUNDING in saved) != (ROUNDING in fresh):
        saved = {key: value for key, value in saved.items() if key != ROUNDING}
        saved |= {key: value for key, value in fresh.items() if key == ROUNDING}
    if not isinstance(saved, dict) or set(saved) != set(fresh):
        raise ValueError(
            f"The saved memory of {what} has {', '.join(sorted(map(str, saved)))} where "
            f"{', '.join(sorted(fresh))} belong: it is of another optimizer. Nothing was changed."
        )
    values: dict[str, Tensor] = {}
    for key, target in fresh.items():
        try:
            value = values[key] = torch.as_tensor(saved[key])
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"The saved {key} of {what} is a {type(saved[key]).__name__}, but numbers are "
                "needed. Nothing was changed."
            ) from None
        if value.shape != target.shape:
            raise ValueError(
                f"The saved {key} of {what} has shape {tuple(value.shape)}, but "
                f"{tuple(target.shape)} is needed: it is of another model. Nothing was changed."
            )
        if target.is_complex() != value.is_complex():
            raise ValueError(
                f"The saved {key} of {what} is {value.dtype}, but {target.dtype} is needed. "
                "Nothing was changed."
            )
        if value.device.type != "meta" and not torch.isfinite(local([value])[0]).all():
            raise ValueError(
                f"The saved {key} of {what} holds NaN or infinity: it is damaged, or of a run that "
                "diverged. Nothing was changed."
            )
    with torch.no_grad():
        for key, target in fresh.items():
            value = values[key]
            if getattr(value, "placements", None) != getattr(target, "placements", None):
                # Saved whole and now sharded, or the other way round.
                value = part(whole(value).to(target.device), target)
            target.copy_(value)
    return fresh


NAMES = {"step": "step", "exp_avg": "mean", "exp_avg_sq": "variance"}
"""Entries of Adam's state, and the same in Navigator's."""
KEPT = ("lr", "betas", "eps", "weight_decay")
ALSO = ("maximize", "capturable", "differentiable")
PEAKS = ("lr", "initial_lr", "max_lr")
"""Keys of a group, some set by schedulers, whose largest value is the learning rate's peak."""


def is_adam(saved: Any) -> bool:
    """Whether a state dict looks like one of Adam, AdamW or NAdam."""
    groups = saved.get("param_groups") if isinstance(saved, dict) else None
    states = saved.get("state") if isinstance(saved, dict) else None
    if not (isinstance(groups, list) and groups and isinstance(states, dict)):
        return False
    like_adam = all({"params", *KEPT} <= set(group) and "gamma" not in group for group in groups)
    return like_adam and all(set(NAMES) <= set(state) for state in states.values())


def from_adam_state(saved: dict[str, Any], own: list[Group], settings: Group) -> dict[str, Any]:
    """Adam's state dict as one of Navigator.

    Args:
        saved: A state dict for which `is_adam` holds.
        own: Groups with Navigator's other settings, one for each saved group if there are as many.
        settings: These settings for all other groups.
    """
    for group in saved["param_groups"]:
        _refuse(group)
    groups = []
    for i, group in enumerate(saved["param_groups"]):
        base = own[i] if len(own) == len(saved["param_groups"]) else settings
        base = {key: value for key, value in base.items() if key in settings}
        peak = max(float(group[key]) for key in PEAKS if key in group)
        theirs = {k: v for k, v in group.items() if k not in _OF_ADAM}
        new = {**base, **theirs, **{key: group[key] for key in KEPT}, "peak_lr": peak}
        new |= {key: group[key] for key in ALSO if key in group}
        groups.append(new)
    state = {
        key: {ours: averages[theirs] for theirs, ours in NAMES.items()}
        for key, averages in saved["state"].items()
    }
    return {"state": state, "param_groups": groups}


_OF_ADAM = {
    "amsgrad", "decoupled_weight_decay", "foreach", "fused", "momentum_decay", *KEPT, *ALSO,
}  # fmt: skip
"""Settings of Adam's groups; all other keys, such as those of schedulers, are copied."""


def _refuse(group: Group) -> None:
    if group.get("amsgrad"):
        raise ValueError(
            "This state is of AMSGrad, which stores the largest v so far, but Navigator does not: "
            "create a new Navigator. Nothing was changed."
        )
    # PyTorch before 2.7 saves no such key; then AdamW is assumed.
    if group["weight_decay"] and not group.get("decoupled_weight_decay", True):
        raise ValueError(
            f"weight_decay is {group['weight_decay']:.6g} as a penalty in the loss (Adam, NAdam), "
            "but that of Navigator is decoupled, as AdamW's: add the penalty to the loss and use "
            "weight_decay=0. Nothing was changed."
        )


def adam_summary(source: str, saved: dict[str, Any], taken: int) -> str:
    """One line on what was converted; ``taken`` counts parameters with a state."""
    first = saved["param_groups"][0]
    values = ", ".join(f"{key} {_short(first[key])}" for key in KEPT)
    more = len(saved["param_groups"]) - 1
    groups = f" and {more} more group{'s' * (more > 1)}" if more else ""
    count = sum(len(group["params"]) for group in saved["param_groups"])
    steps = max((int(state["step"]) for state in saved["state"].values()), default=0)
    return (
        f"Taken from {source}: {values}{groups}; state of {taken} of {count} parameters after "
        f"{steps} steps. All else (nesterov, saturation, ...) is Navigator's own."
    )


def _short(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_short, value))})"
    return f"{float(value):.6g}"


def from_adam(cls: Any, optimizer: Any, params: Any, *, verbose: bool, settings: Group) -> Any:
    """See `lossnav.optim.torch.Navigator.like`."""
    whole = isinstance(optimizer, torch.optim.Optimizer)
    saved = optimizer.state_dict() if whole else optimizer
    if not is_adam(saved):
        raise ValueError(
            f"like takes an Adam, AdamW or NAdam of PyTorch, or its state dict, but this "
            f"{type(optimizer).__name__} has other settings or state: make a new {cls.__name__}."
        )
    if params is None:
        if not whole:
            raise ValueError("A state dict does not hold the parameters: pass params, too.")
        params = [
            {"params": list(zip(group["param_names"], group["params"], strict=True))}
            if "param_names" in group
            else {"params": list(group["params"])}
            for group in optimizer.param_groups
        ]
    made = cls(params, **settings)
    new = from_adam_state(saved, made.param_groups, made.defaults)
    for group in new["param_groups"]:
        group |= settings
        for key in group["params"]:
            averages = new["state"].get(key)
            # A matrix of KroneckerNavigator has a basis, which must come from gradients.
            if averages and "phase" in made._fresh(
                torch.empty(averages["mean"].shape, device="meta"), group
            ):
                del new["state"][key]
    made.load_state_dict(new)
    if verbose:
        source = type(optimizer).__name__ if whole else "a state dict of Adam or AdamW"
        print_once(adam_summary(source, saved, len(new["state"])))
    return made


def to_adamw_state(saved: dict[str, Any], settings: Group) -> dict[str, Any]:
    """A state dict of Navigator, which has these settings, as one of `torch.optim.AdamW`."""
    usual = torch.optim.AdamW([torch.zeros(())]).defaults
    ours = {*settings, "skipped", "peak_lr"}
    groups = []
    for group in saved["param_groups"]:
        if group["centered"] or group["gain"] != "betas":
            raise ValueError(
                "AdamW keeps averages of g and g^2 with constant betas, but this Navigator has "
                f"centered={group['centered']} and gain={group['gain']!r}: its averages are others."
            )
        extra = {key: group[key] for key in group if key not in ours}
        groups.append({**usual, **extra, **{key: group[key] for key in (*KEPT, *ALSO)}})
    state: dict[Any, dict[str, Tensor]] = {}
    for key, averages in saved["state"].items():
        if "phase" in averages:
            raise ValueError(
                "The state of a matrix of KroneckerNavigator is in a basis of its own, which AdamW "
                "does not have: begin with a new AdamW."
            )
        state[key] = {theirs: averages[ours].clone() for theirs, ours in NAMES.items()}
    return {"state": state, "param_groups": groups}
