"""What a rank does when its free memory becomes little, before an allocation fails (DynPipe, section V.B).

A thread of each rank looks at the free memory. On a warning it lowers what the cache of weights' versions may have on the device,
which the step's thread keeps to from its next op on; asks all ranks to go on with a plan that was made before and holds fewer
microbatches at a time; and tells the job, which may move layers off the rank (`runtime.adapt.state_transfer`).

Fewer microbatches under way is another plan, and not a forward that a rank holds back: whether ranks that hold back wait for each
other depends on all queues, and a plan has been verified. The number of plans that ranks have gone on with, their *level*, is a
counter in the job's store, of all ranks that move together. A rank under pressure raises it by one, from the level that it has
reached itself: two ranks that warn at a time raise it once. Each rank offers the plans one after the other, which the pipe moves to
between two steps. A watch begins at the level that the one before it has ended at, and ends at the same as those of the others: no
rank is left that waits for another one's offer.
"""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.common.failure import TransferFailed
from schedc.runtime.transports.choice import stage_device
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from schedc.ir import Plan
    from schedc.runtime.session.pipe import Pipe
    from schedc.runtime.session.swap import Swap

LEVEL = "memory_pressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureEvent:
    """One warning, and what was done."""

    rank: int
    at_ns: int
    """On `time.perf_counter_ns` of the rank's process."""
    free_bytes: int
    lacking_bytes: int
    """How much less than the least that is to be free."""
    versions_bytes: float | None
    """What the versions of weights on the device may have from now on; None: there is no cache."""
    plan: str | None
    """The plan that all ranks are asked to go on with; None: none is left, or the one before is still pending."""

    def __str__(self) -> str:
        """One line."""
        done = [] if self.versions_bytes is None else [f"versions keep to {format_bytes(math.ceil(self.versions_bytes))}"]
        done += [] if self.plan is None else [f"ranks go on with plan {self.plan!r}"]
        found = (
            f"rank {self.rank} has {format_bytes(self.free_bytes)} of memory left, {format_bytes(self.lacking_bytes)} too little"
        )
        return f"{found}; {', '.join(done) or 'nothing is left to do'}"


