"""A loaded plan whose steps overlap, ready for runs: `pipe.step(inputs, targets)` is all steps of the plan, updates included."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Plan
from schedc.runtime.asynchronous.optimizers import StageOptimizers
from schedc.runtime.asynchronous.training import UpdatingTraining
from schedc.runtime.common.failure import NonFiniteLoss
from schedc.runtime.session.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from schedc.runtime.stage.batches import Batch
    from schedc.runtime.stage.training import Training
    from schedc.runtime.stage.weighing import Weights


class AsynchronousPipe(Pipe):
    """One rank's part of a plan whose steps overlap; after a `swap` also of one whose steps do not, with which it is a `Pipe`."""

    optimizers: StageOptimizers

    @classmethod
    def check(cls, plan: Plan, modules: Mapping[int, nn.Module], *, alone: bool) -> None:
        """As `Pipe.check`."""
        if plan.problem.updates is None:
            raise InvalidInput(f"plan {plan.name!r} has no updates, as its steps do not overlap; give load no optimizers")
        if not alone:
            raise Unsupported("a swap_group was given; pipelines whose steps overlap do not move together")

    def step(
        self,
        inputs: Batch | None = None,
        targets: Batch | None = None,
        *,
        weights: Weights | None = None,
        divide_by: float | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """Run all steps of the plan, updates included, from empty to empty.

        Args:
            inputs: as for `Pipe.step`, of all steps: the batch of each step's microbatches, one after the other.
            targets: the same.
            weights: None, as `divide_by`: microbatches of a step count the same.
            divide_by: None.
            scale: 1; `StageOptimizers` has a `loss_scale`.

        Returns:
            Each step's mean of its microbatches' losses, float64 [steps] without graph, the same on all ranks. The modules'
            parameters are the weights after the last update, and their `.grad` is None.

        Raises:
            SchedcError: as `Pipe.step`. After `NonFiniteLoss` the pipe is open, but updates have been made of such losses, unless
                `StageOptimizers` skips them.
        """
        updates = self.plan.problem.updates
        if updates is None:
            return super().step(inputs, targets, weights=weights, divide_by=divide_by, scale=scale)
        steps = self.plan.problem.microbatches // updates.microbatches
        with self._closing_on_errors():
            if weights is not None or divide_by is not None or scale != 1:
                raise InvalidInput(
                    "a run of steps that overlap takes no weights, divide_by or scale; StageOptimizers has a loss_scale"
                )
            if self.steps.ties:
                raise Unsupported("weights of several ranks are tied; steps overlap without tied weights")
            cast("UpdatingTraining", self.steps.training).groups = self.groups
        try:
            super().step(inputs, targets)
        except NonFiniteLoss as error:
            if not self.optimizers.skip_nonfinite:
                found = str(error).partition("; zero")[0].removeprefix("step ")  # of pipes without updates: what to do is another
                raise NonFiniteLoss(
                    f"run {found}; updates were made of it, load the last checkpoint, or give StageOptimizers skip_nonfinite=True"
                ) from error
        return self.losses.reshape(steps, updates.microbatches).mean(1)


def pipe_with(optimizers: StageOptimizers | Mapping[int, torch.optim.Optimizer], kind: type[Pipe]) -> type[AsynchronousPipe]:
    """The class of a pipe with these optimizers.

    Raises:
        InvalidInput: another class of pipes is wanted.
    """
    if kind is not Pipe:
        raise InvalidInput(f"load was given optimizers and kind={kind.__name__}; a plan whose steps overlap runs in its own order")
    given = optimizers if isinstance(optimizers, StageOptimizers) else StageOptimizers(optimizers)

    class _PipeWithOptimizers(AsynchronousPipe):
        optimizers = given
        training = cast("type[Training]", partial(UpdatingTraining, optimizers=given))

    return _PipeWithOptimizers
