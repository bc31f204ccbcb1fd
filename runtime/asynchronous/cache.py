"""Versions of weights in the host's memory, where the device has no room for all of them (DynPipe, section IV.C.4).

A version that no op needs for now leaves the device: its tensors stay, and so do the views of them that autograd has saved, but
their storages are empty until it comes back. Which op reads which version follows from the rank's queue, which is known: so the
version that goes is the one whose next reader is the farthest away (Belady), and the one that comes back first is the one that is
read next. That is begun while the op before it runs: on a GPU from pinned memory on a stream of its own; on a CPU, which is its own
host, it is a plain copy (what is counted is the same).

What an op needs is there whatever the limit says: one version for F and backwards, two for an update that is not made in place.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from schedc.ir import Kind, Versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schedc.ir import Op, Updates


Tensors = list[torch.Tensor]


class Owner(Protocol):
    """The weights of a stage."""

    stage: int

    def names_of(self, memory: Tensors) -> tuple[list[int], bool]:
        """Which versions these tensors are, and whether the next update is made of them."""


@dataclass(eq=False, slots=True)
class _Entry:
    """The tensors of a version."""

    owner: Owner
    memory: Tensors
    size_bytes: int
    host: list[torch.Tensor] | None = None
    """Their bytes, while they are not on the device."""
    ready: torch.cuda.Event | None = None
    """When they have come back to a GPU."""


class VersionCache:
    """Which versions of a rank's stages are on the device; `StageOptimizers(device_bytes=…)` makes it."""

    def __init__(self, limit_bytes: float) -> None:
        """Take `limit_bytes`."""
        self.limit_bytes = limit_bytes
        """The most bytes of weights' versions on the device, the newest included. It may be changed at any time, in any thread: the
        next op of a run keeps to it."""
        self.pressed_bytes = math.inf
        """The same, from a watch of free memory (`schedc.runtime.adapt.memory_pressure`): the less of both counts."""
        self.device_bytes = 0
        """On the device now."""
        self.peak_bytes = 0
        """The most so far."""
        self.evicted = 0
        """How many versions have gone to the host."""
        self.waited_for = 0
        """How many ops have found what they read on the host, and not come back before."""
        self._entries: dict[int, _Entry] = {}
        """By `id` of the list of tensors."""
        self._side: torch.cuda.Stream | None = None

    def begin(self, queue: Iterable[Op], updates: Updates) -> None:
        """Before a run: where in a rank's queue each version is read."""
        self._at = -1
        self._reads: dict[tuple[int, int], list[int]] = {}
        """By stage and version, the places of its readers."""
        self._updates: dict[int, list[int]] = {}
        """By stage, those of its updates."""
        newest, read = dict[int, int](), dict[tuple[int, int], int]()
        for at, op in enumerate(queue):
            if op.kind is Kind.U:
                self._updates.setdefault(op.stage, []).append(at)
                newest[op.stage] = op.microbatch
                continue
            version = newest.get(op.stage, -1)
            if updates.versions is Versions.TWO_BUFFERED:
                version = max(op.microbatch // updates.microbatches - 2, -1)
            elif updates.versions is Versions.STASH:
                version = read.setdefault((op.stage, op.microbatch), version)
            self._reads.setdefault((op.stage, version), []).append(at)

    def next_op(self) -> None:
        """The rank's next op begins."""
        self._at += 1

    def add(self, owner: Owner, memory: Tensors) -> None:
        """Tensors on the device, each with all of its storage, are a version of a stage now; again does nothing."""
        if id(memory) not in self._entries:
            size_bytes = sum(tensor.untyped_storage().nbytes() for tensor in memory)
            self._entries[id(memory)] = _Entry(owner, memory, size_bytes)
            self._count(size_bytes)

    def keep(self, owner: Owner, memories: Sequence[Tensors]) -> None:
        """Of a stage, these are left."""
        left = {*map(id, memories)}
        for key, entry in [*self._entries.items()]:
            if entry.owner is owner and key not in left:
                del self._entries[key]
                if entry.host is None:
                    self._count(-entry.size_bytes)

    def need(self, *memories: Tensors, copies: int = 0) -> None:
        """Have these on the device, with room for this many copies of the first; begin to bring what is read next."""
        needed = [self._entries[id(memory)] for memory in memories]
        more_bytes = copies * needed[0].size_bytes
        for entry in needed:
            if entry.host is not None:
                self.waited_for += 1
                self._make_room(entry.size_bytes, needed, math.inf)
                self._bring(entry)
            if entry.ready is not None:
                torch.cuda.current_stream(entry.memory[0].device).wait_event(entry.ready)
                entry.ready = None
        self._make_room(more_bytes, needed, math.inf)
        away = [entry for entry in self._entries.values() if entry.host is not None]
        following = min(away, key=self._next_use, default=None)
        before = math.inf if following is None else self._next_use(following)
        if following is not None and before < math.inf and self._make_room(following.size_bytes + more_bytes, needed, before):
            self._bring(following)

    def _next_use(self, entry: _Entry) -> float:
        """The place of the next op that reads an entry; infinite: there is none."""
        versions, updated = entry.owner.names_of(entry.memory)
        places = [self._reads.get((entry.owner.stage, version), ()) for version in versions]
        if updated:
            places.append(self._updates.get(entry.owner.stage, ()))
        found = [each[first] for each in places if (first := bisect_left(each, self._at + 1)) < len(each)]
        return min(found, default=math.inf)

    def _make_room(self, size_bytes: int, needed: Sequence[_Entry], before: float) -> bool:
        """Send versions to the host until there is this much room, the farthest first; whether there is.

        What is `needed` stays. Of the rest all may go if `before` is infinite, else only what is read later than this place.
        """
        while self.device_bytes + size_bytes > min(self.limit_bytes, self.pressed_bytes):
            there = [entry for entry in self._entries.values() if entry.host is None and entry not in needed]
            victim = max(there, key=self._next_use, default=None)
            if victim is None or (before < math.inf and self._next_use(victim) <= before):
                return False
            self._send(victim)
        return True

    def _send(self, entry: _Entry) -> None:
        """To the host."""
        device = entry.memory[0].device
        flat = [_bytes_of(tensor) for tensor in entry.memory]
        entry.host = [torch.empty(one.numel(), dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda") for one in flat]
        self._copy(entry.host, flat, device)
        if device.type == "cuda":  # the memory is the compute stream's again once the copy has read it
            torch.cuda.current_stream(device).wait_stream(self._stream(device))
        for tensor in entry.memory:
            tensor.untyped_storage().resize_(0)
        entry.ready = None
        self.evicted += 1
        self._count(-entry.size_bytes)

    def _bring(self, entry: _Entry) -> None:
        """Back to the device."""
        assert entry.host is not None
        device = entry.memory[0].device
        for tensor, host in zip(entry.memory, entry.host, strict=True):
            tensor.untyped_storage().resize_(host.numel())
        self._copy([_bytes_of(tensor) for tensor in entry.memory], entry.host, device)
        if device.type == "cuda":
            entry.ready = self._stream(device).record_event()
        entry.host = None
        self._count(entry.size_bytes)

    def _copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], device: torch.device) -> None:
        """From host or device to the other; on a GPU beside the compute stream, after what that has begun."""
        if device.type == "cuda":
            side = self._stream(device)
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for target, source in zip(targets, sources, strict=True):
                    target.copy_(source, non_blocking=True)
        else:
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if self._side is None:
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._side

    def _count(self, size_bytes: int) -> None:
        self.device_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.device_bytes)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its storage as bytes: a tensor that counts its changes by itself, so that autograd does not object."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
