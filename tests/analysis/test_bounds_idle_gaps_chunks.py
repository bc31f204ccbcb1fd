"""The idle-gap bound for several stages on a rank and for links: never above the optimum, and equal to it where that is known."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, strategies as st
from inputs.problems import M70_NS, m70, make_problem, problems
from inputs.tiny_problems import random_parts, random_schedule, tiny_problem
from oracles.bounds import bound_of
from oracles.brute_force import SearchTooLarge, optimum
from suite.example_counts import examples

from schedc.analysis.bounds.heads_and_tails import frames_of
from schedc.analysis.bounds.idle_gaps_chunks import chunk_idle_gap_bound, chunk_idle_gap_bound_of_rank
from schedc.analysis.bounds.memory_states import Knapsack, statuses_after, trip_of
from schedc.analysis.simulation.simulate import simulate
from schedc.ir.plan import BoundName
from schedc.ir.problem import Objective
from schedc.study.bench.instances import instances

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
from schedc.ir.resource import Resource


def best_bound(problem: Problem) -> int:
    """The largest over all frames, ranks, links and ranks' memories."""
    machines = {Resource.of_link(link) for link in problem.links}
    found = [0]
    for frame in frames_of(problem):
        for rank in range(problem.ranks):
            found.append(chunk_idle_gap_bound_of_rank(frame, rank))
            found.extend(chunk_idle_gap_bound(frame, link, rank) for link in machines)
    return max(found)


@pytest.mark.slow
@given(
    problem=problems(max_ranks=2, max_microbatches=3, placements=("wave", "loop", "explicit", "bidirectional")),
    objective=st.sampled_from(Objective),
)
@examples(40, deadline=None)
def test_never_above_the_optimum(problem: Problem, objective: Objective) -> None:
    problem = replace(problem, objective=objective)
    try:
        best_ns = optimum(problem, most_states=2_000)
    except SearchTooLarge:
        assume(False)
    assert best_ns is None or best_bound(problem) <= best_ns


@pytest.mark.slow
@given(
    costs=st.lists(st.tuples(*[st.integers(1, 8)] * 3), min_size=4, max_size=4),
    fused=st.integers(-6, 3),
    link=st.tuples(st.integers(0, 40), st.integers(0, 12)),
    held=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1)), min_size=4, max_size=4),
    in_flight=st.sampled_from([1, 1.25, 1.5, 2]),
    shape=st.sampled_from([([0, 1, 0], 2, True), ([0, 1, 0], 3, False), ([0, 1, 1, 0], 2, False), ([0, 1, 0, 1], 2, False)]),
)
@examples(40, deadline=None)
def test_never_above_the_optimum_with_slow_links_and_little_memory(
    costs: list[tuple[int, int, int]],
    fused: int,
    link: tuple[int, int],
    held: list[tuple[int, int]],
    in_flight: float,
    shape: tuple[list[int], int, bool],
) -> None:
    ranks, microbatches, split = shape
    size = len(ranks)
    problem = make_problem(
        2,
        microbatches,
        placement=ranks,
        costs_ns=costs[:size],
        activation=held[:size],
        in_flight=in_flight,
        links={(0, 1): link, (1, 0): link},
        split_backward=split,
    )
    stages = tuple(replace(stage, backward_ns=(max(1, stage.backward_ns[0] + fused),)) for stage in problem.stages)
    problem = replace(problem, stages=stages)
    try:
        best_ns = optimum(problem, most_states=800)
    except SearchTooLarge:
        assume(False)
    assert best_ns is None or best_bound(problem) <= best_ns


@pytest.mark.parametrize("seed", [*range(60), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60, 200))])
def test_never_above_a_random_schedule_with_cut_blocks(seed: int) -> None:
    random = Random(seed)
    problem = tiny_problem(random, most_ops=60)
    schedule = random_schedule(random, problem, random_parts(random, problem))
    if schedule is not None:
        assert best_bound(problem) <= simulate(problem, schedule).objective_ns(problem.objective)


@pytest.mark.parametrize(
    ("name", "known_ms"),
    [("2dc-0-0-case1", 1842.75), ("4dc-0-0-case3", 3493), ("4dc-0.25-0.25-case3", 3550), ("2dc-2-0.25-case3", 3578.5)],
)
def test_proves_the_best_known_schedules_of_waves(name: str, known_ms: float) -> None:
    problem = next(each.problem for each in instances("m70-wave") if each.name == f"m70-wave-{name}")
    (frame,) = frames_of(problem)
    assert max(chunk_idle_gap_bound_of_rank(frame, rank) for rank in range(8)) == known_ms * 1_000_000


def test_looks_at_every_link_of_four_sites() -> None:
    """All six slow links are equally busy; the one that decides is the farthest from the first rank, where memory is shortest."""
    problem = next(each.problem for each in instances("m70-wave") if each.name == "m70-wave-4dc-0.25-2-case1")
    bound = bound_of(BoundName.IDLE_GAPS, problem)
    assert (bound.value_ns, bound.detail) == (3_393_750_000, "link from rank 5 to rank 6")


