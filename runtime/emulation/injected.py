"""Latency and occupancy added to real channels (CrossPipe 6.4 and appendix F), whatever carries their messages.

`load(..., wrap=inject_links)` in a training job. Which way of delaying a wire gets depends on its ranks: on one host the sender
stamps each message with the time at which it arrives. Between hosts the receiver counts from when it sees the message come, as
CrossPipe does, so that the real way adds to the injected one. `delayed` has the ways.

`load(..., wrap=partial(inject_links, trace=trace))` lets the links change by a link trace, whose clock starts while the job loads.
"""

from __future__ import annotations

import socket
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from schedc.errors import Unsupported
from schedc.ir import LinkTrace, Problem
from schedc.runtime.emulation.delayed import ObservedTransport, OneQueue, SpunTransport, StampedTransport, Undelayed, cycles_per_ns
from schedc.runtime.emulation.delays import OwnLink, TraceClock, delay_of, open_trunks, traced_delay
from schedc.runtime.measure.clocks import clock_name
from schedc.runtime.transports.nccl import NcclTransport

if TYPE_CHECKING:
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire
    from schedc.runtime.execution.wiring import Wrap
    from schedc.runtime.transports.base import Ends


def inject_links(problem: Problem, groups: Groups, device: torch.device, *, trace: LinkTrace | None = None) -> Wrap:
    """For `load(..., wrap=inject_links)`: every transfer arrives when the plan's links say, and not before, whatever carries it.

    A job on one fast machine then meets the links of the plan's cluster. With a link trace, its clock starts now, on all ranks
    together. Arguments and errors are those of `Injection`.
    """
    injection = Injection(problem, groups, device=device, trace=trace)
    if trace is not None:
        injection.clock.start(injection.common_time_ns())
    return injection.wrap


class Injection:
    """What is put around the ends of one rank's wires: delays by a problem's links. Headers and losses are not delayed."""

    def __init__(
        self,
        problem: Problem,
        groups: Groups,
        *,
        scale: float = 1.0,
        one_queue: bool = False,
        device: torch.device | None = None,
        trace: LinkTrace | None = None,
        before_ns: int = 0,
    ) -> None:
        """Find out which ranks share a clock, and open the trunks. All ranks do this together.

        Args:
            problem: whose links' costs are injected, also where the job moves to another plan.
            groups: of the plan's ranks.
            scale: what all times are multiplied by.
            one_queue: send all transfers of this rank through one queue; on CPUs.
            device: where this rank's stages are; None: on the CPU.
            trace: how the links change, by `clock`, which the caller starts; None: they do not.
            before_ns: what the clock shows until then; below 0, links are as planned.

        Raises:
            Unsupported: ranks of several hosts share a trunk, or would have one queue.
            TransferFailed: another rank has ended.
        """
        self._problem = problem
        self._scale = scale
        self._trace = trace
        self._groups = groups
        self.clock = TraceClock(scale, before_ns)
        """Of the trace."""
        self._gpu = device if device is not None and device.type == "cuda" else None
        self._cycles_per_ns = 0.0 if self._gpu is None else cycles_per_ns(self._gpu)
        self._hosts = groups.exchange(clock_name() or socket.gethostname())
        if one_queue and len(set(self._hosts)) > 1:
            raise Unsupported("one queue for all transfers needs one clock; run all ranks on one host, or with four queues")
        self.trunks = open_trunks(_senders(problem), self._hosts, groups)
        """By name; also for what is not a transfer."""
        self._links: dict[tuple[int, int], OwnLink] = {}
        self._queue = OneQueue() if one_queue else None

    def wrap(self, wire: Wire, ends: Ends) -> Ends:
        """The ends of a wire on this rank with its delays; asked again when another plan's wire is laid over the same ends.

        Raises:
            Unsupported: its ranks are on GPUs of several hosts, and it is not NCCL's.
        """
        planned = delay_of(self._problem, wire, self._scale)
        delay = planned if self._trace is None else traced_delay(self._problem, wire, self._scale, self._trace, self.clock)
        own = self._links.setdefault((wire.source, wire.destination), OwnLink())
        together = self._hosts[wire.source] == self._hosts[wire.destination]
        if self._gpu is not None and planned.trunk is None and isinstance(ends.data, NcclTransport):
            return ends._replace(data=SpunTransport(ends.data, delay, self._gpu, self._cycles_per_ns))
        if not together and self._gpu is not None:
            raise Unsupported(
                f"ranks {wire.source} and {wire.destination} have GPUs on different hosts, between which delays can be injected"
                " into NCCL's transfers only; load with channels='nccl'"
            )
        if not together:
            return ends._replace(data=ObservedTransport(ends.data, delay, own), in_order=True)
        link = own if planned.trunk is None else self.trunks[planned.trunk]
        record = None if self._gpu is None else lambda: torch.cuda.current_stream(self._gpu).record_event()
        return ends._replace(data=StampedTransport(ends, delay, link, self._queue, record), control=Undelayed(ends.control))

    def common_time_ns(self) -> int:
        """A time on `time.perf_counter_ns` that is now, and the same moment on all ranks. All ranks call it together.

        Ranks of one host agree exactly; those of several as well as a message between them allows.
        """
        self._groups.exchange(None)  # so that the ranks of no host come long before those of another
        times_ns = self._groups.exchange(perf_counter_ns())
        here = self._hosts[self._groups.rank]
        return max(time_ns for time_ns, host in zip(times_ns, self._hosts, strict=True) if host == here)


def _senders(problem: Problem) -> dict[str, list[int]]:
    """By trunk, the ranks that send on it, collectives included."""
    senders: dict[str, set[int]] = {}
    for link in problem.links:
        if link.trunk is not None:
            senders.setdefault(link.trunk, set()).add(link.source)
    parallel = problem.data_parallel
    if parallel is not None and parallel.trunk is not None:
        senders.setdefault(parallel.trunk, set()).update(range(problem.ranks))
    return {trunk: sorted(ranks) for trunk, ranks in sorted(senders.items())}
