"""Greedy sub-block scheduling: valid on any placement, at any limit that holds one microbatch, and as good as CrossPipe says."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.few_plans import W_IN_PARTS, made_by
from inputs.problems import M70_NS, MS, m70, make_problem, problems, with_fused_backward
from suite.example_counts import examples

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput, Unsupported
from schedc.ir.ops import WHOLE, Kind
from schedc.ir.problem import Objective
from schedc.lower.placement import place
from schedc.solvers.driver.registry import constructive
from schedc.solvers.heuristics.greedy import CHOOSING_BLOCKS, Greedy, choose_rule
from schedc.solvers.heuristics.greedy_rule import GreedyRule
from schedc.solvers.heuristics.warm_up_counts import in_flight_before_first_backward, round_trip_in_flight
from schedc.solvers.kernel.list_scheduler import list_schedule
from schedc.study.bench.pipelines import LinkTimes, pipeline
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

CROSSPIPE_UDSUB = [
    (2, 0, 0, 1, 0.137),
    (2, 0.25, 0.25, 1, 0.149),
    (2, 0.25, 2, 1, 0.181),
    (2, 2, 0.25, 1, 0.160),
    (2, 2, 2, 1, 0.198),
    (4, 2, 2, 1, 0.268),
    (2, 2, 2, 3, 0.145),
    (4, 2, 2, 3, 0.178),
]
"""Sites, latency and occupancy in units of F, case, and UDSub's seconds per microbatch (CrossPipe, tables 5 and 6)."""


BEST_PEER = [
    ("unidirectional", 4, 12, 0, 10, 460),
    ("unidirectional", 4, 12, 2, 20, 600),
    ("unidirectional", 8, 32, 6, 60, 2840),
    ("loop", 4, 12, 0, 20, 720),
    ("loop", 8, 32, 6, 30, 2590),
    ("wave", 4, 12, 0, 10, 440),
    ("wave", 4, 12, 2, 20, 595),
    ("wave", 8, 32, 6, 60, 3025),
]
"""Placement, ranks, microbatches, the slow link's first rank, its latency in ms, the best peer's makespan in ms; ops take 10."""


def m70_sites(sites: int, latency: float, occupancy: float, case: int) -> Problem:
    """CrossPipe's M70: case 1 has 16 microbatches and 1F1B's memory, case 3 twice both."""
    slow = (int(latency * M70_NS[0]), int(occupancy * M70_NS[0]))
    before = (3,) if sites == 2 else (1, 3, 5)
    links = {pair: slow for rank in before for pair in ((rank, rank + 1), (rank + 1, rank))}
    times = 2 if case == 3 else 1
    return make_problem(8, 16 * times, costs_ns=M70_NS, in_flight=8 * times, links=links)


@examples(60)
@given(problems(max_microbatches=8, min_duration_ns=0), st.integers(1, 5))
def test_any_problem_gets_a_valid_schedule(problem: Problem, n_sub: int) -> None:
    schedule = Greedy(n_sub=n_sub)(problem)
    assert verify_schedule(problem, schedule) == ()
    assert schedule == Greedy(n_sub=n_sub)(problem)
    for peak, limit in zip(peak_bytes(problem, schedule), problem.memory_limit_bytes, strict=True):
        assert limit is None or peak <= limit


@examples(40)
@given(problems())
def test_its_choice_is_no_worse_than_its_default(problem: Problem) -> None:
    _, chosen = choose_rule(problem, 2)
    assert chosen.end_ns == simulate(problem, chosen.schedule).makespan_ns
    assert chosen.end_ns <= list_schedule(problem, GreedyRule().rule(problem, 2)).end_ns


@pytest.mark.parametrize("placement", ["unidirectional", "loop", "wave", "bidirectional", [1, 0, 0, 2, 1]])
def test_memory_for_one_microbatch_is_enough(placement: str | list[int]) -> None:
    problem = make_problem(3, 5, placement=placement, chunks=2 if placement in ("loop", "wave") else 1, in_flight=1)
    assert verify_schedule(problem, Greedy()(problem)) == ()


def test_memory_below_one_microbatch_is_refused() -> None:
    problem = make_problem(3, 5, placement="wave", chunks=2, activation=(2, 1), memory_limit_bytes=[4, 3, 4])
    with pytest.raises(Unsupported, match="rank 1: one microbatch holds 4 B of activations, more than the limit of 3 B"):
        Greedy()(problem)


@pytest.mark.parametrize("n_sub", [1, 2, 4])
def test_without_delay_it_equals_zb_h1(n_sub: int) -> None:
    """CrossPipe 4.2.4; 2128 ms is ZB-H1's makespan, and proven optimal."""
    problem = m70(0, 0)
    assert simulate(problem, Greedy(n_sub=n_sub)(problem)).makespan_ns == 2128 * MS


