"""What one rank does in a step, op by op: the plan's queues, resolved once at load so that the step loop looks nothing up.

Takes a Plan; gives its wires (one for each channel, seen from both ends) and each rank's Program. Knows nothing of torch.
A *message* is what crosses the boundary after a stage for one microbatch: the stage's output, or the gradient of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import WHOLE, Kind, Op, Plan, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Message(NamedTuple):
    """What crosses a stage boundary for one microbatch."""

    gradient: bool
    boundary: int
    """The stage whose output this is, or is the gradient of."""
    microbatch: int


class Slot(NamedTuple):
    """One transfer of the plan."""

    wire: int
    """Index into `wires_of(plan)`."""
    at: int
    """Its place in the channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One channel of the plan, from its sender to its receiver. Every wire has a process group of its own."""

    source: int
    destination: int
    name: str
    """The sender's name of it, `send_next`."""
    receiver_name: str
    transfers: tuple[Op, ...]
    messages: tuple[Message, ...]
    """What each transfer carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One op of the compute queue, and the transfers around it."""

    op: Op
    first: bool
    """Whether it is its block's first part, or all of it."""
    last: bool
    posts: tuple[Slot, ...] = ()
    """Receives to post before it."""
    needs: Message | None = None
    """What it works on; None where it starts from the batch, the loss, or what an earlier op of its block has left."""
    receive: Slot | None = None
    """The transfer that brings `needs`; None where the producer ran on this rank."""
    arrived: tuple[Slot, ...] = ()
    """This rank's sends that have certainly arrived once `receive` has: the peer used them before it produced that transfer."""
    gives: Message | None = None
    """What the neighbouring stage waits for, once this op has ended."""
    send: Slot | None = None
    """The transfer that carries `gives`; None where the consumer runs on this rank."""
    opens: bool = False
    """Whether it is the first F of its stage, which needs the stage's weights."""
    completes: bool = False
    """Whether it is the last W or BW of its stage, after which its gradients are complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one rank does in a step."""

    rank: int
    wires: tuple[Wire, ...]
    instructions: tuple[Instruction, ...]
    split: frozenset[tuple[int, int]]
    """The (stage, microbatch) whose backward runs as B and W apart."""


def wires_of(plan: Plan) -> tuple[Wire, ...]:
    """The plan's channels, by sender; all ranks get them in the same order. Channels without transfers are left out."""
    receivers = {
        (channel.peer, rank.rank, op): channel.name
        for rank in plan.ranks
        for channel in rank.channels
        if channel.receives
        for op in channel.transfers
    }
    return tuple(
        Wire(
            source=rank.rank,
            destination=channel.peer,
            name=channel.name,
            receiver_name=receivers[rank.rank, channel.peer, channel.transfers[0]],
            transfers=channel.transfers,
            messages=tuple(_message(plan.problem, op) for op in channel.transfers),
        )
        for rank in plan.ranks
        for channel in rank.channels
        if channel.transfers and not channel.receives
    )


def connecting_order(wires: Sequence[Wire]) -> list[int]:
    """The numbers of the wires in the order in which their ranks connect them, the same on all ranks.

    Two ranks connect a wire together, and each rank one wire after the other. They do it in rounds in which no rank has two wires:
    each wire is in the first round that is left to both of its ranks. So a wire waits for those of earlier rounds alone: a chain of
    ranks that exchange in both directions takes four rounds, however long it is. In the order of the wires each would wait for all
    before it. It cannot deadlock: the first of those that are not connected yet waits for nothing.
    """
    taken: dict[int, set[int]] = {}
    rounds: list[int] = []
    for wire in wires:
        ends = [taken.setdefault(rank, set()) for rank in (wire.source, wire.destination)]
        first = next(number for number in count() if not any(number in busy for busy in ends))
        for busy in ends:
            busy.add(first)
        rounds.append(first)
    return sorted(range(len(wires)), key=rounds.__getitem__)


