"""A plan beside a job: every field of the problem counts, so that one that is added is compared, too."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from inputs.plans import small_plan

from schedc.ir.graph import Edge
from schedc.ir.network import Link, Network
from schedc.ir.problem import DataParallel, Origin, Problem, Stage, Updates, Versions
from schedc.verify import problem as job
from schedc.verify.problem import check_costs, check_pipeline

PLAN = small_plan()
PARALLEL = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(1, 1), all_gather_ns=(1, 1))
OTHER: dict[type, dict[str, Any]] = {
    Problem: {
        "name": "another",
        "ranks": 9,
        "microbatches": 9,
        "stages": (),
        "paths": ((0,),),
        "path_of": (0,),
        "edges": (Edge(source=0, destination=1),),
        "slices": (9,),
        "links": (),
        "memory_limit_bytes": (),
        "split_backward": None,
        "cut_blocks": None,
        "in_order": None,
        "placement": "another",
        "data_parallel": PARALLEL,
        "objective": "another",
        "updates": Updates(versions=Versions.STASH, microbatches=1, is_period=False),
        "origin": Origin(layers_of_stage=(), network=Network(site_of_rank=())),
    },
    Stage: {
        "rank": 9,
        "forward_ns": (99,),
        "backward_input_ns": (99,),
        "backward_weight_ns": (99,),
        "backward_ns": (99,),
        "activation_bytes": 99,
        "activation_after_input_bytes": 0,
        "message_bytes": 99,
        "gradient_message_bytes": 99,
        "layers": (3, 9),
        "recompute": True,
        "recomputed_bytes": 9,
        "static_bytes": 9,
        "parameters": 9,
        "expert_parameters": 2,
        "update_ns": 9,
        "version_bytes": 9,
        "state_gradient_bytes": 9,
    },
    Link: {
        "source": 8,
        "destination": 9,
        "latency_ns": 99,
        "transfer_ns": 99,
        "bytes_per_second": 99,
        "setup_ns": 9,
        "trunk": "another",
    },
    DataParallel: {
        "size": 9,
        "zero_stage": 0,
        "reduce_scatter_ns": (9, 9),
        "all_gather_ns": (),
        "trunk": "another",
        "gathered_bytes": (9, 9),
        "gradient_bytes": (9, 9),
    },
}
"""For every field a value that the plan's problem does not have."""


def places(plan_problem: Problem, problem: Problem) -> list[str]:
    plan = replace(PLAN, problem=plan_problem)
    return [violation.place for violation in (*check_pipeline(plan, problem), *check_costs(plan, problem))]


@pytest.mark.parametrize("kind", OTHER)
def test_every_field_has_a_value_here(kind: type) -> None:
    assert set(OTHER[kind]) == {field.name for field in fields(kind)}


@pytest.mark.parametrize("name", OTHER[Problem])
def test_every_field_of_the_problem_is_compared(name: str) -> None:
    problem = PLAN.problem
    assert places(problem, problem) == []
    found = places(problem, replace(problem, **{name: OTHER[Problem][name]}))
    if name in ("name", "placement", "origin"):  # `stages` and `paths` say what a placement means, and costs where they came from
        assert found == []
    else:
        assert any(place.partition(".")[2].startswith(name) for place in found)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in (Stage, Link, DataParallel) for name in OTHER[kind]])
def test_every_field_of_what_a_problem_holds_is_compared(kind: type, name: str) -> None:
    stages = tuple(replace(stage, static_bytes=1, parameters=3) for stage in PLAN.problem.stages)
    problem = replace(PLAN.problem, data_parallel=PARALLEL, stages=stages)
    if kind is DataParallel:
        other, place = replace(problem, data_parallel=replace(PARALLEL, **{name: OTHER[kind][name]})), "costs.data_parallel"
    else:
        section = "stages" if kind is Stage else "links"
        last = getattr(problem, section)[-1]
        values = {name: OTHER[kind][name]} | ({"recompute": True} if name == "recomputed_bytes" else {})
        changed = (*getattr(problem, section)[:-1], replace(last, **values))
        changes: dict[str, Any] = {section: changed}
        other, place = replace(problem, **changes), f"costs.{section}[{len(changed) - 1}]"
    assert place in places(problem, other)


@pytest.mark.parametrize("values", [{"static_bytes": 1}, {"parameters": 1}])
def test_a_plan_without_what_stages_hold_is_the_job_s(values: Any) -> None:
    """Plans that were made before stages had it. That they differ counts where it is known, also of one stage alone."""
    stages = PLAN.problem.stages
    known = tuple(replace(stage, **values) for stage in stages)
    assert places(PLAN.problem, replace(PLAN.problem, stages=known)) == []
    assert places(replace(PLAN.problem, stages=(*known[:1], *stages[1:])), replace(PLAN.problem, stages=known)) != []
    assert places(replace(PLAN.problem, stages=known), PLAN.problem) != []


def test_the_compared_fields_follow_from_the_dataclass() -> None:
    assert {*job.PIPELINE, *job.COSTS, *job.FOR_PEOPLE} == {field.name for field in fields(Problem)}
    assert not set(job.COSTS) & {*job.PIPELINE, *job.FOR_PEOPLE}
