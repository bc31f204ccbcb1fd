from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, strategies as st
from inputs.plans import one_f_one_b, plan_of, plans, small_plan
from inputs.problems import M70_NS, m70, make_problem

from schedc.analysis.simulation.simulate import simulate
from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.ir.ops import Kind, Op
from schedc.ir.plan import BoundName
from schedc.ir.problem import DataParallel, Objective
from schedc.ir.schedule import Collective
from schedc.verify.plan.channels import needs_of
from schedc.verify.plan.checks import verify_plan
from schedc.verify.plan.replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.ir.plan import Channel, Plan, RankPlan


def with_rank(plan: Plan, rank: int, **changes: Any) -> Plan:
    ranks = list(plan.ranks)
    ranks[rank] = replace(ranks[rank], **changes)
    return replace(plan, ranks=tuple(ranks))


def with_channel(plan: Plan, rank: int, which: str, **changes: Any) -> Plan:
    channels = tuple(replace(entry, **changes) if entry.name == which else entry for entry in plan.ranks[rank].channels)
    return with_rank(plan, rank, channels=channels)


def claims(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, certificate=replace(plan.certificate, **changes))


def channel(plan: Plan, rank: int, name: str) -> Channel:
    return next(entry for entry in plan.ranks[rank].channels if entry.name == name)


def swapped(items: Sequence[Op], a: int, b: int) -> tuple[Op, ...]:
    other = list(items)
    other[a], other[b] = other[b], other[a]
    return tuple(other)


def on_both_ends(plan: Plan, change: Callable[[tuple[Op, ...]], tuple[Op, ...]]) -> Plan:
    """The channel from rank 0 to rank 1 with other transfers; rank 1 posts as many receives."""
    transfers = change(channel(plan, 0, "send_next").transfers)
    posts = (*channel(plan, 1, "recv_prev").post_before, 7)[: len(transfers)]
    plan = with_channel(plan, 0, "send_next", transfers=transfers)
    return with_channel(plan, 1, "recv_prev", transfers=transfers, post_before=posts)


def without(rank: RankPlan, name: str) -> tuple[Channel, ...]:
    return tuple(entry for entry in rank.channels if entry.name != name)


SMALL = small_plan()
F = [Op(Kind.F, 0, microbatch) for microbatch in range(4)]


def order(plan: Plan, rank: int, a: int, b: int) -> Plan:
    return with_rank(plan, rank, compute=swapped(plan.ranks[rank].compute, a, b))