def program_of(plan: Plan, rank: int) -> Program:
    """What `rank` does in a step of the plan, which a verifier has accepted."""
    problem, schedule = plan.problem, plan.schedule()
    wires = wires_of(plan)
    slots = {message: Slot(w, i) for w, wire in enumerate(wires) for i, message in enumerate(wire.messages)}
    posts: dict[int, list[Slot]] = {}
    for channel in plan.ranks[rank].channels:
        if channel.receives:
            for op, before in zip(channel.transfers, channel.post_before, strict=True):
                posts.setdefault(before, []).append(slots[_message(problem, op)])
    proofs = _proofs(plan, wires, slots, rank)
    instructions = []
    opening = {op.stage: index for index, op in reversed([*enumerate(plan.ranks[rank].compute)]) if op.kind is Kind.F}
    completing = {op.stage: index for index, op in enumerate(plan.ranks[rank].compute) if op.kind in (Kind.W, Kind.BW)}
    for index, op in enumerate(plan.ranks[rank].compute):
        parts = schedule.parts_of(op.kind, op.stage)
        first, last = op.part in (WHOLE, 0), op.part == WHOLE or parts is None or op.part == len(parts.shares) - 1
        needs = _needed(problem, op) if first else None
        gives = _given(problem, op) if last else None
        receive = slots.get(needs) if needs else None
        instructions.append(
            Instruction(
                op=op,
                first=first,
                last=last,
                posts=tuple(posts.get(index, ())),
                needs=needs,
                receive=receive,
                arrived=proofs.get(receive, ()) if receive else (),
                gives=gives,
                send=slots.get(gives) if gives else None,
                opens=opening[op.stage] == index,
                completes=completing.get(op.stage) == index,
            )
        )
    split = frozenset((op.stage, op.microbatch) for op in plan.ranks[rank].compute if op.kind is Kind.B)
    return Program(rank=rank, wires=wires, instructions=tuple(instructions), split=split)


def replicas_of(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The sets of two or more stages that hold the same weights, in a bidirectional placement, by their first stage.

    They are stages of different paths with equal `layers`, or, where those are not known, at the same place of their paths.
    """
    if len(problem.paths) == 1:
        return ()
    sets: dict[tuple[int, int] | int, list[int]] = {}
    for path in problem.paths:
        for place, stage in enumerate(path):
            layers = problem.stages[stage].layers
            members = sets.setdefault(place if layers is None else layers, [])
            if stage not in members:
                members.append(stage)
    return tuple(sorted(tuple(members) for members in sets.values() if len(members) > 1))


def _neighbour(problem: Problem, op: Op, step: int) -> int | None:
    """The stage after (1) or before (-1) the op's on its microbatch's path."""
    path = problem.path(op.microbatch)
    at = path.index(op.stage) + step
    return path[at] if 0 <= at < len(path) else None


def _message(problem: Problem, op: Op) -> Message:
    """What a transfer carries, which is named by the op that produced it."""
    given = _given(problem, op)
    if given is None:
        raise ValueError(f"{op} sends nothing")
    return given


def _given(problem: Problem, op: Op) -> Message | None:
    """What the op gives to a neighbouring stage: its output forward, the gradient of its input backward."""
    if op.kind in (Kind.W, Kind.U) or (op.kind is Kind.F and _neighbour(problem, op, 1) is None):
        return None
    if op.kind is Kind.F:
        return Message(False, op.stage, op.microbatch)
    previous = _neighbour(problem, op, -1)
    return None if previous is None else Message(True, previous, op.microbatch)


def _needed(problem: Problem, op: Op) -> Message | None:
    """What the op takes from a neighbouring stage: that stage's output forward, the gradient of its own output backward."""
    if op.kind is Kind.F:
        previous = _neighbour(problem, op, -1)
        return None if previous is None else Message(False, previous, op.microbatch)
    if op.kind in (Kind.W, Kind.U) or _neighbour(problem, op, 1) is None:
        return None
    return Message(True, op.stage, op.microbatch)


def _proofs(plan: Plan, wires: tuple[Wire, ...], slots: Mapping[Message, Slot], rank: int) -> dict[Slot, tuple[Slot, ...]]:
    """Per transfer to `rank`, which of the rank's sends to that peer it proves to have arrived.

    A send is used by the first op that needs it, and any op that the peer ran no earlier proves it. Each send is listed once.
    """
    proofs: dict[Slot, tuple[Slot, ...]] = {}
    for peer in {wire.source for wire in wires if wire.destination == rank}:
        unproven = {
            message: slots[message]
            for wire in wires
            if (wire.source, wire.destination) == (rank, peer)
            for message in wire.messages
        }
        used: list[Slot] = []
        for op in plan.ranks[peer].compute:
            needed, given = _needed(plan.problem, op), _given(plan.problem, op)
            if needed in unproven:
                used.append(unproven.pop(needed))
            slot = slots.get(given) if given else None
            if slot is not None and wires[slot.wire].destination == rank:
                proofs[slot] = (*proofs.get(slot, ()), *used)  # each part of a block gives it, and it goes with the last
                used.clear()
    return proofs
