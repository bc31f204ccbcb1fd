"""The list scheduler's kernel: plain and compiled give the same, fused and split backwards mix, foresight never strands."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.fused_problems import with_fused
from inputs.problems import make_problem, problems
from suite.example_counts import examples

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import CheckFailed
from schedc.ir.ops import Kind, Op, token
from schedc.ir.problem import DataParallel
from schedc.ir.schedule import Schedule
from schedc.solvers.kernel.list_kernel import run_rule
from schedc.solvers.kernel.list_scheduler import list_schedule, list_schedule_of, run_compiled
from schedc.solvers.kernel.scheduler_state import Rule, scheduler_of, set_rule
from schedc.solvers.kernel.tables import NEVER, as_arrays
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@st.composite
def problems_and_rules(draw: st.DrawFn, *, foresight: bool | None = None, shared_trunks: bool = True) -> tuple[Problem, Rule]:
    """Any problem with little memory, microbatches that differ and collectives, and any rule for it."""
    problem = draw(problems(max_microbatches=6, shared_trunks=shared_trunks))
    count = len(problem.stages)

    def per_stage(values: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(values) for _ in range(count))

    if draw(st.booleans()):
        durations = st.integers(1, 12)
        varied = tuple(draw(durations) for _ in range(problem.microbatches))
        problem = replace(problem, stages=(replace(problem.stages[0], forward_ns=varied), *problem.stages[1:]))
    if draw(st.booleans()):
        trunk = draw(st.sampled_from([None, "east"])) if shared_trunks else None
        gathers = per_stage(st.integers(0, 20)) if draw(st.booleans()) else ()
        scatters = per_stage(st.integers(0, 30))
        parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=scatters, all_gather_ns=gathers, trunk=trunk)
        problem = replace(problem, data_parallel=parallel)
    foresight = draw(st.booleans()) if foresight is None else foresight
    fused = None
    if draw(st.booleans()):
        fused = tuple(tuple(draw(st.booleans()) for _ in range(problem.microbatches)) for _ in range(count))
    one_each = count == problem.ranks and len(problem.paths) == 1
    rule = Rule(
        priority=tuple(zip(*(per_stage(st.integers(0, 3)) for _ in range(3)), strict=True)),
        in_flight=tuple(draw(st.one_of(st.none(), st.integers(1, 4))) for _ in range(count)),
        warm_up=per_stage(st.integers(0, 6)) if one_each else (),
        weight_lag=per_stage(st.integers(0, 3)),
        fused=fused if problem.split_backward else None,
        look_ahead_ns=draw(st.sampled_from([0, 1, 5, 20])),
        foresight=foresight,
        alternate=draw(st.booleans()),
        priority_step=draw(st.sampled_from([0, 1, 3])),
        n_sub=1 if foresight else draw(st.integers(1, 4)),
    )
    return problem, rule


@examples(40)
@given(problems_and_rules())
def test_any_rule_gives_a_valid_schedule(drawn: tuple[Problem, Rule]) -> None:
    """It never strands itself: limits may hold no more than one microbatch."""
    problem, rule = drawn
    made = list_schedule(problem, rule)
    assert verify_schedule(problem, made.schedule) == ()
    for peak, limit in zip(peak_bytes(problem, made.schedule), problem.memory_limit_bytes, strict=True):
        assert limit is None or peak <= limit


@examples(40)
@given(problems_and_rules(foresight=False))
def test_its_clock_is_the_simulators(drawn: tuple[Problem, Rule]) -> None:
    """Collectives, shared trunks and microbatches that differ included."""
    problem, rule = drawn
    made = list_schedule(problem, rule)
    timeline = simulate(problem, made.schedule)
    assert (made.end_ns, made.span_ns) == (timeline.makespan_ns, timeline.stage_span_ns)


@examples(30)
@given(st.data())
def test_on_two_paths_all_gathers_are_in_the_order_of_first_use(data: st.DataObject) -> None:
    """As the simulator has them, whatever the places on the paths."""
    problem = data.draw(problems(placements=("bidirectional",), max_microbatches=4))
    problem = replace(problem, data_parallel=gathers(problem, data.draw(st.lists(st.integers(0, 20), min_size=8, max_size=8))))
    count = len(problem.stages)
    priority = data.draw(st.permutations(range(3)))
    lag, look_ahead_ns = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([0, 5]))
    rule = Rule(
        priority=((priority[0], priority[1], priority[2]),) * count,
        in_flight=(None,) * count,
        weight_lag=(lag,) * count,
        look_ahead_ns=look_ahead_ns,
    )
    made = list_schedule(problem, rule)
    timeline = simulate(problem, made.schedule)
    assert (made.end_ns, made.span_ns) == (timeline.makespan_ns, timeline.stage_span_ns)


def test_what_is_used_first_is_gathered_first() -> None:
    """Rank 1 is last on the first path, first on the second; only the second has a long all-gather, and the first does not wait."""
    problem = make_problem(2, 2, placement="bidirectional", costs_ns=(1, 1, 1), split_backward=False)
    problem = replace(problem, data_parallel=gathers(problem, [0, 0, 2, 0]))
    made = list_schedule(problem, Rule(priority=((0, 1, 2),) * 4, in_flight=(None,) * 4, weight_lag=(0,) * 4))
    assert token(made.schedule.orders[1][0]) == "F1.0"
    assert made.end_ns == simulate(problem, made.schedule).makespan_ns


def gathers(problem: Problem, all_gather_ns: list[int]) -> DataParallel:
    """All-gathers that take this long, of the first stages on."""
    count = len(problem.stages)
    return DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(0,) * count, all_gather_ns=tuple(all_gather_ns[:count]))


@examples(40)
@given(problems_and_rules(foresight=True, shared_trunks=False))
def test_with_foresight_its_clock_is_the_simulators_where_no_trunk_is_shared(drawn: tuple[Problem, Rule]) -> None:
    problem, rule = drawn
    made = list_schedule(problem, rule)
    timeline = simulate(problem, made.schedule)
    assert (made.end_ns, made.span_ns) == (timeline.makespan_ns, timeline.stage_span_ns)


@pytest.mark.slow
@examples(60)
@given(problems_and_rules())
def test_plain_and_compiled_are_the_same(drawn: tuple[Problem, Rule]) -> None:
    problem, rule = drawn
    scheduler = scheduler_of(problem, rule.n_sub)
    arrays = as_arrays(scheduler)
    set_rule(scheduler, problem, rule)
    from_arrays = run_compiled(scheduler, arrays)
    run_rule(*scheduler)
    assert (from_arrays.ranks, from_arrays.order, from_arrays.settings) == (scheduler.ranks, scheduler.order, scheduler.settings)


def test_each_backward_may_be_fused_or_split() -> None:
    problem = make_problem(1, 3)
    rule = Rule(priority=((1, 0, 2),), in_flight=(1,), weight_lag=(0,), fused=((True, False, True),))
    (order,) = list_schedule(problem, rule).schedule.orders
    assert " ".join(map(token, order)) == "F0.0 BW0.0 F0.1 B0.1 F0.2 BW0.2 W0.1"


def test_fused_and_split_backwards_are_as_good_as_the_best_order_of_them() -> None:
    """Two ranks, two microbatches: for each choice of BW or B and W, the best of a few rules is the best of all orders."""
    problem = make_problem(2, 2, costs_ns=[(3, 2, 4), (2, 3, 1)], links={(0, 1): (2, 1), (1, 0): (2, 1)})
    for choice in product((False, True), repeat=4):
        fused = (choice[:2], choice[2:])
        rules = [
            Rule(priority=(before, after), in_flight=(None, None), weight_lag=(lag, lag), fused=fused, look_ahead_ns=look_ns)
            for before, after in product([(0, 1, 2), (1, 0, 2), (2, 1, 0), (2, 0, 1)], repeat=2)
            for lag, look_ns in product((0, 2), (0, 20))
        ]
        ends_ns = []
        for rule in rules:
            made = list_schedule(problem, rule)
            kinds = {
                (op.stage, op.microbatch): op.kind for order in made.schedule.orders for op in order if op.kind in (Kind.B, Kind.BW)
            }
            assert all((kind is Kind.BW) == fused[stage][n] for (stage, n), kind in kinds.items())
            assert made.end_ns == simulate(problem, made.schedule).makespan_ns
            ends_ns.append(made.end_ns)
        assert min(ends_ns) == best_of_all_orders_ns(problem, fused)


def best_of_all_orders_ns(problem: Problem, fused: tuple[tuple[bool, ...], ...]) -> int:
    """The least makespan of all orders that keep the needs within each rank, by simulation; microbatch order for each kind."""
    made: list[list[tuple[Op, ...]]] = []
    for stage, choice in enumerate(fused):
        chains = [[Op(Kind.F, stage, n) for n in range(2)]]
        chains.append([Op(Kind.BW if choice[n] else Kind.B, stage, n) for n in range(2)])
        chains.append([Op(Kind.W, stage, n) for n in range(2) if not choice[n]])
        made.append([order for order in merged(chains) if keeps_needs(order)])
    ends_ns = []
    for orders in product(*made):
        try:
            ends_ns.append(simulate(problem, Schedule(orders=orders)).makespan_ns)
        except CheckFailed:
            continue  # the ranks wait for each other
    return min(ends_ns)


def merged(chains: list[list[Op]]) -> list[tuple[Op, ...]]:
    """All orders of the ops of the chains that keep each chain's own order."""
    if not any(chains):
        return [()]
    return [
        (chain[0], *rest)
        for at, chain in enumerate(chains)
        if chain
        for rest in merged([other[1:] if number == at else other for number, other in enumerate(chains)])
    ]