@pytest.mark.parametrize(("sites", "latency", "occupancy", "case", "published"), CROSSPIPE_UDSUB)
def test_it_is_as_good_as_crosspipes(sites: int, latency: float, occupancy: float, case: int, published: float) -> None:
    problem = m70_sites(sites, latency, occupancy, case)
    per_microbatch_s = simulate(problem, Greedy()(problem)).makespan_ns / problem.microbatches / 1e9
    assert per_microbatch_s <= published


def test_with_a_slow_link_it_is_close_to_the_optimum() -> None:
    """2736 ms is proven optimal."""
    problem = m70(2, 2)
    assert 2736 * MS <= simulate(problem, Greedy()(problem)).makespan_ns <= 2750 * MS


def test_parts_fill_gaps() -> None:
    """Sub-blocks are what CrossPipe's greedy gains by: here cut blocks are found, listed once, and help."""
    problem = m70(2, 2)
    cut, whole = (Greedy(n_sub=n_sub, weights_first=0)(problem) for n_sub in (4, 1))
    used = {op.stage for order in cut.orders for op in order if op.part != WHOLE}
    assert used
    assert {(parts.kind, parts.stage, parts.shares) for parts in cut.parts} == {(Kind.W, stage, (1, 1, 1, 1)) for stage in used}
    assert whole.parts == ()
    assert simulate(problem, cut).makespan_ns < simulate(problem, whole).makespan_ns


def test_on_the_first_stages_weights_before_gradients_help_where_memory_is_full() -> None:
    """With memory for half of the microbatches, as on 64 ranks × 128 over a slow link; 4928 and 2736 ms are bounds."""
    slow = (2 * M70_NS[0], 2 * M70_NS[0])
    problem = make_problem(16, 32, costs_ns=M70_NS, in_flight=16, links={(7, 8): slow, (8, 7): slow})
    without, with_them = (simulate(problem, Greedy(n_sub=8, in_flight=0, weights_first=n)(problem)).makespan_ns for n in (0, 1))
    assert 4928 * MS <= with_them < without - 18 * MS
    assert simulate(m70(2, 2), Greedy(n_sub=8, weights_first=0)(m70(2, 2))).makespan_ns > 2736 * MS
    assert simulate(m70(2, 2), Greedy(n_sub=8)(m70(2, 2))).makespan_ns == 2736 * MS


def test_fused_backward_has_no_parts() -> None:
    problem = make_problem(3, 6, split_backward=False, in_flight=3)
    schedule = Greedy()(problem)
    assert schedule.parts == ()
    assert {op.kind for order in schedule.orders for op in order} == {Kind.F, Kind.BW}
    assert simulate(problem, schedule).makespan_ns == 240  # 1F1B's (m + p - 1)(F + B + W)


def test_stage_span_is_what_it_minimizes_where_asked() -> None:
    """Both choices end after 380 ns; of these, one has a rank that starts later."""
    problem = make_problem(2, 6, placement="wave", chunks=2, in_flight=3, links={(0, 1): (10, 0), (1, 0): (10, 0)})
    spans_ns = []
    for objective in Objective:
        _, chosen = choose_rule(replace(problem, objective=objective), 2)
        assert chosen.span_ns == simulate(problem, chosen.schedule).stage_span_ns
        spans_ns.append(chosen.span_ns)
    assert spans_ns[1] < spans_ns[0]


@pytest.mark.parametrize(("placement", "ranks", "microbatches", "link", "delay_ms", "best_peer_ms"), BEST_PEER)
def test_it_is_as_good_as_the_best_peer_where_a_link_is_slow(
    placement: str, ranks: int, microbatches: int, link: int, delay_ms: int, best_peer_ms: int
) -> None:
    """Memory as 1F1B; loop and wave have two chunks of half the cost."""
    chunks = 1 if placement == "unidirectional" else 2
    cost_ns = 10 * MS // chunks
    links = {(link, link + 1): (delay_ms * MS, 0), (link + 1, link): (delay_ms * MS, 0)}
    costs_ns = (cost_ns, cost_ns, cost_ns)
    problem = make_problem(ranks, microbatches, placement=placement, chunks=chunks, costs_ns=costs_ns, in_flight=ranks, links=links)
    assert simulate(problem, Greedy()(problem)).makespan_ns <= best_peer_ms * MS


