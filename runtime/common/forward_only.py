"""The forward ops of a plan alone, as a plan: what an evaluation runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from schedc.ir.ops import Kind
from schedc.ir.plan import Channel, Plan, RankPlan


def forward_only(plan: Plan) -> Plan:
    """The plan without its backwards, their transfers and its collectives; what remains is in the plan's order.

    It cannot deadlock if the plan cannot. Each of its waits is one of the plan's, or follows from several: an op waits for the F
    before it in the queue, as it does in the plan, by way of the backwards between them; so does a transfer for the one before it
    in its channel; a receive is posted when the last F before `post_before` has ended, and in the plan not before that either. So a
    cycle here would be a cycle of the plan's waits, of which the verifier has found none.

    Args:
        plan: a sound one.

    Returns:
        The same problem with these queues. Its certificate is the plan's, and says nothing of them.
    """
    return replace(plan, ranks=tuple(_forward(rank) for rank in plan.ranks))


def _forward(rank: RankPlan) -> RankPlan:
    kept_before = list(accumulate((op.kind is Kind.F for op in rank.compute), initial=0))
    channels = []
    for channel in rank.channels:
        kept = [at for at, op in enumerate(channel.transfers) if op.kind is Kind.F]
        posts = [kept_before[channel.post_before[at]] for at in kept] if channel.receives else []
        channels.append(replace(channel, transfers=tuple(channel.transfers[at] for at in kept), post_before=tuple(posts)))
    return RankPlan(
        rank=rank.rank, compute=tuple(op for op in rank.compute if op.kind is Kind.F), channels=_with_transfers(channels)
    )


def _with_transfers(channels: list[Channel]) -> tuple[Channel, ...]:
    return tuple(channel for channel in channels if channel.transfers)
