"""The process groups of a pipe: one of two ranks for each wire, one for each set of replicas' ranks, one of all ranks.

A rank here is the plan's: its place in the pipeline's group, which is the default group unless the job gives another. The groups
are gloo's own, not registered with `torch.distributed`: only their members make them, however many pipelines a job has.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store, _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from schedc.errors import CheckFailed, InvalidInput, SchedcError
from schedc.runtime.common.failure import TransferFailed, is_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch._C._distributed_c10d import Store

T = TypeVar("T")

_LOADS: Counter[str] = Counter()
"""How often this process has opened groups with the same processes, so that every time has its own keys in the store."""


def share(group: dist.ProcessGroup, value: T) -> list[T]:
    """What every rank of a group over gloo gives, by rank. None leaves before all have it, so that each may close what it has.

    Gloo lets a wait fail for which all has come, where the connection is closed before the thread that waits looks.

    Raises:
        RuntimeError: another rank has ended or does not give anything.
    """
    own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(group.size())]
    group.allgather([sizes], [torch.tensor([own.numel()], device="cpu")]).wait()
    longest = max(int(size) for size in sizes)
    given = [torch.zeros(longest, dtype=torch.uint8, device="cpu") for _ in range(group.size())]
    group.allgather([given], [torch.nn.functional.pad(own, (0, longest - own.numel()))]).wait()
    with suppress(RuntimeError):  # it is closed by a rank that knows that this one has all
        group.barrier().wait()
    return [pickle.loads(payload.numpy().tobytes()[: int(size)]) for payload, size in zip(given, sizes, strict=True)]


def first_timeout(timeout_s: float) -> timedelta:
    """The timeout to connect a group with whose members are known to be there: gloo waits five times as long for a connection."""
    return timedelta(seconds=max(timeout_s / 5, 2.0))


def meet(store: Store, rank: int, ranks: Iterable[int], timeout_s: float) -> timedelta:
    """Wait until all of these ranks are there, this one among them; then the timeout to connect a group of them with.

    Raises:
        RuntimeError: one does not come within `timeout_s`.
    """
    store.set(f"here/{rank}", "")
    store.wait([f"here/{each}" for each in ranks], timedelta(seconds=timeout_s))
    return first_timeout(timeout_s)


def make_default_group(timeout_s: float) -> None:
    """Make the default group from the environment; as `meet` and `first_timeout` say, a process that has ended is not waited for.

    Raises:
        ValueError: the environment says nothing of a job.
        RuntimeError: a process does not come.
    """
    store, rank, size = next(iter(rendezvous("env://", timeout=timedelta(seconds=timeout_s))))
    first = meet(PrefixStore("schedc/default", store), rank, range(size), timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=first)
    _set_pg_timeout(timedelta(seconds=timeout_s))


class Groups:
    """Process groups over gloo, closed together."""

    def __init__(self, timeout_s: float, pipeline: dist.ProcessGroup | None = None, name: str = "pipeline_group") -> None:
        """Join the pipeline's group; make the default group from the environment (torchrun) where there is none yet.

        Args:
            timeout_s: how long to wait for another rank.
            pipeline: the ranks of the plan, in order; None: all processes of the job are.
            name: what the caller of `load` knows the group as.

        Raises:
            InvalidInput: there is no default group, nor an environment to make one from; or this process is not in the pipeline's.
            TransferFailed: another rank does not come.
        """
        self.timeout_s = timeout_s
        self.name = name
        self._made: list[dist.ProcessGroup] = []
        self._owns_default = not dist.is_initialized()
        if self._owns_default:
            try:
                make_default_group(timeout_s)
            except ValueError as error:
                raise InvalidInput(
                    f"no process group: {error}; start with torchrun, or call torch.distributed.init_process_group before load"
                ) from error
            except RuntimeError as error:
                raise TransferFailed(f"a rank meets the others: {self._absent()}") from error
        self.rank = dist.get_rank(pipeline)
        self.size = dist.get_world_size(pipeline)
        if self.rank < 0:
            raise InvalidInput(f"process {dist.get_rank()} is not in the {name} given to load; call load on its members only")
        members = hashlib.sha256(repr(dist.get_process_group_ranks(pipeline)).encode()).hexdigest()
        _LOADS[members] += 1
        self.key = f"schedc/{members}/{_LOADS[members]}"  # of what is theirs in the job's store
        self.store = PrefixStore(self.key, _get_default_store())
        """Where the ranks of this pipeline, and they alone, can leave values for each other."""
        self.beside: Sequence[Groups] = ()
        """Those of this process to other pipelines, if any."""
        self._names: Counter[tuple[int, ...]] = Counter()
        try:
            self.all = self.make(range(self.size))
        except BaseException:
            self.close()
            raise

    def make(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """A group of these ranks, this one among them; all of them make it, in the same order among the groups they share.

        Raises:
            TransferFailed: another rank does not come.
        """
        members = tuple(sorted(ranks))
        store, timeout = self.store_of(members), timedelta(seconds=self.timeout_s)
        try:
            first = meet(store, self.rank, members, self.timeout_s)
            made = dist.ProcessGroupGloo(store, members.index(self.rank), len(members), first)
            made._set_default_timeout(timeout)
        except RuntimeError as error:
            raise TransferFailed(f"rank {self.rank} connects the ranks {', '.join(map(str, members))}: {self._absent()}") from error
        self._made.append(cast("dist.ProcessGroup", made))  # a backend has a group's methods, which torch's stubs do not know
        return self._made[-1]

    def store_of(self, ranks: Sequence[int]) -> Store:
        """A part of the store for the next group of these ranks; all of them ask for it, in the order of `make`."""
        members = tuple(sorted(ranks))
        self._names[members] += 1
        return PrefixStore(f"{'-'.join(map(str, members))}/{self._names[members]}", self.store)

    def exchange(self, value: T, what: str = "what the others say") -> list[T]:
        """What every rank gives, by rank; `what` that is, for messages.

        Raises:
            TransferFailed: another rank does not give anything.
        """
        try:
            return share(self.all, value)
        except RuntimeError as error:
            if is_own(error):
                raise
            raise TransferFailed(f"rank {self.rank} waits for {what}: {self._absent()}") from error

    def everywhere(self, value: T, what: str = "what the others say") -> list[T]:
        """What every process gives that has connections to this one, in all pipelines; all processes call it together.

        Raises:
            TransferFailed: another one does not give anything.
        """
        return [given for groups in (self, *self.beside) for given in groups.exchange(value, what)]

    def all_or_none_everywhere(self, work: Callable[[], T], what: str = "what the others say") -> T:
        """As `all_or_none`, over all pipelines that are connected; all processes call it together."""
        work = partial(self.all_or_none, work, what=what)
        for others in self.beside:
            work = partial(others.all_or_none, work, who="pipeline", what=what)
        return work()

    def all_or_none(
        self, work: Callable[[], T], refused: str = "has refused", who: str = "rank", what: str = "what the others say"
    ) -> T:
        """What this rank makes, if all ranks can make theirs; `who` they are and `what` is waited for, for messages.

        Raises:
            SchedcError: this rank's refusal; or another's, `rank 2 has refused: …`.
            TransferFailed: another rank does not say whether it can.
        """
        made: list[T] = []
        refusal: SchedcError | None = None
        try:
            made.append(work())
        except SchedcError as error:
            refusal = error
        reasons = self.exchange(None if refusal is None else str(refusal), what)
        if refusal is not None:
            raise refusal
        for rank, reason in enumerate(reasons):
            if reason is not None:
                raise CheckFailed(f"{who} {rank} {refused}: {reason}")
        return made[0]

    def _absent(self) -> str:
        """Why a rank may not have come."""
        late = f"it came more than {self.timeout_s:g} s later, the timeout_s given to load"
        return f"another rank has ended or failed, and its own message says why, or {late}"

    def close(self) -> None:
        """Close all connections that were made here, at once: peers that wait on them see it. Closing again does nothing."""
        while self._made:
            self._made.pop().shutdown()
        if self._owns_default and dist.is_initialized():
            dist.destroy_process_group()
