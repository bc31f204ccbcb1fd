"""Emulating a plan: starts its ranks as processes of this machine, runs it several times, and gives the Trace of the runs.

Where its ranks adapt while links change: steps of several plans, what each took, and why the plan changed. The processes end with
the call, and with the caller, however it ends.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING

from schedc.errors import CheckFailed, InvalidInput, Unsupported
from schedc.formats.plan.plan_file import parse_plan, plan_sha256
from schedc.ir import Conditions, LinkTrace, Op, Plan, Trace
from schedc.runtime.emulation.rank import RankFailure, RankRequest, RankResult
from schedc.runtime.measure.recording import RankRecord, trace_of
from schedc.runtime.session.acceptance import read
from schedc.runtime.session.swap import Swap
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


SHORTEST_OP_NS = 1_000_000
"""Of what is waited for, the least: timers and the way over the loopback interface are off by some hundredths of it."""
STDERR = 2
SERVER = "import sys; from schedc.runtime.emulation.rank import serve; serve(sys.argv[1:])"
PATIENCE_S = 60.0
"""How long ranks wait for each other, beside what the plan takes."""
WARM_UP = 40
"""Of ranks that adapt: eight steps that the monitor does not look at, and as many as it learns from twice."""
CAUSE_S = 5.0
"""For how long to listen for the cause, once a rank has said that another has ended."""


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """What came of it, the scale taken out."""

    plan: Plan
    scale: float
    results: tuple[RankResult, ...]
    """Of each rank, on its machine's clock."""

    @cached_property
    def trace(self) -> Trace:
        """The recorded runs, of ranks that do not choose."""
        return trace_of(self.plan, self._records(), scale=self.scale)

    @property
    def before_others(self) -> bool:
        """Whether the system let the ranks run before other processes, so that the load of the machine hardly shows."""
        return all(result.before_others for result in self.results)

    @property
    def begun_ns(self) -> tuple[int, ...]:
        """When each run began, on the clock of the link trace: it starts with the first, and stops between two runs."""
        return tuple(run.trace_ns for run in self.results[0].runs)

    @property
    def runs_ns(self) -> tuple[int, ...]:
        """What each run took: from the begin of all ranks to the end of the last op."""
        by_run = zip(*(result.runs for result in self.results), strict=True)
        return tuple(round((max(run.end_ns for run in runs) - runs[0].begin_ns) / self.scale) for runs in by_run)

    @property
    def orders(self) -> tuple[tuple[tuple[Op, ...], ...], ...]:
        """Per run and rank, the ops in the order in which they ran."""
        by_run = zip(*(record.steps for record in self._records()), strict=True)
        return tuple(tuple(tuple(times.op for times in step.ops) for step in run) for run in by_run)

    def _records(self) -> list[RankRecord]:
        return [result.record for result in self.results if result.record is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMove:
    """One plan that was published, and why."""

    run: int | None
    """The first recorded run of it, from 0; below 0: before them. None: it was refused, or not taken up before the end."""
    refusal: str | None
    plan: int
    """Its place in `AdaptingRuns.plans`."""
    conditions: Conditions
    """What was measured."""
    before_ns: int
    """What a step of the plan that ran takes under these conditions, by the simulator."""
    after_ns: int
    """What a step of the new plan takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptingRuns:
    """What came of it, the scale taken out."""

    runs_ns: tuple[int, ...]
    """What each run took: from the begin of all ranks to the end of the last op."""
    begun_ns: tuple[int, ...]
    """When each began, on the clock of the link trace."""
    plan_of_run: tuple[int, ...]
    """Of each run, the place of its plan in `plans`."""
    plans: tuple[Plan, ...]
    """The first is the one that was given; the same bytes are one plan. The costs of the others are those they were made for."""
    sha256: tuple[str, ...]
    """Of each plan's bytes."""
    moves: tuple[PlanMove, ...]
    ended: str | None
    """Why the ranks adapted no more, before the end; None: they did until then."""
    before_others: bool
    """As of `Emulation`."""


def emulate(
    plan: Plan,
    *,
    scale: float = 1.0,
    runs: int = 5,
    queues: int = 4,
    delegate: bool = False,
    choose: bool = False,
    links: LinkTrace | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> Emulation:
    """Run the plan as real processes over real channels with its links' delays, its compute replaced by waiting.

    Args:
        plan: what is run.
        scale: what all of its times are multiplied by: 2 is twice as slow, 0.1 ten times as fast.
        runs: how many runs are recorded; one more goes before them, in which the channels exchange shapes.
        queues: 4: every channel is a queue of its own, as the plan has them; 1: all transfers of a rank share one, which
            holds one transfer at a time and blocks the rank when another is handed to it (`OneQueue`).
        delegate: whether messages go through helper threads, as from GPUs through the host (`transports.delegate`).
        choose: whether each rank chooses its next op by what has come; what it gives is no trace of the plan then.
        links: how the links change while the runs go on; its times, too, are multiplied by the scale.
        report: called with how many of the runs have ended.

    Raises:
        InvalidInput: the scale makes an op shorter than can be waited for, or a number is out of range.
        Unsupported: ranks would choose, and the plan has collectives, whose all-gathers the emulated compute waits for, or updates.
        CheckFailed: the plan breaks a rule, or a rank has failed.
    """
    if queues not in (1, 4):
        raise InvalidInput(f"queues: found {queues}, expected 4 (as the plan has them) or 1 (all transfers of a rank in one)")
    how = RankRequest(plan=plan, scale=scale, runs=runs, links=links, choose=choose, one_queue=queues == 1, delegate=delegate)
    return emulated(how, report)


def emulate_adapting(
    plan: Plan,
    *,
    scale: float = 1.0,
    runs: int = 60,
    warm_up: int = WARM_UP,
    choose: bool = False,
    links: LinkTrace | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> AdaptingRuns:
    """Run the plan as `emulate` does, with ranks that adapt (`schedc.runtime.adapt`); all of it but the compute is what a job runs.

    Arguments are those of `emulate`, and `warm_up`: how many runs go before those that are recorded, with links as the plan has
    them, so that the monitor learns. The link trace's clock starts with the first recorded run.

    Raises:
        InvalidInput: the scale makes an op shorter than can be waited for, or a number is out of range.
        Unsupported: the plan has updates; or it has collectives, and ranks would choose.
        CheckFailed: the plan breaks a rule, or a rank has failed.
    """
    if warm_up < 1:
        raise InvalidInput(f"warm_up: found {warm_up}, expected at least 1")
    request = RankRequest(plan=plan, scale=scale, runs=runs, links=links, choose=choose, warm_up=warm_up, adapt=True)
    emulation = emulated(request, report)
    of_ranks = [result.adapted for result in emulation.results if result.adapted is not None]
    first = of_ranks[0]
    plans, sha256, places = [plan], [plan_sha256(plan)], [0]
    for number, answer in enumerate(first.published, start=1):
        if answer.sha256 not in sha256:
            plans.append(parse_plan(answer.content, f"plan {number} of the proposer"))
            sha256.append(answer.sha256)
        places.append(sha256.index(answer.sha256))
    moves = []
    for number, answer in enumerate(first.published):
        swap = first.swaps[number] if number < len(first.swaps) else Swap()  # it came after the last step
        moves.append(
            PlanMove(
                run=swap.step - warm_up if swap.state == "done" and swap.step is not None else None,
                refusal=swap.reason,
                plan=places[number + 1],
                conditions=answer.conditions,
                before_ns=answer.running_ns,
                after_ns=answer.proposed_ns,
            )
        )
    return AdaptingRuns(
        runs_ns=emulation.runs_ns,
        begun_ns=emulation.begun_ns,
        plan_of_run=tuple(places[number] for number in first.ran),
        plans=tuple(plans),
        sha256=tuple(sha256),
        moves=tuple(moves),
        ended=next((adapted.ended for adapted in of_ranks if adapted.ended is not None), None),
        before_others=emulation.before_others,
    )


def emulated(request: RankRequest, report: Callable[[int], None]) -> Emulation:
    """What comes of a request, of which only the time limit is open; `report`, and what is refused, are those of `emulate`."""
    plan, scale, runs = request.plan, request.scale, request.runs
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidInput(f"scale: found {scale:g}, expected a number above 0")
    if runs < 1:
        raise InvalidInput(f"runs: found {runs}, expected at least 1")
    read(plan, verify=True)
    schedule = plan.schedule()
    durations_ns = {schedule.duration_ns(plan.problem, op) for entry in plan.ranks for op in entry.compute} - {0}
    shortest_ns = min(durations_ns, default=SHORTEST_OP_NS)
    if shortest_ns * scale < SHORTEST_OP_NS:
        raise InvalidInput(
            f"scale {scale:g} makes the shortest op of {plan.name!r} {format_duration_ns(round(shortest_ns * scale), 2)} long,"
            f" which cannot be waited for truly; expected {format_duration_ns(SHORTEST_OP_NS)} or more, a scale of"
            f" {math.ceil(SHORTEST_OP_NS / shortest_ns * 1000) / 1000:g}"
        )
    if (request.choose or request.adapt) and plan.problem.updates is not None:
        raise Unsupported(
            f"plan {plan.name!r} has updates, as its steps overlap; what ops read follows from their order, which stays"
        )
    if plan.problem.is_sharded:
        raise Unsupported(f"plan {plan.name!r} gathers and releases weights within the step, which is not emulated; simulate it")
    if request.choose and plan.problem.data_parallel is not None:
        raise Unsupported(f"plan {plan.name!r} has data-parallel collectives, with which ranks that choose are not emulated")
    longest_s = (plan.certificate.makespan_ns + _delays_ns(plan, request.links)) * scale / 1e9
    request = replace(request, timeout_s=PATIENCE_S + 10 * plan.problem.ranks * longest_s)
    results: dict[int, RankResult] = {}
    failures: list[tuple[bool, int, str]] = []
    with _processes(request) as answers:
        while len(results) + len(failures) < plan.problem.ranks and answers.poll(CAUSE_S if failures else None):
            try:
                rank, answer = answers.recv()
            except EOFError:
                break
            if isinstance(answer, RankFailure):
                failures.append((answer.follows, rank, answer.reason))
                if not answer.follows:
                    break
            elif not isinstance(answer, int):
                results[rank] = answer
            elif rank == 0:
                report(answer)
    if failures:
        _, rank, reason = min(failures)
        raise CheckFailed(f"the emulation of {plan.name!r} has failed on rank {rank}: {reason}")
    if len(results) < plan.problem.ranks:
        raise CheckFailed(f"the emulation of {plan.name!r} has failed: its processes have ended without a word")
    return Emulation(plan=plan, scale=scale, results=tuple(results[rank] for rank in range(plan.problem.ranks)))


def _delays_ns(plan: Plan, links: LinkTrace | None) -> int:
    """By how much a link trace may make a run longer: all of its transfers one after the other, at their slowest."""
    if links is None:
        return 0
    problem = plan.problem
    delay_ns = 0
    for entry in plan.ranks:
        for channel in entry.channels:
            if not channel.receives:
                states = [state.link(problem.link(entry.rank, channel.peer)) for _, state in links.entries]
                for op in channel.transfers:
                    size_bytes = problem.message_bytes(op)
                    delay_ns += max((link.latency_ns + link.occupancy_ns(size_bytes) for link in states), default=0)
    return delay_ns


@contextmanager
def _processes(request: RankRequest) -> Iterator[Connection]:
    """Start the ranks' processes; gives where they are heard, and ends them."""
    answers, theirs = Pipe(duplex=False)
    tether, own_tether = os.pipe()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(tether), str(theirs.fileno())],
            stdin=subprocess.PIPE,
            stdout=STDERR,
            pass_fds=(tether, theirs.fileno()),
            process_group=0,  # the terminal's Ctrl-C is for the caller, who ends the group
            env=environment,
        )
        theirs.close()
        os.close(tether)
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended, and its answers will end
                pickle.dump(request, process.stdin)
                process.stdin.close()
            yield answers
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        answers.close()
        os.close(own_tether)
