"""Replicas where steps overlap: a stage's gradients of a step are summed from when its backwards have ended, before its update.

Goes in: a stage's gradients of a step. Comes out: their sums over the replicas, under way.

It cannot deadlock. All replicas run one plan, and each rank's thread of steps starts its sums where it ends the last backward of
a stage and step: at the same places of the same queue, so in the same order as its replicas do. It waits for a sum at a later
place of that queue. Lay the pipelines' waits upon each other, op upon op: a wait for a replica is then one for an op that comes
before in the rank's own queue, which was there already. So a cycle of waits over all pipelines would be one within the plan, which
has none. Norms of all ranks, which come after a rank's sums, wait for no more than the last backwards of a step on all ranks, with
replicas as without (`asynchronous.norms.check_slack`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.runtime.replicas.buckets import Bucket, GradientSum
from schedc.runtime.replicas.collectives import ReplicaCollectives

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import torch
    from torch import nn

    from schedc.ir import Plan


class UpdateCollectives(ReplicaCollectives):
    """As `ReplicaCollectives`, of runs of steps that overlap: `sums_of` once for each stage and step."""

    def sums_of(self, stage: int, gradients: MutableMapping[nn.Parameter, torch.Tensor | None]) -> list[tuple[Bucket, GradientSum]]:
        """Start to sum a stage's gradients of a step, of all its weights; they leave the mapping.

        Raises:
            TransferFailed: a replica is lost.
        """
        self._check()
        return [(bucket, bucket.sum_of(gradients)) for bucket in self._sums[stage] if isinstance(bucket, Bucket)]

    def on_gradients_complete(self, stage: int) -> None:
        """Nothing: these are the gradients of a run's last step, which are summed as those of the others."""

    def mean_of(self, losses: torch.Tensor) -> torch.Tensor:
        """The mean over all pipelines of what each gives; the same rank of all calls it together.

        Raises:
            TransferFailed: a replica is lost.
        """
        return sum(self._pipelines.exchange(losses), start=losses.new_zeros(())) / self.pipelines

    def check_swap(self, running: Plan, other: Plan) -> None:
        """As `ReplicaHooks.check_swap`.

        Raises:
            InvalidInput: in any case.
        """
        raise InvalidInput(
            f"plan {other.name!r} is not moved to: replicas move at different steps, and where steps overlap their gradients would"
            " be those of different plans; load it"
        )
