"""The list scheduler under any rule: valid, within memory, never stranded, its own clock equal to the simulator's."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.problems import make_problem, problems
from inputs.tiny_problems import tiny_problem

from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import WHOLE, Kind, token
from schedc.ir.problem import DataParallel, Problem
from schedc.ir.schedule import Parts
from schedc.solvers.kernel.list_scheduler import list_schedule
from schedc.solvers.kernel.scheduler_state import Rule
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.ops import Op


def plain_rule(
    stages: int, *, in_flight: int | None = None, warm_up: int = 0, weight_lag: int = 0, look_ahead_ns: int = 0, n_sub: int = 1
) -> Rule:
    """B before F before W on all stages."""
    return Rule(
        priority=((1, 0, 2),) * stages,
        in_flight=(in_flight,) * stages,
        warm_up=(warm_up,) * stages,
        weight_lag=(weight_lag,) * stages,
        look_ahead_ns=look_ahead_ns,
        n_sub=n_sub,
    )


def need_bytes(problem: Problem, rank: int) -> int:
    """What one microbatch holds on the rank, on the path where that is most."""
    stages = problem.stages
    return max(sum(stages[stage].activation_bytes for stage in path if stages[stage].rank == rank) for path in problem.paths)


@st.composite
def tight_problems(draw: st.DrawFn, *, min_duration_ns: int = 1) -> Problem:
    """Problems whose limits lie at or little above what one microbatch needs, on some ranks."""
    problem = draw(problems(max_microbatches=8, min_duration_ns=min_duration_ns))
    spare = [draw(st.one_of(st.none(), st.integers(0, 6))) for _ in range(problem.ranks)]
    limits = [None if more is None else need_bytes(problem, rank) + more for rank, more in enumerate(spare)]
    return replace(problem, memory_limit_bytes=tuple(limits))


@st.composite
def rules(draw: st.DrawFn, problem: Problem) -> Rule:
    """Any rule that fits the problem."""
    stages = len(problem.stages)

    def per_stage(values: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(values) for _ in range(stages))

    caps = st.one_of(st.none(), st.integers(1, 4))
    one_stage_each = stages == problem.ranks and len(problem.paths) == 1
    return Rule(
        priority=tuple(zip(*(per_stage(st.integers(0, 3)) for _ in range(3)), strict=True)),
        in_flight=tuple(draw(caps) for _ in range(stages)),
        warm_up=per_stage(st.integers(0, 10)) if one_stage_each else (0,) * stages,
        weight_lag=per_stage(st.integers(0, 4)),
        look_ahead_ns=draw(st.sampled_from([0, 1, 5, 20])),
        alternate=draw(st.booleans()),
        n_sub=draw(st.integers(1, 4)),
    )


@given(st.data())
def test_any_rule_gives_a_valid_schedule(data: st.DataObject) -> None:
    problem = data.draw(tight_problems(min_duration_ns=0))
    rule = data.draw(rules(problem))
    made = list_schedule(problem, rule)
    assert verify_schedule(problem, made.schedule) == ()
    assert made == list_schedule(problem, rule)
    for peak, limit in zip(peak_bytes(problem, made.schedule), problem.memory_limit_bytes, strict=True):
        assert limit is None or peak <= limit


@given(st.data())
def test_the_clock_is_the_simulators(data: st.DataObject) -> None:
    problem = data.draw(tight_problems())
    made = list_schedule(problem, data.draw(rules(problem)))
    timeline = simulate(problem, made.schedule)
    assert made.end_ns == timeline.makespan_ns
    assert made.span_ns == timeline.stage_span_ns


def test_the_clock_waits_for_all_gathers() -> None:
    problem = replace(
        make_problem(2, 3, placement="loop", chunks=2),
        data_parallel=DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(0,) * 4, all_gather_ns=(7, 50, 60, 4)),
    )
    made = list_schedule(problem, plain_rule(4))
    assert made.end_ns == simulate(problem, made.schedule).makespan_ns


def test_caps_hold() -> None:
    problem = make_problem(3, 6, links={(0, 1): (100, 0)})
    order = list_schedule(problem, plain_rule(3, in_flight=2)).schedule.orders[0]
    in_flight = peak = 0
    for op in order:
        in_flight += {Kind.F: 1, Kind.B: -1}.get(op.kind, 0)
        peak = max(peak, in_flight)
    assert peak == 2


def test_higher_priority_goes_first() -> None:
    """When both are ready, at 30 ns, F first lets the first rank end its F early; B first does not."""
    problem = make_problem(1, 2)
    assert tokens(list_schedule(problem, plain_rule(1)).schedule.orders[0]) == "F0.0 B0.0 F0.1 B0.1 W0.0 W0.1"
    forward_first = replace(plain_rule(1), priority=((0, 1, 2),))
    assert tokens(list_schedule(problem, forward_first).schedule.orders[0]) == "F0.0 F0.1 B0.0 B0.1 W0.0 W0.1"
    weight_first = replace(plain_rule(1), priority=((2, 1, 0),))
    assert tokens(list_schedule(problem, weight_first).schedule.orders[0]) == "F0.0 B0.0 W0.0 F0.1 B0.1 W0.1"


def test_alternate_runs_forward_after_backward() -> None:
    problem = make_problem(1, 3)
    rule = replace(plain_rule(1), warm_up=(2,), alternate=True)
    assert tokens(list_schedule(problem, rule).schedule.orders[0]).startswith("F0.0 F0.1 B0.0 F0.2 B0.1 B0.2")


def test_a_weight_is_cut_where_something_comes() -> None:
    """Rank 0 starts W0.0 (30 ns, six parts of 5) while B0.1 is on its way; B0.1 arrives 12 ns later, and goes at the next edge."""
    problem = make_problem(2, 2, costs_ns=[(10, 10, 30), (10, 11, 1)], links={(1, 0): (1, 0)})
    schedule = list_schedule(problem, plain_rule(2, n_sub=6)).schedule
    assert tokens(schedule.orders[0]) == "F0.0 F0.1 B0.0 W0.0/0 W0.0/1 W0.0/2 B0.1 W0.0/3 W0.0/4 W0.0/5 W0.1"
    assert schedule.parts == (Parts(kind=Kind.W, stage=0, shares=(1,) * 6),)
    whole = list_schedule(problem, plain_rule(2)).schedule
    assert tokens(whole.orders[0]) == "F0.0 F0.1 B0.0 W0.0 B0.1 W0.1"
    assert whole.parts == ()


def test_look_ahead_waits_for_what_is_on_its_way() -> None:
    problem = make_problem(2, 2, costs_ns=[(10, 10, 30), (10, 11, 1)], links={(1, 0): (11, 0)})
    assert "B0.0 W0.0 B0.1" in tokens(list_schedule(problem, plain_rule(2)).schedule.orders[0])
    assert "B0.0 B0.1 W0.0" in tokens(list_schedule(problem, plain_rule(2, look_ahead_ns=11)).schedule.orders[0])


def test_weight_lag_leaves_weights_waiting() -> None:
    """Without lag, W run in each gap between B; with a lag of 2 the first two stay until the B are done."""
    problem = make_problem(2, 4, links={(1, 0): (5, 30)})
    assert tokens(list_schedule(problem, plain_rule(2)).schedule.orders[0]).endswith("B0.0 W0.0 B0.1 W0.1 B0.2 W0.2 B0.3 W0.3")
    lagging = tokens(list_schedule(problem, plain_rule(2, weight_lag=2)).schedule.orders[0])
    assert lagging.endswith("B0.0 B0.1 B0.2 W0.0 B0.3 W0.1 W0.2 W0.3")


def test_room_is_kept_for_the_chunk_that_goes_first() -> None:
    """Two microbatches fill rank 0 with F of its first chunk; without a reserve no second chunk would fit."""
    problem = make_problem(
        2, 4, placement="loop", chunks=2, activation=(2, 0), memory_limit_bytes=[4, None], links={(0, 1): (50, 0)}
    )
    schedule = list_schedule(problem, plain_rule(4)).schedule
    assert verify_schedule(problem, schedule) == ()
    assert tokens(schedule.orders[0]).startswith("F0.0 F2.0")


def test_a_stage_on_two_paths() -> None:
    """Both paths share their middle stage."""
    base = make_problem(3, 6, placement=[0, 1, 2, 2, 0], in_flight=1.5, links={(0, 1): (3, 2), (2, 1): (9, 1)})
    problem = replace(
        base, paths=((0, 1, 2), (3, 1, 4)), path_of=(0, 1) * 3, links=make_problem(3, 6, placement="loop", chunks=2).links
    )
    problem = replace(problem, memory_limit_bytes=(6, 3, 6))
    made = list_schedule(problem, plain_rule(5))
    assert verify_schedule(problem, made.schedule) == ()
    assert made.end_ns == simulate(problem, made.schedule).makespan_ns


def test_the_least_limit_of_stages_that_recompute_is_enough() -> None:
    """Which is less than all inputs and the largest recomputation of a rank together; a byte less is refused."""
    tight = 0
    for seed in range(250):
        random = Random(seed)
        problem = tiny_problem(random, most_ops=40)
        least = minimum_limit_bytes(problem)
        if not any(stage.recompute for stage in problem.stages) or not all(least):
            continue
        again = [max(stage.recomputed_bytes for stage in problem.stages if stage.rank == rank) for rank in range(problem.ranks)]
        problem = replace(problem, memory_limit_bytes=tuple(size + random.choice((0, 0, 1, 2)) for size in least))
        needed = [need_bytes(problem, rank) + more for rank, more in enumerate(again)]
        tight += any(limit is not None and limit < need for limit, need in zip(problem.memory_limit_bytes, needed, strict=True))
        for n_sub in (1, 2):
            made = list_schedule(problem, plain_rule(len(problem.stages), n_sub=n_sub, weight_lag=random.randint(0, 2)))
            assert verify_schedule(problem, made.schedule) == ()
            assert made.end_ns == simulate(problem, made.schedule).makespan_ns
        with pytest.raises(Unsupported, match="one microbatch holds"):
            list_schedule(replace(problem, memory_limit_bytes=(least[0] - 1, *least[1:])), plain_rule(len(problem.stages)))
    assert tight > 10


def test_a_limit_below_one_microbatch_is_refused() -> None:
    problem = make_problem(2, 2, placement="wave", chunks=2, activation=(3, 1), memory_limit_bytes=[None, 5])
    with pytest.raises(Unsupported, match=r"rank 1: one microbatch holds 6 B of activations, more than the limit of 5 B"):
        list_schedule(problem, plain_rule(4))


@pytest.mark.parametrize("wrong", [{"n_sub": 0}, {"look_ahead_ns": -1}, {"in_flight": 0}])
def test_rules_that_could_never_run(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        plain_rule(2, **wrong)


def test_rules_that_do_not_fit_the_problem() -> None:
    with pytest.raises(ValueError, match="2 entries"):
        list_schedule(make_problem(2, 2), plain_rule(3))
    with pytest.raises(ValueError, match="one stage per rank"):
        list_schedule(make_problem(2, 2, placement="wave", chunks=2), plain_rule(4, warm_up=1))


def tokens(order: Sequence[Op]) -> str:
    """The order as in a plan file."""
    assert all(op.part == WHOLE or op.kind is Kind.W for op in order)
    return " ".join(map(token, order))
