"""Learning rules as optimizers of PyTorch and optax."""

from __future__ import annotations

from typing import Any

__all__ = ["create"]


def create(model: Any, name: str = "navigator", lr: Any = None, **settings: Any) -> Any:
    """Create an optimizer by its name, with parameter groups, and print the groups.

    A model of PyTorch gets `lossnav.optim.torch.create`, and any other tree of parameters
    `lossnav.optim.optax.create`.

    Args:
        model: A `torch.nn.Module`, or the parameters of a JAX model.
        name: ``"navigator"``, ``"kronecker"``, ``"uncertain"``, ``"ballistic"``, or an optimizer of
            `lossnav.rules.zoo`.
        lr: Learning rate; None is the optimizer's default.
        settings: ``roles``, ``verbose``, and settings of the optimizer.

    Examples:
        >>> import torch
        >>> optimizer = create(torch.nn.Linear(3, 2), "kronecker", lr=1e-2)
        kronecker: 8 trainable parameters, 184 B of state
        group     tensors  parameters  rule                decay  state
        matrices  1        6           KroneckerNavigator  0      164 B
        vectors   1        2           Navigator           0      20 B
        estimated share of training time: 4 % with 1,000 tokens a batch, 0.4 % with 10,000
    """
    if hasattr(model, "named_parameters"):
        from lossnav.optim.torch import create as of_torch

        return of_torch(model, name, lr, **settings)
    from lossnav.optim.optax import create as of_optax

    return of_optax(model, name, lr, **settings)
