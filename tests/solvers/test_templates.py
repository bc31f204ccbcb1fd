"""The known schedules hold for any numbers: valid, never stuck, at the memory that their papers print."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.problems import make_problem, problems

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import WHOLE, Kind, Op
from schedc.lower.placement import PLACEMENTS
from schedc.solvers.common.method import Template
from schedc.solvers.driver.registry import methods
from schedc.solvers.templates import ALL_TEMPLATES, OVERLAPPING_TEMPLATES, TEMPLATES
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

PLACES = {
    "gpipe": [("unidirectional", 1), ("loop", 2), ("wave", 3), ("bidirectional", 1)],
    "1f1b": [("unidirectional", 1), ("loop", 2), ("loop", 3)],
    "interleaved": [("loop", 2), ("loop", 3), ("loop", 4)],
    "zb-h1": [("unidirectional", 1)],
    "zb-h2": [("unidirectional", 1)],
    "zb-v": [("wave", 2)],
    "hanayo": [("wave", 2), ("wave", 3), ("wave", 4), ("wave", 5)],
    "chimera": [("bidirectional", 1)],
    "dualpipe-v": [("wave", 2)],
}
CASES = [(name, placement, chunks) for name, places in PLACES.items() for placement, chunks in places]
SPLITS = {"zb-h1", "zb-h2", "zb-v", "dualpipe-v"}


def assert_runs_to_the_end(problem: Problem, schedule: Schedule) -> None:
    """A check of its own: every block once, in the order of needs, with some rank always able to go on."""
    found = Counter(op for order in schedule.orders for op in order)
    expected: Counter[Op] = Counter()
    for stage, microbatch in problem.blocks():
        fused = Op(Kind.BW, stage, microbatch) in found
        kinds = (Kind.F, Kind.BW) if fused else (Kind.F, Kind.B, Kind.W)
        expected.update(Op(kind, stage, microbatch) for kind in kinds)
    assert found == expected
    assert all(problem.rank_of(op) == rank for rank, order in enumerate(schedule.orders) for op in order)

    done: set[tuple[str, int, int]] = set()
    queues = [list(reversed(order)) for order in schedule.orders]
    moved = True
    while moved:
        moved = False
        for queue in queues:
            while queue and needs(problem, queue[-1]) <= done:
                kind, stage, microbatch, part = queue.pop()
                assert part == WHOLE
                names = {Kind.F: "F", Kind.B: "B", Kind.W: "W", Kind.BW: "BW"}[kind]
                done |= {(name, stage, microbatch) for name in names}
                moved = True
    assert not any(queues)


def needs(problem: Problem, op: Op) -> set[tuple[str, int, int]]:
    path = problem.path(op.microbatch)
    index = path.index(op.stage)
    if op.kind is Kind.F:
        return {("F", path[index - 1], op.microbatch)} if index else set()
    if op.kind is Kind.W:
        return {("B", op.stage, op.microbatch)}
    behind = {("B", path[index + 1], op.microbatch)} if index + 1 < len(path) else set()
    return {("F", op.stage, op.microbatch), *behind}


def peaks(name: str, ranks: int, microbatches: int, placement: str, chunks: int) -> tuple[int, ...]:
    """The most activations that each rank holds, in pieces of one stage; what is kept after B counts whole."""
    problem = make_problem(ranks, microbatches, placement=placement, chunks=chunks, activation=(1, 1))
    return peak_bytes(problem, TEMPLATES[name].construct(problem))


def test_names() -> None:
    assert tuple(methods(Template)) == tuple(ALL_TEMPLATES)
    assert {**TEMPLATES, **OVERLAPPING_TEMPLATES} == ALL_TEMPLATES
    assert all(name == template.name for name, template in TEMPLATES.items())
    assert set(PLACES) == set(TEMPLATES)


@given(st.sampled_from(CASES), st.integers(1, 9), st.integers(1, 26))
def test_valid_for_any_numbers(case: tuple[str, str, int], ranks: int, microbatches: int) -> None:
    name, placement, chunks = case
    problem = make_problem(ranks, microbatches, placement=placement, chunks=chunks)
    schedule = TEMPLATES[name].construct(problem)
    assert_runs_to_the_end(problem, schedule)
    assert not verify_schedule(problem, schedule)
    kinds = {op.kind for order in schedule.orders for op in order}
    assert kinds == {Kind.F, Kind.BW} or name in SPLITS
    assert kinds == {Kind.F, Kind.B, Kind.W} or not name.startswith("zb-")


@given(problems(), st.sampled_from(list(TEMPLATES)))
def test_runs_or_says_why_not(problem: Problem, name: str) -> None:
    problem = replace(problem, memory_limit_bytes=(None,) * problem.ranks)
    try:
        schedule = TEMPLATES[name].construct(problem)
    except Unsupported as error:
        assert name in str(error)
        assert "\n" not in str(error)
        shape_fits = any(problem.placement == placement for placement, _ in PLACES[name])
        split_lacks = name in SPLITS and not problem.split_backward
        assert split_lacks or not shape_fits or (name in ("zb-v", "dualpipe-v") and len(problem.stages) != 2 * problem.ranks)
    else:
        assert_runs_to_the_end(problem, schedule)
        assert not verify_schedule(problem, schedule)
        assert simulate(problem, schedule).makespan_ns > 0


@pytest.mark.parametrize(("name", "placement", "chunks"), CASES)
def test_position_counts_and_not_the_rank_number(name: str, placement: str, chunks: int) -> None:
    """Ranks renamed along the pipeline give the same schedule on the renamed ranks, whatever the placement is called."""
    ranks, rename = 4, (2, 0, 3, 1)
    problem = make_problem(ranks, 6, placement=placement, chunks=chunks)
    stages = tuple(replace(stage, rank=rename[stage.rank]) for stage in problem.stages)
    renamed = replace(problem, stages=stages, links=(), placement="explicit")
    before, after = TEMPLATES[name].construct(problem).orders, TEMPLATES[name].construct(renamed).orders
    assert all(after[rename[rank]] == before[rank] for rank in range(ranks))


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_needs_b_and_w_apart(name: str) -> None:
    placement, chunks = PLACES[name][0]
    problem = make_problem(3, 4, placement=placement, chunks=chunks, split_backward=False)
    with pytest.raises(Unsupported, match=rf"^{name} .*split_backward = true$"):
        TEMPLATES[name].construct(problem)


@pytest.mark.parametrize(
    ("name", "placement", "chunks", "message"),
    [
        ("zb-v", "loop", 2, "zb-v needs a wave placement with 2 chunks per rank; this job has a loop placement with 2 chunks"),
        ("zb-v", "wave", 3, "zb-v needs a wave placement with 2 chunks per rank; this job has a wave placement with 3 chunks"),
        ("1f1b", "wave", 2, "1f1b needs a unidirectional or a loop placement; this job has a wave placement with 2 chunks"),
        (
            "zb-h1",
            "loop",
            2,
            "zb-h1 needs a unidirectional placement (one stage per rank); this job has a loop placement with 2 chunks",
        ),
        (
            "interleaved",
            "unidirectional",
            1,
            "interleaved needs a loop placement with 2 or more chunks per rank; this job has a unidirectional placement",
        ),
        (
            "hanayo",
            "bidirectional",
            1,
            "hanayo needs a wave placement with 2 or more chunks per rank; this job has a bidirectional placement",
        ),
        ("chimera", "unidirectional", 1, "chimera needs a bidirectional placement; this job has a unidirectional placement"),
        (
            "1f1b",
            [0, 1, 2, 0],
            1,
            "1f1b needs a unidirectional or a loop placement;"
            " this job has a placement of 4 stages on 3 ranks that is neither a loop nor a wave",
        ),
    ],
)
def test_message(name: str, placement: str | list[int], chunks: int, message: str) -> None:
    with pytest.raises(Unsupported) as caught:
        TEMPLATES[name].construct(make_problem(3, 4, placement=placement, chunks=chunks))
    assert str(caught.value) == message


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_gpipe_holds_everything(placement: str) -> None:
    chunks = 2 if placement in ("loop", "wave") else 1
    assert peaks("gpipe", 4, 7, placement, chunks) == (7 * chunks,) * 4


@given(st.integers(1, 9), st.integers(1, 24))
def test_1f1b_holds_p_less_position(ranks: int, microbatches: int) -> None:
    expected = tuple(min(ranks - position, microbatches) for position in range(ranks))
    assert peaks("1f1b", ranks, microbatches, "unidirectional", 1) == expected


@given(st.integers(1, 8), st.integers(1, 5), st.integers(2, 4))
def test_interleaved_holds_megatrons_warm_up(ranks: int, groups: int, chunks: int) -> None:
    microbatches = groups * ranks
    warm_up = [(chunks - 1) * ranks + 2 * (ranks - 1 - position) for position in range(ranks)]
    expected = tuple(min(count + 1, microbatches * chunks) for count in warm_up)
    assert peaks("interleaved", ranks, microbatches, "loop", chunks) == expected
    assert peaks("1f1b", ranks, microbatches, "loop", chunks) == expected


@given(st.integers(2, 8), st.integers(1, 24), st.integers(2, 4))
def test_interleaved_keeps_megatrons_warm_up_under_a_limit(ranks: int, microbatches: int, chunks: int) -> None:
    limit = (chunks - 1) * ranks + 2 * (ranks - 1) + 1
    problem = make_problem(
        ranks, microbatches, placement="loop", chunks=chunks, activation=(1, 0), memory_limit_bytes=[limit] * ranks
    )
    schedule = TEMPLATES["interleaved"].construct(problem)
    assert_runs_to_the_end(problem, schedule)
    assert not verify_schedule(problem, schedule)


@given(st.integers(1, 9), st.integers(1, 24))
def test_zero_bubble_holds_p_and_2p_less_1(ranks: int, microbatches: int) -> None:
    assert peaks("zb-h1", ranks, microbatches, "unidirectional", 1) == (min(ranks, microbatches),) * ranks
    assert peaks("zb-h2", ranks, microbatches, "unidirectional", 1) == (min(2 * ranks - 1, microbatches),) * ranks


@given(st.integers(1, 9), st.integers(1, 30))
def test_waves_of_two_hold_2p_halves_and_dualpipe_v_one_more(ranks: int, microbatches: int) -> None:
    zb_v, dualpipe_v = (peaks(name, ranks, microbatches, "wave", 2) for name in ("zb-v", "dualpipe-v"))
    if microbatches >= 2 * ranks:
        assert zb_v == (2 * ranks,) * ranks
        assert dualpipe_v == (2 * ranks + 1,) * ranks
    assert max(zb_v) <= min(2 * ranks, 2 * microbatches)
    assert max(dualpipe_v) <= min(2 * ranks + 1, 2 * microbatches)


@given(st.integers(1, 7), st.integers(1, 20), st.integers(2, 5))
def test_hanayo_holds_p_activations_of_all_chunks(ranks: int, microbatches: int, chunks: int) -> None:
    held = max(peaks("hanayo", ranks, microbatches, "wave", chunks))
    assert held <= chunks * min(ranks, microbatches)
    if microbatches == ranks:
        assert held == chunks * ranks


@given(st.integers(1, 9), st.integers(1, 30))
def test_chimera_holds_p_activations(ranks: int, microbatches: int) -> None:
    """For p microbatches p/2 + 1 on the outermost ranks to p on the middle ones; a middle rank of an odd p has one more."""
    if ranks % 2 == 0:
        unit = peaks("chimera", ranks, ranks, "bidirectional", 1)
        assert unit == tuple(ranks // 2 + 1 + min(rank, ranks - 1 - rank) for rank in range(ranks))
    assert max(peaks("chimera", ranks, microbatches, "bidirectional", 1)) <= min(ranks + ranks % 2, microbatches)


def test_chimera_needs_opposite_directions() -> None:
    problem = make_problem(3, 4, placement="bidirectional")
    same = replace(problem, paths=((0, 1, 2), (5, 4, 3)))
    with pytest.raises(Unsupported, match="chimera needs a bidirectional placement; this job has 2 paths"):
        TEMPLATES["chimera"].construct(same)


@pytest.mark.parametrize("path_of", [(0,) * 7, (1,) * 7, (0, 0, 0, 1, 1, 1, 1), (1, 0, 1, 0, 0, 0, 1)])
def test_chimera_takes_paths_in_any_order(path_of: tuple[int, ...]) -> None:
    problem = replace(make_problem(4, 7, placement="bidirectional"), path_of=path_of)
    schedule = TEMPLATES["chimera"].construct(problem)
    assert_runs_to_the_end(problem, schedule)
    assert not verify_schedule(problem, schedule)
