"""What one rank does in a step, op by op: the plan's queues, resolved once at load so that the step loop looks nothing up.

Takes a Plan; gives its wires (one for each channel, seen from both ends) and each rank's Program. Knows nothing of torch.
A *message* is what crosses an edge between two stages for one microbatch: a value of the one, or the gradient of it. Each stage of
a chain has one edge, to the next; of a graph any number (`Problem.edges`). Messages between stages of a rank are handed over there.
The state that a slice of a microbatch leaves to the next is none: it stays with what the ops compute (`runtime.stage.slices`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple

from schedc.ir import WHOLE, Kind, Op, Plan, Problem, goes_to

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Message(NamedTuple):
    """What crosses an edge for one microbatch."""

    gradient: bool
    source: int
    """The stage whose value this is, or is the gradient of."""
    destination: int
    """The stage that takes the value, and gives its gradient. Equal values of several edges to one rank are one message, of the
    first of them; each has a gradient of its own."""
    microbatch: int
    boundary: int
    """Which value it is, of tensors that are alike in all microbatches: of a chain its stage, of a graph the first of the edges
    that carry it, times the number of slices, plus the slice. The same for its gradients."""


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


class NeededMessage(NamedTuple):
    """A message that an op works on."""

    message: Message
    receive: Slot | None
    """The transfer that brings it; None where it is there: made on this rank, or received by an op before this one."""
    arrived: tuple[Slot, ...]
    """This rank's sends that have certainly arrived once `receive` has: the peer used them before it produced that transfer."""
    stays: bool
    """Whether an op after this one works on it, too."""


class GivenMessage(NamedTuple):
    """A message that an op gives."""

    message: Message
    send: Slot | None
    """The transfer that carries it; None where it is for this rank."""


