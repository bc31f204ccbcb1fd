"""A loaded plan whose steps overlap, ready for runs: `pipe.step(inputs, targets)` is all steps of the plan, updates included."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Plan, Updates
from schedc.runtime.asynchronous.optimizers import StageOptimizers, check_ties, check_weights
from schedc.runtime.asynchronous.training import UpdatingTraining
from schedc.runtime.replicas.updates import UpdateCollectives
from schedc.runtime.session.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from schedc.runtime.session.beginning import Given
    from schedc.runtime.stage.training import Training


class AsynchronousPipe(Pipe):
    """One rank's part of a plan whose steps overlap; after a `swap` also of one whose steps do not, with which it is a `Pipe`.

    `step` runs all steps of the plan, updates included, from empty to empty. It takes the batch of each step's microbatches, one
    after the other, and no weights, `divide_by` or `scale`: microbatches of a step count the same, and `StageOptimizers` has a
    `loss_scale`. It gives each step's mean of its microbatches' losses, with data parallelism over all pipelines, float64 [steps]
    without graph, the same on all ranks. The modules' parameters are the weights after the last update then, and their `.grad` is
    None. After `NonFiniteLoss` the pipe is open, but updates have been made of such losses, unless `StageOptimizers` skips them.
    """

    optimizers: StageOptimizers
    _tied: tuple[Plan, int] | None = None
    """The plan, and the number of ties, that were looked at last."""

    @classmethod
    def check(cls, plan: Plan, modules: Mapping[int, nn.Module], *, alone: bool) -> None:
        """As `Pipe.check`."""
        if plan.problem.updates is None:
            raise InvalidInput(f"plan {plan.name!r} has no updates, as its steps do not overlap; give load no optimizers")
        if not alone:
            raise Unsupported("a swap_group was given; pipelines whose steps overlap do not move together")
        check_weights(modules, cls.optimizers)

    def _look_at(self, given: Given) -> None:
        """As `Pipe._look_at`; and let a run's norms know the ranks."""
        if self.plan.problem.updates is None:
            return
        if not given.is_even:
            raise InvalidInput("a run of steps that overlap takes no weights, divide_by or scale; StageOptimizers has a loss_scale")
        check_weights(self.modules, self.optimizers)
        if self.steps.ties and self._tied != (self.plan, len(self.steps.ties)):
            check_ties(self.plan, self.optimizers, "ranks share a tied weight")
            self._tied = self.plan, len(self.steps.ties)
        training = cast("UpdatingTraining", self.steps.training)
        training.groups, training.ties = self.groups, self.steps.ties
        training.collectives = self.hooks if isinstance(self.hooks, UpdateCollectives) else None

    def _after_nonfinite(self, updates: Updates | None) -> tuple[str, str] | None:
        """As `Pipe._after_nonfinite`; a run goes on where such steps make no updates."""
        if updates is None:
            return super()._after_nonfinite(updates)
        if self.optimizers.skip_nonfinite:
            return None
        return "run", "updates were made of it, load the last checkpoint, or give StageOptimizers skip_nonfinite=True"

    def _loss_of(self, total: torch.Tensor, updates: Updates | None) -> torch.Tensor:
        """As `Pipe._loss_of`; of a run, each step's mean."""
        if updates is None:
            return total
        means = self.losses.reshape(-1, updates.microbatches).mean(1)
        if isinstance(self.hooks, UpdateCollectives):
            with self._closing_on_errors():
                return self.hooks.mean_of(means)
        return means


def pipe_with(optimizers: StageOptimizers | Mapping[int, Any], kind: type[Pipe]) -> type[AsynchronousPipe]:
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
