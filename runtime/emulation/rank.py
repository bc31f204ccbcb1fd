"""The ranks of an emulation: the real executor, wiring and channels, with injected delays and compute that is waited for.

Where they adapt, their monitors measure while steps run, and plans that pay are taken up.

`serve` is what `schedc.runtime.emulation.emulate` starts as a process, with the descriptors TETHER and ANSWERS. Standard input: a
pickled `RankRequest`. On the pipe whose descriptor is ANSWERS: pickled (rank, what) for each thing that a rank has to say; what is
the number of a run that has ended, a `RankResult`, or a `RankFailure`. The process loads torch once and forks the ranks. TETHER is
the descriptor of a pipe that closes when the caller ends, however it ends; all of them then end with it.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from schedc.errors import SchedcError
from schedc.ir import LinkTrace, Plan
from schedc.runtime.adapt.adapting import LOOK_S, Adaptation, adapting
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.common.failure import TransferFailed
from schedc.runtime.common.groups import Groups
from schedc.runtime.emulation.injected import Injection
from schedc.runtime.emulation.waiting import EmulatedPipe, keep_sharp
from schedc.runtime.execution.online import OnlineRunner
from schedc.runtime.execution.runner import PipelineRunner
from schedc.runtime.execution.wiring import Wiring
from schedc.runtime.measure.recording import RankRecord, Recorder
from schedc.runtime.transports.base import only
from schedc.runtime.transports.delegate import connect_delegate
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from schedc.runtime.adapt.proposer import ProposerAnswer
    from schedc.runtime.session.swap import Swap

LOOPBACK = "127.0.0.1"
LEAD_NS = 20_000_000
"""From when the last rank is ready for a run until all begin it."""
LEAST_LOOK_S = 0.02
"""How often a rank looks at the job's store at most: this takes time from the others."""
READY_S = 0.1
"""How often to ask whether the proposer is ready."""
LOOKING = 0
"""The rank that looks whether all have offered a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """What to run."""

    plan: Plan
    scale: float
    """What all of the plan's times are multiplied by."""
    runs: int
    """How many are recorded."""
    timeout_s: float = 0.0
    """How long an op waits for another rank; `emulated` says it."""
    warm_up: int = 1
    """How many go before them, with links as planned: from these a monitor learns what is usual."""
    one_queue: bool = False
    """Whether each rank's transfers go through one queue (`OneQueue`)."""
    delegate: bool = False
    """Whether helper threads carry the messages (`transports.delegate`) instead of gloo alone."""
    choose: bool = False
    """Whether each rank chooses its next op by what has come (docs/choosing.md)."""
    adapt: bool = False
    """Whether the ranks measure and move to other plans; then there is no record."""
    links: LinkTrace | None = None
    """How the links change, from the first recorded run on; None: they do not."""


