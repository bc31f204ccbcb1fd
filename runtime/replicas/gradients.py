"""The gradients of a stage's weights: in which type they add up, and how replicas of the stage sum them.

A `Bucket` is a set of weights of one stage whose gradients have one type; they travel in one flat tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import torch.distributed as dist
    from torch import nn


def set_gradient_type(modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
    """Let the gradients of all floating-point weights add up in this type: autograd casts what it adds, and `.grad` has it."""
    for module in modules:
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                grad, parameter.grad = parameter.grad, None
                parameter.grad_dtype = dtype
                parameter.grad = None if grad is None else grad.to(dtype)


def check_known(modules: Mapping[int, nn.Module], known: Collection[nn.Parameter]) -> None:
    """Before a step: refuse weights whose gradients nobody would sum, since they had none at `load`.

    Args:
        modules: by stage.
        known: the weights that are summed.

    Raises:
        Unsupported: one requires grad now.
    """
    for stage, module in modules.items():
        for name, weight in module.named_parameters():
            if weight.requires_grad and weight not in known:
                raise Unsupported(
                    f"stage {stage}: {name} requires grad, which it did not at load, so its gradients would not be summed over"
                    " replicas; load again after changing which weights are trained"
                )


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

    def __init__(self, weights: Sequence[Sequence[nn.Parameter]], group: dist.ProcessGroup) -> None:
        """Take the weights.

        Args:
            weights: of this process, with gradients of one type; each with what else holds it in this process.
            group: the processes that have replicas.
        """
        self._weights = weights
        self._group = group
        self._before: list[list[torch.Tensor | None]] = []
        self._flat: torch.Tensor | None = None

    def begin(self) -> None:
        """Before a step: put aside gradients from before it, which are summed already."""
        self._before = [[weight.grad for weight in same] for same in self._weights]
        self._let_go()

    def start(self) -> dist.Work:
        """Start to sum what the step has added; behind the gradients goes for each how many processes have one."""
        first = self._weights[0][0]
        used = torch.tensor([any(weight.grad is not None for weight in same) for same in self._weights], device="cpu")
        self._flat = torch.cat([*map(_flat_sum, self._weights), used.to(first.device, gradient_type(first))])
        self._let_go()
        return self._group.allreduce([self._flat])

    def finish(self) -> None:
        """After the sum: give it to the weights."""
        assert self._flat is not None
        sizes = [weight.numel() for weight, *_ in self._weights]
        *sums, used = torch.split(self._flat, [*sizes, len(sizes)])
        self._flat = None
        for same, total, some, before in zip(self._weights, sums, (used > 0).tolist(), self._before, strict=True):
            for number, (weight, old) in enumerate(zip(same, before, strict=True)):
                own = (total.clone() if number else total).view(weight.shape) if some else None
                weight.grad = old if own is None else own if old is None else old.add_(own)
        self._before = []

    def _let_go(self) -> None:
        for same in self._weights:
            for weight in same:
                weight.grad = None


def _flat_sum(same: Sequence[nn.Parameter]) -> torch.Tensor:
    """The gradients of a weight on this process, added up."""
    first = same[0]
    given = [weight.grad for weight in same if weight.grad is not None]
    if not given:
        return torch.zeros(first.numel(), dtype=gradient_type(first), device=first.device)
    return (torch.stack(given).sum(0) if len(given) > 1 else given[0]).reshape(-1)
