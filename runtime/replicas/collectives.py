"""The data-parallel collectives of one rank: its queue of the plan, run beside compute.

The all-gathers of a step (ZeRO 1) start when it begins, and the first F of a stage waits for its own. The sum of a stage's
gradients starts when its last W or BW has ended and all collectives before it in the queue have started; the step ends when all
have ended. They run on connections of their own: no transfer of the pipeline waits behind one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from schedc.errors import InvalidInput
from schedc.ir import Plan
from schedc.runtime.common.hooks import ReplicaHooks, check_same_way
from schedc.runtime.replicas.buckets import Bucket, Shard, ShardedBucket, by_gradient_type, check_known, is_summed
from schedc.runtime.replicas.buffers import SharedBuffers
from schedc.runtime.replicas.pipelines import check_same_collectives, queue_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch.distributed as dist
    from torch import nn

    from schedc.runtime.common.program import ShardMoment
    from schedc.runtime.replicas.pipelines import Pipelines


class ReplicaCollectives(ReplicaHooks):
    """The collectives of one rank's stages with their replicas in other pipelines."""

    def __init__(self, plan: Plan, rank: int, stages: Mapping[int, nn.Module], pipelines: Pipelines) -> None:
        """Take the stages; for ZeRO 1, lay their weights out and take this replica's share.

        `pipelines` are the connections to this rank of every pipeline, closed with this.
        """
        parallel = plan.problem.data_parallel
        self._sharded = parallel is not None and parallel.zero_stage == 1
        self._pipelines = pipelines
        self.pipelines = pipelines.size
        self._begun: tuple[torch.Tensor, dist.Work] | None = None
        """What all pipelines have been called for, until it has been looked at."""
        partners = pipelines.over(stages.values())
        self._queue = queue_of(plan, rank)
        self._sums: dict[int, list[Bucket | ShardedBucket]] = {}
        self._shards: dict[int, list[ShardedBucket]] = {stage: [] for stage in stages}
        self._modules = stages
        self._owner: dict[nn.Parameter, int] = {}
        """Of each weight that has gradients, the stage whose collectives it belongs to. One that several stages use has all of its
        gradient when the last of their sums may start."""
        for collective in self._queue:
            if collective.kind == "RS":
                self._owner.update(dict.fromkeys(self._weights(stages[collective.stage]), collective.stage))
        self._needed = {
            stage: sorted({self._owner[weight] for weight in self._weights(module)}) for stage, module in stages.items()
        }
        for stage, module in stages.items():
            names = {weight: name for name, weight in module.named_parameters() if self._owner.get(weight) == stage}
            alike = by_gradient_type(names)
            if self._sharded:
                self._shards[stage] = [ShardedBucket(stage, {one: names[one] for one in own}, partners, rank) for own in alike]
                self._sums[stage] = [*self._shards[stage]]
            else:
                doing = f"rank {rank} sums the gradients of stage {stage}"
                self._sums[stage] = [Bucket([(weight,) for weight in own], partners, doing) for own in alike]
        self._buffers = [
            SharedBuffers([module], partners, f"rank {rank} shares the buffers of stage {stage}")
            for stage, module in stages.items()
        ]
        self._next = 0
        self._complete: set[int] = set()
        self._summing: list[Bucket | ShardedBucket] = []

    def shards(self) -> list[Shard]:
        """What this replica owns of the weights, by stage.

        Raises:
            InvalidInput: nothing is sharded.
        """
        if not self._sharded:
            raise InvalidInput("there are no shards: the plan is not for ZeRO 1; give the modules' parameters to the optimizer")
        return [shard for _, buckets in sorted(self._shards.items()) for bucket in buckets for shard in bucket.shards]

    def begin_call(self, call: str, *, fits: bool = True) -> None:
        """As `ReplicaHooks.begin_call`; whether all do the same is looked at before anything else with them."""
        self._begun = self._pipelines.say(call, float(fits))

    def begins(self, fits: bool) -> bool:
        """As `ReplicaHooks.begins`.

        Raises:
            InvalidInput: they are called for something else.
            TransferFailed: a replica is lost, or too late.
        """
        return self._check()

    def begin_step(self) -> None:
        """Before a step: take the first replica's buffers, and start the all-gathers.

        Raises:
            Unsupported: a weight has been unfrozen since `load`.
            TransferFailed: a replica is lost.
        """
        check_known(self._modules, self._owner, self._pipelines.processes)
        self._share_buffers()
        self._next = 0
        self._complete.clear()
        self._summing.clear()
        for buckets in self._sums.values():
            for bucket in buckets:
                bucket.begin()
        self._advance()

    def on_weights_needed(self, stage: int) -> None:
        """Before a stage's first F: wait until its weights are whole.

        Raises:
            TransferFailed: a replica is lost, or too late.
        """
        for owner in self._needed[stage]:
            for bucket in self._shards[owner]:
                bucket.await_weights()

    def on_gradients_complete(self, stage: int) -> None:
        """After a stage's last W or BW: its gradients are what they are.

        Raises:
            TransferFailed: a replica is lost.
        """
        self._complete.add(stage)
        self._advance()

    def at(self, moment: ShardMoment) -> None:
        """As `ReplicaHooks.at`: what is summed here besides sharded weights follows their sums."""
        if moment.what == "sum":
            self.on_gradients_complete(moment.stage)

    def end_step(self, loss: torch.Tensor) -> torch.Tensor:
        """After the step's last op: wait for the sums; the mean loss of all pipelines.

        Raises:
            TransferFailed: a replica is lost, or too late.
        """
        self._check()
        said = self._pipelines.say("loss", loss.item(), float(self.step_counts), *self.way)
        for bucket in self._summing:
            bucket.finish()
        self._summing.clear()
        losses, counts, *way = self._pipelines.hear(said, "the losses of the others").unbind(1)
        self.step_counts = bool(counts.all())
        if self.step_counts:
            check_same_way(torch.stack(way, 1).tolist(), "pipelines")
        return losses.mean()

    def total(self, value: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        """As `ReplicaHooks.total`.

        Raises:
            InvalidInput: the pipelines are called for something else.
            TransferFailed: a replica is lost, or too late.
        """
        self._check()
        said = self._pipelines.say("largest number" if largest else "sum", value.item())
        given = self._pipelines.hear(said, "a number from the others")[:, 0]
        return given.max() if largest else given.sum()

    def gather(self) -> None:
        """Bring the shares of all weights together, so that the modules' parameters are whole; and take the first's buffers.

        Raises:
            TransferFailed: a replica is lost, or too late.
        """
        self._check()
        for stage in sorted(self._shards):
            self._gather(stage)
        for stage in self._needed:
            self.on_weights_needed(stage)
        self._share_buffers()

    def check_swap(self, running: Plan, other: Plan) -> None:
        """As `check_same_collectives`."""
        check_same_collectives(running, other)

    def close(self) -> None:
        """Close the connections to the other pipelines."""
        self._pipelines.close()

    def _check(self) -> bool:
        """Before anything else with the other pipelines: all are called for the same, or gloo would end the process.

        Returns:
            Whether all have said that their batch fits, where it was not known yet.
        """
        if self._begun is None:
            return True
        begun, self._begun = self._begun, None
        return bool(self._pipelines.hear(begun, "what the others are called for")[:, 0].all())

    def _share_buffers(self) -> None:
        """Let all replicas have the buffers of the first, if they are called for the same."""
        if any(buffers.is_needed for buffers in self._buffers):
            self._check()
        for buffers in self._buffers:
            buffers.share()

    def _advance(self) -> None:
        """Start what the queue has next, as far as it can start."""
        while self._next < len(self._queue):
            collective = self._queue[self._next]
            stage = collective.stage
            if collective.kind == "AG":
                self._gather(stage)
            elif stage in self._complete:
                self._check()
                for bucket in self._sums[stage]:
                    bucket.start()
                    self._summing.append(bucket)
            else:
                return
            self._next += 1

    def _gather(self, stage: int) -> None:
        """Start to bring the weights of a stage together."""
        self._check()
        for bucket in self._shards[stage]:
            bucket.gather()

    def _weights(self, module: nn.Module) -> Iterator[nn.Parameter]:
        """Those that are summed here."""
        among = self._pipelines.processes
        return (weight for weight in module.parameters() if weight.requires_grad and is_summed(weight, among))
