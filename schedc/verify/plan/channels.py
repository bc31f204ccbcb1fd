"""What must hold for a Plan's channels and collectives: right names, equal ends, every message once, in a possible order.

Which messages the compute queues need is the verifier's own reading of problem and queues (`needs_of`); lowering has another.

The compute queues must be a sound schedule (`verify_schedule`); whether all queues together can run to their end is for
`schedc.verify.plan.rendezvous`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import WHOLE, Channel, Collective, Kind, Op, Plan, Problem, sent_to
from schedc.verify.violation import Checks, Found

if TYPE_CHECKING:
    from collections.abc import Mapping

CHANNELS: Checks[[Plan, Mapping[Op, Need]]] = Checks()
"""Of channels and collectives; the plan's ranks are 0, 1, …."""


class Need(NamedTuple):
    """One message that must cross ranks."""

    op: Op
    """The transfer's name: the block that produces it, whole; where stages are a graph, with the stage that it goes to."""
    source: int
    destination: int
    producer: int
    """The index in the source's compute queue of the op that ends the block."""
    consumer: int
    """The index in the destination's compute queue of the first op of the blocks that need it; those of others are behind it."""
    size_bytes: int
    place: int
    """Its place among what the block sends: the number of its edge."""


class Crossing(NamedTuple):
    """What a block of a stage sends to another rank, for each microbatch of a path."""

    forward: bool
    sender: int
    receivers: tuple[int, ...]
    """The stages that take it; all on one rank. It is named by the first."""
    size_bytes: int
    """Of a whole microbatch."""
    place: int


def crossings_of(problem: Problem, path: int) -> list[Crossing]:
    """What the blocks of a path's stages send to other ranks: F along each edge, equal values once to a rank; gradients back."""
    stages, found = problem.stages, list[Crossing]()
    for before, after in pairwise(problem.paths[path]) if not problem.edges else ():
        if stages[before].rank != stages[after].rank:
            found.append(Crossing(True, before, (after,), stages[before].message_bytes, 0))
            found.append(Crossing(False, after, (before,), stages[before].gradient_message_bytes, 0))
    sent: dict[tuple[int, int, int], int] = {}
    for place, edge in enumerate(problem.edges):
        rank = stages[edge.destination].rank
        if stages[edge.source].rank == rank:
            continue
        equal = sent.setdefault((edge.source, edge.value, rank), len(found))
        if equal < len(found):
            found[equal] = found[equal]._replace(receivers=(*found[equal].receivers, edge.destination))
        else:
            found.append(Crossing(True, edge.source, (edge.destination,), edge.message_bytes, place))
        if edge.gradient_message_bytes is not None:
            found.append(Crossing(False, edge.destination, (edge.source,), edge.gradient_message_bytes, place))
    return found


def needs_of(plan: Plan) -> dict[Op, Need]:
    """The messages that cross ranks, by name, for the blocks that the compute queues hold; the plan's ranks are 0, 1, …."""
    first: dict[tuple[int, int, int], int] = {}
    last: dict[tuple[int, int, int], int] = {}
    for rank in plan.ranks:
        for index, (kind, stage, microbatch, _) in enumerate(rank.compute):
            block = (kind, stage, microbatch)
            first.setdefault(block, index)
            last[block] = index
    problem = plan.problem
    needs: dict[Op, Need] = {}
    ranks = [stage.rank for stage in problem.stages]
    messages = [crossings_of(problem, path) for path in range(len(problem.paths))]
    lengths, whole, is_graph = problem.slices or (1,), sum(problem.slices) or 1, bool(problem.edges)
    for microbatch, path in enumerate(problem.path_of):
        length = lengths[microbatch % len(lengths)]
        for forward, sender, receivers, size_bytes, place in messages[path]:
            kind = Kind.F if forward else Kind.B if (Kind.B, sender, microbatch) in last else Kind.BW
            producer = last.get((kind, sender, microbatch))
            takes = (Kind.F,) if forward else (Kind.B, Kind.BW)
            taken = [first[take, each, microbatch] for each in receivers for take in takes if (take, each, microbatch) in first]
            if producer is not None and taken:
                op = Op(kind, sender, microbatch, WHOLE)
                op = sent_to(op, receivers[0]) if is_graph else op
                share = (size_bytes * length + whole - 1) // whole
                needs[op] = Need(op, ranks[sender], ranks[receivers[0]], producer, min(taken), share, place)
    return needs


