"""An evaluation: the forward ops of a plan alone, over the connections of a pipe, between two of its steps."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from schedc.ir.ops import Kind
from schedc.ir.plan import Plan, RankPlan
from schedc.runtime.common.hooks import check_same_way
from schedc.runtime.common.program import program_of
from schedc.runtime.execution.runner import Compute, Executor

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.execution.wiring import Wiring
    from schedc.runtime.stage.losses import Losses


def evaluate(
    plan: Plan,
    rank: int,
    wiring: Wiring,
    hooks: ReplicaHooks,
    losses_for: Callable[[], Losses],
    compute_for: Callable[[Losses], Compute],
    until_it_counts: Callable[[Callable[[], tuple[torch.Tensor, bool]]], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run it; all ranks of all pipelines do this together.

    The wires of the forward ops are laid over the connections, and afterwards those of the plan again. What is known of the
    boundaries is kept for the steps: without a graph their tensors are others, and an evaluation's batch may have another size.

    Args:
        plan: the plan of the steps.
        rank: this one.
        wiring: over which the plan's wires are laid.
        hooks: of this pipeline and the others.
        losses_for: gives what takes the losses.
        compute_for: gives what computes, for that.
        until_it_counts: runs it, again where a channel fails that another can take over from; gives the loss of this pipeline.

    Returns:
        The loss, and the microbatches' losses.

    Raises:
        SchedcError: as `Pipe.evaluate`.
    """
    hooks.gather()
    known = wiring.boundaries
    forward = forward_only(plan)
    wiring.move(forward)
    found = torch.empty(0)
    divisor = math.nan

    def attempt() -> tuple[torch.Tensor, bool]:
        """The loss of this pipeline, and whether the evaluation counts for it."""
        nonlocal found, divisor
        losses = losses_for()
        Executor(program=program_of(forward, rank), wiring=wiring, compute=compute_for(losses)).run()
        here = wiring.finish()
        found, (divisor, _) = losses.gather(), losses.way()
        return losses.mean(), here

    mean = until_it_counts(attempt)
    wiring.move(plan, known)
    count = hooks.pipelines
    common = hooks.total(torch.tensor(divisor, dtype=torch.float64, device="cpu")).item() / count
    if not math.isclose(common, divisor, rel_tol=1e-9):
        check_same_way([(divisor, 1.0), (common, 1.0)], "pipelines, in the mean,")
    return hooks.total(mean) / count, found


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
        if kept:
            channels.append(replace(channel, transfers=tuple(channel.transfers[at] for at in kept), post_before=tuple(posts)))
    return RankPlan(rank=rank.rank, compute=tuple(op for op in rank.compute if op.kind is Kind.F), channels=tuple(channels))