def test_the_reserve_costs_no_more_than_it_must() -> None:
    """The room kept for the oldest microbatch shrinks as the oldest moves on: CrossPipe's wave takes 148 ms per microbatch here."""
    costs_ns = tuple(cost // 2 for cost in M70_NS)
    slow = (2 * M70_NS[0], M70_NS[0] // 4)
    problem = make_problem(
        8,
        16,
        placement="wave",
        chunks=2,
        costs_ns=(costs_ns[0], costs_ns[1], costs_ns[2]),
        in_flight=8,
        links={(3, 4): slow, (4, 3): slow},
    )
    assert simulate(problem, Greedy()(problem)).makespan_ns <= 16 * 149 * MS


def test_chunks_go_in_the_order_asked_for() -> None:
    """F of the later and B of the earlier stage first, or the other way round; either way B above F above W."""
    problem = make_problem(1, 3, placement=[0, 0])
    (early_f, early_b, early_w), (late_f, late_b, late_w) = GreedyRule().rule(problem, 1).priority
    assert early_w == late_w > early_f > late_f > late_b > early_b
    turned = GreedyRule(shallow_forward=True, deep_backward=True).rule(problem, 1)
    (early_f, early_b, early_w), (late_f, late_b, late_w) = turned.priority
    assert early_w == late_w > late_f > early_f > early_b > late_b


def test_a_large_problem_is_chosen_for_on_its_first_microbatches() -> None:
    microbatches = CHOOSING_BLOCKS // 6 + 10
    base = make_problem(2, microbatches, in_flight=2)
    varied = tuple(10 + microbatch % 3 for microbatch in range(microbatches))
    problem = replace(base, stages=tuple(replace(stage, forward_ns=varied) for stage in base.stages))
    schedule = Greedy(n_sub=1)(problem)
    assert verify_schedule(problem, schedule) == ()
    work_ns = sum(varied) + 20 * microbatches
    assert simulate(problem, schedule).makespan_ns < 1.01 * work_ns


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_sub", 0),
        ("n_sub", 1.5),
        ("n_sub", 257),
        ("in_flight", 10**30),
        ("weight_lag", "1e308"),
        ("look_ahead", "1e308"),
        ("in_flight", -1),
        ("in_flight", "all"),
        ("alternate", 2),
        ("weight_lag", -0.5),
        ("look_ahead", "long"),
        ("weights_first", -1),
        ("look_ahead", float("nan")),
        ("look_ahead", float("inf")),
    ],
)
def test_options_that_mean_nothing(name: str, value: float | str) -> None:
    with pytest.raises(InvalidInput, match=rf"method 'greedy{{{name}={value}}}': {name}: found .*, expected"):
        constructive(f"greedy{{{name}={value}}}")


