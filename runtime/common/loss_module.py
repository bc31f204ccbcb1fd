"""A loss function that is a module: its weights and buffers belong to the last stage, after which it runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from schedc.ir.problem import Problem


class WithLoss(nn.Module):
    """A last stage and the loss function, whose weights are named `loss_fn.…` beside the stage's. It is not called."""

    def __init__(self, stage: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.stage = stage
        self.loss_fn = loss

    def named_parameters(self, *arguments: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As of any module, the stage's under the names that they have in it."""
        return ((name.removeprefix("stage."), weight) for name, weight in super().named_parameters(*arguments, **options))


def module_of(function: Any) -> nn.Module | None:
    """The module that a function is, or is a method of; None where it is neither."""
    if isinstance(function, partial):
        return module_of(function.func)
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, nn.Module) else None


def with_loss(problem: Problem, stages: Mapping[int, nn.Module], loss_fn: Any) -> Mapping[int, nn.Module]:
    """A rank's stages, the last ones with the loss function, where that has weights or buffers: what is trained.

    Args:
        problem: of the plan.
        stages: this rank's.
        loss_fn: as given to `load`.
    """
    loss = module_of(loss_fn)
    if loss is None or next(loss.parameters(), next(loss.buffers(), None)) is None:
        return stages
    last = {path[-1] for path in problem.paths}
    return {stage: WithLoss(module, loss) if stage in last else module for stage, module in stages.items()}
