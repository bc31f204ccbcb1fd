"""The weights that functions of the user's own find in `ctx.saved_tensors` when B and W run apart: the stage's own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import Node, get_gradient_edge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.autograd.function import BackwardCFunction


def give_own_weights(functions: Iterable[Node]) -> None:
    """Let the backwards of these functions of the user's own find the stage's weights themselves in `ctx.saved_tensors`.

    Without hooks autograd gives a saved weight as it is; through hooks it gives another tensor with the same elements, which has
    none of the weight's attributes. Megatron's layers add to `weight.main_grad`.
    """
    for function in functions:
        if not isinstance(function, _WithOwnWeights):
            function.__class__ = _with_own_weights(type(function))


class _WithOwnWeights:
    """A function whose saved weights are the stage's."""

    @property
    def saved_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """As autograd has them, but for the weights."""
        return tuple(map(_own, super().saved_tensors))  # type: ignore[misc]


@cache
def _with_own_weights(kind: type[BackwardCFunction]) -> type:
    return type(kind.__name__, (_WithOwnWeights, kind), {})


def _own(saved: torch.Tensor | None) -> torch.Tensor | None:
    """The weight of which this is what autograd has saved; another tensor as it is."""
    if saved is not None and saved.requires_grad and saved.is_leaf:
        weight = get_gradient_edge(saved).node.variable  # type: ignore[attr-defined]
        if isinstance(weight, torch.nn.Parameter):
            return weight
    return saved
