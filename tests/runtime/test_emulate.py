"""Emulation: real processes never do better than the plan, one queue couples what four do not, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import one_f_one_b, plan_of
from inputs.problems import MS, make_problem
from runs.forked import fork_emulations
from suite.marked_processes import parent, processes_of, until

from schedc.errors import CheckFailed, InvalidInput
from schedc.formats.plan.plan_file import write_plan
from schedc.ir.conditions import LinkState, LinkTrace
from schedc.ir.network import Link
from schedc.ir.ops import WHOLE, Kind, Op
from schedc.ir.problem import DataParallel
from schedc.runtime.emulation.emulate import emulate
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan

COSTS_NS = (2 * MS, 3 * MS, 2 * MS)
SLOW = {(0, 1): (12 * MS, 2 * MS), (1, 0): (12 * MS, 2 * MS)}
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulations of this process begin with torch imported; those of the command, below and in `tests/cli`, import it."""
    fork_emulations(monkeypatch)


def slow_plan(microbatches: int = 4) -> Plan:
    """1F1B on 3 ranks whose first link is slow."""
    problem = make_problem(3, microbatches, costs_ns=COSTS_NS, links=SLOW)
    return plan_of(problem, one_f_one_b(problem))


def iterations_ns(plan: Plan, queues: int = 4, scale: float = 1.0, runs: int = 2) -> list[int]:
    """Of each run, from its begin to the end of the last op."""
    trace = emulate(plan, scale=scale, runs=runs, queues=queues).trace
    for entry, rank in zip(plan.ranks, trace.ranks, strict=True):
        assert rank.compute == entry.compute
        assert len(rank.steps) == runs
        for step in rank.steps:
            for op, asked, begun, ended in zip(rank.compute, step.asked_ns, step.begun_ns, step.ended_ns, strict=True):
                assert asked <= begun
                assert ended - begun >= plan.schedule().duration_ns(plan.problem, op) - 2  # two times, each rounded
    return [
        max(max(rank.steps[run].ended_ns) for rank in trace.ranks) - min(rank.steps[run].step_begin_ns for rank in trace.ranks)
        for run in range(runs)
    ]


@pytest.mark.slow
def test_no_run_is_faster_than_the_plan() -> None:
    """Links of their own keep their order, so that nothing can be early; the scale is taken out."""
    plan = slow_plan()
    assert min(iterations_ns(plan, scale=1.5)) >= plan.certificate.makespan_ns - 100


