"""Every bound is below the exact optimum of hundreds of tiny problems, and equal to it where it should be."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import given, strategies as st
from inputs.problems import make_problem, problems
from inputs.tiny_problems import random_parts, random_schedule, tiny_problem
from oracles.bounds import bound_of
from oracles.brute_force import SearchTooLarge, optimum, timing
from suite.example_counts import examples

from schedc.analysis.bounds.lower_bounds import best_bound, lower_bounds
from schedc.analysis.bounds.one_machine import Task, one_machine_bound
from schedc.analysis.bounds.residency import load_of_slots, minimum_limit_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.ir.plan import BoundName
from schedc.ir.problem import DataParallel, Objective, Problem

NAMES = ["work", "link", "residency", "path", "warm-up", "idle-gaps"]
FAR = {(0, 1): (5, 0), (1, 0): (5, 0)}


def _check_against_optimum(seed: int, most_ops: int, *, cut: bool = False, data_parallel: bool = False) -> None:
    random = Random(seed)
    problem = tiny_problem(random, most_ops=most_ops, data_parallel=data_parallel)
    parts = random_parts(random, problem) if cut else ()
    try:
        least = optimum(problem, parts, most_states=8_000)
    except SearchTooLarge:
        return
    assert least is not None
    for bound in lower_bounds(problem):
        assert bound.value_ns <= least, (bound, problem)
    least_limits = minimum_limit_bytes(problem)
    assert all(limit is None or limit >= need for limit, need in zip(problem.memory_limit_bytes, least_limits, strict=True))


@pytest.mark.parametrize("seed", [*range(80), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(80, 250))])
def test_no_bound_exceeds_the_optimum(seed: int) -> None:
    _check_against_optimum(seed, 14)


@pytest.mark.parametrize("seed", range(80))
def test_no_bound_exceeds_the_optimum_with_blocks_cut_into_parts(seed: int) -> None:
    _check_against_optimum(seed, 10, cut=True)


@pytest.mark.parametrize("seed", range(80))
def test_no_bound_exceeds_the_optimum_with_collectives(seed: int) -> None:
    _check_against_optimum(seed, 12, data_parallel=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1260))
def test_no_bound_exceeds_the_optimum_of_larger_problems(seed: int) -> None:
    _check_against_optimum(seed, 18, cut=seed % 10 == 0, data_parallel=seed % 5 == 0)


@examples(150, deadline=None)
@given(problem=problems(), seed=st.integers(0, 99), objective=st.sampled_from(Objective))
def test_no_bound_exceeds_any_schedule(problem: Problem, seed: int, objective: Objective) -> None:
    problem = replace(problem, objective=objective)
    schedule = random_schedule(Random(seed), problem)
    if schedule is not None:
        timeline = simulate(problem, schedule)
        value_ns = timeline.makespan_ns if objective is Objective.MAKESPAN else timeline.stage_span_ns
        assert best_bound(problem).value_ns <= value_ns


TIGHT = [
    # The last rank waits for the first forward, and then works without a gap.
    ("work", make_problem(2, 3), 100),
    ("work", make_problem(2, 3, split_backward=False), 120),
    # One microbatch after the other over a slow way there and back.
    ("residency", make_problem(2, 3, costs_ns=(2, 2, 2), in_flight=1, links=FAR), 60),
    # Three messages of 20, the first one ready at 2, the last one followed by F, B, B, W.
    ("link", make_problem(2, 3, costs_ns=(2, 2, 2), links={(0, 1): (0, 20)}), 70),
    ("link", make_problem(2, 2, costs_ns=(2, 2, 2), links={(0, 1): (0, 20), (1, 0): (0, 20)}), 70),
    ("path", make_problem(2, 1, costs_ns=(2, 2, 2), links=FAR), 20),
    # Memory for two: rank 0 idles until the first gradient, and again before the last.
    ("warm-up", make_problem(2, 3, costs_ns=[(2, 3, 4), (3, 4, 2)], in_flight=2), 32),
    ("warm-up", make_problem(2, 3, costs_ns=[(3, 1, 4), (1, 1, 2)], in_flight=2, split_backward=False), 25),
    # Memory for two, and ranks of other speeds: a gap that stays partly empty in each round trip.
    ("idle-gaps", make_problem(2, 4, costs_ns=[(4, 3, 1), (3, 2, 1)], in_flight=2), 34),
]


@pytest.mark.parametrize(("name", "problem", "value_ns"), TIGHT)
def test_a_bound_is_the_optimum(name: str, problem: Problem, value_ns: int) -> None:
    assert optimum(problem, most_states=400_000) == value_ns
    assert bound_of(name, problem).value_ns == value_ns
    assert best_bound(problem).value_ns == value_ns


UNEQUAL = make_problem(1, 3, costs_ns=(1, 1, 1))
ALONE = {
    BoundName.WORK: replace(
        UNEQUAL, stages=(replace(UNEQUAL.stages[0], forward_ns=(1, 5, 9)),)
    ),  # the waves take the least of unequal
    BoundName.LINK: replace(
        make_problem(1, 2, placement=[0, 0]),  # its two all-gathers, one after the other
        data_parallel=DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(1, 1), all_gather_ns=(95, 95)),
    ),
    BoundName.RESIDENCY: make_problem(2, 3, placement="wave", chunks=2, costs_ns=(2, 2, 2), in_flight=1, links=FAR),
    BoundName.WARM_UP: make_problem(2, 3, costs_ns=[(2, 3, 4), (3, 4, 2)], in_flight=2),
    BoundName.IDLE_GAPS: make_problem(3, 3, costs_ns=[(2, 3, 4), (3, 4, 2), (5, 1, 1)], in_flight=2),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_bound_is_the_largest_alone_in_some_case(name: BoundName) -> None:
    values = {bound.name: bound.value_ns for bound in lower_bounds(ALONE[name])}
    own = values.pop(name)
    if name is not BoundName.IDLE_GAPS:
        values.pop(BoundName.IDLE_GAPS)  # which adds idle time to all the work of a rank or link, so that it mostly takes these in
    assert own > max(values.values())


def test_every_bound_has_a_case_where_it_is_the_optimum_and_one_where_it_alone_is_the_largest() -> None:
    computed_by_themselves = {name for name in BoundName if name.is_solvers or name is BoundName.LAYOUTS}
    assert set(NAMES) == set(BoundName) - computed_by_themselves
    assert {name for name, _, _ in TIGHT} == set(NAMES)
    assert set(ALONE) == set(NAMES) - {BoundName.PATH}  # `work` of a single block is the path through it


def test_a_shared_trunk_binds_more_than_two_links() -> None:
    links = {(0, 1): (0, 20), (1, 0): (0, 20)}
    apart = make_problem(2, 2, costs_ns=(2, 2, 2), placement="loop", chunks=2, links=links)
    shared = make_problem(2, 2, costs_ns=(2, 2, 2), placement="loop", chunks=2, links=links, trunks={(0, 1): "t", (1, 0): "t"})
    assert (
        bound_of(BoundName.LINK, shared).value_ns
        > bound_of(BoundName.LINK, apart).value_ns
        > bound_of(BoundName.WORK, apart).value_ns
    )


def test_bounds_are_named_in_order() -> None:
    problem = make_problem(3, 4, in_flight=2, links={(0, 1): (3, 4)})
    bounds = lower_bounds(problem)
    assert [bound.name for bound in bounds] == NAMES
    assert best_bound(problem) == max(bounds, key=lambda bound: bound.value_ns)


def test_details_name_the_place() -> None:
    slow = make_problem(3, 4, in_flight=4, links={(1, 2): (0, 90)})
    assert bound_of(BoundName.LINK, slow).detail == "link from rank 1 to rank 2"
    assert bound_of(BoundName.LINK, make_problem(3, 4, links={(1, 2): (0, 90)}, trunks={(1, 2): "east"})).detail == "trunk east"
    assert bound_of(BoundName.WORK, make_problem(3, 4, costs_ns=[(1, 1, 1), (9, 9, 9), (1, 1, 1)])).detail == "rank 1"
    assert bound_of(BoundName.RESIDENCY, slow).detail == "rank 0"
    assert bound_of(BoundName.RESIDENCY, make_problem(2, 2)) == replace(
        bound_of(BoundName.RESIDENCY, slow), value_ns=0, detail="no memory limits"
    )
    assert bound_of(BoundName.LINK, make_problem(1, 2)).detail == "no transfers"
    assert bound_of(BoundName.PATH, slow).detail == "microbatch 0"


def test_fused_backward_that_is_faster_than_its_halves_is_counted() -> None:
    problem = make_problem(1, 4, costs_ns=(2, 5, 5))
    fused = replace(problem, stages=(replace(problem.stages[0], backward_ns=(6,)),))
    assert bound_of(BoundName.WORK, problem).value_ns == 48
    assert bound_of(BoundName.WORK, fused).value_ns == optimum(fused) == 32


def test_stage_span_leaves_out_what_is_outside_a_rank() -> None:
    problem = make_problem(2, 1, costs_ns=(2, 2, 2), links=FAR)
    span = replace(problem, objective=Objective.STAGE_SPAN)
    assert bound_of(BoundName.PATH, problem).value_ns == 20
    assert bound_of(BoundName.PATH, span).value_ns == optimum(span) == 20  # rank 0 sees all
    later = make_problem(2, 2, costs_ns=[(1, 1, 1), (9, 9, 9)], links=FAR)
    span = replace(later, objective=Objective.STAGE_SPAN)
    assert optimum(span) == best_bound(span).value_ns
    assert best_bound(span).value_ns < best_bound(later).value_ns


def test_collectives_lengthen_the_makespan_bound() -> None:
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(50, 7), all_gather_ns=(11, 40))
    problem = replace(make_problem(2, 2), data_parallel=parallel)
    assert best_bound(problem).value_ns == optimum(problem) == 150
    assert bound_of(BoundName.LINK, ALONE[BoundName.LINK]).detail == "collectives of rank 0"
    assert best_bound(replace(problem, objective=Objective.STAGE_SPAN)).value_ns <= 100


@pytest.mark.parametrize(("placement", "chunks", "expected"), [("unidirectional", 1, 3), ("wave", 2, 6), ("bidirectional", 1, 3)])
def test_minimum_limit_is_necessary_and_enough_for_one(placement: str, chunks: int, expected: int) -> None:
    problem = make_problem(2, 2, placement=placement, chunks=chunks, activation=(3, 1))
    least = minimum_limit_bytes(problem)
    assert least == (expected, expected)
    below = replace(problem, memory_limit_bytes=(expected - 1, None))
    assert optimum(below) is None
    assert all(bound.value_ns >= 0 for bound in lower_bounds(below))
    assert optimum(replace(problem, microbatches=1, path_of=problem.path_of[:1], memory_limit_bytes=least)) is not None


def test_no_limits_of_zero_divide() -> None:
    problem = make_problem(2, 2, activation=(0, 0), memory_limit_bytes=[0, 0])
    assert best_bound(problem).value_ns == optimum(problem)


def test_less_memory_and_slower_links_never_lower_a_bound() -> None:
    for name in ("unidirectional", "wave"):
        chunks = 2 if name == "wave" else 1
        for limit, latency in product((4, 3, 2, 1), (0, 10, 40)):
            links = {(0, 1): (latency, 2), (1, 0): (latency, 2)}
            tight = make_problem(3, 8, placement=name, chunks=chunks, in_flight=limit, links=links)
            loose = make_problem(3, 8, placement=name, chunks=chunks, in_flight=limit + 1, links=links)
            near = make_problem(3, 8, placement=name, chunks=chunks, in_flight=limit)
            assert best_bound(tight).value_ns >= max(best_bound(loose).value_ns, best_bound(near).value_ns)


@pytest.mark.slow
def test_large_problem_keeps_all_bounds() -> None:
    values = {}
    for objective in Objective:
        problem = replace(make_problem(64, 256, in_flight=64), objective=objective)
        bounds = lower_bounds(problem)
        assert [bound.name for bound in bounds] == NAMES
        values[objective] = best_bound(problem).value_ns
    assert values == {"makespan": 8_310, "stage-span": 8_310}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 9)), max_size=7))
def test_one_machine_bound_is_the_best_set(triples: list[tuple[int, int, int]]) -> None:
    jobs = [Task(*triple) for triple in triples]
    sets = [some for size in range(1, len(jobs) + 1) for some in combinations(jobs, size)]
    values = [min(j.head_ns for j in s) + sum(j.duration_ns for j in s) + min(j.tail_ns for j in s) for s in sets]
    assert one_machine_bound(jobs) == max(values, default=0)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2)), min_size=1, max_size=4), st.integers(1, 3))
def test_load_of_slots_never_exceeds_the_best_assignment(lengths: list[tuple[int, int]], slots: int) -> None:
    each = [length for length, count in lengths for _ in range(count)]
    if len(each) > 6:
        each = each[:6]
    alone = [(length, 1) for length in each]
    best = min(
        max(sum(length for length, slot in zip(each, chosen, strict=True) if slot == which) for which in range(slots))
        for chosen in product(range(slots), repeat=len(each))
    )
    assert max(each) <= load_of_slots(alone, slots) <= best


def test_load_of_equal_intervals_is_exact() -> None:
    assert [load_of_slots([(5, count)], 3) for count in (1, 3, 4, 6, 7)] == [5, 5, 10, 10, 15]


def test_timing_of_a_known_schedule_matches_its_bound() -> None:
    problem = make_problem(1, 3)
    schedule = random_schedule(Random(0), problem)
    assert schedule is not None
    assert timing(problem, schedule) == (bound_of(BoundName.WORK, problem).value_ns,) * 2
