"""Each rule of a problem: a problem that breaks only it, and where; sound ones break none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from inputs.problems import make_problem, problems

import schedc.verify.problem as rules
from schedc.ir.graph import Edge
from schedc.ir.network import Link, Network
from schedc.ir.problem import DataParallel, Objective, Origin, Problem, Stage, Updates, Versions
from schedc.verify.problem import verify_problem

PARALLEL = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(5, 5), all_gather_ns=(3, 3))
UPDATES = Updates(versions=Versions.STASH, microbatches=1, is_period=False)


def _problem(**changes: Any) -> Problem:
    return replace(make_problem(2, 3), **changes)


def _stage(problem: Problem, index: int, **changes: Any) -> tuple[Stage, ...]:
    stages = list(problem.stages)
    stages[index] = replace(stages[index], **changes)
    return tuple(stages)


def _layered(*layers: tuple[int, int] | None, placement: Any = "unidirectional") -> Problem:
    problem = make_problem(2, 3, placement=placement)
    stages = tuple(replace(stage, layers=own) for stage, own in zip(problem.stages, layers, strict=True))
    return replace(problem, stages=stages)


SOUND = make_problem(2, 3)
ONE_RANK = make_problem(1, 1)
THREE = replace(make_problem(2, 3, placement=[0, 1, 1]), paths=((0, 1), (2,)))
BOTH = (Link(source=0, destination=1, trunk="east"), Link(source=1, destination=0))


def _origin(layers: tuple[tuple[int, int], ...] = ((0, 3), (3, 4)), sites: tuple[int, ...] = (0, 1)) -> Origin:
    return Origin(layers_of_stage=layers, network=Network(site_of_rank=sites, links=BOTH))


def _graph(*edges: tuple[int, int, int, int], paths: tuple[tuple[int, ...], ...] = ((0, 1),)) -> Problem:
    made = tuple(Edge(source=a, destination=b, message_bytes=size, value=value) for a, b, size, value in edges)
    return replace(make_problem(2, 3), edges=made, paths=paths)


BROKEN = [
    ("edges", "edges", _graph((0, 1, 5, 0), paths=((0, 1), (1, 0))), "expected one path where stages are a graph, found 2"),
    ("edges", "edges[0]", _graph((0, 2, 5, 0)), "stage 2 is not on the path"),
    ("edges", "edges[0]", _graph((1, 0, 5, 0)), "leads from stage 1 to stage 0, which is before it on the path"),
    ("edges", "edges[1]", _graph((0, 1, 5, 0), (0, 1, 5, 1)), "the edge from stage 0 to stage 1 is already given by edges[0]"),
    ("edges", "edges[1].message_bytes", _graph((0, 1, 5, 0), (0, 2, 6, 0)), "found 6, expected 5 as of the edge before"),
    ("slices", "slices[1]", _problem(slices=(3, 0, 1)), "expected a length of at least 1, found 0"),
    ("slices", "microbatches", _problem(slices=(3, 1)), "expected a multiple of the 2 slices, found 3; each slice counts"),
    ("slices", "stages[1].state_gradient_bytes", _problem(stages=_stage(SOUND, 1, state_gradient_bytes=8)), "expected 0"),
    ("counts", "microbatches", _problem(microbatches=0, path_of=()), "expected at least 1, found 0"),
    (
        "counts",
        "ranks",
        replace(ONE_RANK, ranks=0, stages=(), paths=(), path_of=(), microbatches=0, memory_limit_bytes=()),
        "at least 1",
    ),
    ("length", "stages", _problem(stages=_stage(SOUND, 1, forward_ns=(2**61,))), "expected a step below 2^62 ns"),
    ("path-stages", "paths[0][1]", _problem(paths=((0, 2, 1),)), "stage 2 does not exist; the stages are 0 to 1"),
    ("path-stages", "paths[0][1]", _problem(paths=((0, -1, 1),)), "stage -1 does not exist"),
    ("path-stages", "paths[0][2]", _problem(paths=((0, 1, 0),)), "stage 0 is a duplicate, first at position 0"),
    ("path-stages", "paths[1]", _problem(paths=((0, 1), ())), "visits no stage"),
    ("stage-on-path", "stages[1]", _problem(paths=((0,),)), "is on no path"),
    (
        "rank-range",
        "stages[2].rank",
        replace(THREE, stages=_stage(THREE, 2, rank=7)),
        "rank 7 does not exist; the ranks are 0 to 1",
    ),
    ("rank-has-stage", "ranks[2]", _problem(ranks=3, memory_limit_bytes=(None,) * 3), "has no stage"),
    ("path-of", "path_of", _problem(path_of=(0, 0)), "expected one path for each of the 3 microbatches, found 2"),
    ("path-of", "path_of[2]", _problem(path_of=(0, 0, 1)), "path 1 does not exist; the paths are 0 to 0"),
    (
        "microbatch-costs",
        "stages[1].backward_weight_ns",
        _problem(stages=_stage(SOUND, 1, backward_weight_ns=(1, 2))),
        "expected 1 duration, or 3, one per microbatch; found 2",
    ),
    ("layers", "stages[1].layers", _layered((0, 1), None), "expected layers of all stages of a path or of none, found none here"),
    ("layers", "stages[0].layers", _layered((2, 1), (1, 3)), "found 2 to 1, expected one or more layers"),
    ("layers", "stages[1].layers", _layered((0, 2), (3, 4)), "found 3 to 4, expected one or more layers, from 2 on"),
    (
        "layers",
        "paths[1]",
        replace(_layered((0, 2), (2, 4), (0, 1), (1, 4), placement=[0, 1, 1, 0]), paths=((0, 1), (2, 3)), path_of=(0, 1, 0)),
        "other layers than those of path 0",
    ),
    ("link-ranks", "links[2].destination", _problem(links=(*BOTH, Link(source=0, destination=2))), "rank 2 does not exist"),
    ("link-ranks", "links[2].source", _problem(links=(*BOTH, Link(source=-1, destination=1))), "rank -1 does not exist"),
    ("link-unique", "links[2]", _problem(links=(*BOTH, Link(source=0, destination=1))), "already given by links[0]"),
    (
        "links-present",
        "links",
        _problem(links=BOTH[:1]),
        "none from rank 1 to rank 0, which the transfers from stage 1 to stage 0 need",
    ),
    ("links-present", "links", _problem(links=BOTH[1:]), "none from rank 0 to rank 1"),
    (
        "memory-limits",
        "memory_limit_bytes",
        _problem(memory_limit_bytes=(5,)),
        "expected one limit for each of the 2 ranks, found 1",
    ),
    ("memory-limits", "memory_limit_bytes[1]", _problem(memory_limit_bytes=(None, -1)), "expected at least 0 bytes, found -1"),
    ("data-parallel", "data_parallel.size", _problem(data_parallel=replace(PARALLEL, size=0)), "expected at least 1, found 0"),
    ("data-parallel", "data_parallel.zero_stage", _problem(data_parallel=replace(PARALLEL, zero_stage=2)), "found 2"),
    ("data-parallel", "data_parallel.zero_stage", _problem(data_parallel=replace(PARALLEL, zero_stage=4)), "found 4"),
    ("data-parallel", "data_parallel.gathered_bytes", _problem(data_parallel=replace(PARALLEL, zero_stage=3)), "one per stage"),
    (
        "data-parallel",
        "data_parallel.gradient_bytes[1]",
        _problem(data_parallel=replace(PARALLEL, zero_stage=3, gathered_bytes=(1, 1), gradient_bytes=(1, -1))),
        "at least 0, found -1",
    ),
    (
        "data-parallel",
        "data_parallel.reduce_scatter_ns",
        _problem(data_parallel=replace(PARALLEL, reduce_scatter_ns=(5,))),
        "each of the 2 stages, found 1",
    ),
    (
        "data-parallel",
        "data_parallel.all_gather_ns",
        _problem(data_parallel=replace(PARALLEL, all_gather_ns=(3, 3, 3))),
        "each of the 2 stages, found 3",
    ),
    (
        "data-parallel",
        "data_parallel.all_gather_ns[1]",
        _problem(data_parallel=replace(PARALLEL, all_gather_ns=(3, -3))),
        "expected at least 0, found -3",
    ),
    (
        "data-parallel",
        "data_parallel.trunk",
        _problem(links=BOTH, data_parallel=replace(PARALLEL, trunk="west")),
        "no link is on trunk 'west'; the trunks are 'east'",
    ),
    (
        "origin",
        "origin.layers_of_stage",
        _problem(origin=_origin(((0, 3),))),
        "each of the 2 stages, found 1",
    ),
    ("origin", "origin.layers_of_stage[1]", _problem(origin=_origin(((0, 3), (3, 3)))), "found 3 to 3"),
    ("origin", "origin.layers_of_stage[1]", _problem(origin=_origin(((0, 2), (3, 4)))), "found 3 to 4, expected layers from 2 on"),
    ("origin", "origin.network.site_of_rank", _problem(origin=_origin(sites=(0,))), "one site for each of the 2 ranks, found 1"),
    ("objective", "objective", _problem(objective="speed"), "expected makespan or stage-span, found 'speed'"),
    (
        "updates",
        "microbatches",
        _problem(updates=replace(UPDATES, microbatches=2)),
        "expected whole steps of 2 microbatches, found 3",
    ),
    (
        "updates",
        "objective",
        _problem(updates=UPDATES, objective=Objective.STAGE_SPAN),
        "expected makespan where steps overlap, found stage-span",
    ),
    (
        "updates",
        "microbatches",
        _problem(updates=replace(UPDATES, is_period=True)),
        "expected one step of 1 microbatches, found 3",
    ),
    (
        "updates",
        "data_parallel",
        _problem(updates=UPDATES, data_parallel=PARALLEL),
        "what it takes before an update belongs to `update`",
    ),
    (
        "size",
        "microbatches",
        _problem(microbatches=166_667, path_of=(0,) * 166_667),
        "expected at most 1000000 compute ops (3 for each stage that a microbatch visits), found 1000002",
    ),
]


@pytest.mark.parametrize(("rule", "place", "problem", "message"), BROKEN, ids=lambda value: value if isinstance(value, str) else "")
def test_a_broken_rule_is_found_at_its_place(rule: str, place: str, problem: Problem, message: str) -> None:
    found = verify_problem(problem)
    assert {violation.rule for violation in found} == {rule}
    assert any(violation.place == place and message in violation.message for violation in found), found


def test_every_violation_is_returned() -> None:
    problem = _problem(paths=((0, 5, 0),), path_of=(0,), memory_limit_bytes=(1,), objective="speed", links=())
    found = verify_problem(problem)
    assert [violation.rule for violation in found] == [
        "path-stages",
        "path-stages",
        "stage-on-path",
        "path-of",
        "memory-limits",
        "objective",
    ]


def test_empty_problem_is_refused_without_a_traceback() -> None:
    problem = Problem(name="", ranks=0, microbatches=0, stages=(), paths=(), path_of=(), memory_limit_bytes=())
    assert [violation.place for violation in verify_problem(problem)] == ["ranks", "microbatches", "stages", "paths"]


def test_sound_data_parallel_is_accepted() -> None:
    for parallel in (PARALLEL, replace(PARALLEL, trunk="east"), replace(PARALLEL, all_gather_ns=(), zero_stage=0)):
        assert verify_problem(_problem(links=BOTH, data_parallel=parallel)) == ()


def test_a_sound_origin_is_accepted_and_says_the_layout() -> None:
    problem = _problem(origin=_origin())
    assert verify_problem(problem) == ()
    assert problem.layout is not None
    assert (problem.layout.rank_of_stage, problem.layout.layers_of_stage) == ((0, 1), ((0, 3), (3, 4)))
    assert SOUND.layout is None
    assert problem == SOUND  # what is asked for is the same


def test_sound_layers_are_accepted() -> None:
    assert verify_problem(_layered((3, 4), (4, 9))) == ()
    both = _layered((0, 2), (2, 4), (0, 2), (2, 4), placement=[0, 1, 1, 0])
    assert verify_problem(replace(both, paths=((0, 1), (2, 3)), path_of=(0, 1, 0))) == ()


@given(problem=problems())
def test_sound_problems_are_accepted(problem: Problem) -> None:
    assert verify_problem(problem) == ()


def test_every_check_is_run_and_is_tested() -> None:
    defined = {name.replace("_", "-") for name in re.findall(r"def check_(\w+)", Path(rules.__file__).read_text())}
    assert set(rules.CHECKS.rules) == defined - {"pipeline", "costs"} == {case[0] for case in BROKEN}  # those are of test_job.py
