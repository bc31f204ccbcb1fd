"""Stages that recompute: what they truly hold, op by op, is what their problem says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given, strategies as st
from inputs.tiny_problems import random_parts, random_schedule
from inputs.workloads import random_workload

from schedc.analysis.simulation.memory import peak_bytes
from schedc.ir.ops import WHOLE, Kind
from schedc.ir.workload import Device
from schedc.lower.problem import problem_of
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

PLENTY = 10**6


def held(plain: Problem, problem: Problem, schedule: Schedule, rank: int) -> Iterator[int]:
    """What the rank truly holds during and after each of its ops; `plain` is the problem without recomputation."""
    input_bytes = {after: plain.stages[before].message_bytes for path in plain.paths for before, after in pairwise(path)}
    counts = {(parts.kind, parts.stage): len(parts.shares) for parts in schedule.parts}
    now = 0
    for op in schedule.orders[rank]:
        stage, again = plain.stages[op.stage], problem.stages[op.stage].recompute
        first, last = op.part in (WHOLE, 0), op.part in (WHOLE, counts.get((op.kind, op.stage), 0) - 1)
        kept = input_bytes.get(op.stage, 0) if again else stage.activation_bytes
        after_input = stage.activation_after_input_bytes
        if op.kind is Kind.F and first:
            now += kept
        if again and op.kind in (Kind.B, Kind.BW):
            yield now + stage.activation_bytes
        else:
            yield now
        if last:
            now -= {Kind.F: 0, Kind.B: kept - after_input, Kind.W: after_input, Kind.BW: kept}[op.kind]
        yield now


@given(seed=st.integers(0, 2**32))
def test_the_peak_is_what_is_held(seed: int) -> None:
    """Fused or split, microbatch by microbatch: a fused backward leaves nothing for W, though the stage may split others."""
    random = Random(seed)
    workload, layout = random_workload(random)
    workload = replace(workload, devices=(Device(limit_bytes=PLENTY),) * workload.ranks)
    plain, problem = problem_of(workload, replace(layout, recomputed=frozenset())), problem_of(workload, layout)
    schedule = random_schedule(random, problem, random_parts(random, problem))
    assert schedule is not None
    assert problem.memory_limit_bytes == plain.memory_limit_bytes
    for rank, peak in enumerate(peak_bytes(problem, schedule)):
        assert max(held(plain, problem, schedule, rank), default=0) == peak


@given(seed=st.integers(0, 2**32))
def test_what_fuses_all_backwards_fits_where_they_may_split(seed: int) -> None:
    """The same sizes, and no less memory: a schedule of the job that must fuse is one of the job that may split."""
    random = Random(seed)
    workload, layout = random_workload(random)
    must = problem_of(replace(workload, split_backward=False), layout)
    schedule = random_schedule(random, must)
    if schedule is not None:
        assert verify_schedule(problem_of(replace(workload, split_backward=True), layout), schedule) == ()
