from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from inputs.plans import one_f_one_b, plan_of, plans, small_plan
from inputs.problems import make_problem

from schedc.analysis.simulation.simulate import simulate
from schedc.analysis.simulation.timeline import Transfer
from schedc.ir.ops import Kind, Op, token
from schedc.ir.problem import DataParallel
from schedc.ir.schedule import Schedule
from schedc.lower.plan import channel_role, post_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Channel, Plan


@pytest.mark.parametrize(
    ("rank", "peer", "ranks", "role"),
    [
        (0, 1, 2, "next"),
        (1, 0, 2, "prev"),
        (0, 1, 4, "next"),
        (1, 0, 4, "prev"),
        (3, 0, 4, "next"),
        (0, 3, 4, "prev"),
        (0, 2, 3, "prev"),
        (0, 2, 4, "r2"),
        (5, 0, 8, "r0"),
    ],
)
def test_roles_are_those_of_the_ring(rank: int, peer: int, ranks: int, role: str) -> None:
    assert channel_role(rank, peer, ranks) == role


def tokens(channel: Channel) -> str:
    return " ".join(map(token, channel.transfers))


def channels(plan: Plan, rank: int) -> dict[str, str]:
    return {channel.name: tokens(channel) for channel in plan.ranks[rank].channels}


def test_a_unidirectional_pipeline_has_the_four_channels_of_crosspipe() -> None:
    plan = small_plan()
    assert channels(plan, 0) == {"send_next": "F0.0 F0.1 F0.2 F0.3", "recv_next": "BW1.0 BW1.1 BW1.2 BW1.3"}
    assert list(channels(plan, 1)) == ["send_next", "recv_next", "send_prev", "recv_prev"]
    assert [channel.peer for channel in plan.ranks[1].channels] == [2, 2, 0, 0]


def backwards_last(placement: Sequence[int], ranks: int) -> Plan:
    """One microbatch through stages on the given ranks."""
    problem = make_problem(ranks, 1, placement=placement)
    count = len(placement)
    ops = [Op(Kind.F, stage, 0) for stage in range(count)] + [Op(Kind.BW, stage, 0) for stage in reversed(range(count))]
    orders = tuple(tuple(op for op in ops if placement[op.stage] == rank) for rank in range(ranks))
    return plan_of(problem, Schedule(orders=orders))


def test_two_ranks_that_loop_share_one_channel_for_each_direction() -> None:
    plan = backwards_last([0, 1, 0, 1], 2)
    assert channels(plan, 0) == {"send_next": "F0.0 F2.0 BW2.0", "recv_next": "F1.0 BW3.0 BW1.0"}
    assert channels(plan, 1) == {"send_prev": "F1.0 BW3.0 BW1.0", "recv_prev": "F0.0 F2.0 BW2.0"}


def test_free_placements_name_their_peers() -> None:
    plan = backwards_last([0, 2, 4, 1, 3], 5)
    assert channels(plan, 0) == {"send_r2": "F0.0", "recv_r2": "BW1.0"}
    assert channels(plan, 4) == {"send_r1": "F2.0", "recv_r1": "BW3.0", "send_r2": "BW2.0", "recv_r2": "F1.0"}


def test_both_ends_of_a_channel_share_their_list_and_only_receives_are_posted() -> None:
    plan = small_plan()
    by_name = {(rank.rank, channel.name): channel for rank in plan.ranks for channel in rank.channels}
    assert by_name[0, "send_next"].transfers == by_name[1, "recv_prev"].transfers
    assert by_name[0, "send_next"].post_before == ()
    assert len(by_name[1, "recv_prev"].post_before) == 4


def test_receives_are_posted_when_their_transfer_starts() -> None:
    """Rank 0 runs from 1 on, rank 1 from 21 on; F0.3 waits for the first microbatch to come back, which is at 100."""
    plan = small_plan()
    timeline = simulate(plan.problem, plan.schedule())
    starts = {transfer.op: transfer.start_ns for transfer in timeline.transfers}
    assert timeline.end_ns(1)[:2] == [31, 41]
    assert [starts[Op(Kind.F, 0, microbatch)] for microbatch in range(4)] == [11, 21, 31, 130]
    (receives,) = (channel for channel in plan.ranks[1].channels if channel.name == "recv_prev")
    ended = [sum(end <= starts[op] for end in timeline.end_ns(1)) for op in receives.transfers]
    assert receives.post_before == tuple(ended) == (0, 0, 1, 5)


def transfer(start_ns: int) -> Transfer:
    return Transfer(Op(Kind.F, 0, 0), 0, 1, start_ns, start_ns, start_ns, start_ns)


def test_ops_without_duration_do_not_hold_back_the_receive_that_they_wait_for() -> None:
    """The second and third op start and end at 5, when the transfer starts and arrives: one of them may be its consumer."""
    assert post_before([transfer(5)], [0, 5, 5], [5, 5, 5]) == (1,)
    assert post_before([transfer(0)], [0, 0], [0, 1]) == (0,)
    assert post_before([transfer(4), transfer(9)], [0, 5, 9], [5, 9, 12]) == (0, 2)


@given(plans(min_duration_ns=0))
def test_post_before_ascends_and_is_never_after_the_consumer(plan: Plan) -> None:
    for rank in plan.ranks:
        for channel in rank.channels:
            if channel.receives:
                assert list(channel.post_before) == sorted(channel.post_before)
                for op, post in zip(channel.transfers, channel.post_before, strict=True):
                    path = plan.problem.path(op.microbatch)
                    consumer = path[path.index(op.stage) + (1 if op.kind is Kind.F else -1)]
                    kinds = (Kind.F,) if op.kind is Kind.F else (Kind.B, Kind.BW)
                    needing = [
                        index
                        for index, other in enumerate(rank.compute)
                        if (other.stage, other.microbatch) == (consumer, op.microbatch) and other.kind in kinds
                    ]
                    assert post <= needing[0]


def test_collectives_gather_by_first_use_then_reduce_by_last() -> None:
    problem = make_problem(2, 2, placement="bidirectional")
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(1,) * 4, all_gather_ns=(1,) * 4)
    f, bw = Kind.F, Kind.BW
    orders = (
        (Op(f, 0, 0), Op(f, 3, 1), Op(bw, 3, 1), Op(bw, 0, 0)),
        (Op(f, 2, 1), Op(f, 1, 0), Op(bw, 1, 0), Op(bw, 2, 1)),
    )
    plan = plan_of(replace(problem, data_parallel=parallel), Schedule(orders=orders))
    assert [entry.token for entry in plan.ranks[0].collectives] == ["AG0", "AG3", "RS3", "RS0"]
    assert [entry.token for entry in plan.ranks[1].collectives] == ["AG2", "AG1", "RS1", "RS2"]
    zero_0 = plan_of(replace(problem, data_parallel=replace(parallel, all_gather_ns=())), Schedule(orders=orders))
    assert [entry.token for entry in zero_0.ranks[0].collectives] == ["RS3", "RS0"]


def test_a_plan_holds_its_schedule_and_what_it_was_given() -> None:
    plan = small_plan()
    assert plan.schedule() == one_f_one_b(plan.problem)
    assert plan.made_by.method == "test"
    assert plan.certificate.makespan_ns == simulate(plan.problem, plan.schedule()).makespan_ns