class End(NamedTuple):
    """One end of a channel, the sending or the receiving one."""

    rank: int
    channel: Channel

    @property
    def pair(self) -> tuple[int, int]:
        """Source and destination of what the channel carries."""
        return (self.channel.peer, self.rank) if self.channel.receives else (self.rank, self.channel.peer)

    @property
    def place(self) -> str:
        """Its place in the plan."""
        return f"ranks[{self.rank}].channels[{self.channel.name}]"


def channel_ends(plan: Plan) -> list[End]:
    """Every end of every channel, rank after rank."""
    return [End(rank.rank, channel) for rank in plan.ranks for channel in rank.channels]


@CHANNELS
def check_channel_names(plan: Plan, _: Mapping[Op, Need]) -> Found:
    """A channel is with another rank that exists, has the name of its role and peer, and is the only one of that name."""
    count = plan.problem.ranks
    for rank in plan.ranks:
        names: set[str] = set()
        for index, channel in enumerate(rank.channels):
            place = f"ranks[{rank.rank}].channels[{index}]"
            if not 0 <= channel.peer < count or channel.peer == rank.rank:
                yield f"{place}.peer", f"peer {channel.peer} of {channel.name!r} is no other rank; the ranks are 0 to {count - 1}"
                continue
            role = _role(rank.rank, channel.peer, count)
            if channel.name not in (f"send_{role}", f"recv_{role}"):
                yield f"{place}.name", f"found {channel.name!r}, expected 'send_{role}' or 'recv_{role}' for peer {channel.peer}"
            elif channel.name in names:
                yield f"{place}.name", f"{channel.name!r} is a duplicate"
            names.add(channel.name)


def _role(rank: int, peer: int, ranks: int) -> str:
    """What the peer is on the ring of ranks; neighbours that need not go round it first, which matters for two ranks."""
    around = {(rank + 1) % ranks: "next", (rank - 1) % ranks: "prev"}
    straight = {rank + 1: "next", rank - 1: "prev"}
    return straight.get(peer) or around.get(peer) or f"r{peer}"


@CHANNELS
def check_transfers(plan: Plan, needs: Mapping[Op, Need]) -> Found:
    """Every message that crosses ranks is sent and received once, on the channel of its two ranks, and nothing else is."""
    carried: set[tuple[bool, Op]] = set()
    for end in channel_ends(plan):
        pair, receives = end.pair, end.channel.receives
        for index, op in enumerate(end.channel.transfers):
            need = needs.get(op)
            if need is None:
                message = "is needed by no other rank"
            elif pair != (need.source, need.destination):
                message = f"goes from rank {need.source} to rank {need.destination}, not from {pair[0]} to {pair[1]}"
            elif (receives, op) in carried:
                message = "is a duplicate"
            else:
                carried.add((receives, op))
                continue
            yield f"{end.place}.transfers[{index}]", f"{plan.problem.token(op)} {message}"
    for need in needs.values():
        for receives, rank, does in ((False, need.source, "sends"), (True, need.destination, "receives")):
            if (receives, need.op) not in carried:
                message = (
                    f"no channel {does} {plan.problem.token(need.op)}, which rank {need.destination} needs from rank {need.source}"
                )
                yield f"ranks[{rank}].channels", message


