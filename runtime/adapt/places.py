"""Which process of a job has which place, a rank of a pipeline, and the process groups that follow from it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.common.groups import first_timeout
from schedc.spelling import counted


@dataclass(frozen=True, slots=True)
class Places:
    """The place of each process of the job: pipeline × ranks + rank."""

    ranks: int
    """Of a pipeline."""
    of_process: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse what is no assignment.

        Raises:
            InvalidInput: a place is missing or given twice, or the processes are no whole pipelines.
        """
        if sorted(self.of_process) != [*range(len(self.of_process))]:
            raise InvalidInput(
                f"places: found {list(self.of_process)}, expected each of the places 0 to {len(self.of_process) - 1} once"
            )
        if self.ranks < 1 or len(self.of_process) % self.ranks:
            raise InvalidInput(
                f"places: found {counted(len(self.of_process), 'process')}, expected whole pipelines of"
                f" {counted(self.ranks, 'rank')}"
            )

    @classmethod
    def in_order(cls, processes: int, ranks: int) -> Places:
        """Pipeline after pipeline, as a mesh (pipelines, ranks) numbers them."""
        return cls(ranks, tuple(range(processes)))

    @classmethod
    def of_hosts(cls, ranks: int, hosts: tuple[int, ...]) -> Places:
        """From the process that takes each place, as `schedc assign` prints them."""
        of_process = [-1] * len(hosts)
        for place, process in enumerate(hosts):
            if not 0 <= process < len(hosts):
                raise InvalidInput(f"hosts: found process {process}, expected 0 to {len(hosts) - 1}")
            of_process[process] = place
        return cls(ranks, tuple(of_process))

    def process_at(self, place: int) -> int:
        """The process that has a place."""
        return self.of_process.index(place)

    def pipeline(self, process: int) -> int:
        """The number of a process's pipeline."""
        return self.of_process[process] // self.ranks

    def rank(self, process: int) -> int:
        """The rank of a process in its pipeline."""
        return self.of_process[process] % self.ranks

    def check_groups(self) -> None:
        """Refuse an order of processes that torch cannot make a group of.

        Raises:
            Unsupported: this torch sorts the members of every group.
        """
        pipelines, replicas = self._sets()
        if not _can_keep_order() and any(members != sorted(members) for members in (*pipelines, *replicas)):
            raise Unsupported(
                "this version of torch sorts the members of process groups; give places in ascending order, or update torch"
            )

    def groups(self, timeout_s: float) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """This process's pipeline, and its replicas; all processes of the job call it together, and come at about the same time.

        Raises:
            RuntimeError: another process does not come.
        """
        own = dist.get_rank()
        made: list[dist.ProcessGroup] = []
        unsorted: Any = {"sort_ranks": False} if _can_keep_order() else {}
        for sets in self._sets():
            for members in sets:
                group = dist.new_group(members, timeout=first_timeout(timeout_s), **unsorted)
                if own in members:
                    _set_pg_timeout(timedelta(seconds=timeout_s), group)
                    made.append(group)
        pipeline, replicas = made
        return pipeline, replicas

    def _sets(self) -> tuple[list[list[int]], list[list[int]]]:
        """The processes of each pipeline, by rank; and of each rank, by pipeline."""
        processes = [self.process_at(place) for place in range(len(self.of_process))]
        pipelines = [processes[first : first + self.ranks] for first in range(0, len(processes), self.ranks)]
        return pipelines, [processes[rank :: self.ranks] for rank in range(self.ranks)]


def _can_keep_order() -> bool:
    """Whether torch can make groups whose members are in any order."""
    return "sort_ranks" in inspect.signature(dist.new_group).parameters