@pytest.mark.slow
def test_links_change_between_and_within_runs() -> None:
    """Runs that begin after a change have its costs; the trace's clock stops between runs, and is the same at another scale."""
    plan = slow_plan(2)
    predicted_ns = plan.certificate.makespan_ns
    trace = LinkTrace.of([(predicted_ns * 5 // 4, (0, 1), LinkState(latency_ns=60 * MS))])
    for scale in (1.0, 2.0):
        emulation = emulate(plan, scale=scale, runs=3, links=trace)
        taken_ns = [
            max(max(rank.steps[run].ended_ns) for rank in emulation.trace.ranks)
            - min(rank.steps[run].step_begin_ns for rank in emulation.trace.ranks)
            for run in range(3)
        ]
        assert emulation.begun_ns[0] == 0
        assert all(after - before >= predicted_ns - 100 for before, after in pairwise(emulation.begun_ns))
        assert taken_ns[2] >= predicted_ns + 48 * MS - 100
        assert min(taken_ns) >= predicted_ns - 100


def one_queue_ns(plan: Plan) -> int:
    """What 1F1B takes at least if each rank has one queue for one transfer at a time, worked out here from that sentence."""
    problem = plan.problem
    free_ns, queue_ns, at = ([0] * problem.ranks for _ in range(3))
    arrival_ns: dict[Op, int] = {}
    while any(place < len(entry.compute) for place, entry in zip(at, plan.ranks, strict=True)):
        before = list(at)
        for rank, entry in enumerate(plan.ranks):
            for op in entry.compute[at[rank] :]:
                neighbour, onward = (rank - 1, rank + 1) if op.kind is Kind.F else (rank + 1, rank - 1)
                if 0 <= neighbour < problem.ranks:
                    needed = Op(op.kind, neighbour, op.microbatch)
                    if needed not in arrival_ns:
                        break
                    free_ns[rank] = max(free_ns[rank], queue_ns[rank], arrival_ns[needed])
                free_ns[rank] += problem.duration_ns(op.kind, op.stage, op.microbatch)
                if 0 <= onward < problem.ranks:
                    link = problem.link(rank, onward)
                    free_ns[rank] = max(free_ns[rank], queue_ns[rank])
                    queue_ns[rank] = arrival_ns[op] = free_ns[rank] + link.occupancy_ns(0) + link.latency_ns
                at[rank] += 1
        assert at != before, "one queue has stuck"
    return max(free_ns)


@pytest.mark.slow
def test_one_queue_couples_transfers_and_compute() -> None:
    """Latencies do not overlap any more, and compute waits for them."""
    plan = slow_plan(8)
    coupled_ns = one_queue_ns(plan)
    assert coupled_ns > plan.certificate.makespan_ns + 15 * MS
    assert min(iterations_ns(plan, queues=1)) >= coupled_ns


@pytest.mark.slow
def test_twenty_ranks_run_to_their_end() -> None:
    """`benchmarks/emulation/many_ranks.py` runs 64."""
    problem = make_problem(20, 20, costs_ns=(10 * MS, 10 * MS, 10 * MS), split_backward=False)
    plan = plan_of(problem, one_f_one_b(problem))
    (iteration_ns,) = iterations_ns(plan, runs=1)
    assert iteration_ns >= plan.certificate.makespan_ns


@pytest.mark.slow
@pytest.mark.parametrize("queues", [4, 1])
@pytest.mark.parametrize(
    ("method", "placement", "chunks"),
    [("zb-v", "wave", 2), ("interleaved", "loop", 2), ("chimera", "bidirectional", 1), ("greedy", "unidirectional", 1)],
)
def test_all_kinds_of_plans_run_to_their_end(method: str, placement: str, chunks: int, queues: int) -> None:
    problem = make_problem(4, 8, placement=placement, chunks=chunks, costs_ns=(4 * MS, 4 * MS, 4 * MS), links=SLOW)
    plan = plan_of(problem, constructive(method)(problem))
    assert min(iterations_ns(plan, queues)) >= plan.certificate.makespan_ns


@pytest.mark.slow
@pytest.mark.parametrize("trunk", [None, "sea"])
def test_collectives_are_waited_for(trunk: str | None) -> None:
    """All-gathers hold back the first F, on a trunk one rank after the other; reduce-scatters end after the last op."""
    gather_ns, scatter_ns = (4 * MS, 3 * MS, 5 * MS), (20 * MS, 6 * MS, 7 * MS)
    problem = make_problem(3, 4, costs_ns=COSTS_NS, links=SLOW, trunks={(0, 1): "sea"} if trunk else None)
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=scatter_ns, all_gather_ns=gather_ns, trunk=trunk)
    problem = replace(problem, data_parallel=parallel)
    plan = plan_of(problem, one_f_one_b(problem))
    trace = emulate(plan, runs=2).trace
    for run in range(2):
        before_ns = 0
        begin_ns = min(rank.steps[run].step_begin_ns for rank in trace.ranks)
        for rank, entry in zip(trace.ranks, plan.ranks, strict=True):
            step = rank.steps[run]
            before_ns = (before_ns if trunk else 0) + gather_ns[rank.rank]
            assert step.begun_ns[0] - begin_ns >= before_ns
            last = max(at for at, op in enumerate(entry.compute) if op.kind is Kind.BW and op.part == WHOLE)
            assert step.step_end_ns >= step.begun_ns[last] + sum(COSTS_NS[1:]) + scatter_ns[rank.rank]
        if trunk is None:
            assert max(rank.steps[run].step_end_ns for rank in trace.ranks) - begin_ns >= plan.certificate.makespan_ns


@pytest.mark.slow
def test_one_wire_into_a_rank_serves_both_directions() -> None:
    """Each of its messages holds it for the latency, too: whatever their order, they come one after the other."""
    links = [
        Link(source=source, destination=destination, setup_ns=5 * MS, transfer_ns=3 * MS, trunk=f">rank{destination}")
        for source, destination in ((0, 1), (1, 0), (1, 2), (2, 1))
    ]
    problem = replace(make_problem(3, 6, costs_ns=COSTS_NS), links=tuple(links))
    plan = plan_of(problem, one_f_one_b(problem))
    assert min(iterations_ns(plan, scale=0.5)) >= 2 * 6 * 8 * MS + problem.duration_ns(Kind.F, 0, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": 0.1}, "scale 0.1 makes the shortest op of 'test' 200 us long, .* expected 1 ms or more, a scale of 0.5$"),
        ({"scale": 0.0}, "scale: found 0, expected a number above 0"),
        ({"scale": float("nan")}, "scale: found nan"),
        ({"runs": 0}, "runs: found 0, expected at least 1"),
        ({"queues": 2}, "queues: found 2, expected 4"),
    ],
)
def test_refusals(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        emulate(slow_plan(), **change)


def test_a_plan_that_breaks_a_rule_is_refused() -> None:
    plan = slow_plan()
    first = replace(plan.ranks[0], compute=plan.ranks[0].compute[1:])
    with pytest.raises(CheckFailed, match="plan 'test' breaks a rule: "):
        emulate(replace(plan, ranks=(first, *plan.ranks[1:])))


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT, None])
def test_nothing_is_left_behind(tmp_path: Path, way: signal.Signals | None) -> None:
    """The caller is killed or interrupted, or (None) one of the ranks is: all processes end."""
    write_plan(slow_plan(), tmp_path / "plan.json")
    mark = f"SCHEDC_TEST_{uuid.uuid4().hex}"
    code = "import sys, typer; from schedc.cli.commands.emulate import emulate_command; typer.run(emulate_command)"
    caller = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "plan.json"), "--scale", "1000", "--json"],
        env={**os.environ, mark: "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert until(lambda: len(processes_of(mark)) == 5), "the caller, the server and three ranks"
        if way is None:
            os.kill(next(process for process in processes_of(mark) if parent(parent(process)) == caller.pid), signal.SIGKILL)
        else:
            caller.send_signal(way)
        assert until(lambda: not processes_of(mark) or processes_of(mark) == [caller.pid])
        _, errors = caller.communicate(timeout=250)
        assert caller.returncode != 0
        if way is None:
            assert "its process has ended" in errors
    finally:
        for process in processes_of(mark):
            os.kill(process, signal.SIGKILL)
        caller.wait()