def test_grows_with_the_microbatches_where_memory_starves_a_rank() -> None:
    """Each group of eight microbatches waits for its round trip through the slow links: no rank's work hides it."""
    found = []
    for microbatches in (16, 24, 32):
        slow = dict.fromkeys(((1, 2), (2, 1), (3, 4), (4, 3), (5, 6), (6, 5)), (152_000_000, 0))
        costs = (19_000_000, 23_250_000, 10_250_000)
        problem = make_problem(8, microbatches, placement="wave", chunks=2, costs_ns=costs, in_flight=8, links=slow)
        (frame,) = frames_of(problem)
        found.append(chunk_idle_gap_bound_of_rank(frame, 7))
    work_ns = 8 * 2 * (19_000_000 + 23_250_000 + 10_250_000)
    assert found[1] - found[0] > 1.2 * work_ns
    assert found[2] - found[1] > 1.2 * work_ns


@pytest.mark.parametrize("problem", [m70(2, 2), m70(0, 0), m70(2, 2, microbatches=48), make_problem(4, 8, costs_ns=M70_NS)])
def test_is_no_less_than_the_bound_for_one_stage_per_rank(problem: Problem) -> None:
    assert best_bound(problem) >= bound_of(BoundName.IDLE_GAPS, problem).value_ns


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 140))])
def test_never_above_the_optimum_of_two_paths(seed: int) -> None:
    """Whole, fused and mixed; small numbers and odd ones; a limit or none; the makespan and the stage span."""
    random, unit = Random(seed), 1_000_003 if seed % 2 else 1
    ranks, microbatches, split = random.choice([(2, 2, True), (2, 3, True), (2, 4, False), (3, 2, True), (3, 3, False)])
    f, b, w = ([random.randint(1, 8) * unit + seed % 2 * random.randint(0, 9) for _ in range(2 * ranks)] for _ in range(3))
    costs = list(zip(f, b, w, strict=True))
    held = [(whole * unit, random.randint(0, whole) * unit) for whole in random.choices((1, 2, 3), k=2 * ranks)]
    problem = make_problem(
        ranks,
        microbatches,
        placement="bidirectional",
        costs_ns=costs if random.random() < 0.5 else costs[0],
        activation=held if random.random() < 0.5 else held[0],
        in_flight=random.choice([1, 1.25, 1.5, 2, None]),
        links={
            (a, b): (random.choice([0, 5, 20, 40]) * unit, random.choice([0, 4, 10]) * unit) for a in range(3) for b in range(3)
        },
        split_backward=split,
    )
    fused = [max(1, stage.backward_ns[0] + random.randint(-6, 2) * unit) for stage in problem.stages]
    stages = tuple(replace(stage, backward_ns=(each,)) for stage, each in zip(problem.stages, fused, strict=True))
    problem = replace(problem, stages=stages, objective=random.choice(list(Objective)))
    try:
        best_ns = optimum(problem, most_states=2_000)
    except SearchTooLarge:
        return
    assert best_ns is None or best_bound(problem) <= best_ns


def test_counts_two_paths_together_where_both_are_away_as_long() -> None:
    """The rank in the middle has room for one microbatch, and each is away for 200 ns, whichever path it takes."""
    links = dict.fromkeys(((0, 1), (1, 0), (1, 2), (2, 1)), (100, 0))
    found = [
        best_bound(
            make_problem(3, microbatches, placement=placement, activation=(1, 0), memory_limit_bytes=[None, 1, None], links=links)
        )
        for placement, microbatches in (("unidirectional", 2), ("bidirectional", 4))
    ]
    assert found[0] < 4 * 200 < found[1]


def test_statuses_of_a_wave_hold_and_release_what_the_cost_model_says() -> None:
    problem = make_problem(1, 1, placement="wave", chunks=2, costs_ns=[(1, 2, 3), (4, 5, 6)], activation=[(8, 3), (4, 1)])
    (frame,) = frames_of(problem)
    statuses = statuses_after(trip_of(frame, Resource.of_rank(0), 0))
    assert statuses == [
        [(0, 0)],
        [(8, 1)],
        [(12, 5)],
        [(8, 16), (9, 10)],
        [(0, 21), (1, 15), (4, 12)],
    ]


def most(statuses: list[tuple[int, int]], limit_bytes: int | None, count: int) -> list[int]:
    """The most value of 0 to `count` of them."""
    return [int(value) for value in Knapsack(statuses, limit_bytes, count).most(limit_bytes)]


def test_most_value_is_a_knapsack_of_so_many_items() -> None:
    assert most([(0, 0), (3, 5), (2, 3)], 7, 4) == [0, 5, 10, 11, 11]
    assert most([(0, 1), (3, 5)], 6, 4) == [0, 5, 10, 11, 12]
    assert most([(3, 5)], None, 2) == [0, 5, 10]
    assert most([(3, 5)], 2, 2) == [0, 0, 0]
    assert most([(0, 0)], 2, 2) == [0, 0, 0]


def test_less_room_than_the_limit_is_looked_up() -> None:
    """Also where the limit itself has room for all, or more than all."""
    statuses = [(0, 1), (3, 5), (2, 3)]
    for limit_bytes in (7, 12, 100):
        knapsack = Knapsack(statuses, limit_bytes, 4)
        for room_bytes in range(limit_bytes + 1):
            assert [int(value) for value in knapsack.most(room_bytes)] == most(statuses, room_bytes, 4)


def test_most_value_rounds_bytes_down_where_they_have_no_common_unit() -> None:
    exact = 1_000_003
    assert most([(exact, 1)], 5 * exact, 9)[-1] == 5
    assert most([(exact, 1), (exact + 1, 1)], 5 * exact + 4, 9)[-1] >= 5
