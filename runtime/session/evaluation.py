"""An evaluation: the forward ops of a plan alone, over the connections of a pipe, between two of its steps."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from schedc.runtime.common.forward_only import forward_only
from schedc.runtime.common.program import program_of
from schedc.runtime.common.same_way import check_same_way
from schedc.runtime.execution.executor import Executor
from schedc.runtime.stage.forward import Forward

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence

    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.execution.wiring import Wiring
    from schedc.runtime.session.swap_group import SwapGroup
    from schedc.runtime.stage.batches import Microbatches
    from schedc.runtime.stage.losses import Losses


class Evaluation:
    """What a pipe evaluates with; made for one evaluation."""

    def __init__(
        self,
        plan: Plan,
        losses_for: Callable[[], Losses],
        groups: Groups,
        stages: Mapping[int, nn.Module],
        loss_fn: Callable[[Any, Any], torch.Tensor] | None,
        wiring: Wiring,
        hooks: ReplicaHooks,
        swap_group: SwapGroup | None,
    ) -> None:
        """Take what the pipe has; `losses_for` gives what takes the losses."""
        self._plan = plan
        self._groups = groups
        self._stages = stages
        self._loss_fn = loss_fn
        self._wiring = wiring
        self._hooks = hooks
        self._losses_for = losses_for
        self._swap_group = swap_group
        self._may_run_again = False
        self._losses: torch.Tensor | None = None
        self._way: Sequence[float] = ()

    def run(
        self,
        batch: Microbatches,
        outputs: MutableMapping[int, Any] | None,
        again: Callable[[Callable[[], tuple[torch.Tensor, bool, bool]], object], torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run it; all ranks of all pipelines do this together.

        The wires of the forward ops are laid over the connections, and afterwards those of the plan again. What is known of the
        boundaries is kept for the steps: without a graph their tensors are others, and an evaluation's batch may have another size.

        Args:
            batch: this rank's.
            outputs: gets what the last stage gives, by microbatch.
            again: runs an attempt until it counts, as `StepStart.run`; None: a channel that fails ends the evaluation.

        Returns:
            The loss, and the microbatches' losses.

        Raises:
            SchedcError: as `Pipe.evaluate`.
        """
        self._may_run_again = again is not None
        self._hooks.gather()
        known = self._wiring.boundaries
        forward = forward_only(self._plan)
        self._wiring.move(forward)
        attempt = partial(self._attempt, forward, batch, outputs)
        mean = attempt()[0] if again is None else again(attempt, batch)
        self._wiring.move(self._plan, known)
        assert self._losses is not None
        count, divisor = self._hooks.pipelines, self._way[0]
        common = self._hooks.total(torch.tensor(divisor, dtype=torch.float64, device="cpu")).item() / count
        if not math.isclose(common, divisor, rel_tol=1e-9):
            check_same_way([(divisor, 1.0), (common, 1.0)], "pipelines, in the mean,")
        return self._hooks.total(mean) / count, self._losses

    def _attempt(
        self,
        forward: Plan,
        batch: Microbatches,
        outputs: MutableMapping[int, Any] | None,
    ) -> tuple[torch.Tensor, bool, bool]:
        """As `Pipe._attempt`: the loss of this pipeline, and whether the evaluation counts here, and for all."""
        losses = self._losses_for()
        compute = Forward(self._plan.problem, self._stages, self._loss_fn, batch, losses, outputs)
        Executor(program_of(forward, self._groups.rank), self._wiring, compute, None).run()
        here = self._wiring.finish()
        self._losses, self._way = losses.gather(), losses.way()
        everywhere = here if self._swap_group is None or not self._may_run_again else self._swap_group.all_see(here)
        return losses.mean(), here, everywhere
