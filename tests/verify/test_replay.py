"""Who goes first on a trunk where much happens at one nanosecond: by hand, and the replay against the simulator."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.jobs import read_problem, write_job
from inputs.plans import plan_of
from inputs.problems import make_problem
from inputs.tiny_problems import random_schedule

from schedc.analysis.simulation.simulate import simulate
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import DataParallel
from schedc.ir.schedule import Schedule
from schedc.verify.plan.channels import needs_of
from schedc.verify.plan.checks import verify_plan
from schedc.verify.plan.replay import replay

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.problem import Problem

F, BW = Kind.F, Kind.BW

TWO_RANKS_TO_ONE = """
[pipeline]
ranks = 3
microbatches = 3
placement = [1, 2, 0]

[profile]
forward = "1 ms"
backward_input = ["2 ms", "0 ms", "1 ms"]
backward_weight = ["0 ms", "1 ms", "1 ms"]
message = ["2 MB", "1 MB", "1 MB"]

[topology]
sites = [2, 1]
between = { bandwidth = "1 GB/s" }
"""
"""Ranks 0 and 1 send to rank 2 on one trunk, and blocks of 0 ms make transfers ready at the nanosecond of others."""


def test_plans_of_a_trunk_with_durations_of_0_take_what_the_simulator_says(tmp_path: Path) -> None:
    problem = read_problem(write_job(tmp_path, TWO_RANKS_TO_ONE))
    for seed in range(100):
        schedule = random_schedule(Random(seed), problem)
        assert schedule is not None
        assert verify_plan(plan_of(problem, schedule)) == (), seed


def one_trunk() -> Problem:
    """Both directions between two ranks on one trunk, 7 ns for each transfer; the forwards of microbatch 0 and 1 take 10 ns."""
    pairs = ((0, 1), (1, 0))
    problem = make_problem(
        2, 4, placement="bidirectional", links=dict.fromkeys(pairs, (0, 7)), trunks=dict.fromkeys(pairs, "shared")
    )
    return replace(problem, stages=tuple(replace(stage, forward_ns=(10, 10, 0, 0)) for stage in problem.stages))


ORDERS = (
    (Op(F, 0, 0), Op(F, 0, 2), Op(F, 3, 1), Op(F, 3, 3), Op(BW, 3, 1), Op(BW, 3, 3), Op(BW, 0, 0), Op(BW, 0, 2)),
    (Op(F, 2, 1), Op(F, 2, 3), Op(F, 1, 0), Op(F, 1, 2), Op(BW, 1, 0), Op(BW, 1, 2), Op(BW, 2, 1), Op(BW, 2, 3)),
)


def test_what_takes_no_time_ends_a_delta_later() -> None:
    """F0.0 and F2.1 end at 10 ns; F0.2 and F2.3 take no time after them and end a delta later; of a moment rank 0 goes first."""
    problem, schedule = one_trunk(), Schedule(orders=ORDERS)
    served = sorted((transfer.start_ns, transfer.op) for transfer in simulate(problem, schedule).transfers)[:4]
    assert served == [(10, Op(F, 0, 0)), (17, Op(F, 2, 1)), (24, Op(F, 0, 2)), (31, Op(F, 2, 3))]
    plan = plan_of(problem, schedule)
    assert replay(plan, needs_of(plan)).ends_ns[1][2:4] == (27, 31)  # F1.0 arrives at 17, F1.2 at 31


@pytest.mark.parametrize("gather_ns", [0, 3])
def test_of_one_op_the_transfer_goes_before_the_collective(gather_ns: int) -> None:
    """BW1.2 is the last of its stage: its gradient leaves first, then the stage's reduce-scatter on the same trunk."""
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(5,) * 4, all_gather_ns=(gather_ns,) * 4, trunk="shared")
    problem = replace(one_trunk(), data_parallel=parallel)
    timeline = simulate(problem, Schedule(orders=ORDERS))
    gradient = next(transfer for transfer in timeline.transfers if transfer.op == Op(BW, 1, 2))
    scatter = next(span for span in timeline.collectives if span.collective.token == "RS1")
    assert gradient.ready_ns == scatter.ready_ns
    assert scatter.start_ns >= gradient.left_ns
    assert verify_plan(plan_of(problem, Schedule(orders=ORDERS))) == ()
