"""One rank of an emulation: the real executor, wiring and channels, with injected delays and compute that is waited for."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING

from schedc.runtime.common.groups import Groups
from schedc.runtime.common.observer import Observer
from schedc.runtime.common.program import program_of
from schedc.runtime.emulation.injected import Injection
from schedc.runtime.emulation.timer import keep_sharp, wait_until
from schedc.runtime.emulation.waiting import Waiting
from schedc.runtime.execution.arrivals import Arrivals
from schedc.runtime.execution.choosing import ChoosingExecutor, earliest_ns
from schedc.runtime.execution.executor import Executor
from schedc.runtime.execution.wiring import Wiring
from schedc.runtime.measure.recording import Recorder
from schedc.runtime.transports.base import only
from schedc.runtime.transports.delegate import connect_delegate
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan
    from schedc.runtime.common.observer import OpTimes
    from schedc.runtime.measure.recording import RankRecord

LEAD_NS = 20_000_000
"""From when the last rank is ready for a run until all begin it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """What to run."""

    plan: Plan
    scale: float
    """What all of the plan's times are multiplied by."""
    runs: int
    """How many are recorded; one more goes before them."""
    timeout_s: float
    """How long an op waits for another rank."""
    one_queue: bool = False
    """Whether each rank's transfers go through one queue (`OneQueue`)."""
    delegate: bool = False
    """Whether helper threads carry the messages (`transports.delegate`) instead of gloo alone."""
    choose: bool = False
    """Whether each rank chooses its next op by what has come (docs/choosing.md)."""
    links: LinkTrace | None = None
    """How the links change, from the first recorded run on; None: they do not."""

    def run(self, rank: int, ran: Callable[[int], None]) -> RankResult:
        """As `run_rank`."""
        return run_rank(rank, self, ran)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank brings home."""

    record: RankRecord
    before_others: bool
    """Whether the system let it run before other processes."""
    begun_ns: tuple[int, ...]
    """When each recorded run began, on the clock of the link trace; the same on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """Why a rank has ended without a result."""

    reason: str
    follows: bool
    """Whether it only says that another rank has ended."""


class _TrueBegin(Observer):
    """Reports to the recorder when an op's time really began: after what held it back in the compute itself."""

    def __init__(self, compute: Waiting, recorder: Recorder) -> None:
        self._compute = compute
        self._recorder = recorder

    def op(self, times: OpTimes) -> None:
        self._recorder.op(times._replace(begun_ns=self._compute.begun_ns))

    def sent(self, transfer: Op, peer: int, now_ns: int) -> None:
        self._recorder.sent(transfer, peer, now_ns)

    def taken(self, transfer: Op, peer: int, now_ns: int) -> None:
        self._recorder.taken(transfer, peer, now_ns)


def run_rank(rank: int, request: RankRequest, ran: Callable[[int], None]) -> RankResult:
    """Run the plan as one of its ranks, in a process with a default group.

    Args:
        rank: this one.
        request: what to run.
        ran: called with the number of every run that has ended here; 0 is the one that is not recorded.

    Raises:
        TransferFailed: another rank has ended or does not answer.
    """
    before_others = keep_sharp()  # before gloo starts its threads
    plan, scale = request.plan, request.scale
    groups = Groups(request.timeout_s)
    try:
        program = program_of(plan, rank)
        injection = Injection(plan.problem, groups, scale=scale, one_queue=request.one_queue, trace=request.links)
        connect = connect_delegate if request.delegate else connect_gloo
        arrivals = Arrivals()
        wrap = arrivals.around(injection.wrap) if request.choose else injection.wrap
        wiring = Wiring(plan, groups, request.timeout_s, only(connect), wrap)
        parallel = plan.problem.data_parallel
        trunk = None if parallel is None or parallel.trunk is None else injection.trunk(parallel.trunk)
        compute = Waiting(plan, rank, scale, trunk)
        recorder = Recorder(request.runs, skip=1, keep="first")
        begins = _TrueBegin(compute, recorder)
        executor = Executor(program, wiring, compute, begins)
        if request.choose:
            parts = program, wiring, arrivals, compute, begins
            executor = ChoosingExecutor(plan, earliest_ns(plan, rank), *parts, None, perf_counter_ns, request.timeout_s, scale)
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection takes longer than the timers are off
        begun_ns: list[int] = []
        end_ns = 0
        for run in range(request.runs + 1):
            ready_ns, ended_ns = zip(*groups.exchange((perf_counter_ns(), end_ns)), strict=True)
            start_ns = max(ready_ns) + LEAD_NS
            if run > 1:
                injection.clock.stop(max(ended_ns))
            if run > 0:
                begun_ns.append(injection.clock.time_ns(start_ns))
                injection.clock.start(start_ns)
            compute.begin(start_ns)
            wait_until(start_ns)
            recorder.begin_step(run, start_ns)
            executor.run()
            compute.finish()
            end_ns = perf_counter_ns()
            wiring.finish()
            recorder.end_step(run, end_ns)
            ran(run)
        groups.exchange(None)  # no rank closes its connections while another needs them
        return RankResult(record=recorder.record(rank), before_others=before_others, begun_ns=tuple(begun_ns))
    finally:
        groups.close()
