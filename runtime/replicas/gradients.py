"""The gradients of a stage's weights: in which type they add up, and how replicas of the stage sum them (ZeRO 0).

A `Bucket` is a set of weights of one stage whose gradients have one type; they travel in one flat tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch.distributed as dist
    from torch import nn

__all__ = ["Bucket", "by_gradient_type", "gradient_type", "set_gradient_type"]


def set_gradient_type(modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
    """Let the gradients of all floating-point weights add up in this type: autograd casts what it adds, and `.grad` has it."""
    for module in modules:
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                grad, parameter.grad = parameter.grad, None
                parameter.grad_dtype = dtype
                parameter.grad = None if grad is None else grad.to(dtype)


def gradient_type(parameter: torch.Tensor) -> torch.dtype:
    """The type of the parameter's gradient."""
    return parameter.grad_dtype or parameter.dtype


def by_gradient_type(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The weights that have gradients, in lists of the same types of weight and gradient and the same device."""
    sets: dict[tuple[torch.dtype, torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            sets.setdefault((parameter.dtype, gradient_type(parameter), parameter.device), []).append(parameter)
    return list(sets.values())


class Bucket:
    """Weights whose gradients are summed over the replicas in one all-reduce.

    A weight that no replica has used keeps having no gradient.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
        """Take the weights.

        Args:
            parameters: with gradients of one type.
            group: the replicas.
        """
        self._parameters = parameters
        self._group = group
        self._before: list[torch.Tensor | None] = []
        self._flat: torch.Tensor | None = None

    def begin(self) -> None:
        """Before a step: put aside gradients from before it, which are summed already."""
        self._before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None

    def start(self) -> dist.Work:
        """Start to sum what the step has added; behind the gradients goes for each how many replicas have one."""
        first = self._parameters[0]
        used = torch.tensor([parameter.grad is not None for parameter in self._parameters])
        self._flat = torch.cat([*map(_flat_gradient, self._parameters), used.to(first.device, gradient_type(first))])
        for parameter in self._parameters:
            parameter.grad = None
        return self._group.allreduce([self._flat])

    def finish(self) -> None:
        """After the sum: give it to the weights."""
        assert self._flat is not None
        sizes = [parameter.numel() for parameter in self._parameters]
        *sums, used = torch.split(self._flat, [*sizes, len(sizes)])
        self._flat = None
        found = (used > 0).tolist()
        for parameter, total, some, before in zip(self._parameters, sums, found, self._before, strict=True):
            if not some:
                parameter.grad = before
            else:
                own = total.view(parameter.shape)
                parameter.grad = own if before is None else before.add_(own)
        self._before = []


def _flat_gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), dtype=gradient_type(parameter), device=parameter.device)
    return parameter.grad.reshape(-1)
