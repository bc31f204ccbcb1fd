"""What must hold for the actions of a CSV of PyTorch's: its compute, and in `compute_comms` what is beside it.

Takes the action lists; gives every finding. Torch's loader (`_validate_schedule`) counts how many different microbatches of F each
stage has, and how many of B or of I with W. It does not see duplicates, nor that a backward is missing while another microbatch has
both kinds. At the others it does not look: REDUCE_GRAD costs right gradients, UNSHARD and RESHARD fail with FSDP only. Torch tags
no message: what a rank receives from another is what that one sent next, and c10d may queue both directions of a pair as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from schedc.formats.torch_csv.lint.actions import COMPUTE, TRANSFERS, Action, Finding, Lists
from schedc.ir import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_placement(lists: Lists, problem: Problem) -> Iterator[Finding]:
    """A stage's actions are in one row, that of the stage's rank in the job."""
    for row in lists.rows:
        seen: set[int] = set()
        for action in row:
            rank = problem.stages[action.stage].rank
            if action.row != rank and action.stage not in seen:
                seen.add(action.stage)
                yield action.finding("placement", f"stage {action.stage} is on rank {rank} in the job (row {rank + 1})")


def check_duplicates(lists: Lists) -> Iterator[Finding]:
    """There is no duplicate action; but a stage may be gathered again after it was released (`check_unshard`)."""
    for row in lists.rows:
        for action in row:
            first = lists.at[action.key]
            if first is not action and action.kind not in ("UNSHARD", "RESHARD"):
                yield action.finding("duplicate", f"it is a duplicate, first in {first.place}")


def check_backward_kinds(lists: Lists) -> Iterator[Finding]:
    """A microbatch has one backward on a stage: B, or I with W."""
    for (kind, stage, microbatch), action in lists.at.items():
        whole = lists.at.get(("B", stage, microbatch))
        if kind in ("I", "W") and whole is not None:
            yield action.finding("duplicate", f"a second backward beside {whole.name} in {whole.place}")


def check_coverage(lists: Lists) -> Iterator[Finding]:
    """Every microbatch goes forward and backward through every stage."""
    for stage in range(lists.stages):
        if stage not in lists.rank_of:
            yield Finding("missing", None, None, f"{stage}F0", f"stage {stage} is in no row")
            continue
        for microbatch in range(lists.microbatches):
            has = {kind: (kind, stage, microbatch) in lists.at for kind in COMPUTE}
            if not has["F"]:
                yield lists.missing("F", stage, microbatch, "it is missing")
            if not has["B"] and not has["I"] and not has["W"]:
                yield lists.missing("B", stage, microbatch, f"microbatch {microbatch} has no backward on stage {stage}")
            elif not has["B"] and not has["W"]:
                yield lists.missing("W", stage, microbatch, f"{stage}I{microbatch} has no W")
            elif not has["B"] and not has["I"]:
                yield lists.missing("I", stage, microbatch, f"{stage}W{microbatch} has no I")


def check_compute_order(lists: Lists) -> Iterator[Finding]:
    """In a row, F is before the backward, I before W, and each after what it needs from another stage of the same rank."""
    for (kind, stage, microbatch), action in lists.at.items():
        if kind not in COMPUTE or microbatch is None:
            continue
        for needed in _needed_here(lists, kind, stage, microbatch):
            if needed is not None and needed.row == action.row and needed.position > action.position:
                yield action.finding("order", f"it needs {needed.name}, which is after it, in cell {needed.cell + 1}")


def _needed_here(lists: Lists, kind: str, stage: int, microbatch: int) -> tuple[Action | None, ...]:
    if kind == "F":
        return (lists.at.get(("F", stage - 1, microbatch)),)
    if kind == "W":
        return (lists.at.get(("I", stage, microbatch)),)
    return lists.at.get(("F", stage, microbatch)), lists.backward(stage + 1, microbatch)


def check_loss_order(lists: Lists) -> Iterator[Finding]:
    """The last stage's forwards run in the order of the microbatches: torch lists their losses as they come."""
    last = lists.stages - 1
    forwards = [action for (kind, stage, _), action in lists.at.items() if (kind, stage) == ("F", last)]
    for place, action in enumerate(sorted(forwards, key=lambda one: one.position)):
        if action.microbatch != place:
            message = f"it is forward number {place} of the last stage, and torch takes its loss for that of microbatch {place}"
            yield action.finding("loss-order", message)
            return


