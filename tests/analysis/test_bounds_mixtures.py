"""The bounds where each backward is fused or split: below the optimum over all orders and all mixtures, and often equal to it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.fused_problems import mixed_problem, with_zeros
from inputs.problems import make_problem
from inputs.tiny_problems import random_parts
from oracles.bounds import bound_of
from oracles.brute_force import SearchTooLarge, optimum
from suite.example_counts import examples

from schedc.analysis.bounds.lower_bounds import best_bound, lower_bounds
from schedc.analysis.bounds.one_machine import Backward, Task, mixture_bound, one_machine_bound

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Parts

LONGER = 1_000


def _least(problem: Problem, parts: tuple[Parts, ...] = ()) -> int | None:
    """The optimum; None where the search is too large, or there is no schedule."""
    try:
        return optimum(problem, parts, most_states=8_000)
    except SearchTooLarge:
        return None


@pytest.mark.parametrize("seed", [*range(100), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 400))])
def test_no_bound_exceeds_the_optimum_over_all_mixtures(seed: int) -> None:
    random = Random(seed)
    problem = mixed_problem(random, most_ops=14, data_parallel=seed % 5 == 0)
    least = _least(problem, random_parts(random, problem) if seed % 10 == 9 else ())
    if least is not None:
        assert all(bound.value_ns <= least for bound in lower_bounds(problem)), problem


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 150))])
def test_no_bound_exceeds_the_optimum_where_blocks_take_no_time(seed: int) -> None:
    """The search wants 1 ns or more: so all times are a thousand times as long; a wrong bound is 1 ns or more too high."""
    random = Random(seed)
    problem, longer = with_zeros(random, mixed_problem(random, most_ops=12), LONGER)
    least = _least(longer)
    if least is not None:
        assert all(LONGER * bound.value_ns <= least for bound in lower_bounds(problem)), problem


@st.composite
def _backwards(draw: st.DrawFn) -> tuple[Backward, int]:
    """Backwards that are alike, and their B."""
    b, w, fused = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 20))
    head, after = draw(st.integers(0, 20)), draw(st.integers(0, 3))
    sent = draw(st.integers(after, 20))
    backward = Backward(
        microbatches=draw(st.integers(1, 2)),
        gradient_ns=min(b, fused),
        fused_ns=fused,
        split_ns=b + w,
        head_ns=head,
        later_head_ns=head + min(b, fused),
        gradient_tail_ns=draw(st.integers(sent, 24)),
        sent_tail_ns=sent,
        after_ns=after,
    )
    return backward, b


def _chosen(backward: Backward, b: int, *, split: bool) -> list[Task]:
    """The tasks of one backward."""
    sending_ns = b if split else backward.fused_ns
    found = [
        Task(backward.head_ns, backward.gradient_ns, backward.gradient_tail_ns),
        Task(backward.later_head_ns, sending_ns - backward.gradient_ns, backward.sent_tail_ns),
    ]
    return [*found, Task(backward.later_head_ns, backward.split_ns - b, backward.after_ns or 0)] if split else found


@examples(200, deadline=None)
@given(
    groups=st.lists(_backwards(), min_size=1, max_size=3),
    alike=st.booleans(),
    forwards=st.lists(st.builds(Task, st.integers(0, 9), st.integers(1, 9), st.integers(20, 30)), max_size=2),
)
def test_mixture_bound_never_exceeds_the_best_choice(groups: list[tuple[Backward, int]], alike: bool, forwards: list[Task]) -> None:
    if alike:  # the same costs, with heads and tails of their own
        first, b = groups[0]
        costs = {"gradient_ns": first.gradient_ns, "fused_ns": first.fused_ns, "split_ns": first.split_ns}
        groups = [(each._replace(**costs, later_head_ns=each.head_ns + first.gradient_ns), b) for each, _ in groups]
    single = [(backward._replace(microbatches=1), b) for backward, b in groups for _ in range(backward.microbatches)]
    best_ns = min(
        one_machine_bound(
            [*forwards, *(task for (each, b), split in zip(single, choice, strict=True) for task in _chosen(each, b, split=split))]
        )
        for choice in product([False, True], repeat=len(single))
    )
    assert mixture_bound([*forwards, *(backward for backward, _ in groups)]) <= best_ns


def test_each_split_backward_costs_what_it_brings_forward() -> None:
    """Ten backwards on the last rank, and 60 ns of way back: its gradients must be early, but each W apart costs 2 ns."""
    backward = Backward(
        microbatches=10,
        gradient_ns=10,
        fused_ns=18,
        split_ns=20,
        head_ns=0,
        later_head_ns=10,
        gradient_tail_ns=60,
        sent_tail_ns=60,
        after_ns=0,
    )
    assert one_machine_bound([Task(0, 100, 60), Task(10, 80, 0)]) == 180
    assert mixture_bound([backward]) == 192  # six of them split: 10 × 18 + 6 × 2, and 6 × 10 + 4 × 18 + 60
    assert mixture_bound([backward._replace(split_ns=18)]) == 180
    assert mixture_bound([backward._replace(after_ns=None)]) == 160


@pytest.mark.parametrize(("fused_ns", "value_ns"), [(16, 122), (18, 126), (20, 130)])
def test_the_bound_of_a_mixture_is_the_optimum(fused_ns: int, value_ns: int) -> None:
    problem = make_problem(2, 4)
    problem = replace(problem, stages=tuple(replace(stage, backward_ns=(fused_ns,)) for stage in problem.stages))
    assert optimum(problem, most_states=200_000) == best_bound(problem).value_ns == value_ns
    assert bound_of("work", problem).value_ns == value_ns


@pytest.mark.parametrize(
    ("costs_ns", "fused_ns", "kept", "in_flight", "latencies_ns", "value_ns"),
    [
        ([(3, 3, 7), (4, 2, 2)], (7, 2), 0, 2, (2, 6), 54),
        ([(5, 3, 6), (1, 1, 4)], (8, 4), 1, 2, (5, 2), 57),
    ],
)
def test_a_w_that_fills_an_idle_gap_is_paid_for(
    costs_ns: list[tuple[int, int, int]],
    fused_ns: tuple[int, int],
    kept: int,
    in_flight: int,
    latencies_ns: tuple[int, int],
    value_ns: int,
) -> None:
    there_ns, back_ns = latencies_ns
    links = {(0, 1): (there_ns, 0), (1, 0): (back_ns, 0)}
    problem = make_problem(2, 4, costs_ns=costs_ns, activation=(2, kept), in_flight=in_flight, links=links)
    stages = tuple(replace(stage, backward_ns=(each,)) for stage, each in zip(problem.stages, fused_ns, strict=True))
    problem = replace(problem, stages=stages)
    assert optimum(problem, most_states=200_000) == bound_of("idle-gaps", problem).value_ns == value_ns
