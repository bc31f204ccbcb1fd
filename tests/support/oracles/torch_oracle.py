"""What torch's pipeline runtime makes of a `compute_comms` CSV, acted out: an oracle for the linter, written from torch's source.

Each rank walks its list (`_PipelineScheduleRuntime._step_microbatches`). A send or receive goes into a queue and blocks nobody; the
heads of two queues meet whatever they carry, as nothing is tagged; compute waits for the receive that it needs.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTION = re.compile(r"(\d+)(F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)(\d*)")
Item = tuple[str, int, str]


class Wrong(Exception):
    """Torch fails, hangs or computes something else than the model."""


class Rank:
    """One rank's list and state."""

    def __init__(self, index: int, cells: Sequence[str], rank_of: Sequence[int], microbatches: int) -> None:
        self.index, self.rank_of, self.microbatches = index, rank_of, microbatches
        self.todo = deque(part for cell in cells for part in self.split(cell))
        self.own = {stage for stage, rank in enumerate(rank_of) if rank == index}
        self.last = len(rank_of) - 1
        self.outbox: dict[str, str] = {}  # what F and backward made and nobody has taken yet
        self.came: dict[str, str] = {}  # receive -> what it got
        self.posted: set[str] = set()
        self.queues: dict[object, deque[Item]] = {}
        self.done: set[str] = set()
        self.losses = 0
        self.backwards = dict.fromkeys(self.own, 0)
        self.reduced: set[int] = set()
        self.gathered: set[int] = set()
        self.used: set[int] = set()

    @staticmethod
    def split(cell: str) -> list[str]:
        """The actions of a cell."""
        return cell[1 : cell.index(")")].split(";") if cell.startswith("(") else [cell]

    def put(self, level: int, way: str, stage: int, what: str) -> None:
        """Into a queue: of the direction, of the pair, or of the rank."""
        peer = self.rank_of[stage]
        key: object = (way, peer) if level == 1 else peer if level == 2 else "all"
        self.queues.setdefault(key, deque()).append((way, peer, what))

    def act(self, level: int, with_fsdp: bool) -> bool:
        """The next action, if nothing keeps it waiting."""
        match = ACTION.fullmatch(self.todo[0])
        assert match is not None
        stage, kind, microbatch = int(match[1]), match[2], match[3]
        self.require(stage in self.own, "a stage of another rank")
        if kind in ("UNSHARD", "RESHARD", "REDUCE_GRAD"):
            self.of_stage(kind, stage, with_fsdp)
        elif kind.startswith("RECV"):
            peer = stage - 1 if kind == "RECV_F" else stage + 1
            self.require(0 <= peer <= self.last and peer not in self.own, "a receive from nobody")
            self.require(self.todo[0] not in self.posted, "received twice")
            self.posted.add(self.todo[0])
            self.put(level, "recv", peer, self.todo[0])
        elif kind.startswith("SEND"):
            peer = stage + 1 if kind == "SEND_F" else stage - 1
            self.require(0 <= peer <= self.last and peer not in self.own, "a send to nobody")
            made = self.outbox.pop(f"{stage}{kind[-1]}{microbatch}", None)
            self.require(made is not None, "nothing to send")
            self.put(level, "send", peer, str(made))
        elif not self.compute(stage, kind, microbatch, with_fsdp):
            return False
        self.todo.popleft()
        return True

    def of_stage(self, kind: str, stage: int, with_fsdp: bool) -> None:
        if kind == "REDUCE_GRAD":
            self.require(self.backwards[stage] == self.microbatches and stage not in self.reduced, "not all gradients, or twice")
            self.reduced.add(stage)
        elif with_fsdp and kind == "UNSHARD":
            self.require(stage not in self.gathered, "gathered twice")
            self.gathered.add(stage)
        elif with_fsdp:
            self.require(stage in self.gathered and stage in self.used, "released what is not gathered or not used")
            self.gathered.discard(stage)
            self.used.discard(stage)

    def compute(self, stage: int, kind: str, microbatch: str, with_fsdp: bool) -> bool:
        name = f"{stage}{kind}{microbatch}"
        self.require(name not in self.done, "twice")
        if with_fsdp:
            self.require(stage in self.gathered, "not gathered")
            self.used.add(stage)
        if kind == "W":
            self.require(f"{stage}I{microbatch}" in self.done, "W before I")
        else:
            forward = kind == "F"
            neighbour, edge = (stage - 1, 0) if forward else (stage + 1, self.last)
            if not forward:
                self.require(f"{stage}F{microbatch}" in self.done, "backward before F")
                self.require(not self.went_back(stage, microbatch), "a second backward")
            if stage != edge:
                expected = f"{neighbour}{'F' if forward else 'B'}{microbatch}"
                if neighbour in self.own:
                    there = expected in self.done if forward else self.went_back(neighbour, microbatch)
                    self.require(there, "the stage beside it has not run")
                else:
                    receive = f"{stage}RECV_{'F' if forward else 'B'}{microbatch}"
                    self.require(receive in self.posted, "computes before receiving")
                    if receive not in self.came:
                        return False
                    self.require(self.came[receive] == expected, f"{receive} got {self.came[receive]}")
            if forward and stage == self.last:
                self.require(int(microbatch) == self.losses, "a loss under another microbatch's number")
                self.losses += 1
            self.outbox[f"{stage}{'F' if forward else 'B'}{microbatch}"] = f"{stage}{'F' if forward else 'B'}{microbatch}"
            if not forward:
                self.outbox.pop(f"{stage}F{microbatch}", None)  # fwd_cache.pop
        self.done.add(name)
        if kind in ("B", "W"):
            self.backwards[stage] += 1
        return True

    def went_back(self, stage: int, microbatch: str) -> bool:
        """Whether the gradient of the stage's input is there."""
        return f"{stage}B{microbatch}" in self.done or f"{stage}I{microbatch}" in self.done

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Wrong(f"rank {self.index} at {self.todo[0] if self.todo else 'the end'}: {what}")


def act_out(rows: Sequence[Sequence[str]], rank_of: Sequence[int], microbatches: int, level: int) -> None:
    """Run the lists with a queue for each direction of a pair (level 1), each pair (2) or each rank (3).

    Raises:
        Wrong: says what goes wrong.
    """
    with_fsdp = any("SHARD" in cell for row in rows for cell in row)
    ranks = [Rank(index, row, rank_of, microbatches) for index, row in enumerate(rows)]
    moved = True
    while moved:
        moved = False
        for rank in ranks:
            while rank.todo and rank.act(level, with_fsdp):
                moved = True
        for rank in ranks:
            for queue in rank.queues.values():
                moved |= _meet(ranks, rank, queue)
    for rank in ranks:
        rank.require(not rank.todo, "waits indefinitely")
        rank.require(not any(rank.queues.values()), "something never arrives")
        for stage in rank.own:
            rank.require(rank.backwards[stage] == microbatches and stage in rank.reduced, f"stage {stage} is not done")
        rank.require(not rank.gathered, "not released")


def _meet(ranks: Sequence[Rank], rank: Rank, queue: deque[Item]) -> bool:
    """Let the send at the head of a queue meet the receive at the head of its peer's."""
    met = False
    while queue and queue[0][0] == "send":
        _, peer, what = queue[0]
        heads = [other for other in ranks[peer].queues.values() if other and other[0][:2] == ("recv", rank.index)]
        if not heads:
            break
        ranks[peer].came[heads[0].popleft()[2]] = what
        queue.popleft()
        met = True
    return met