@CHANNELS
def check_channel_pairs(plan: Plan, _: Mapping[Op, Need]) -> Found:
    """The lists of a channel's sender and receiver are equal."""
    ends = channel_ends(plan)
    sending = {end.pair: end for end in ends if not end.channel.receives}
    receiving = {end.pair: end for end in ends if end.channel.receives}
    for pair, end in (sending | receiving).items():
        if pair not in sending or pair not in receiving:
            other = pair[0] if pair not in sending else pair[1]
            yield end.place, f"rank {other} has no channel for the other end of it"
            continue
        sent, received = sending[pair].channel.transfers, end.channel.transfers
        if sent == received:
            continue
        at = next(
            (index for index, (a, b) in enumerate(zip(sent, received, strict=False)) if a != b), min(len(sent), len(received))
        )
        found, expected = (plan.problem.token(ops[at]) if at < len(ops) else "its end" for ops in (received, sent))
        message = f"found {found}, but {sending[pair].place} has {expected} at this position; expected two equal lists"
        yield f"{end.place}.transfers[{at}]", message


@CHANNELS
def check_transfer_order(plan: Plan, needs: Mapping[Op, Need]) -> Found:
    """A sender's list has the order in which its compute queue produces the messages, for that is when they become ready.

    What one op produces is in the order of its edges.
    """
    for end in channel_ends(plan):
        if end.channel.receives:
            continue
        produced = [(needs[op].producer, needs[op].place, index) for index, op in enumerate(end.channel.transfers) if op in needs]
        for before, after in pairwise(produced):
            if after < before:
                does = "is produced" if after[0] < before[0] else "is of an edge"
                index = after[2]
                message = f"{plan.problem.token(end.channel.transfers[index])} {does} before the transfer in front of it"
                yield f"{end.place}.transfers[{index}]", message


@CHANNELS
def check_post_before(plan: Plan, needs: Mapping[Op, Need]) -> Found:
    """Every receive, and nothing else, is posted: in the order of its channel, and not after the op that waits for it."""
    for end in channel_ends(plan):
        posts, transfers = end.channel.post_before, end.channel.transfers
        expected = len(transfers) if end.channel.receives else 0
        if len(posts) != expected:
            yield f"{end.place}.post_before", f"found {len(posts)} indices, expected {expected}"
            continue
        length = len(plan.ranks[end.rank].compute)
        for index, (post, op) in enumerate(zip(posts, transfers, strict=False)):
            if not 0 <= post < length:
                message = f"found {post}, expected an index of the {length} ops in compute"
            elif index and post < posts[index - 1]:
                message = f"found {post} behind {posts[index - 1]}, expected ascending indices"
            elif op in needs and post > needs[op].consumer:
                message = f"{plan.problem.token(op)} is posted before op {post}, after op {needs[op].consumer}, which waits for it"
            else:
                continue
            yield f"{end.place}.post_before[{index}]", message


@CHANNELS
def check_collectives(plan: Plan, _: Mapping[Op, Need]) -> Found:
    """A rank gathers its stages' weights in the order of their first F, then reduces gradients in that of their last W or BW.

    Where weights are sharded, `schedc.verify.schedule.sharding` has the rules.
    """
    parallel = plan.problem.data_parallel
    for rank in plan.ranks if not plan.problem.is_sharded else ():
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, op in enumerate(rank.compute):
            if op.kind is Kind.F:
                first.setdefault(op.stage, index)
            elif op.kind in (Kind.W, Kind.BW):
                last[op.stage] = index
        expected: list[Collective] = []
        if parallel is not None:
            if parallel.all_gather_ns:
                expected += [Collective("AG", stage) for stage in sorted(first, key=first.__getitem__)]
            expected += [Collective("RS", stage) for stage in sorted(last, key=last.__getitem__)]
        if list(rank.collectives) != expected:
            found, wanted = (" ".join(entry.token for entry in entries) or "none" for entries in (rank.collectives, expected))
            yield f"ranks[{rank.rank}].collectives", f"found {found}, expected {wanted}"
