"""A loaded plan, ready for training steps: `loss = pipe.step(inputs, targets)`, then the optimizer's step.

The compute queue runs in the calling thread, exactly in the plan's order; all transfers run beside it.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from schedc.errors import InvalidInput
from schedc.ir.ops import WHOLE, Kind, token
from schedc.runtime.batches import cut
from schedc.runtime.block import Block
from schedc.runtime.channels import Boundaries, Receiver, Sender
from schedc.runtime.losses import Losses
from schedc.runtime.program import program_of, wires_of
from schedc.runtime.replicas import ReplicaSum, replicas_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from torch import nn

    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan
    from schedc.runtime.batches import Batch
    from schedc.runtime.groups import Groups
    from schedc.runtime.program import Instruction, Message

__all__ = ["Pipe"]


class Pipe:
    """One rank's part of a plan. `schedc.runtime.load` makes it; use it as a context manager, or `close` it."""

    def __init__(
        self,
        plan: Plan,
        stages: Mapping[int, nn.Module],
        groups: Groups,
        *,
        loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
        timeout_s: float,
        observe: Callable[[Op, int, int], None] | None,
    ) -> None:
        """Open the channels. All ranks do this together, with a plan and stages that `load` has checked."""
        self._problem = problem = plan.problem
        self._stages = stages
        self._groups = groups
        self._loss_fn = loss_fn
        self._timeout_s = timeout_s
        self._observe = observe
        self._rank = rank = groups.rank
        self._program = program_of(plan, rank)
        self._shares = {(parts.kind, parts.stage): parts.shares for parts in plan.parts}
        paths = [problem.path(microbatch) for microbatch in range(problem.microbatches)]
        self._first = {path[0] for path in problem.paths}
        self._last = {path[-1] for path in problem.paths}
        roots = [problem.stages[path[-1]].rank for path in paths]
        self._losses_of = {root: roots.count(root) for root in roots}
        boundaries = Boundaries()
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        for number, wire in enumerate(wires_of(plan)):
            group = groups.make((wire.source, wire.destination))
            if rank == wire.source:
                self._senders[number] = Sender(wire, group, boundaries, timeout_s)
            if rank == wire.destination:
                self._receivers[number] = Receiver(wire, group, boundaries, timeout_s)
        self._replicas: list[ReplicaSum] = []
        for members in replicas_of(problem):
            ranks = sorted({problem.stages[stage].rank for stage in members})
            group_of_set = groups.make(ranks) if len(ranks) > 1 else None
            own = [stages[stage] for stage in members if stage in stages]
            if own:
                name = f"stages {' and '.join(map(str, members))}"
                self._replicas.append(ReplicaSum(own, group_of_set, name))
        self._blocks: dict[tuple[int, int], Block] = {}
        self._local: dict[Message, torch.Tensor | None] = {}
        self._inputs: Sequence[torch.Tensor] = ()
        self._targets: Sequence[torch.Tensor] = ()
        self._losses: Losses | None = None
        self._open = True

    def step(self, inputs: Batch | None = None, targets: Batch | None = None) -> torch.Tensor:
        """Run the plan once: all microbatches forward and backward. Gradients are added to the parameters' `.grad`.

        Args:
            inputs: the batch (samples along dimension 0) or its microbatches; looked at on ranks with a first stage only.
            targets: the same for the loss function; looked at on ranks with a last stage only.

        Returns:
            The mean of the microbatches' losses, a float64 scalar without graph, the same on all ranks. The gradients are those
            of this mean.

        Raises:
            InvalidInput: the batch does not fit the plan, a stage's output does not have the shape of the one before, or the
                pipe is closed.
            TransferFailed: another rank has ended, failed, or does not answer. The pipe is closed after any exception, so that
                the other ranks fail as well and do not wait.
        """
        if not self._open:
            raise InvalidInput("the pipe is closed, by close() or by a failed step; load the plan again")
        try:
            return self._step(inputs, targets)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections. Closing again does nothing."""
        self._open = False
        for live in (self._senders, self._receivers, self._blocks, self._local, self._replicas):
            live.clear()
        self._losses = None
        self._inputs = self._targets = ()
        self._groups.close()

    def __enter__(self) -> Pipe:
        """The pipe itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _step(self, inputs: Batch | None, targets: Batch | None) -> torch.Tensor:
        count, rank = self._problem.microbatches, self._rank
        self._inputs = cut(inputs, count, "inputs", rank) if self._first & self._stages.keys() else ()
        self._targets = cut(targets, count, "targets", rank) if self._last & self._stages.keys() else ()
        self._losses = losses = Losses(self._groups.all, rank, self._losses_of, self._timeout_s)
        for receiver in self._receivers.values():
            receiver.introduce()
        for replica in self._replicas:
            replica.begin()
        for instruction in self._program.instructions:
            try:
                self._run(instruction)
            except Exception as error:
                error.add_note(f"in {token(instruction.op)} on rank {rank}")
                raise
        self._inputs = self._targets = ()
        for replica in self._replicas:
            replica.finish()
        for sender in self._senders.values():
            sender.flush()
        self._losses = None
        return losses.total()

    def _run(self, instruction: Instruction) -> None:
        """One op, and the transfers around it."""
        op = instruction.op
        for slot in instruction.posts:
            self._receivers[slot.wire].post(slot.at)
        value = self._take(instruction)
        started_ns = perf_counter_ns()
        given = self._compute(instruction, value)
        if self._observe is not None:
            self._observe(op, started_ns, perf_counter_ns())
        if instruction.gives is None:
            return
        if instruction.send is None:
            self._local[instruction.gives] = given
        elif given is not None:
            self._senders[instruction.send.wire].send(instruction.send.at, given)

    def _take(self, instruction: Instruction) -> torch.Tensor | None:
        """What the op works on, from another rank or from this one."""
        if instruction.receive is None:
            return None if instruction.needs is None else self._local.pop(instruction.needs)
        slot = instruction.receive
        value = self._receivers[slot.wire].take(slot.at, token(instruction.op))
        if value is not None:
            for sent in instruction.arrived:
                self._senders[sent.wire].arrived(sent.at)
        return value

    def _compute(self, instruction: Instruction, value: torch.Tensor | None) -> torch.Tensor | None:
        """The op itself; what it gives to a neighbouring stage.

        Only W can be cut: of F, B and BW in parts, the first does the work of all, and the last hands the result on.
        """
        op = instruction.op
        key = op.stage, op.microbatch
        if op.kind is Kind.W:
            self._blocks[key].backward_weight(*((0, (1,)) if op.part == WHOLE else (op.part, self._shares[Kind.W, op.stage])))
        elif instruction.first:
            if op.kind is Kind.F:
                self._forward(op, value)
            elif op.kind is Kind.B:
                self._blocks[key].backward_input(value)
            else:
                self._blocks[key].backward(value)
        if not instruction.last:
            return None
        given = self._blocks[key].take()
        if op.kind in (Kind.W, Kind.BW):
            del self._blocks[key]
        return given

    def _forward(self, op: Op, value: torch.Tensor | None) -> None:
        """F, with the loss after a last stage."""
        key = op.stage, op.microbatch
        first, last = op.stage in self._first, op.stage in self._last
        work = partial(self._loss, op) if last else self._stages[op.stage]
        source = self._inputs[op.microbatch] if first else value
        assert source is not None
        self._blocks[key] = block = Block(work, source, first=first, split=key in self._program.split)
        if last:
            loss = block.take()
            assert loss is not None and self._losses is not None
            self._losses.add(loss)

    def _loss(self, op: Op, value: torch.Tensor) -> torch.Tensor:
        """A last stage's share of the step's loss."""
        assert self._loss_fn is not None
        loss = self._loss_fn(self._stages[op.stage](value), self._targets[op.microbatch])
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            found = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise InvalidInput(f"loss_fn must give a scalar tensor, the mean over its microbatch; found {found}")
        return loss / self._problem.microbatches