class MemoryWatch:
    """That of one rank; use it as a context manager around the steps.

    All ranks make one together, with the same plans, between the same two steps, and leave it together.
    """

    def __init__(
        self,
        pipe: Pipe,
        *,
        least_free_bytes: int,
        free_bytes: Callable[[], int] | None = None,
        plans: Sequence[Plan | Path | str] = (),
        on_warning: Callable[[PressureEvent], object] | None = None,
        look_s: float = 0.02,
    ) -> None:
        """Take the rank.

        Args:
            pipe: of the rank.
            least_free_bytes: a warning is where less than this is free.
            free_bytes: says how much is; None: `free_memory` of the stages' device.
            plans: of the same stages, each with less memory than the one before; the first has less than the plan that runs.
            on_warning: is called with each, in the watch's thread.
            look_s: how often to look.

        Raises:
            SchedcError: on all ranks: a number is out of range, they have other numbers of plans, or free memory is not known here.
            TransferFailed: another rank has ended, or makes no watch.
        """
        device = stage_device(pipe.stages)
        self.events: list[PressureEvent] = []
        """All warnings of this rank."""
        self._pipe, self._least, self._plans, self._on_warning = pipe, least_free_bytes, plans, on_warning
        self._free = free_bytes or (lambda: free_memory(device))
        self._look_s = look_s
        optimizers = getattr(pipe, "optimizers", None)
        self._cache = None if optimizers is None else optimizers.cache
        self._pressed = False
        self._store = pipe.groups.store if pipe.swap_group is None else pipe._made_swapper().store
        self._first_level = self._level = self._store.add(LEVEL, 0)
        """What ranks had reached before, and how much further this one has offered plans."""
        self.swap: Swap | None = None
        """The last move that this rank has offered, and what has become of it; None: none yet."""
        self._ending = Event()
        self._thread = Thread(target=self._run, name="schedc memory watch", daemon=True)
        numbers = pipe.groups.everywhere(len(plans))

        def check() -> None:
            if least_free_bytes < 0 or not 0 < look_s < math.inf:
                raise InvalidInput(
                    f"found least_free_bytes={least_free_bytes} and look_s={look_s}, expected numbers from 0 and above 0"
                )
            if len({*numbers}) > 1:
                raise InvalidInput(
                    f"found {len(plans)} plans on one rank and {sorted({*numbers} - {len(plans)})[0]} on another,"
                    " expected the same on all"
                )
            self._free()

        pipe.groups.all_or_none_everywhere(check)

    def __enter__(self) -> MemoryWatch:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End; without an error on the level that the others end on."""
        self._ending.set()
        self._thread.join()
        if kind is None and self._pipe.is_open:
            self._pipe.groups.everywhere(None)  # no other rank looks any more
            if self._level < self._store.add(LEVEL, 0):
                with suppress(InvalidInput):  # a swap of the job's own is pending
                    self._offer()

    def look(self) -> None:
        """Look once, as the thread does every `look_s`.

        Raises:
            InvalidInput: another swap is pending, or the pipe is closed.
            TransferFailed: the job's store is lost; a RuntimeError as well.
        """
        free_bytes, device_bytes = self._seen()
        level, event = self._store.add(LEVEL, 0), None
        lacking_bytes = self._least - free_bytes
        if lacking_bytes > 0:
            if self._cache is not None:
                self._cache.pressed_bytes = min(
                    self._cache.limit_bytes, self._cache.pressed_bytes, max(0, device_bytes - lacking_bytes)
                )
            if not self._pressed or self._may_go_on(level):
                event = self._event(free_bytes, lacking_bytes, level)
                level = self._store.add(LEVEL, 0)
            self._pressed = True
        else:
            self._pressed = False
            if self._cache is not None and -lacking_bytes + device_bytes >= self._cache.peak_bytes:  # there is room for all again
                self._cache.pressed_bytes = math.inf
        try:
            if self._level < level and not self._is_moving():
                self._offer()
        finally:  # the job's function, and what Python does of a warning, may fail
            if event is not None:
                self._tell(event)

    def _offer(self) -> None:
        """Go on with the next plan, as another rank does."""
        self.swap = self._pipe.swap(self._plans[self._level - self._first_level])
        self._level += 1

    def _seen(self) -> tuple[int, int]:
        """What is free, and what versions have at that time: again where an op has changed that meanwhile."""
        while True:
            device_bytes = 0 if self._cache is None else self._cache.device_bytes
            free_bytes = self._free()
            if self._cache is None or self._cache.device_bytes == device_bytes:
                return free_bytes, device_bytes

    def _event(self, free_bytes: int, lacking_bytes: int, level: int) -> PressureEvent:
        """A warning; all ranks are asked to go on with the next plan, if there is one."""
        following = None
        if self._may_go_on(level):
            following = self._plans[level - self._first_level]
            self._store.compare_set(LEVEL, str(level), str(level + 1))
        return PressureEvent(
            rank=self._pipe.groups.rank,
            at_ns=perf_counter_ns(),
            free_bytes=free_bytes,
            lacking_bytes=lacking_bytes,
            versions_bytes=None if self._cache is None else self._cache.pressed_bytes,
            plan=None if following is None else str(getattr(following, "name", following)),
        )

    def _tell(self, event: PressureEvent) -> None:
        self.events.append(event)
        warnings.warn(str(event), RuntimeWarning, stacklevel=3)
        if self._on_warning is not None:
            self._on_warning(event)

    def _may_go_on(self, level: int) -> bool:
        """Whether there is another plan to ask for: a step of the one before has run, and did not help."""
        ran = self.swap is None or (self.swap.step is not None and self._pipe.steps.count > self.swap.step)
        return level == self._level < self._first_level + len(self._plans) and ran

    def _is_moving(self) -> bool:
        return self.swap is not None and self.swap.state == "pending"

    def _run(self) -> None:
        ended: object = "its own error is above"
        try:
            while True:
                with suppress(InvalidInput):  # a swap of the job's own is pending, or the pipe is closed
                    self.look()
                if self._ending.wait(self._look_s):
                    return
        except (TransferFailed, RuntimeError) as error:
            ended = error
        finally:  # whatever the job's own functions raise
            if not self._ending.is_set():
                warnings.warn(f"the watch of free memory ends: {ended}", RuntimeWarning, stacklevel=2)


def free_memory(device: torch.device) -> int:
    """How many bytes this process can still have: of a GPU, torch's own reserve included; of the host, within its cgroup."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    known = Path("/proc/meminfo")
    if not known.is_file():
        raise Unsupported(f"found no {known}, which says how much memory is free on Linux; give free_bytes=")
    found = next(int(line.split()[1]) * 1024 for line in known.read_text().splitlines() if line.startswith("MemAvailable:"))
    root, own = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup").read_text().splitlines()
    paths = [root / path.lstrip("/") for number, _, path in (line.split(":", 2) for line in own) if number == "0"]
    groups = {root, *paths, *(parent for path in paths for parent in path.parents if root in parent.parents)}
    return int(min(found, *map(free_in, groups)))


def free_in(group: Path) -> float:
    """How many bytes a cgroup (version 2) may still have; infinite: no limit is its own. Pages of files that give way are free."""
    if not (group / "memory.max").is_file() or (most := (group / "memory.max").read_text().strip()) == "max":
        return math.inf
    given_up = next(
        int(line.split()[1]) for line in (group / "memory.stat").read_text().splitlines() if line.startswith("inactive_file ")
    )
    return int(most) - int((group / "memory.current").read_text()) + given_up
