"""What must hold for the sends and receives of a `compute_comms` CSV of PyTorch's.

Takes the action lists; gives every finding. Torch tags no message: what a rank receives from another is what that one sent next,
and c10d may queue both directions of a pair as one. The loader looks at none of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from schedc.formats.torch_csv.lint.actions import TRANSFERS, Action, Finding, Lists

if TYPE_CHECKING:
    from collections.abc import Iterator


class LintedMessage(NamedTuple):
    """What crosses from one rank to another, named by its producer: `F` of a stage or the gradient `B` that a stage sends back."""

    kind: str
    stage: int
    microbatch: int

    @property
    def to(self) -> int:
        """The stage that needs it."""
        return self.stage + (1 if self.kind == "F" else -1)

    @property
    def send(self) -> tuple[str, int, int]:
        """The action that sends it."""
        return (f"SEND_{self.kind}", self.stage, self.microbatch)

    @property
    def receive(self) -> tuple[str, int, int]:
        """The action that receives it."""
        return (f"RECV_{self.kind}", self.to, self.microbatch)

    @property
    def name(self) -> str:
        """As its two actions, `0SEND_F1/1RECV_F1`."""
        return "/".join(f"{stage}{kind}{microbatch}" for kind, stage, microbatch in (self.send, self.receive))


def messages(lists: Lists) -> Iterator[LintedMessage]:
    """The messages that must cross ranks, for the stages that have a row."""
    for stage in range(lists.stages - 1):
        if lists.crosses(stage, stage + 1):
            for microbatch in range(lists.microbatches):
                yield LintedMessage("F", stage, microbatch)
                yield LintedMessage("B", stage + 1, microbatch)


def message_of(action: Action) -> LintedMessage | None:
    """The message that an action sends or receives; None for any other action."""
    if action.kind not in TRANSFERS or action.microbatch is None:
        return None
    direction = action.kind[-1]
    back = 0 if action.kind.startswith("SEND") else -1 if direction == "F" else 1
    return LintedMessage(direction, action.stage + back, action.microbatch)


def other_end(action: Action, message: LintedMessage) -> int:
    """The stage at the other end of a message that the action sends or receives."""
    return message.to if action.kind.startswith("SEND") else message.stage


def check_transfers(lists: Lists) -> Iterator[Finding]:
    """Every rule but the order in which two ranks list what passes between them."""
    for check in (check_neighbours, check_transfers_present, check_receive_order, check_send_order):
        yield from check(lists)


def check_neighbours(lists: Lists) -> Iterator[Finding]:
    """A send or receive goes to a neighbouring stage that exists and is on another rank."""
    for row in lists.rows:
        for action in row:
            message = message_of(action)
            if message is None:
                continue
            other = other_end(action, message)
            if not 0 <= other < lists.stages:
                end = "last" if other >= lists.stages else "first"
                yield action.finding("no-neighbour", f"the {end} stage has no neighbour there; torch sends and receives nothing")
            elif other in lists.rank_of and not lists.crosses(action.stage, other):
                where = f"stages {action.stage} and {other} are on one rank"
                yield action.finding("same-rank", f"{where}; torch needs no transfer there and fails at this action")


def check_transfers_present(lists: Lists) -> Iterator[Finding]:
    """Every message that must cross ranks is sent and received."""
    for message in messages(lists):
        if message.send not in lists.at:
            yield lists.missing(*message.send, f"it is missing, and rank {lists.rank_of[message.to]} waits for it indefinitely")
        if message.receive not in lists.at:
            consumer = consumer_of(lists, message)
            needs = f"{consumer.name} ({consumer.place}) has" if consumer else "torch has"
            yield lists.missing(*message.receive, f"it is missing, and {needs} nothing to compute on")


def check_receive_order(lists: Lists) -> Iterator[Finding]:
    """A receive is before the action that needs it."""
    for message in messages(lists):
        receive, consumer = lists.at.get(message.receive), consumer_of(lists, message)
        if receive and consumer and receive.row == consumer.row and not lists.runs_before(receive, consumer):
            yield consumer.finding("receive-order", f"it needs {receive.name}, which is after it, in cell {receive.cell + 1}")


def check_send_order(lists: Lists) -> Iterator[Finding]:
    """A send is after the action that makes its message."""
    for message in messages(lists):
        send, producer = lists.at.get(message.send), _computes(lists, message.kind, message.stage, message.microbatch)
        if send and producer and send.row == producer.row and not lists.runs_before(producer, send):
            where = f"which is after it, in cell {producer.cell + 1}"
            yield send.finding("send-order", f"it sends what {producer.name} makes, {where}")


def consumer_of(lists: Lists, message: LintedMessage) -> Action | None:
    """The action that needs the message."""
    return _computes(lists, message.kind, message.to, message.microbatch)


def _computes(lists: Lists, kind: str, stage: int, microbatch: int) -> Action | None:
    """The forward, or what computes the gradient of the stage's input."""
    return lists.at.get(("F", stage, microbatch)) if kind == "F" else lists.backward(stage, microbatch)


def check_pair_order(lists: Lists) -> Iterator[Finding]:
    """Both ranks of a pair list what passes between them in the same order, in each direction and over both.

    In one direction it must be so because nothing is tagged; over both because c10d's NCCL has one queue for each pair of ranks.
    """
    ends = _ends(lists)
    for low, high in sorted({(min(pair), max(pair)) for pair in ends}):
        mine, theirs = ends.get((low, high), []), ends.get((high, low), [])
        swapped = False
        for source, destination, sent, received in (
            (low, high, _only(mine, "SEND"), _only(theirs, "RECV")),
            (high, low, _only(theirs, "SEND"), _only(mine, "RECV")),
        ):
            for (message, send), (taken, receive) in zip(sent, received, strict=False):
                if message != taken:
                    swapped = True
                    yield receive.finding(
                        "pair-order",
                        f"it takes what rank {source} sends next, which is {send.name} ({send.place}); torch tags nothing, and rank"
                        f" {destination} computes on wrong data without an error",
                    )
                    break
        if swapped:
            continue
        for (message, here), (other, there) in zip(mine, theirs, strict=False):
            if message != other:
                yield here.finding(
                    "pair-order",
                    f"it comes next here between ranks {low} and {high}, but {there.name} ({there.place}) there; NCCL's one queue"
                    " for the pair hangs as soon as a message is larger than its buffer",
                )
                break


Ends = dict[tuple[int, int], list[tuple[LintedMessage, Action]]]


def _ends(lists: Lists) -> Ends:
    """Per rank and peer, what passes between them in the order of the rank's list."""
    ends: Ends = {}
    needed = set(messages(lists))
    for row in lists.rows:
        for action in row:
            message = message_of(action)
            if message in needed:
                other = other_end(action, message)
                ends.setdefault((action.row, lists.rank_of[other]), []).append((message, action))
    return ends


def _only(end: list[tuple[LintedMessage, Action]], way: str) -> list[tuple[LintedMessage, Action]]:
    return [entry for entry in end if entry[1].kind.startswith(way)]