class RunTimes(NamedTuple):
    """When a run began and ended."""

    begin_ns: int
    """On the clock of the ranks' machine; the same on all ranks, as is the next."""
    trace_ns: int
    """When it began on the clock of the link trace."""
    end_ns: int
    """When the rank's last op of it ended, or a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAdapted:
    """What became of adapting; the same on all ranks, or known to the leader alone."""

    ran: tuple[int, ...]
    """Of each recorded run, its plan: 0 is the first, n the nth that was published."""
    swaps: tuple[Swap, ...]
    """What became of each plan that was published, by steps; those before the recorded runs count."""
    published: tuple[ProposerAnswer, ...]
    """On the leader."""
    ended: str | None
    """Why adapting ended before the runs did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank brings home."""

    before_others: bool
    """Whether the system let it run before other processes."""
    runs: tuple[RunTimes, ...]
    """Those that are recorded."""
    record: RankRecord | None
    adapted: RankAdapted | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """Why a rank has ended without a result."""

    reason: str
    follows: bool
    """Whether it only says that another rank has ended."""


def run_rank(rank: int, request: RankRequest, ran: Callable[[int], None]) -> RankResult:
    """Run the plan as one of its ranks, in a process with a default group.

    `ran` is called with the number of every recorded run that has ended here, after 0 for those before.

    Raises:
        TransferFailed: another rank has ended or does not answer.
    """
    before_others = keep_sharp()  # before gloo starts its threads
    plan, scale = request.plan, request.scale
    groups = Groups(request.timeout_s)
    monitor = Monitor(scale=scale, least_gap_s=0.0)  # nothing is computed that measuring takes time from
    recorder = Recorder(request.runs, skip=request.warm_up, keep="first")
    try:
        injection = Injection(plan.problem, groups, scale=scale, one_queue=request.one_queue, trace=request.links, before_ns=-1)
        measured = partial(monitor.wrap, plan.problem, groups, torch.device("cpu"), around=lambda *_: injection.wrap)
        wrap = measured() if request.adapt else injection.wrap
        channels = only(connect_delegate if request.delegate else connect_gloo)
        wired = partial(Wiring, plan, groups, request.timeout_s, channels)
        runner = OnlineRunner(wired, wrap, scale=scale) if request.choose else PipelineRunner(wired, wrap)
        parallel = plan.problem.data_parallel
        trunk = None if parallel is None or parallel.trunk is None else injection.trunks[parallel.trunk]
        pipe = EmulatedPipe(plan, groups, runner, monitor if request.adapt else recorder, scale, trunk)
        with ExitStack() as stack:
            adaptation = None
            if request.adapt:
                with _as_others(before=before_others):
                    adaptation = adapting(pipe, monitor, look_s=max(LEAST_LOOK_S, LOOK_S * scale))
                stack.enter_context(adaptation)
                _wait_for_proposer(adaptation, groups)
            gc.collect()
            gc.freeze()
            gc.disable()  # a collection takes longer than the timers are off
            runs = _run(request, pipe, adaptation, injection, ran)
            groups.exchange(None)  # no rank closes its connections while another needs them
        adapted = None
        if adaptation is not None:
            adapted = RankAdapted(
                ran=tuple(pipe.ran[request.warm_up :]),
                swaps=tuple(adaptation.swaps),
                published=tuple(adaptation.published),
                ended=adaptation.ended,
            )
        return RankResult(
            before_others=before_others,
            runs=tuple(runs),
            record=None if request.adapt else recorder.record(rank),
            adapted=adapted,
        )
    finally:
        monitor.close()
        groups.close()


def _run(
    request: RankRequest, pipe: EmulatedPipe, adaptation: Adaptation | None, injection: Injection, ran: Callable[[int], None]
) -> list[RunTimes]:
    """Run the steps; when the recorded ones began and ended."""
    runs: list[RunTimes] = []
    clock, end_ns = injection.clock, 0
    for run in range(1 - request.warm_up, request.runs + 1):
        offered = pipe.groups.rank == LOOKING and pipe.all_have_offered()
        everybodys = pipe.groups.exchange((perf_counter_ns(), end_ns, offered))
        ready_ns, ended_ns, seen = zip(*everybodys, strict=True)
        start_ns = max(ready_ns) + LEAD_NS
        if runs:
            clock.stop(max(ended_ns))
        if run > 0:
            clock.start(start_ns)
        trace_ns = clock.time_ns(start_ns)
        end_ns = pipe.step(start_ns, moves=seen[LOOKING])
        if adaptation is not None:
            adaptation.between_steps()
        if run > 0:
            runs.append(RunTimes(start_ns, trace_ns, end_ns))
        if run >= 0:
            ran(run)
    return runs


@contextmanager
def _as_others(*, before: bool) -> Iterator[None]:
    """Run like other processes for now, so that the threads and processes that are started do not run before the ranks' steps."""
    if before and sys.platform == "linux":
        policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        try:
            yield
        finally:
            os.sched_setscheduler(0, policy, parameters)
        return
    yield


def _wait_for_proposer(adaptation: Adaptation, groups: Groups) -> None:
    """A job's first steps take longer than its proposer takes to start; here they would not."""
    while True:
        proposer = adaptation.proposer
        if any(groups.exchange(proposer is not None and (proposer.own_sha256 or proposer.ended) is not None)):
            return
        time.sleep(READY_S)


def end_with(tether: int) -> None:
    """Kill this process and all that belong to it once nobody holds the other end of the pipe."""
    os.read(tether, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def serve(arguments: Sequence[str]) -> None:
    """Run what standard input asks for."""
    tether, answers = int(arguments[0]), Connection(int(arguments[1]), readable=False)
    request: RankRequest = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    ranks = request.plan.problem.ranks
    listener = socket.create_server((LOOPBACK, 0), backlog=ranks)
    port = listener.getsockname()[1]
    readers = []
    for rank in range(ranks):  # before this process has threads, which a fork would lose
        reader, writer = Pipe(duplex=False)
        if os.fork() == 0:
            listener.close()
            _be_rank(rank, request, port, tether, writer)
        writer.close()
        readers.append(reader)
    threading.Thread(target=end_with, args=(tether,), daemon=True).start()
    store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    running = set(range(ranks))
    while running:
        ready = wait([readers[rank] for rank in running])
        for rank in [rank for rank in running if readers[rank] in ready]:
            try:
                answer = readers[rank].recv()
            except EOFError:
                answer = RankFailure(reason="its process has ended", follows=False)
            answers.send((rank, answer))
            if not isinstance(answer, int):
                running.remove(rank)
    del store  # which the ranks need as long as one of them runs


def _be_rank(rank: int, request: RankRequest, port: int, tether: int, answers: Connection) -> None:
    """The life of a forked process."""
    threading.Thread(target=end_with, args=(tether,), daemon=True).start()
    warnings.simplefilter("ignore")
    try:
        timeout = timedelta(seconds=request.timeout_s)
        store = TCPStore(LOOPBACK, port, is_master=False, timeout=timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=request.plan.problem.ranks, timeout=timeout)
        answers.send(run_rank(rank, request, answers.send))
    except SchedcError as error:
        answers.send(RankFailure(reason=str(error), follows=isinstance(error, TransferFailed)))
    except Exception as error:  # a mistake of this program
        traceback.print_exc()
        answers.send(RankFailure(reason=f"{type(error).__name__}: {error}", follows=False))
    finally:
        os._exit(0)
