"""Measuring what the theory of convergence must know, from some steps of a real run: an observer around the optimizer's step.

    meter = ConvergenceMeter(weights, name="gpt", steps=20, learning_rate=0.01, group=group)
    for inputs, targets in batches:
        loss = pipe.step(inputs, targets)
        meter.observe(loss)     # all ranks, before the optimizer's step
        optimizer.step()
        optimizer.zero_grad()
    meter.write("convergence.json")     # rank 0's has the sums over all ranks

Goes in: gradients and weights as they are between the backward and the update, of this process's modules. Comes out: per step the
loss and three squared norms over the whole model, and after the last the file (`schedc.formats.convergence_file`). Until then it
keeps a copy of gradients and weights. Give the same batch in all these steps: else the batches' noise is taken for curvature.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from schedc.errors import InvalidInput
from schedc.formats.convergence_file import MeasuredUpdate, write_convergence
from schedc.runtime.common.failure import with_others

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch.distributed as dist
    from torch import nn


class ConvergenceMeter:
    """Of one process; all processes of the group observe the same steps."""

    def __init__(
        self,
        weights: Iterable[nn.Parameter],
        *,
        steps: int,
        name: str = "job",
        learning_rate: float | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Know nothing yet.

        Args:
            weights: this process's, as `module.parameters()` of its stages. One that several processes have is given to one meter
                only, as it counts once.
            steps: how many are measured; then the meter holds nothing, and observing does nothing.
            name: of the run, for people.
            learning_rate: the optimizer's in these steps, kept in the file; None: the reader says it.
            group: over gloo, of the processes that have the model together; None: this one has all of it.

        Raises:
            InvalidInput: fewer than two steps, from which no curvature follows; or a learning rate that is not above 0.
        """
        if steps < 2:
            raise InvalidInput(f"steps: found {steps}, expected at least 2, as curvature is seen from one step to the next")
        if learning_rate is not None and not 0 < learning_rate < math.inf:
            raise InvalidInput(f"learning_rate: found {learning_rate}, expected a number above 0")
        self.measured: list[MeasuredUpdate] = []
        """So far, the same on all processes."""
        self._weights = list(dict.fromkeys(weights))
        self._steps, self._name, self._learning_rate, self._group = steps, name, learning_rate, group
        self._before: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self._step = 0

    @property
    def done(self) -> bool:
        """Whether all steps have been measured."""
        return len(self.measured) == self._steps

    @torch.no_grad()
    def observe(self, loss: torch.Tensor | float) -> None:
        """Measure a step. All processes call it together, after the backward, with gradients unscaled and not yet clipped.

        A step whose loss or gradients are not finite, as a scaler skips, is left out; the next starts anew.

        Args:
            loss: of the step, the same on all processes: as `Pipe.step` returns it.

        Raises:
            TransferFailed: another process has ended, or does not answer.
        """
        if self.done:
            return
        now = [
            (torch.zeros_like(weight) if weight.grad is None else weight.grad.detach().clone(), weight.detach().clone())
            for weight in self._weights
        ]
        sums = torch.zeros(3, dtype=torch.float64, device="cpu")
        for number, (gradient, weight) in enumerate(now):
            sums[0] += _squared(gradient)
            if self._before is not None:
                old_gradient, old_weight = self._before[number]
                sums[1] += _squared(gradient, old_gradient)
                sums[2] += _squared(weight, old_weight)
        if self._group is not None:
            with with_others(f"rank {self._group.rank()} sums squared norms with the others", "one of them has ended or failed"):
                self._group.allreduce([sums]).wait()
        gradient_sq, *changes = sums.tolist()
        value = float(loss)
        number, self._step = self._step, self._step + 1
        if not all(map(math.isfinite, (value, gradient_sq, *changes))):
            self._before = None
            return
        known = self._before is not None
        self.measured.append(
            MeasuredUpdate(
                step=number,
                loss=value,
                gradient_sq=gradient_sq,
                gradient_change_sq=changes[0] if known else None,
                weight_change_sq=changes[1] if known else None,
            )
        )
        self._before = None if self.done else now

    def write(self, path: Path | str) -> None:
        """Write what has been measured, on one process.

        Raises:
            InvalidInput: nothing has been, or the file cannot be written.
        """
        if not self.measured:
            raise InvalidInput("there is nothing measured to write; call observe after each backward")
        write_convergence(self._name, self._learning_rate, tuple(self.measured), path)


def _squared(one: torch.Tensor, other: torch.Tensor | None = None) -> float:
    """The squared norm of a tensor, or of what it differs by from another, summed in float64."""
    wide = one.double() if other is None else one.double() - other.double()
    return float(wide.square().sum())
