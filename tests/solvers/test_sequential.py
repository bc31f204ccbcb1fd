"""The methods for short memory: one microbatch after another, and what is found where every backward must fuse."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, strategies as st
from inputs.problems import make_problem
from inputs.tiny_problems import tiny_problem

from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.analysis.simulation.memory import peak_bytes
from schedc.compile.driver import compile_problem, time_methods
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.method import FUSED, fusing_frees, fusing_saves_time
from schedc.solvers.driver.portfolio import candidate_names
from schedc.solvers.driver.registry import constructive
from schedc.verify.schedule.checks import verify_schedule


@given(seed=st.integers(0, 2**32))
def test_one_microbatch_after_another_fits_wherever_anything_does(seed: int) -> None:
    problem = tiny_problem(Random(seed), most_ops=60)
    schedule = constructive("sequential")(problem)
    least = minimum_limit_bytes(problem)
    assert peak_bytes(problem, schedule) == least
    assert verify_schedule(replace(problem, memory_limit_bytes=least), schedule) == ()


def test_a_plan_is_found_at_the_least_limit() -> None:
    """The later of a rank's stages recomputes nothing, so the rank need not hold its input beside the recomputation."""
    held = [(0, 0), (1, 0), (1, 0), (3, 1)]
    problem = make_problem(2, 3, placement="wave", chunks=2, activation=held, memory_limit_bytes=(5, 2))
    stages = (replace(problem.stages[0], recompute=True, recomputed_bytes=5), *problem.stages[1:])
    problem = replace(problem, stages=stages)
    assert minimum_limit_bytes(problem) == problem.memory_limit_bytes
    compiled = compile_problem(problem, SearchSettings(limits=Limits(gap=0.99)))
    assert verify_schedule(problem, compiled.plan.schedule()) == ()
    assert compiled.plan.certificate.peak_activation_bytes == (5, 2)


def short_of_memory(seed: int) -> tuple[int, int]:
    """The best that the methods make of a problem that may split backwards and recomputes, and of the one that must fuse them."""
    random = Random(seed)
    costs = [(random.randint(3, 9), random.randint(3, 9), random.randint(3, 9)) for _ in range(3)]
    problem = make_problem(3, 6, costs_ns=costs, activation=(1, 0), links={(0, 1): (20, 0), (1, 0): (20, 0)})
    again = random.randint(4, 12)
    stages = tuple(
        replace(
            stage,
            recompute=True,
            recomputed_bytes=again,
            activation_after_input_bytes=again,
            backward_ns=(random.randint(stage.backward_input_ns[0], stage.backward_input_ns[0] + 2 * stage.backward_weight_ns[0]),),
        )
        for stage in problem.stages
    )
    may = replace(problem, stages=stages, memory_limit_bytes=tuple(again + random.randint(2, 6) for _ in range(3)))
    assert fusing_saves_time(may) or fusing_frees(may)
    must = replace(may, split_backward=False)
    found = []
    for asked in (may, must):
        tables = ["rule-table", f"rule-table{FUSED}"] if asked is may else ["rule-table"]
        times = [each.objective_ns for each in time_methods(asked, (*candidate_names(asked), *tables))]
        found.append(min(ns for ns in times if ns is not None))
    return found[0], found[1]


@pytest.mark.parametrize("seed", range(4))
def test_what_may_split_is_no_worse_than_what_must_fuse(seed: int) -> None:
    may_ns, must_ns = short_of_memory(seed)
    assert may_ns <= must_ns