def check_reduce_grad(lists: Lists) -> Iterator[Finding]:
    """Each stage has its REDUCE_GRAD after its last W or B: there torch divides by the microbatches, and FSDP reduces."""
    for stage, rank in sorted(lists.rank_of.items()):
        reduce = lists.at.get(("REDUCE_GRAD", stage, None))
        if reduce is None:
            message = f"it is missing: the gradients stay {lists.microbatches} times too large, and FSDP does not reduce them"
            yield lists.missing("REDUCE_GRAD", stage, None, message, "reduce-grad")
            continue
        if reduce.row != rank:
            continue  # `check_placement` names it
        after = lists.rows[reduce.row][reduce.position :]
        late = [action for action in after if action.kind in ("W", "B") and action.stage == stage]
        if late:
            message = f"{late[0].name} in cell {late[0].cell + 1} comes after it, and what it adds is not divided or reduced"
            yield reduce.finding("reduce-grad", message)


def check_unshard(lists: Lists) -> Iterator[Finding]:
    """A stage computes between its UNSHARD and its RESHARD, if the CSV has any of them; without FSDP none is needed."""
    if not any(action.kind in ("UNSHARD", "RESHARD") for row in lists.rows for action in row):
        return
    for row in lists.rows:
        gathered: dict[int, Action] = {}
        used: set[int] = set()
        named: set[int] = set()
        for action in row:
            stage = action.stage
            if action.kind == "UNSHARD":
                if stage in gathered:
                    yield action.finding("unshard", f"stage {stage} is gathered already, since {gathered[stage].place}; FSDP fails")
                gathered[stage] = action
            elif action.kind == "RESHARD":
                if gathered.pop(stage, None) is None:
                    yield action.finding("unshard", f"stage {stage} is not gathered; FSDP fails")
                elif stage not in used:
                    yield action.finding("unshard", f"stage {stage} has not computed since its UNSHARD; FSDP fails")
                used.discard(stage)
            elif action.kind in COMPUTE:
                used.add(stage)
                if stage not in gathered and stage not in named:
                    named.add(stage)
                    yield action.finding("unshard", f"stage {stage} is not gathered here: no UNSHARD before it; FSDP fails")
        for stage, action in gathered.items():
            message = f"stage {stage} is not released at the end: no RESHARD after it; FSDP fails in the next step"
            yield action.finding("unshard", message)


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


def check_messages(lists: Lists) -> Iterator[Finding]:
    """Every message that must cross ranks is sent after the action that makes it, and received before the one that needs it."""
    for message in messages(lists):
        send, receive, consumer = lists.at.get(message.send), lists.at.get(message.receive), consumer_of(lists, message)
        producer = _computes(lists, message.kind, message.stage, message.microbatch)
        if send is None:
            yield lists.missing(*message.send, f"it is missing, and rank {lists.rank_of[message.to]} waits for it indefinitely")
        elif producer and send.row == producer.row and producer.position > send.position:
            where = f"which is after it, in cell {producer.cell + 1}"
            yield send.finding("send-order", f"it sends what {producer.name} makes, {where}")
        if receive is None:
            needs = f"{consumer.name} ({consumer.place}) has" if consumer else "torch has"
            yield lists.missing(*message.receive, f"it is missing, and {needs} nothing to compute on")
        elif consumer and receive.row == consumer.row and receive.position > consumer.position:
            yield consumer.finding("receive-order", f"it needs {receive.name}, which is after it, in cell {receive.cell + 1}")


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
