"""What the ops of a run of steps that overlap compute: those of stages as ever, each on the weights that it reads, and updates."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from schedc.ir import Kind, Versions
from schedc.runtime.asynchronous.copies import refusing_copies
from schedc.runtime.asynchronous.norms import GlobalNorms, StageSum, square_of
from schedc.runtime.asynchronous.weights import StageWeights
from schedc.runtime.stage.batches import inputs_of
from schedc.runtime.stage.losses import Seeds
from schedc.runtime.stage.training import Training
from schedc.runtime.transports.choice import stage_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.runtime.asynchronous.optimizers import StageOptimizers
    from schedc.runtime.common.boundary import Value
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Instruction
    from schedc.runtime.replicas.copies import TiedSums
    from schedc.runtime.replicas.updates import UpdateCollectives
    from schedc.runtime.stage.batches import Microbatches
    from schedc.runtime.stage.losses import Losses

EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to a norm."""


@dataclass(eq=False)
class UpdatingTraining(Training):
    """The work of one rank's ops; of a plan without updates as `Training`."""

    _: KW_ONLY
    optimizers: StageOptimizers

    def __post_init__(self) -> None:
        """A step's loss is the mean over its microbatches, not over those of the run."""
        super().__post_init__()
        self.groups: Groups | None = None
        """Of the pipeline; set before a run, as the others here."""
        self.collectives: UpdateCollectives | None = None
        """With the replicas, if there are any."""
        self.ties: Sequence[TiedSums] = ()
        """Of weights that other ranks have as well."""
        self._updates = updates = self.plan.problem.updates
        self._weights: dict[int, StageWeights] = {}
        self._due: dict[int, list[int]] = {}
        """Per stage, the steps whose update waits for its norm, ascending."""
        self._left: dict[tuple[int, int], int] = {}
        """Per stage and step, how many blocks' backwards have not ended."""
        self._sums: dict[tuple[int, int], StageSum] = {}
        """Per stage and step, gradients that are exchanged."""
        self._norms: GlobalNorms | None = None
        self._unseen: set[int] = set()
        """Stages whose F has not run yet in a run, and is to be watched: between two runs a job may change what a stage does."""
        if updates is None:
            return
        scale, count = self.optimizers.loss_scale, updates.microbatches * self.replicas
        self._even = [Seeds(scale / count, f"{scale:g}/{count}")] * self.plan.problem.microbatches
        for buffers in self._recomputed.values():
            buffers.compares = updates.versions is not Versions.BOUNDED  # the second forward reads newer weights there

    def begin(self, batch: Microbatches, losses: Losses, shares: Sequence[float] | None = None) -> None:
        """As `Training.begin`; the parameters and the optimizers are the run's until `finish` or `close`."""
        super().begin(batch, losses, shares)
        updates, given = self._updates, self.optimizers
        if updates is None:
            return
        delays = self.plan.certificate.delays
        if given.cache is not None:
            given.cache.begin((one.op for one in self.program.instructions), updates)
        if updates.versions is Versions.BOUNDED:
            self._unseen = given.by_stage.keys() - self._recomputed.keys()
        for stage in given.by_stage:
            if not any(weight.requires_grad for weight in given.weights_of(stage)):
                continue
            self._weights[stage] = StageWeights(
                given.of(stage), updates, delays[stage], given.corrections, given.updates, stage=stage, cache=given.cache
            )
            self._due[stage] = []
        left = [0] * (self.plan.problem.microbatches // updates.microbatches)
        self._left.clear()
        for stage, microbatch in self.plan.problem.blocks():
            step = microbatch // updates.microbatches
            left[step] += stage in self.stages
            self._left[stage, step] = self._left.get((stage, step), 0) + 1
        norms = given.looks_at_norms and not given.per_stage
        if norms or self.ties:
            assert self.groups is not None
            replicas, device = self.collectives is not None, stage_device(self.stages)
            self._norms = GlobalNorms(self.groups, left, self._sums_of, self.ties, device, replicas=replicas, norms=norms)

    def finish(self) -> None:
        """As `Training.finish`; all updates have been made then."""
        if self._updates is not None:
            for stage in self._weights:
                self._update_until(stage, math.inf)
            self.optimizers.updates += self.plan.problem.microbatches // self._updates.microbatches
            self._give_back()
        super().finish()

    def close(self) -> None:
        """As `Training.close`; the parameters are the newest weights, even in the middle of a run."""
        self._give_back()
        super().close()

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """As `Training.run`; and U."""
        op, updates = instruction.op, self._updates
        if updates is None:
            return super().run(instruction, values)
        if self.optimizers.cache is not None:
            self.optimizers.cache.next_op()
        weights, step = self._weights.get(op.stage), op.microbatch // updates.microbatches
        if weights is None:  # nothing of the stage is trained
            return () if op.kind is Kind.U else self._ran(instruction, step, super().run(instruction, values))
        if op.kind is Kind.U:
            due = self._due[op.stage]
            due.append(op.microbatch)
            while due and (updates.versions is not Versions.TWO_BUFFERED or self._has(op.stage, due[0])):
                self._update(op.stage, due.pop(0))
            return ()
        if op.kind is Kind.F and instruction.first:
            self._update_until(op.stage, step - 2)
        weights.read(op)
        if op.stage in self._unseen and op.kind is Kind.F and instruction.first:
            given = self._watched(instruction, values)
        else:
            given = super().run(instruction, values)
        return self._ran(instruction, step, given)

    def _ran(self, instruction: Instruction, step: int, given: Sequence[Value]) -> Sequence[Value]:
        """After an op of this step, which gives this."""
        op = instruction.op
        if op.kind in (Kind.W, Kind.BW) and instruction.last:
            if op.stage in self._weights:
                self._weights[op.stage].ended(op.microbatch)
                self._left[op.stage, step] -= 1
                if not self._left[op.stage, step] and (self.collectives is not None or self._norms is not None):
                    gradients = self._weights[op.stage].take(step)
                    begun = [] if self.collectives is None else self.collectives.sums_of(op.stage, gradients)
                    self._sums[op.stage, step] = StageSum(begun, gradients)
            if self._norms is not None:
                self._norms.ended(step)
        return given

    def _watched(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """The first F of a stage whose backwards are to read the newest weights."""
        stage = instruction.op.stage
        self._unseen.discard(stage)
        source = inputs_of(self._batch.inputs[instruction.op.microbatch]) if stage in self._first else values[0]
        inputs = [tensor for tensor in source if tensor is not None]
        weights = [weight for weight in self.modules[stage].parameters() if weight.requires_grad]  # others do not change
        with refusing_copies(stage, weights, inputs):
            return super().run(instruction, values)

    def _update_until(self, stage: int, step: float) -> None:
        """Make the updates up to this step's that wait."""
        while self._due[stage] and self._due[stage][0] <= step:
            self._update(stage, self._due[stage].pop(0))

    def _update(self, stage: int, step: int) -> None:
        weights, given = self._weights[stage], self.optimizers
        factor: float | None = 1 / given.loss_scale
        found = None if self._norms is None else self._norms.square(step)
        if (stage, step) in self._sums:
            weights.give(step, self._sums.pop((stage, step)).wait())
        if given.looks_at_norms:
            if found is None:
                found = square_of(weights.gradients(step)).item()
            if math.isfinite(found):
                norm = math.sqrt(found) / given.loss_scale
                factor = min(given.max_norm / (norm + EPSILON), 1.0) / given.loss_scale
            elif given.skip_nonfinite:
                factor = None
        weights.update(step, factor)

    def _has(self, stage: int, step: int) -> bool:
        """Whether `_update` does not wait."""
        if self._norms is not None:
            return self._norms.has(step)
        return (stage, step) not in self._sums or self._sums[stage, step].has_come()

    def _sums_of(self, step: int) -> list[StageSum]:
        return [self._sums[stage, step] for stage in self._weights]

    def _give_back(self) -> None:
        for weights in self._weights.values():
            weights.end()
        self._weights.clear()
        self._sums.clear()
        self._norms = None