def _last_first(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Rank 1 with F1.3 before all others, though rank 0 makes F0.3 only after BW0.0."""
    return (ops[5], *ops[:5], *ops[6:])


CORRUPTIONS: dict[str, tuple[Callable[[Plan], Plan], str, str]] = {
    "a rank is missing": (lambda p: replace(p, ranks=p.ranks[:2]), "ranks", "ranks"),
    "ranks are out of order": (lambda p: replace(p, ranks=(p.ranks[1], p.ranks[0], p.ranks[2])), "ranks", "ranks[0].rank"),
    "a duplicate rank": (lambda p: replace(p, ranks=(p.ranks[0], p.ranks[1], p.ranks[1])), "ranks", "ranks[2].rank"),
    "the problem has no link": (
        lambda p: replace(p, problem=replace(p.problem, links=p.problem.links[1:])),
        "links-present",
        "links",
    ),
    "an op is missing": (lambda p: with_rank(p, 0, compute=p.ranks[0].compute[:-1]), "coverage", "ranks[0].compute"),
    "a duplicate op": (
        lambda p: with_rank(p, 0, compute=(*p.ranks[0].compute, p.ranks[0].compute[0])),
        "coverage",
        "ranks[0].compute[8]",
    ),
    "an op before what it needs": (lambda p: order(p, 2, 0, 1), "need-order", "ranks[2].compute[0]"),
    "the orders deadlock": (lambda p: with_rank(p, 1, compute=_last_first(p.ranks[1].compute)), "deadlock", "ranks[0].compute[3]"),
    "a channel has another role's name": (
        lambda p: with_channel(p, 0, "send_next", name="send_prev"),
        "channel-names",
        "ranks[0].channels[0].name",
    ),
    "a channel's name says its peer's number": (
        lambda p: with_channel(p, 0, "send_next", name="send_r1"),
        "channel-names",
        "ranks[0].channels[0].name",
    ),
    "a channel is with nobody": (
        lambda p: with_channel(p, 0, "send_next", peer=9),
        "channel-names",
        "ranks[0].channels[0].peer",
    ),
    "a channel is with its own rank": (
        lambda p: with_channel(p, 0, "send_next", peer=0),
        "channel-names",
        "ranks[0].channels[0].peer",
    ),
    "a duplicate channel": (
        lambda p: with_rank(p, 0, channels=(*p.ranks[0].channels, replace(p.ranks[0].channels[0], transfers=()))),
        "channel-names",
        "ranks[0].channels[2].name",
    ),
    "a sender's channel is missing": (
        lambda p: with_rank(p, 0, channels=without(p.ranks[0], "send_next")),
        "channel-pairs",
        "ranks[1].channels[recv_prev]",
    ),
    "a receiver's channel is missing": (
        lambda p: with_rank(p, 1, channels=without(p.ranks[1], "recv_prev")),
        "channel-pairs",
        "ranks[0].channels[send_next]",
    ),
    "two transfers are swapped at the sender": (
        lambda p: with_channel(p, 0, "send_next", transfers=swapped(F, 1, 2)),
        "channel-pairs",
        "ranks[1].channels[recv_prev].transfers[1]",
    ),
    "two transfers are swapped at the receiver": (
        lambda p: with_channel(p, 1, "recv_prev", transfers=swapped(F, 1, 2)),
        "rendezvous",
        "ranks[1].channels",
    ),
    "two transfers are swapped on both ends": (
        lambda p: on_both_ends(p, lambda ops: swapped(ops, 1, 2)),
        "transfer-order",
        "ranks[0].channels[send_next].transfers[2]",
    ),
    "a transfer is missing on both ends": (
        lambda p: on_both_ends(p, lambda ops: ops[:-1]),
        "transfers",
        "ranks[1].channels",
    ),
    "a transfer is missing at the receiver": (
        lambda p: with_channel(p, 1, "recv_prev", transfers=tuple(F[:3]), post_before=(0, 0, 1)),
        "transfers",
        "ranks[1].channels",
    ),
    "a duplicate transfer": (
        lambda p: on_both_ends(p, lambda ops: (*ops, ops[-1])),
        "transfers",
        "ranks[0].channels[send_next].transfers[4]",
    ),
    "a transfer that nobody needs": (
        lambda p: on_both_ends(p, lambda ops: (*ops, Op(Kind.BW, 0, 3))),
        "transfers",
        "ranks[1].channels[recv_prev].transfers[4]",
    ),
    "a transfer on another channel": (
        lambda p: on_both_ends(p, lambda ops: (*ops, Op(Kind.BW, 1, 3))),
        "transfers",
        "ranks[0].channels[send_next].transfers[4]",
    ),
    "a transfer is named by a part": (
        lambda p: on_both_ends(p, lambda ops: (*ops[:3], ops[3]._replace(part=1))),
        "transfers",
        "ranks[0].channels[send_next].transfers[3]",
    ),
    "a receive is not posted": (
        lambda p: with_channel(p, 1, "recv_prev", post_before=(0, 0, 1)),
        "post-before",
        "ranks[1].channels[recv_prev].post_before",
    ),
    "a receive is posted behind the end": (
        lambda p: with_channel(p, 1, "recv_prev", post_before=(0, 0, 1, 8)),
        "post-before",
        "ranks[1].channels[recv_prev].post_before[3]",
    ),
    "a receive is posted after its consumer": (
        lambda p: with_channel(p, 1, "recv_prev", post_before=(0, 2, 2, 5)),
        "post-before",
        "ranks[1].channels[recv_prev].post_before[1]",
    ),
    "receives are posted out of order": (
        lambda p: with_channel(p, 1, "recv_prev", post_before=(0, 1, 0, 5)),
        "post-before",
        "ranks[1].channels[recv_prev].post_before[2]",
    ),
    "a sending channel posts": (
        lambda p: with_channel(p, 0, "send_next", post_before=(0, 0, 0, 0)),
        "post-before",
        "ranks[0].channels[send_next].post_before",
    ),
    "a collective is missing": (
        lambda p: with_rank(p, 1, collectives=p.ranks[1].collectives[:1]),
        "collectives",
        "ranks[1].collectives",
    ),
    "collectives are out of order": (
        lambda p: with_rank(p, 1, collectives=p.ranks[1].collectives[::-1]),
        "collectives",
        "ranks[1].collectives",
    ),
    "a collective of another rank": (
        lambda p: with_rank(p, 1, collectives=(*p.ranks[1].collectives, Collective("RS", 2))),
        "collectives",
        "ranks[1].collectives",
    ),
    "a shorter makespan": (lambda p: claims(p, makespan_ns=p.certificate.makespan_ns - 1), "makespan", "certificate.makespan_ns"),
    "a longer makespan": (lambda p: claims(p, makespan_ns=p.certificate.makespan_ns + 1), "makespan", "certificate.makespan_ns"),
    "a receive is posted so late that it costs time": (
        lambda p: with_channel(p, 1, "recv_prev", post_before=(0, 1, 1, 5)),
        "makespan",
        "certificate.makespan_ns",
    ),
    "another stage span": (lambda p: claims(p, stage_span_ns=7), "stage-span", "certificate.stage_span_ns"),
    "fewer bubbles": (lambda p: claims(p, bubble_ratio=0.3), "bubble-ratio", "certificate.bubble_ratio"),
    "bubbles that are no number": (lambda p: claims(p, bubble_ratio=float("nan")), "bubble-ratio", "certificate.bubble_ratio"),
    "another peak": (lambda p: claims(p, peak_activation_bytes=(6, 5, 2)), "peak-memory", "certificate.peak_activation_bytes[1]"),
    "a peak is missing": (lambda p: claims(p, peak_activation_bytes=(6, 4)), "peak-memory", "certificate.peak_activation_bytes"),
    "another objective": (lambda p: claims(p, objective=Objective.STAGE_SPAN), "certificate-objective", "certificate.objective"),
    "a bound above the makespan": (lambda p: claims(p, lower_bound_ns=1000), "lower-bound", "certificate.lower_bound_ns"),
    "a negative bound": (lambda p: claims(p, lower_bound_ns=-1), "lower-bound", "certificate.lower_bound_ns"),
    "a smaller gap": (lambda p: claims(p, gap=0.25), "gap", "certificate.gap"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_corruption_is_caught_with_its_place(name: str) -> None:
    corrupt, rule, place = CORRUPTIONS[name]
    violations = verify_plan(corrupt(SMALL))
    assert (rule, place) in [(violation.rule, violation.place) for violation in violations]


@pytest.mark.parametrize(("rank", "channel"), [(0, "send_next"), (1, "recv_prev")])
def test_the_rank_without_a_channel_is_named(rank: int, channel: str) -> None:
    violations = verify_plan(with_rank(SMALL, rank, channels=without(SMALL.ranks[rank], channel)))
    messages = [violation.message for violation in violations if violation.rule == "channel-pairs"]
    assert messages == [f"rank {rank} has no channel for the other end of it"]


def test_a_valid_plan_has_no_violation() -> None:
    assert verify_plan(SMALL) == ()
    assert verify_plan(parse_plan(plan_json(SMALL), "x")) == ()


@given(plans())
def test_plans_are_valid_and_the_replay_equals_the_simulator(plan: Plan) -> None:
    assert_valid_and_replayed(plan)


@given(plans(min_duration_ns=0, max_time_ns=2))
def test_so_it_is_where_much_happens_at_one_nanosecond_and_some_ops_have_no_duration(plan: Plan) -> None:
    assert_valid_and_replayed(plan)


def assert_valid_and_replayed(plan: Plan) -> None:
    """Nothing is found, and the replay takes the times that the simulator says."""
    assert verify_plan(plan) == ()
    timeline = simulate(plan.problem, plan.schedule())
    replayed = replay(plan, needs_of(plan))
    assert replayed.makespan_ns == timeline.makespan_ns
    assert replayed.stage_span_ns == timeline.stage_span_ns
    assert replayed.busy_ns == timeline.busy_ns
    assert [list(ends) for ends in replayed.ends_ns] == [timeline.end_ns(rank) for rank in range(timeline.ranks)]


@pytest.mark.slow
@given(st.data(), plans())
def test_two_transfers_swapped_on_one_end_are_caught(data: st.DataObject, plan: Plan) -> None:
    long = [(rank.rank, entry) for rank in plan.ranks for entry in rank.channels if len(entry.transfers) > 1]
    assume(long)
    rank, entry = data.draw(st.sampled_from(long))
    at = data.draw(st.integers(0, len(entry.transfers) - 2))
    violations = verify_plan(with_channel(plan, rank, entry.name, transfers=swapped(entry.transfers, at, at + 1)))
    assert {"channel-pairs", "rendezvous"} <= {violation.rule for violation in violations}


@given(st.data(), plans())
def test_random_corruptions_are_caught(data: st.DataObject, plan: Plan) -> None:
    rank = data.draw(st.sampled_from(plan.ranks))
    ops = rank.compute
    at = data.draw(st.integers(0, len(ops) - 1))
    other: list[Plan] = [
        with_rank(plan, rank.rank, compute=ops[:at] + ops[at + 1 :]),
        with_rank(plan, rank.rank, compute=(*ops[:at], ops[at], *ops[at:])),
        with_rank(plan, rank.rank, collectives=(*rank.collectives, Collective("RS", 0))),
        claims(plan, makespan_ns=plan.certificate.makespan_ns - 1),
        claims(plan, stage_span_ns=plan.certificate.stage_span_ns + 1),
        claims(plan, gap=plan.certificate.gap + 0.01),
    ]
    for entry in rank.channels:
        index = data.draw(st.integers(0, len(entry.transfers) - 1))
        fewer = entry.transfers[:index] + entry.transfers[index + 1 :]
        posts = entry.post_before[1:]
        other.append(with_channel(plan, rank.rank, entry.name, transfers=fewer, post_before=posts))
        other.append(with_rank(plan, rank.rank, channels=without(rank, entry.name)))
        if entry.receives:
            late = (*entry.post_before[:-1], len(ops))
            other.append(with_channel(plan, rank.rank, entry.name, post_before=late))
    assert verify_plan(data.draw(st.sampled_from(other))) != ()


def test_bounds_that_are_computed_again() -> None:
    """The small plan claims 120 of 241 ns by `work`; it may claim less than is known."""
    for known_ns in (120, 121):
        assert verify_plan(SMALL, bounds={BoundName.WORK: known_ns, BoundName.PATH: 241}) == ()
    wrong = verify_plan(SMALL, bounds={BoundName.WORK: 119, BoundName.PATH: 50})
    assert [(entry.rule, entry.place) for entry in wrong] == [("bounds", "certificate.lower_bound_ns")]
    above = verify_plan(SMALL, bounds={BoundName.WORK: 120, BoundName.PATH: 242})
    assert [(entry.rule, entry.place) for entry in above] == [("bounds", "certificate")]
    missing = verify_plan(SMALL, bounds={BoundName.PATH: 242})
    assert [(entry.rule, entry.place) for entry in missing] == [("bounds", "certificate.bound"), ("bounds", "certificate")]
    logged = claims(SMALL, bound=BoundName.CPSAT, solver_log_sha256="0" * 64)
    assert verify_plan(logged, bounds={BoundName.PATH: 50}) == ()
    (without_log,) = verify_plan(claims(SMALL, bound=BoundName.CPSAT), bounds={BoundName.PATH: 50})
    assert (without_log.rule, without_log.place) == ("bound-source", "certificate.solver_log_sha256")


def test_a_late_receive_that_costs_nothing_is_valid() -> None:
    posts = channel(SMALL, 0, "recv_next").post_before
    assert posts == (3, 4, 6, 7)
    assert verify_plan(with_channel(SMALL, 0, "recv_next", post_before=(3, 4, 5, 6))) == ()


def test_the_replay_of_crosspipes_m70() -> None:
    """1F1B on 8 ranks without delay takes (16 + 7) × 105 ms (CrossPipe, Table 5; F + BW is 105 ms)."""
    problem = m70(0, 0)
    plan = plan_of(problem, one_f_one_b(problem))
    assert replay(plan, needs_of(plan)).makespan_ns == 23 * sum(M70_NS) == 2_415_000_000
    assert verify_plan(plan) == ()


def test_the_replay_queues_collectives_and_transfers_on_one_trunk() -> None:
    """AG0 and AG1 hold the trunk until 9; F0.0 is ready at 14 and sent till 17; RS0 follows the last BW."""
    problem = make_problem(2, 1, links={(0, 1): (1, 3), (1, 0): (0, 0)}, trunks={(0, 1): "sea"})
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(5, 6), all_gather_ns=(4, 5), trunk="sea")
    plan = plan_of(replace(problem, data_parallel=parallel), one_f_one_b(problem))
    replayed = replay(plan, needs_of(plan))
    assert replayed.ends_ns == ((14, 68), (28, 48))
    assert replayed.makespan_ns == 73
    assert verify_plan(plan) == ()


def test_the_replay_gathers_before_it_sends_at_the_start_of_the_step() -> None:
    """F0.0 takes no time, so its transfer and AG1 are ready at 0; AG1 has the trunk until 5, the transfer until 8."""
    problem = make_problem(2, 1, costs_ns=[(0, 1, 1), (1, 1, 1)], links={(0, 1): (1, 3), (1, 0): (0, 0)}, trunks={(0, 1): "sea"})
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(0, 0), all_gather_ns=(0, 5), trunk="sea")
    plan = plan_of(replace(problem, data_parallel=parallel), one_f_one_b(problem))
    assert replay(plan, needs_of(plan)).ends_ns == ((0, 14), (10, 12))
    assert verify_plan(plan) == ()


def test_the_replay_refuses_queues_that_deadlock() -> None:
    plan = with_channel(SMALL, 1, "recv_prev", post_before=(5, 5, 5, 5))
    with pytest.raises(ValueError, match="wait for each other"):
        replay(plan, needs_of(plan))