def test_a_plain_run_imports_no_numpy() -> None:
    """It takes longer than all that greedy does on a small problem."""
    script = """
import sys
from inputs.problems import m70
from schedc.solvers.driver.registry import constructive
constructive("greedy")(m70(2, 2, microbatches=2))
assert "numpy" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=250)


def test_options_are_kept() -> None:
    problem = m70(0.25, 0.25)
    given_rule, _ = choose_rule(problem, 1, in_flight=None, alternate=True, weight_lag=2.0)
    assert (given_rule.in_flight, given_rule.alternate, given_rule.weight_lag) == (None, True, 2.0)
    text = "greedy{n_sub=1,in_flight=memory,alternate=true,weight_lag=2.0,look_ahead=0.25}"
    assert constructive(text)(problem) == Greedy(n_sub=1, in_flight="memory", alternate=True, weight_lag=2, look_ahead=0.25)(
        problem
    )


def test_round_trips_without_delay_are_1f1b() -> None:
    assert round_trip_in_flight(make_problem(4, 8), whole_period=False) == (4, 3, 2, 1)
    assert round_trip_in_flight(make_problem(4, 8, split_backward=False), whole_period=True) == (4, 3, 2, 1)
    assert round_trip_in_flight(make_problem(4, 8, placement="wave", chunks=2), whole_period=False) == (4, 4, 3, 3, 2, 2, 1, 1)


def test_round_trips_count_links_both_ways() -> None:
    """Rank 0: 2 stages of F + B = 20 and links of 7 + 4 and 5 + 4: 60 ns in periods of 20, or of 30 with W."""
    problem = make_problem(2, 8, links={(0, 1): (7, 4), (1, 0): (5, 4)})
    assert round_trip_in_flight(problem, whole_period=False) == (3, 1)
    assert round_trip_in_flight(problem, whole_period=True) == (2, 1)


def test_round_trips_share_ranks_between_paths() -> None:
    """Bidirectional: each path has half of the microbatches and half of every rank."""
    assert place("bidirectional", 4).paths == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert round_trip_in_flight(make_problem(4, 8, placement="bidirectional"), whole_period=False) == (2, 2, 1, 1, 2, 2, 1, 1)


def test_before_the_first_backward_a_stage_does_what_delays_nobody() -> None:
    """Without links ZB-H2's warm-up, 2 (p - i) - 1; rank 0's B waits 22 ns longer for the links, time for two F; never none."""
    assert in_flight_before_first_backward(make_problem(4, 8)) == (7, 5, 3, 1)
    problem = make_problem(2, 8, links={(0, 1): (9, 4), (1, 0): (5, 4)})
    assert in_flight_before_first_backward(problem) == (5, 1)
    assert in_flight_before_first_backward(make_problem(2, 8, placement="wave", chunks=2)) == (3, 2, 1, 1)


FUSED = ("first", "steady", "all")


@examples(60)
@given(
    problems(max_ranks=3, max_microbatches=5),
    st.sampled_from(("none", *FUSED)),
    st.sampled_from(("n_sub=1", "n_sub=4", "by_time=true")),
)
def test_with_fused_backwards_it_is_valid_too(problem: Problem, fused: str, more: str) -> None:
    problem = with_fused_backward(problem, 9)
    try:
        schedule = constructive(f"greedy{{fused={fused},{more}}}")(problem)
    except Unsupported:
        return
    assert not verify_schedule(problem, schedule)


def test_which_backwards_are_fused() -> None:
    problem = with_fused_backward(make_problem(3, 6, costs_ns=(10, 10, 10)), 9)
    fused = {
        which: {
            (op.stage, op.microbatch)
            for order in constructive(f"greedy{{fused={which}}}")(problem).orders
            for op in order
            if op.kind is Kind.BW
        }
        for which in ("none", *FUSED)
    }
    assert fused["none"] == set()
    assert fused["first"] == {(0, microbatch) for microbatch in range(6)}
    assert set() < fused["steady"] < fused["all"]
    assert fused["all"] == set(problem.blocks())
    rule = GreedyRule(fused="steady", split_ends=((0.0, 0.7), (1.0, 0.3))).rule(problem, 1)  # of 3 ranks
    assert rule.fused == ((True,) * 3 + (False,) * 3, (False,) + (True,) * 3 + (False,) * 2, (False,) * 2 + (True,) * 3 + (False,))


def test_fused_in_the_middle_a_long_loop_is_nearly_as_short_as_its_bound() -> None:
    """With room for 2 p: all split it is 6 % above the bound, all fused 3 %."""
    problem = with_fused_backward(pipeline("loop", 8, 64, (20, 20, 20), in_flight=16, placement="loop"), 9)
    bound_ns = best_bound(problem).value_ns
    texts = "n_sub=1", "fused=all,n_sub=1", "fused=steady,n_sub=1", "fused=steady,n_sub=1,alternate=true"
    split, fused, *middle = (simulate(problem, constructive(f"greedy{{{text}}}")(problem)).makespan_ns / bound_ns for text in texts)
    assert split > 1.05 and fused > 1.02
    assert max(middle) < 1.01


def test_by_time_a_long_loop_with_room_for_p_is_shorter() -> None:
    """In odd nanoseconds, with messages that take 0.5 ms; otherwise it is 5 % above the bound, fused in the middle, too."""
    costs_ns, links = (30_000_007, 29_621_013, 19_388_005), LinkTimes(511_003, 0)
    loop = pipeline("loop", 8, 64, costs_ns, in_flight=8, placement="loop", otherwise=links)
    problem = with_fused_backward(loop, 9)
    bound_ns = best_bound(problem).value_ns
    schedules = [constructive(f"greedy{{fused=steady,{text}}}")(problem) for text in ("n_sub=1", "by_time=true")]
    assert verify_schedule(problem, schedules[1]) == ()
    without, by_time = (simulate(problem, schedule).makespan_ns / bound_ns for schedule in schedules)
    assert without > 1.05 and by_time < 1.035, (without, by_time)


def test_by_time_one_microbatch_follows_the_other_a_period_apart() -> None:
    """F of stage 0, 1, 2 half of their trips of 60, 40, 20 before the turn, B all of them behind; a rank's F and BW take 29."""
    problem = with_fused_backward(make_problem(3, 6, costs_ns=(10, 10, 11)), 19)
    rule = GreedyRule(trip_shares=(0.5, 1.0)).rule(problem, 1)
    assert [(f, b) for f, b, _ in rule.priority] == [(-30, 60), (-20, 40), (-10, 20)]
    assert rule.priority_step == 10 + problem.stages[0].backward_ns[0]
    assert rule.foresight


def test_where_nothing_is_split_all_backwards_are_fused() -> None:
    problem = make_problem(3, 6, split_backward=False, in_flight=3)
    assert all(constructive(f"greedy{{fused={fused}}}")(problem) == Greedy()(problem) for fused in FUSED)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (2, 8), (4, 4), (4, 6), (4, 8)])
def test_plans_for_other_tests_cut_w(ranks: int, microbatches: int) -> None:
    """What the runtime is shown to run in parts has parts."""
    method, options = W_IN_PARTS
    assert any(op.part != WHOLE for rank in made_by(method, ranks, microbatches, **options).ranks for op in rank.compute)
