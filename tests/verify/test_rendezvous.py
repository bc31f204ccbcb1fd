from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st
from inputs.plans import one_f_one_b, plan_of, plans, small_plan
from inputs.problems import make_problem

from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Schedule
from schedc.verify.plan import rendezvous
from schedc.verify.plan.channels import needs_of
from schedc.verify.plan.rendezvous import RENDEZVOUS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.ir.plan import Plan
    from schedc.verify.plan.channels import Need


def with_channel(plan: Plan, rank: int, name: str, **changes: Any) -> Plan:
    """The plan with other transfers or posts in one channel."""
    channels = tuple(replace(channel, **changes) if channel.name == name else channel for channel in plan.ranks[rank].channels)
    ranks = list(plan.ranks)
    ranks[rank] = replace(ranks[rank], channels=channels)
    return replace(plan, ranks=tuple(ranks))


def cycle(plan: Plan) -> str:
    """What the check says, without its introduction; empty if it finds nothing."""
    found = RENDEZVOUS.broken(plan, needs_of(plan))
    assert len(found) <= 1
    return found[0].message.split(": ", 1)[1] if found else ""


def runs_to_its_end(plan: Plan, needs: Mapping[Op, Need]) -> bool:
    """Executes the queues without times: whatever can proceed proceeds, until nothing can."""
    at = [0] * len(plan.ranks)
    sends, receives = (
        {channel_pair(rank.rank, channel.peer, channel.receives): list(channel.transfers) for rank, channel in ends}
        for ends in (
            [(rank, channel) for rank in plan.ranks for channel in rank.channels if not channel.receives],
            [(rank, channel) for rank in plan.ranks for channel in rank.channels if channel.receives],
        )
    )
    posts = {
        op: post
        for rank in plan.ranks
        for channel in rank.channels
        for op, post in zip(channel.transfers, channel.post_before, strict=False)
    }
    waits_for = {(need.destination, need.consumer): need.op for need in needs.values()}
    arrived: set[Op] = set()
    moved = True
    while moved:
        moved = False
        for rank in plan.ranks:
            while at[rank.rank] < len(rank.compute):
                need = waits_for.get((rank.rank, at[rank.rank]))
                if need is not None and need not in arrived:
                    break
                at[rank.rank] += 1
                moved = True
        for pair, queue in sends.items():
            while queue and receives[pair][0] == queue[0]:
                need_of = needs[queue[0]]
                if at[need_of.source] <= need_of.producer or at[need_of.destination] < posts[queue[0]]:
                    break
                receives[pair].pop(0)
                arrived.add(queue.pop(0))
                moved = True
    return all(done == len(rank.compute) for done, rank in zip(at, plan.ranks, strict=True))


def channel_pair(rank: int, peer: int, receives: bool) -> tuple[int, int]:
    return (peer, rank) if receives else (rank, peer)


def test_planed_plans_run() -> None:
    plan = small_plan()
    assert cycle(plan) == ""
    assert runs_to_its_end(plan, needs_of(plan))


def test_ends_that_disagree_wait_for_each_other() -> None:
    """Both ends hold a transfer that the other one has not come to: the shortest cycle there is."""
    plan = small_plan()
    f = [Op(Kind.F, 0, microbatch) for microbatch in range(4)]
    swapped = with_channel(plan, 1, "recv_prev", transfers=(f[0], f[2], f[1], f[3]))
    assert cycle(swapped) == "[F0.1 from rank 0 to 1] -> [F0.2 from rank 0 to 1] -> [F0.1 from rank 0 to 1]"
    assert not runs_to_its_end(swapped, needs_of(swapped))


def test_an_activation_behind_its_own_gradients_successor() -> None:
    """Rank 0 makes F0.1 only after BW0.0, which F0.0 must reach rank 1 for; F0.0 is behind F0.1 on both ends."""
    problem = make_problem(2, 2)
    f, bw = Kind.F, Kind.BW
    orders = ((Op(f, 0, 0), Op(bw, 0, 0), Op(f, 0, 1), Op(bw, 0, 1)), (Op(f, 1, 0), Op(bw, 1, 0), Op(f, 1, 1), Op(bw, 1, 1)))
    plan = plan_of(problem, Schedule(orders=orders))
    assert cycle(plan) == ""
    behind = (Op(f, 0, 1), Op(f, 0, 0))
    plan = with_channel(with_channel(plan, 0, "send_next", transfers=behind), 1, "recv_prev", transfers=behind, post_before=(0, 0))
    assert cycle(plan) == (
        "BW0.0 -> F0.1 -> [F0.1 from rank 0 to 1] -> [F0.0 from rank 0 to 1] -> F1.0 -> BW1.0 -> [BW1.0 from rank 1 to 0] -> BW0.0"
    )
    (violation,) = RENDEZVOUS.broken(plan, needs_of(plan))
    assert violation.place == "ranks[0].compute[1]"