def keeps_needs(order: tuple[Op, ...]) -> bool:
    """Whether F comes before B or BW, and B before W."""
    place = {(op.kind is Kind.F, op.kind is Kind.W, op.microbatch): at for at, op in enumerate(order)}
    return all(place[True, False, n] < place[False, False, n] < place.get((False, True, n), len(order)) for n in range(2))


@pytest.mark.parametrize(
    ("patience_ns", "kinds"), [(-NEVER, "B B"), (NEVER, "BW BW"), (0, "B B"), (1, "B BW"), (4, "B BW"), (5, "BW BW")]
)
def test_patience_fuses_where_the_receiver_could_not_take_the_gradient_earlier(patience_ns: int, kinds: str) -> None:
    """Rank 1 takes 5 for BW, and rank 0 is free when the first begins. The second begins at 6, so that its BW would end at
    11: rank 0 runs BW until 10 if the first was split, and until 12 if it was fused.
    """
    problem = with_fused(make_problem(2, 2, costs_ns=(1, 3, 3)), 5)
    scheduler = scheduler_of(problem)
    rule = Rule(priority=((1, 0, 2),) * 2, in_flight=(None,) * 2, weight_lag=(0, 0), foresight=True)
    set_rule(scheduler, problem, rule)
    scheduler.settings[0].mixes = 1
    for block in scheduler.blocks:
        block.patience_ns = patience_ns
    run_rule(*scheduler)
    last = list_schedule_of(scheduler).schedule.orders[1]
    assert " ".join(op.kind.name for op in last if op.kind in (Kind.B, Kind.BW)) == kinds
