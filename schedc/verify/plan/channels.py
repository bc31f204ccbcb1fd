"""What must hold for a Plan's channels and collectives: right names, equal ends, every message once, in a possible order.

Which messages the compute queues need is the verifier's own reading of problem and queues (`needs_of`); lowering has another.

The compute queues must be a sound schedule (`verify_schedule`); whether all queues together can run to their end is for
`schedc.verify.plan.rendezvous`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import WHOLE, Channel, Collective, Kind, Op, Plan, token
from schedc.verify.violation import Checks, Found

if TYPE_CHECKING:
    from collections.abc import Mapping

CHANNELS: Checks[[Plan, Mapping[Op, Need]]] = Checks()
"""Of channels and collectives; the plan's ranks are 0, 1, …."""


class Need(NamedTuple):
    """One message that must cross ranks."""

    op: Op
    """The block that produces it, whole: the transfer's name."""
    source: int
    destination: int
    producer: int
    """The index in the source's compute queue of the op that ends the block."""
    consumer: int
    """The index in the destination's compute queue of the first op of the block that needs it."""


def needs_of(plan: Plan) -> dict[Op, Need]:
    """The messages that cross ranks, by name, for the blocks that the compute queues hold; the plan's ranks are 0, 1, …."""
    first: dict[tuple[int, int, int], int] = {}
    last: dict[tuple[int, int, int], int] = {}
    for rank in plan.ranks:
        for index, (kind, stage, microbatch, _) in enumerate(rank.compute):
            block = (kind, stage, microbatch)
            first.setdefault(block, index)
            last[block] = index
    needs: dict[Op, Need] = {}
    ranks = [stage.rank for stage in plan.problem.stages]
    crossed = [
        [(before, after, ranks[before], ranks[after]) for before, after in pairwise(path) if ranks[before] != ranks[after]]
        for path in plan.problem.paths
    ]
    for microbatch, path in enumerate(plan.problem.path_of):
        for before, after, here, there in crossed[path]:
            back, to = (Kind.B if (Kind.B, stage, microbatch) in last else Kind.BW for stage in (after, before))
            for kind, stage, source, consuming, destination in (
                (Kind.F, before, here, (Kind.F, after, microbatch), there),
                (back, after, there, (to, before, microbatch), here),
            ):
                producer, consumer = last.get((kind, stage, microbatch)), first.get(consuming)
                if producer is not None and consumer is not None:
                    op = Op(kind, stage, microbatch, WHOLE)
                    needs[op] = Need(op, source, destination, producer, consumer)
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
                message = f"{token(op)} is needed by no other rank"
            elif pair != (need.source, need.destination):
                message = f"{token(op)} goes from rank {need.source} to rank {need.destination}, not from {pair[0]} to {pair[1]}"
            elif (receives, op) in carried:
                message = f"{token(op)} is a duplicate"
            else:
                carried.add((receives, op))
                continue
            yield f"{end.place}.transfers[{index}]", message
    for need in needs.values():
        for receives, rank, does in ((False, need.source, "sends"), (True, need.destination, "receives")):
            if (receives, need.op) not in carried:
                message = f"no channel {does} {token(need.op)}, which rank {need.destination} needs from rank {need.source}"
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
        found, expected = (token(ops[at]) if at < len(ops) else "its end" for ops in (received, sent))
        message = f"found {found}, but {sending[pair].place} has {expected} at this position; expected two equal lists"
        yield f"{end.place}.transfers[{at}]", message


@CHANNELS
def check_transfer_order(plan: Plan, needs: Mapping[Op, Need]) -> Found:
    """A sender's list has the order in which its compute queue produces the messages, for that is when they become ready."""
    for end in channel_ends(plan):
        if end.channel.receives:
            continue
        produced = [(needs[op].producer, index) for index, op in enumerate(end.channel.transfers) if op in needs]
        for (before, _), (after, index) in pairwise(produced):
            if after < before:
                message = f"{token(end.channel.transfers[index])} is produced before the transfer in front of it"
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
                message = f"{token(op)} is posted before op {post}, after op {needs[op].consumer}, which waits for it"
            else:
                continue
            yield f"{end.place}.post_before[{index}]", message


@CHANNELS
def check_collectives(plan: Plan, _: Mapping[Op, Need]) -> Found:
    """A rank gathers its stages' weights in the order of their first F, then reduces gradients in that of their last W or BW."""
    parallel = plan.problem.data_parallel
    for rank in plan.ranks:
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
