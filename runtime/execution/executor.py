"""The step of one rank: its compute queue in the calling thread, exactly in the plan's order, all transfers beside it.

Takes a Program, the ends of the wires, and what computes; knows nothing of what is computed. An op posts the receives that the
plan puts before it, takes what it works on, computes, and hands on what it gives.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from schedc.ir.ops import token
from schedc.runtime.common.header import TensorMeta
from schedc.runtime.common.observer import Observer, OpTimes

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.common.program import Instruction, Message, Program
    from schedc.runtime.common.values import Value
    from schedc.runtime.execution.wiring import Wiring


class Compute(Protocol):
    """What an op does."""

    def run(self, instruction: Instruction, value: Value) -> Value:
        """Do the op's work on what it needs; give what it gives to the neighbouring stage.

        An output whose gradient is to come back must require grad when F gives it; B and BW give a gradient for each tensor that
        came to F so, and None for the others.
        """


class Executor:
    """Runs one rank's program, step after step."""

    def __init__(
        self,
        program: Program,
        wiring: Wiring,
        compute: Compute,
        observer: Observer | None,
        hooks: ReplicaHooks | None = None,
        now: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """Take what the rank does and with what; `now` is the clock of the times that the observer is called with."""
        self._program = program
        self._wiring = wiring
        self._compute = compute
        self._observer = observer
        self._hooks = hooks
        self._now = now
        self._local: dict[Message, Value] = {}
        self._last_transfer = max(
            (at for at, one in enumerate(program.instructions) if one.send is not None or one.receive is not None), default=None
        )

    def prepare(self) -> None:
        """Before `run`, where it is not known yet whether the step begins: post what the plan's first op receives."""
        self._wiring.prepare()
        for slot in self._program.instructions[0].posts:
            self._wiring.receivers[slot.wire].post(slot.at)

    def cancel(self) -> None:
        """Instead of `run`, where the step does not begin, on any rank."""
        self._wiring.renew()

    def run(self) -> None:
        """Run all ops of a step; what is sent may still be under way.

        Raises:
            TransferFailed: another rank has ended, failed, or does not answer.
        """
        self._wiring.begin()
        asked_ns = self._now()
        for at, instruction in enumerate(self._program.instructions):
            try:
                asked_ns = self._run(instruction, asked_ns)
                if at == self._last_transfer:
                    self._wiring.all_through()
            except Exception as error:
                error.add_note(f"in {token(instruction.op)} on rank {self._program.rank}")
                raise

    def _run(self, instruction: Instruction, asked_ns: int) -> int:
        """One op, and the transfers around it; when it ended."""
        for slot in instruction.posts:
            self._wiring.receivers[slot.wire].post(slot.at)
        value = self._take(instruction)
        if instruction.opens and self._hooks is not None:
            self._hooks.on_weights_needed(instruction.op.stage)
        begun_ns = self._now()
        try:
            given = self._compute.run(instruction, value)
        except Exception as error:
            if instruction.receive is not None:  # what came may be what is wrong
                came = ", ".join(str(TensorMeta.of(tensor)) for tensor in value if tensor is not None)
                error.add_note(f"on {came} from rank {self._program.wires[instruction.receive.wire].source}")
            raise
        ended_ns = self._now()
        if instruction.gives is not None:
            self._give(instruction, given)
        if instruction.completes and self._hooks is not None:
            self._hooks.on_gradients_complete(instruction.op.stage)
        if self._observer is not None:
            self._observer.op(OpTimes(instruction.op, asked_ns, begun_ns, ended_ns))
        return ended_ns

    def _take(self, instruction: Instruction) -> Value:
        """What the op works on, from another rank or from this one."""
        slot = instruction.receive
        if slot is None:
            return () if instruction.needs is None else self._local.pop(instruction.needs)
        value = self._wiring.receivers[slot.wire].take(slot.at, instruction.op)
        if value:
            for sent in instruction.arrived:
                self._wiring.senders[sent.wire].arrived(sent.at)
        if self._observer is not None:
            wire = self._program.wires[slot.wire]
            self._observer.taken(wire.transfers[slot.at], wire.source, self._now())
        return value

    def _give(self, instruction: Instruction, given: Value) -> None:
        """Hand on what the op gives, to another rank or to this one."""
        slot = instruction.send
        if slot is None:
            assert instruction.gives is not None
            self._local[instruction.gives] = given
        elif given:
            sent_ns = self._now()  # before it is handed over: the peer may take it while this rank still hands it over
            self._wiring.senders[slot.wire].send(slot.at, given)
            if self._observer is not None:
                wire = self._program.wires[slot.wire]
                self._observer.sent(wire.transfers[slot.at], wire.destination, sent_ns)