def test_a_receive_posted_after_an_op_that_waits_for_a_later_transfer() -> None:
    """Each receive is posted before its own consumer, but F0.0 holds up F0.1, which rank 1 needs first."""
    problem = make_problem(2, 2)
    f, bw = Kind.F, Kind.BW
    orders = ((Op(f, 0, 0), Op(f, 0, 1), Op(bw, 0, 1), Op(bw, 0, 0)), (Op(f, 1, 1), Op(f, 1, 0), Op(bw, 1, 1), Op(bw, 1, 0)))
    plan = plan_of(problem, Schedule(orders=orders))
    late = with_channel(plan, 1, "recv_prev", post_before=(1, 0))
    assert cycle(late) == "F1.1 -> [F0.0 from rank 0 to 1] -> [F0.1 from rank 0 to 1] -> F1.1"
    assert not runs_to_its_end(late, needs_of(late))
    in_time = with_channel(plan, 1, "recv_prev", post_before=(0, 0))
    assert cycle(in_time) == ""
    assert runs_to_its_end(in_time, needs_of(in_time))


def test_a_receive_posted_after_its_consumer() -> None:
    plan = plan_of(make_problem(2, 3), one_f_one_b(make_problem(2, 3)))
    assert cycle(with_channel(plan, 1, "recv_prev", post_before=(0, 2, 4))) == ""
    late = with_channel(plan, 1, "recv_prev", post_before=(0, 2, 5))
    assert cycle(late) == "F1.2 -> [F0.2 from rank 0 to 1] -> F1.2"
    assert not runs_to_its_end(late, needs_of(late))


def test_a_post_beyond_the_queue_is_left_to_its_own_check() -> None:
    plan = small_plan()
    posts = next(channel.post_before for channel in plan.ranks[1].channels if channel.name == "recv_prev")
    beyond = len(plan.ranks[1].compute) + 1
    assert cycle(with_channel(plan, 1, "recv_prev", post_before=(*posts[:-1], beyond))) == ""
    assert cycle(with_channel(plan, 1, "recv_prev", post_before=(*posts[:-1], 10**12))) == ""


def test_a_circle_among_many_is_found_at_once() -> None:
    """Of 7,200 ops and transfers nearly all wait behind two transfers whose ends disagree."""
    problem = make_problem(4, 400)
    plan = plan_of(problem, one_f_one_b(problem))
    f = [Op(Kind.F, 1, microbatch) for microbatch in range(400)]
    swapped = with_channel(plan, 2, "recv_prev", transfers=(*f[:3], f[390], *f[4:390], f[3], *f[391:]))
    assert cycle(swapped) == "[F1.3 from rank 1 to 2] -> [F1.389 from rank 1 to 2] -> [F1.3 from rank 1 to 2]"


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 10**9])
@given(st.data(), plans())
def test_it_reports_exactly_the_plans_that_get_stuck(most: int, data: st.DataObject, plan: Plan) -> None:
    """Channels in any order on both ends together or on each alone, and receives posted anywhere; of all nodes or of heads."""
    pairs = [(rank.rank, channel) for rank in plan.ranks for channel in rank.channels if not channel.receives]
    for source, channel in pairs:
        destination = plan.ranks[channel.peer]
        name = next(other.name for other in destination.channels if other.receives and other.peer == source)
        sent = tuple(data.draw(st.one_of(st.just(channel.transfers), st.permutations(channel.transfers).map(tuple))))
        received = sent if data.draw(st.integers(0, 5)) else tuple(data.draw(st.permutations(sent)))
        plan = with_channel(plan, source, channel.name, transfers=sent)
        posts = st.tuples(*(st.integers(0, len(destination.compute) - 1) for _ in received))
        early = (0,) * len(received)
        plan = with_channel(plan, channel.peer, name, transfers=received, post_before=data.draw(st.one_of(st.just(early), posts)))
    needs = needs_of(plan)
    with patch.object(rendezvous, "_MOST_NODES", most):
        found = cycle(plan)
    assert bool(found) != runs_to_its_end(plan, needs)
    if found:
        steps = found.split(" -> ")
        assert steps[0] == steps[-1]
        assert len(set(steps)) == len(steps) - 1 >= 2
        assert any(re.match(r"\[", step) for step in steps)
