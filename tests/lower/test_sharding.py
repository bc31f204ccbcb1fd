"""Where collectives of sharded weights are placed, and that time, memory and rules agree with who knows nothing of each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from random import Random

import pytest
from inputs.plans import plan_of
from inputs.sharded_problems import sharded_orders, sharded_problem
from inputs.tiny_problems import random_schedule
from oracles.sharded_step import all_places, held_bytes, least_ns, makespan_ns

from schedc.analysis.attribution.idle import idle_of
from schedc.analysis.attribution.slack import slacks_of
from schedc.analysis.attribution.waits import SegmentKind, critical_path, waits_of
from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.analysis.simulation.memory import memory_curve, peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.formats.plan.plan_structs import parse_collective
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import DataParallel, Objective, Problem, Stage, with_whole_weights
from schedc.ir.schedule import Schedule
from schedc.lower.sharding import placed
from schedc.verify.plan.checks import verify_plan
from schedc.verify.schedule.checks import verify_schedule

STAGE = Stage(rank=0, forward_ns=(1,), backward_input_ns=(1,), backward_weight_ns=(1,), backward_ns=(2,), activation_bytes=1)


def cases(first: int, count: int, most_ops: int = 24) -> list[tuple[Problem, Schedule]]:
    """Problems with orders, collectives placed."""
    found = []
    for seed in range(first, first + count):
        random = Random(seed)
        problem = replace(sharded_problem(random, most_ops=most_ops), objective=Objective.MAKESPAN)
        orders = sharded_orders(random, problem)
        schedule = None if orders is None else placed(problem, orders)
        if schedule is not None:
            found.append((problem, schedule))
    return found


def test_times_and_memory_are_those_of_a_slow_step_and_the_verifier_finds_them() -> None:
    again = 0
    for problem, schedule in cases(0, 200):
        timeline = simulate(problem, schedule)
        assert timeline.makespan_ns == makespan_ns(problem, schedule)
        peaks = [held_bytes(problem, *each) for each in zip(schedule.orders, schedule.collectives, strict=True)]
        assert list(peak_bytes(problem, schedule)) == peaks
        for rank, peak in enumerate(peaks):
            curve = memory_curve(problem, schedule, timeline, rank)
            assert curve[-1][1] == 0 and max(held for _, held in curve) <= peak
        plan = plan_of(problem, schedule)
        assert verify_plan(plan) == ()
        assert max(bound.value_ns for bound in lower_bounds(problem)) <= timeline.makespan_ns
        assert parse_plan(plan_json(plan), "plan") == plan
        again += any(len(queue) > 2 * len({each.stage for each in queue}) for queue in schedule.collectives)
    assert again > 10  # weights that were released are gathered again


def test_no_place_is_better_for_tiny_orders() -> None:
    """All lists of collectives that fit, one by one, where there are few."""
    tried = 0
    for problem, schedule in cases(0, 120, most_ops=10):
        ways = 1
        for order, limit in zip(schedule.orders, problem.memory_limit_bytes, strict=True):
            ways *= sum(1 for _ in islice(all_places(problem, order, limit), 200))
        if ways < 200:
            tried += 1
            assert simulate(problem, schedule).makespan_ns == least_ns(problem, schedule)
    assert tried > 30


def test_what_ops_wait_for_is_known() -> None:
    """The critical path goes through gathers and reductions from 0 to the end; idle time has causes, and slack is not below 0."""
    through: set[SegmentKind] = set()
    for problem, schedule in cases(0, 150):
        timeline = simulate(problem, schedule)
        waits = waits_of(problem, timeline)
        path = critical_path(timeline, waits)
        through |= {segment.kind for segment in path}
        assert [each.end_ns for each in path] == [*(each.start_ns for each in path[1:]), timeline.makespan_ns]
        slacks = slacks_of(timeline, waits)
        assert min(*slacks.op_ns, *slacks.collective_ns) >= 0
        idle_ns = [sum(piece.idle_ns for piece in of_rank) for of_rank in idle_of(problem, schedule, timeline, waits)]
        assert idle_ns == [timeline.makespan_ns - busy_ns for busy_ns in timeline.busy_ns]
    assert through >= {SegmentKind.ALL_GATHER, SegmentKind.REDUCE_SCATTER}


def test_orders_without_room_have_no_places_and_others_have_some() -> None:
    """Random orders with random limits, against all lists of collectives."""
    found: list[bool] = []
    for seed in range(120):
        random = Random(seed)
        problem = sharded_problem(random, most_ops=9)
        limits = [None if limit is None else max(0, limit - random.randint(0, 6)) for limit in problem.memory_limit_bytes]
        problem = replace(problem, memory_limit_bytes=tuple(limits))
        orders = random_schedule(random, with_whole_weights(problem))
        if orders is not None:
            ranks = zip(orders.orders, limits, strict=True)
            found.append(all(next(all_places(problem, *each), None) is not None for each in ranks))
            assert (placed(problem, orders) is not None) == found[-1]
    assert min(found.count(True), found.count(False)) > 20


PROBLEM = Problem(
    name="two stages",
    ranks=1,
    microbatches=1,
    stages=(STAGE, STAGE),
    paths=((0, 1),),
    path_of=(0,),
    memory_limit_bytes=(10,),
    data_parallel=DataParallel(
        size=2, zero_stage=3, reduce_scatter_ns=(3, 3), all_gather_ns=(5, 5), gathered_bytes=(4, 4), gradient_bytes=(2, 2)
    ),
)
ORDER = (Op(Kind.F, 0, 0), Op(Kind.F, 1, 0), Op(Kind.BW, 1, 0), Op(Kind.BW, 0, 0))
GOOD = "AG0@0-1 AG1@0-3 RS1@3-3 AG0@3-4 RS0@4-4"


def broken(text: str) -> str:
    """The violations of the collectives."""
    schedule = Schedule(orders=(ORDER,), collectives=(tuple(map(parse_collective, text.split())),))
    return "; ".join(map(str, verify_schedule(PROBLEM, schedule)))


def test_the_rules_of_places() -> None:
    assert broken(GOOD) == ""
    schedule = Schedule(orders=(ORDER,), collectives=(tuple(map(parse_collective, GOOD.split())),))
    # The first gathers to 5 and 10, F to 6 and 11, B to 13, the reduction to 16 and the gather behind it to 21, BW to 23.
    assert simulate(PROBLEM, schedule).makespan_ns == makespan_ns(PROBLEM, schedule) == 26
    assert peak_bytes(PROBLEM, schedule) == (9,)


@pytest.mark.parametrize(
    ("text", "found"),
    {
        "released too soon": (
            "AG0@0-1 AG1@0-2 RS1@3-3 AG0@3-4 RS0@4-4",
            "compute[2]: sharding: BW1.0: the weights of its stage",
        ),
        "gathered twice": ("AG0@0-4 AG1@0-3 RS1@3-3 AG0@3-4 RS0@4-4", "AG0@3-4: the weights are there until op 4"),
        "for nothing": ("AG0@0-1 AG1@0-3 AG0@1-2 RS1@3-3 AG0@3-4 RS0@4-4", "AG0@1-2: no op needs it"),
        "reduced too soon": ("AG0@0-1 AG1@0-3 RS1@2-3 AG0@3-4 RS0@4-4", "RS1@2-3: gradients are reduced once, not before op 3"),
        "reduced twice": (f"{GOOD} RS0@4-4", "RS0@4-4: gradients are reduced once"),
        "not reduced": ("AG0@0-1 AG1@0-3 AG0@3-4 RS0@4-4", "RS1 is missing"),
        "out of order": ("AG0@0-1 AG1@0-3 AG0@3-4 RS0@4-4 RS1@3-3", "RS1@3-3: is issued behind one that is issued before op 4"),
        "outside": ("AG0@0-1 AG1@0-3 RS1@3-3 AG0@3-5 RS0@4-4", "AG0@3-5: expected places in the queue of 4 ops"),
        "of nobody": (
            "AG0@0-1 AG1@0-3 AG2@0-1 RS1@3-3 AG0@3-4 RS0@4-4",
            "AG2@0-1: expected AG or RS of one of the rank's stages",
        ),
        "too much": ("AG0@0-4 AG1@0-3 RS1@3-3 RS0@4-4", "memory-limit: BW1.0 makes the rank hold 12 bytes"),
        "gradients too long": ("AG0@0-1 AG1@0-3 RS1@3-4 AG0@2-4 RS0@4-4", "is issued behind one"),
    }.values(),
)
def test_broken_places_are_refused(text: str, found: str) -> None:
    assert found in broken(text)
