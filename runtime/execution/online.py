"""The step of one rank that dispatches online, its next op by what has come (docs/choosing.md).

It is an Executor whose ops are in three queues: F; B and BW; W. Of their heads it runs the first by the plan that is ready, a W
only while no other is, and waits for an arrival while none is. In front of others of the plan it runs an op not earlier than the
plan starts it (`not_before`). A step in which shapes are not known yet runs as planned.

Why that neither deadlocks nor needs more memory, for every plan that its verifier accepts:

**The rule.** A rank has three queues, each in its plan's order: its F (of all its stages), its B and BW, and its W. An op is
*ready* if it is the head of its queue, its input has come, what it needs of its own rank has run, and, for the first part of what
takes memory (an F; where a stage recomputes, B and BW), what the rank holds plus what the op takes is within the rank's room: its
limit, or, where it has none, what the plan holds at most. Besides, an op that leaves more than it finds waits for each op X of the
other queue of these two that the plan has before it and that would have no room, with what the plan holds while X runs and what all
of the op's own queue leave that the plan has from X to it, itself included (`schedc.analysis.simulation.online.room_first`).
A rank that is free runs any op that is ready (the executor: the first by the plan, a W only while no other is). It waits only
while there is none, or, before an op, until times that pass by themselves (the executor: until the plan starts it). It posts
receives by itself, in each channel's order: at any time at least those of the heads and all before these.

**No rank holds more than its room.** Memory grows where an op begins that takes some, which is checked there, and nowhere else.
Where the job alone recomputes (`load(recompute=)`), the plan counts whole activations, so each block that has begun has room for
its recomputation; and the runtime's first part of a B or BW does all of it.

**All ops run.** A plan without deadlock (`check_rendezvous`) numbers its ops so that each comes after all that it needs and after
all that its rank's compute queue has before it. Suppose that some ops never run, and let X be the one with the lowest number. All
before it have run, at some time. Those of X's rank that the plan has before X contain all that are before X in X's own queue: X
is the head.

- *Its own rank's ops.* What X needs of its rank, or waits for to leave room, has a lower number and has run.
- *Its input.* Its producer, and all that the sender's compute queue has before it, have lower numbers and have run. A channel's
  list is in the order of that queue (`check_transfer_order`), so all transfers before X's in the list have been sent, too, in
  whatever order. Their receives are posted, as X is a head. Both ends name a transfer by its place in the list, so each send
  finds its receive, and waits for no other. So X's input comes.
- *Its room.* All that the plan has before X on its rank have run. Of those that it has behind X, some W may have run, which only
  release, and some of the other queue of F and backwards. Each of these that leaves more than it found has not waited for X, which
  had not run: so with what all of them leave, X has room.

So X is ready, and will be whenever its rank is free, whatever else runs there. The rank, which has finitely many other ops,
runs it at some time, against what was supposed. It does not matter what each rank prefers, whether some ranks keep to their
plan's order (as in a step in which shapes are not known yet), nor what anything costs. Collectives wait for no op but their own,
and ranks begin them in the plan's order.

**Channels** that match sends and receives by their order alone (NCCL's) need more: all transfers of a channel from one queue of
the sender. No such channel runs so (`schedc.runtime.execution.arrivals` refuses it), so no check is needed here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

from schedc.analysis.simulation.online import not_before, room_first
from schedc.ir import Kind, Plan, token
from schedc.runtime.common.program import Instruction, Program, Slot, program_of
from schedc.runtime.execution.arrivals import Arrivals
from schedc.runtime.execution.runner import Executor, PipelineRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.runtime.execution.wiring import Wiring, Wrap

AHEAD = 4
"""How many receives of each wire are posted that have not been taken: what may be under way on a slow link without waiting for the
receiver. Each has a buffer for its tensors, beside the plan's memory."""
NOTHING = -1
QUEUE_OF = {Kind.F: 0, Kind.B: 1, Kind.BW: 1, Kind.W: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What decides about one op of the plan's compute queue."""

    instruction: Instruction
    """Without posts, and without the end of a stage's gradients: these no longer depend on the op's place."""
    after: int
    """The op of another queue that must have run, or `NOTHING`."""
    room_after: int
    """The op of another queue that must have run, as it might find no room else (`room_first`), or `NOTHING`."""
    takes_bytes: int
    gives_back_bytes: int
    receive: Slot | None
    """The transfer that brings what it works on."""
    transfers: bool
    """Whether it sends or receives."""


def earliest_ns(plan: Plan, rank: int) -> list[int]:
    """Per op of a rank, how long after the begin of the step it may run in front of others of the plan: `not_before`.

    It simulates the plan twice: some 15 ms for 8 ranks and 32 microbatches, 50 ms for 16 and 64.
    """
    planned = not_before(plan.problem, plan.schedule())
    return [0] * len(plan.ranks[rank].compute) if planned is None else planned.start_ns(rank)


@dataclass(eq=False, kw_only=True)
class OnlineExecutor(Executor):
    """Runs one rank's program, step after step, each op as soon as it can run.

    The observer is called with the ops in the order in which they run; the hooks, with the stages whose gradients are complete, in
    the plan's order, whatever the order in which they are.
    """

    plan: Plan
    """One that `verify_choosing` accepts."""
    earliest: Sequence[int]
    """`earliest_ns` of it."""
    arrivals: Arrivals
    """What has come on the wiring's ends."""
    scale: float
    """By how much slower than the plan's costs all of it runs."""

    def __post_init__(self) -> None:
        """Look at what does not change from step to step."""
        super().__post_init__()
        plan, rank, wires = self.plan, self.program.rank, self.program.wires
        limit_bytes = plan.problem.memory_limit_bytes[rank]
        self._room_bytes = plan.certificate.peak_activation_bytes[rank] if limit_bytes is None else limit_bytes
        self._choices = _choices(plan, self.program)
        self._not_before_ns = [round(start_ns * self.scale) for start_ns in self.earliest]
        """From the begin of the step, when each op may run in front of others of the plan."""
        self._queues: list[list[int]] = [[], [], []]
        for at, choice in enumerate(self._choices):
            self._queues[QUEUE_OF[choice.instruction.op.kind]].append(at)
        self._completing = [one.op.stage for one in self.program.instructions if one.completes]
        self._receiving = {wire: len(each.messages) for wire, each in enumerate(wires) if each.destination == rank}
        self._inputs = [message for wire in self._receiving for message in wires[wire].messages]

    def run(self) -> None:
        """As `Executor.run`."""
        if not {*self.wiring.boundaries.keys_of(self._inputs)} <= self.wiring.boundaries.keys():
            super().run()
            return
        self.wiring.begin()
        self._begun_ns = perf_counter_ns()
        self._heads = [0, 0, 0]
        self._ran = [False] * len(self._choices)
        self._held_bytes = 0
        self._taken = dict.fromkeys(self._receiving, 0)
        left, transfers = len(self._choices), sum(choice.transfers for choice in self._choices)
        completing = list(self._completing)
        gradients = Counter(one.op.stage for one in self.program.instructions if one.op.kind in (Kind.W, Kind.BW))
        asked_ns = self.now()
        while left:
            at = self._next()
            choice = self._choices[at]
            op = choice.instruction.op
            try:
                self._held_bytes += choice.takes_bytes
                asked_ns = self._run(choice.instruction, asked_ns)
                self._held_bytes -= choice.gives_back_bytes
                if op.kind in (Kind.W, Kind.BW):
                    gradients[op.stage] -= 1
                    while completing and not gradients[completing[0]]:
                        self._complete(completing.pop(0))
                transfers -= choice.transfers
                if choice.transfers and not transfers:
                    self.wiring.all_through()
            except Exception as error:
                error.add_note(f"in {token(op)} on rank {self.program.rank}")
                raise
            left -= 1
            self._ran[at] = True
            self._heads[QUEUE_OF[op.kind]] += 1
            if choice.receive is not None:
                self._taken[choice.receive.wire] += 1

    def _next(self) -> int:
        """Post receives, and wait for the first op that is ready: its place in the plan's compute queue."""
        heads = sorted(queue[head] for queue, head in zip(self._queues, self._heads, strict=True) if head < len(queue))
        possible = [at for at in heads if self._lacks_only_its_input(at)]
        assert possible, "the plan's next op always lacks its input only"
        for wire, count in self._receiving.items():
            due = min(count, self._taken[wire] + AHEAD)
            if due:
                self.wiring.receivers[wire].post(due - 1)
        for slot in (self._choices[at].receive for at in possible):
            if slot is not None:
                self.wiring.receivers[slot.wire].post(slot.at)

        given_up_ns = perf_counter_ns() + round(self.wiring.timeout_s * 1e9)
        with self.arrivals.changed:
            while True:
                now_ns = perf_counter_ns()
                ready = [at for at in possible if self._has_come(self._choices[at].receive)]
                free_ns = {at: 0 if at == heads[0] else self._begun_ns + self._not_before_ns[at] for at in ready}
                allowed = [at for at in ready if free_ns[at] <= now_ns]
                if allowed:
                    return min(allowed, key=self._preference)
                if given_up_ns <= now_ns:  # also where an op is ready whose time has not come: the plan's order waits no longer
                    break
                until_ns = min([given_up_ns, *free_ns.values()])
                self.arrivals.changed.wait((until_ns - now_ns) / 1e9)
        self.arrivals.expired = True
        return possible[0]  # it finds out who does not answer

    def _preference(self, at: int) -> tuple[bool, int]:
        """Of the ops that may run, the one with the least runs: no other rank waits for a W."""
        return self._choices[at].instruction.op.kind is Kind.W, at

    def _lacks_only_its_input(self, at: int) -> bool:
        choice = self._choices[at]
        has_room = not choice.takes_bytes or self._held_bytes + choice.takes_bytes <= self._room_bytes
        return has_room and all(before == NOTHING or self._ran[before] for before in (choice.after, choice.room_after))

    def _has_come(self, slot: Slot | None) -> bool:
        return slot is None or self.arrivals.has_come(self.program.wires[slot.wire], slot.at)


class OnlineRunner(PipelineRunner):
    """As `PipelineRunner`, for a rank that dispatches its ops by what has come (docs/choosing.md)."""

    def __init__(self, wired: Callable[[Wrap | None], Wiring], wrap: Wrap | None = None, *, scale: float = 1.0) -> None:
        """As `PipelineRunner`; `scale` is by how much slower than the plan's costs all of it runs."""
        self._arrivals = Arrivals()
        self._scale = scale
        self._prepared: tuple[Plan | None, list[int]] = None, []
        """The newest plan of which it is known when each op may run, and that."""
        super().__init__(wired, self._arrivals.around(wrap))

    def prepare(self, plan: Plan) -> None:
        """As `PipelineRunner.prepare`."""
        self._prepared = plan, earliest_ns(plan, self.wiring.rank)

    def _executor_of(self, plan: Plan) -> Callable[..., Executor]:
        prepared, earliest = self._prepared
        if prepared is not plan:
            earliest = earliest_ns(plan, self.wiring.rank)
        return partial(OnlineExecutor, plan=plan, earliest=earliest, arrivals=self._arrivals, scale=self._scale)


def _choices(plan: Plan, program: Program) -> list[_Choice]:
    """What decides about each op of the program."""
    found: list[_Choice] = []
    ends: dict[tuple[Kind, int, int], int] = {}
    proofs = _proofs(plan, program)
    room_after = room_first(plan.problem, plan.schedule())[program.rank]
    for at, one in enumerate(program.instructions):
        kind, stage, microbatch = block = one.op[:3]
        ends[block] = at
        before = {Kind.F: None, Kind.B: Kind.F, Kind.BW: Kind.F, Kind.W: Kind.B}[kind]
        costs = plan.problem.stages[stage]
        receive = _received(one)
        needs = tuple(need._replace(arrived=proofs.get(receive, ()) if receive else ()) for need in one.needs)
        found.append(
            _Choice(
                instruction=replace(one, posts=(), completes=False, needs=needs),
                after=NOTHING if before is None else ends[before, stage, microbatch],
                room_after=room_after[at],
                takes_bytes=costs.taken_bytes(kind) if one.first else 0,
                gives_back_bytes=costs.released_bytes(kind) if one.last else 0,
                receive=receive,
                transfers=one.transfers,
            )
        )
    return found


def _proofs(plan: Plan, program: Program) -> dict[Slot, tuple[Slot, ...]]:
    """Per transfer to this rank, the rank's sends to that peer that it proves to have been used.

    It proves less than in the plan's order: the peer's ops of the same queue, up to the one that sends it; and for each B or BW of
    these its F, with the F before it.
    """
    proofs: dict[Slot, tuple[Slot, ...]] = {}
    for peer in {program.wires[slot.wire].source for slot in map(_received, program.instructions) if slot}:
        theirs = program_of(plan, peer).instructions
        forwards = [one for one in theirs if one.op.kind is Kind.F]
        backwards = [one for one in theirs if one.op.kind in (Kind.B, Kind.BW)]
        place = {one.op[1:3]: at for at, one in enumerate(forwards)}
        for queue, upstream in ((forwards, False), (backwards, True)):
            proven: list[Slot | None] = []
            reached = 0
            for one in queue:
                proven.append(_received(one))
                if upstream:
                    upto = place[one.op[1:3]] + 1
                    proven += map(_received, forwards[reached:upto])
                    reached = max(reached, upto)
                for gift in one.gives:
                    if gift.send is not None and program.wires[gift.send.wire].destination == program.rank:
                        own = (slot for slot in proven if slot and program.wires[slot.wire].source == program.rank)
                        proofs[gift.send] = tuple(own)
                        proven = []
    return proofs


def _received(one: Instruction) -> Slot | None:
    """The transfer that brings what an op of a chain works on."""
    return one.needs[0].receive if one.needs else None
