"""A plan on one rank: its wires, and what runs its ops over them.

The compute queue runs in the calling thread, all transfers beside it: here in the plan's order, in `runtime.execution.online` each
op as soon as it can run. An op posts the receives that the plan puts before it, takes what it works on, computes, and hands on what
it gives. What the ops compute is given for each plan: training of stages, or waiting (`schedc.runtime.emulation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from schedc.ir import Plan, token
from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.hooks import Observer, OpTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from schedc.ir import Op
    from schedc.runtime.common.boundary import Value
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.common.program import Instruction, Message, NeededMessage, Program, ShardMoment, Slot
    from schedc.runtime.execution.wiring import Wiring, Wrap


class Compute(Protocol):
    """What an op does."""

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """Do the op's work on what it needs, a value for each; give what it gives to other stages, likewise.

        An output whose gradient is to come back must require grad when F gives it; B and BW give a gradient for each tensor that
        came to F so, and None for the others. A value that stays for another op may not be changed.
        """


@dataclass(eq=False, kw_only=True)
class Executor:
    """Runs one rank's program, step after step, in the plan's order."""

    program: Program
    wiring: Wiring
    compute: Compute
    observer: Observer | None = None
    """Is called with the ops."""
    hooks: Sequence[ReplicaHooks] = ()
    """What connects the rank to other pipelines, or its stages to others that share them."""
    now: Callable[[], int] = perf_counter_ns
    """The clock of the times that the observer is called with."""
    span: Callable[[str], AbstractContextManager[None]] | None = None
    """What is around each op, by its token, in a profiler's trace; None: nothing."""

    def __post_init__(self) -> None:
        """Look where the last transfer is."""
        self._local: dict[Message, Value] = {}
        self._last_transfer = max((at for at, one in enumerate(self.program.instructions) if one.transfers), default=None)

    def prepare(self) -> None:
        """Before `run`, where it is not known yet whether the step begins: post what the plan's first op receives."""
        self.wiring.prepare()
        for slot in self.program.instructions[0].posts:
            self.wiring.receivers[slot.wire].post(slot.at)

    def cancel(self) -> None:
        """Instead of `run`, where the step does not begin, on any rank."""
        self.wiring.renew()

    def run(self) -> None:
        """Run all ops of a step; what is sent may still be under way.

        Raises:
            TransferFailed: another rank has ended, failed, or does not answer.
        """
        self.wiring.begin()
        asked_ns = self.now()
        for at, instruction in enumerate(self.program.instructions):
            try:
                asked_ns = self._run(instruction, asked_ns)
                if at == self._last_transfer:
                    self.wiring.all_through()
            except Exception as error:
                error.add_note(f"in {token(instruction.op)} on rank {self.program.rank}")
                raise
        self._at(self.program.ending)

    def _run(self, instruction: Instruction, asked_ns: int) -> int:
        """One op, and the transfers around it; when it ended, if somebody is told."""
        if instruction.before:
            self._at(instruction.before)
        for slot in instruction.posts:
            self.wiring.receivers[slot.wire].post(slot.at)
        values: list[Value] = []
        for need in instruction.needs:
            if need.receive is not None:
                values.append(self._receive(need, need.receive, instruction.op))
            else:
                values.append(self._local[need.message] if need.stays else self._local.pop(need.message))
        if instruction.opens:
            for hooks in self.hooks:
                hooks.on_weights_needed(instruction.op.stage)
        is_seen = self.observer is not None
        begun_ns = self.now() if is_seen else 0
        try:
            if self.span is None:
                given = self.compute.run(instruction, values)
            else:
                with self.span(token(instruction.op)):
                    given = self.compute.run(instruction, values)
        except Exception as error:
            for need, value in zip(instruction.needs, values, strict=True):
                if need.receive is not None:  # what came may be what is wrong
                    came = ", ".join(str(TensorMeta.of(tensor)) for tensor in value if tensor is not None)
                    error.add_note(f"on {came} from rank {self.program.wires[need.receive.wire].source}")
            raise
        ended_ns = self.now() if is_seen else 0
        if instruction.gives:
            for at, gift in enumerate(instruction.gives):
                if gift.send is not None:
                    self._send(gift.send, given[at])
                else:
                    self._local[gift.message] = given[at]
        if instruction.completes:
            self._complete(instruction.op.stage)
        if self.observer is not None:
            self.observer.op(OpTimes(instruction.op, asked_ns, begun_ns, ended_ns))
        return ended_ns

    def _at(self, moments: Sequence[ShardMoment]) -> None:
        """What the plan says between two ops."""
        for moment in moments:
            for hooks in self.hooks:
                hooks.at(moment)

    def _complete(self, stage: int) -> None:
        """The last W or BW of a stage has ended."""
        for hooks in self.hooks:
            hooks.on_gradients_complete(stage)

    def _receive(self, need: NeededMessage, slot: Slot, op: Op) -> Value:
        """What the op works on, from another rank."""
        value = self.wiring.receivers[slot.wire].take(slot.at, op)
        if value:
            for sent in need.arrived:
                self.wiring.senders[sent.wire].arrived(sent.at)
        if need.stays:
            self._local[need.message] = value
        if self.observer is not None:
            wire = self.program.wires[slot.wire]
            self.observer.taken(wire.transfers[slot.at], wire.source, self.now())
        return value

    def _send(self, slot: Slot, given: Value) -> None:
        """Hand on what an op gives to another rank; `()` is nothing."""
        if not given:
            return
        sent_ns = 0 if self.observer is None else self.now()  # before: the peer may take it while this rank still hands it over
        self.wiring.senders[slot.wire].send(slot.at, given)
        if self.observer is not None:
            wire = self.program.wires[slot.wire]
            self.observer.sent(wire.transfers[slot.at], wire.destination, sent_ns)


class PipelineRunner:
    """One rank's wires, and its executor once it knows what computes: `use`."""

    executor: Executor
    """Of the plan that runs."""

    def __init__(self, wired: Callable[[Wrap | None], Wiring], wrap: Wrap | None = None) -> None:
        """Connect the wires by `wired`, with `wrap` around the ends of each; all ranks do this together.

        Raises:
            TransferFailed: another rank does not come.
        """
        self.wiring = wired(wrap)

    def prepare(self, plan: Plan) -> None:
        """Simulate a plan that is going to run, in any thread, so that the step's thread need not; nothing to do but online."""

    def use(
        self,
        plan: Plan,
        program: Program,
        compute: Compute,
        observer: Observer | None = None,
        hooks: Sequence[ReplicaHooks] = (),
        now: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """Run this plan from now on, whose wires are laid: its program of this rank, and the rest as `Executor` has it."""
        kind = self._executor_of(plan)
        self.executor = kind(program=program, wiring=self.wiring, compute=compute, observer=observer, hooks=hooks, now=now)

    def _executor_of(self, plan: Plan) -> Callable[..., Executor]:
        """What makes the executor of a plan."""
        return Executor