class ShardMoment(NamedTuple):
    """What is done with the weights or gradients of a stage that is sharded, between two ops."""

    what: Literal["release", "await sum", "gather", "await weights", "sum"]
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One op of the compute queue, and the transfers around it."""

    op: Op
    first: bool
    """Whether it is its block's first part, or all of it."""
    last: bool
    posts: tuple[Slot, ...] = ()
    """Receives to post before it."""
    needs: tuple[NeededMessage, ...] = ()
    """What it works on, in the order of the edges; nothing where it starts from the batch, the loss, or what an earlier op of its
    block has left."""
    gives: tuple[GivenMessage, ...] = ()
    """What other stages wait for, once this op has ended, in the order of the edges."""
    before: tuple[ShardMoment, ...] = ()
    """What is done with sharded weights and gradients before it, where the plan says when."""
    opens: bool = False
    """Whether it is the first F of its stage, which needs the stage's weights."""
    completes: bool = False
    """Whether it is the last W or BW of its stage, after which its gradients are complete."""

    @property
    def transfers(self) -> bool:
        """Whether it sends or receives."""
        return any(need.receive is not None for need in self.needs) or any(gift.send is not None for gift in self.gives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one rank does in a step."""

    rank: int
    wires: tuple[Wire, ...]
    instructions: tuple[Instruction, ...]
    ending: tuple[ShardMoment, ...] = ()
    """As `Instruction.before`, behind the last op."""
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
    named = _Messages(plan.problem).named
    return tuple(
        Wire(
            source=rank.rank,
            destination=channel.peer,
            name=channel.name,
            receiver_name=receivers[rank.rank, channel.peer, channel.transfers[0]],
            transfers=channel.transfers,
            messages=tuple(map(named, channel.transfers)),
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
    schedule, messages = plan.schedule(), _Messages(plan.problem)
    wires, order = wires_of(plan), plan.ranks[rank].compute
    slots = {message: Slot(w, i) for w, wire in enumerate(wires) for i, message in enumerate(wire.messages)}
    posts: dict[int, list[Slot]] = {}
    for channel in plan.ranks[rank].channels:
        if channel.receives:
            for op, before in zip(channel.transfers, channel.post_before, strict=True):
                posts.setdefault(before, []).append(slots[messages.named(op)])
    proofs = _proofs(plan, messages, wires, slots, rank)
    instructions = []
    opening = {op.stage: index for index, op in reversed([*enumerate(order)]) if op.kind is Kind.F}
    completing = {op.stage: index for index, op in enumerate(order) if op.kind in (Kind.W, Kind.BW)}
    moments = _moments(plan, rank)
    is_placed = any(moments)
    needed = [messages.needed(op) if op.part in (WHOLE, 0) else () for op in order]
    users = Counter(message for each in needed for message in each)
    for index, op in enumerate(order):
        parts = schedule.parts_of(op.kind, op.stage)
        last = op.part == WHOLE or parts is None or op.part == len(parts.shares) - 1
        needs = []
        for message in needed[index]:
            slot = slots.pop(message, None)  # the first that needs it receives it
            users[message] -= 1
            needs.append(NeededMessage(message, slot, proofs.get(slot, ()) if slot else (), users[message] > 0))
        instructions.append(
            Instruction(
                op=op,
                first=op.part in (WHOLE, 0),
                last=last,
                posts=tuple(posts.get(index, ())),
                needs=tuple(needs),
                gives=tuple(GivenMessage(message, slots.get(message)) for message in messages.given(op)) if last else (),
                before=tuple(moments[index]),
                opens=not is_placed and opening[op.stage] == index,
                completes=not is_placed and completing.get(op.stage) == index,
            )
        )
    split = frozenset((op.stage, op.microbatch) for op in order if op.kind is Kind.B)
    return Program(rank=rank, wires=wires, instructions=tuple(instructions), ending=tuple(moments[-1]), split=split)


def _moments(plan: Plan, rank: int) -> list[list[ShardMoment]]:
    """Before each op of a rank, and behind the last, what its collectives with places say (`Collective`); else nothing."""
    order = plan.ranks[rank].compute
    found: list[list[ShardMoment]] = [[] for _ in range(len(order) + 1)]
    placed = [one for one in plan.ranks[rank].collectives if one.before >= 0]
    for one in placed:
        found[one.until].append(ShardMoment("release" if one.kind == "AG" else "await sum", one.stage))
    for one in placed:
        found[one.before].append(ShardMoment("gather" if one.kind == "AG" else "sum", one.stage))
    for one in placed:
        if one.kind == "AG":
            needing = next(at for at in range(one.before, one.until) if order[at].stage == one.stage)
            found[needing].append(ShardMoment("await weights", one.stage))
    return found


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


def starts_of(problem: Problem) -> frozenset[int]:
    """The stages that begin with the batch: they take from no other."""
    return (
        frozenset(path[0] for path in problem.paths)
        if problem.is_chain
        else _stages(problem) - {e.destination for e in problem.edges}
    )


def ends_of(problem: Problem) -> frozenset[int]:
    """The stages that compute a loss: no other takes from them."""
    return (
        frozenset(path[-1] for path in problem.paths) if problem.is_chain else _stages(problem) - {e.source for e in problem.edges}
    )


def _stages(problem: Problem) -> frozenset[int]:
    return frozenset(range(len(problem.stages)))


class _Messages:
    """What each op needs and gives, by the edges of its microbatch's path."""

    def __init__(self, problem: Problem) -> None:
        self._path_of, self._is_chain, self._slices = problem.path_of, problem.is_chain, max(1, len(problem.slices))
        self._needed: dict[tuple[int, bool, int], list[tuple[int, int, int]]] = {}
        """By path, whether it is a backward, and stage, the ends and the boundary of the messages; so the next."""
        self._given: dict[tuple[int, bool, int], list[tuple[int, int, int]]] = {}
        for path in range(len(problem.paths)):
            first: dict[tuple[int, int], int] = {}
            carriers: dict[tuple[int, int], tuple[int, int, int]] = {}
            for at, edge in enumerate(problem.edges_of(path)):
                ends = edge.source, edge.destination
                boundary = ends[0] if self._is_chain else first.setdefault((ends[0], edge.value), at)
                to_rank = boundary, problem.stages[ends[1]].rank
                if to_rank not in carriers:
                    carriers[to_rank] = (*ends, boundary)
                    self._given.setdefault((path, False, ends[0]), []).append(carriers[to_rank])
                self._needed.setdefault((path, False, ends[1]), []).append(carriers[to_rank])
                if edge.has_gradient:
                    self._needed.setdefault((path, True, ends[0]), []).append((*ends, boundary))
                    self._given.setdefault((path, True, ends[1]), []).append((*ends, boundary))

    def needed(self, op: Op) -> tuple[Message, ...]:
        """What the op takes from other stages: their values forward, the gradients of its own backward."""
        return self._of(self._needed, op)

    def given(self, op: Op) -> tuple[Message, ...]:
        """What the op gives to other stages: its values forward, the gradients of what it has taken backward."""
        return self._of(self._given, op)

    def named(self, transfer: Op) -> Message:
        """What a transfer carries, which is named by the op that produced it, of a graph with the stage that it goes to."""
        to = goes_to(transfer)
        given = self.given(transfer)
        return given[0] if self._is_chain else next(one for one in given if to == (one.source if one.gradient else one.destination))

    def _of(self, table: Mapping[tuple[int, bool, int], Sequence[tuple[int, int, int]]], op: Op) -> tuple[Message, ...]:
        if op.kind in (Kind.W, Kind.U):
            return ()
        backward, microbatch = op.kind is not Kind.F, op.microbatch
        found = table.get((self._path_of[microbatch], backward, op.stage), ())
        count, own = self._slices, microbatch % self._slices
        return tuple(Message(backward, one, other, microbatch, boundary * count + own) for one, other, boundary in found)


def _proofs(
    plan: Plan, messages: _Messages, wires: tuple[Wire, ...], slots: Mapping[Message, Slot], rank: int
) -> dict[Slot, tuple[Slot, ...]]:
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
            used += [unproven.pop(message) for message in messages.needed(op) if message in unproven]
            for slot in (slots[message] for message in messages.given(op) if message in slots):
                if wires[slot.wire].destination == rank:
                    proofs[slot] = (*proofs.get(slot, ()), *used)  # each part of a block gives it, and it goes with the last
                    used.clear()
    return proofs
