"""Which weights a process counts where all ranks add something up, so that each weight counts once; and the adding up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from schedc.errors import InvalidInput
from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed
from schedc.runtime.common.program import replicas_of
from schedc.runtime.training.ties import TiedSums
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from torch import nn

    from schedc.runtime.session.pipe import Pipe

__all__ = ["Owned", "over_ranks", "owned"]


class Owned:
    """The weights whose gradients a process has."""

    def __init__(self, weights: list[nn.Parameter], counted: list[nn.Parameter], *, sharded: bool) -> None:
        self.weights = weights
        """All of them: what its optimizer works on."""
        self.counted = counted
        """Those that no other rank of the pipeline counts."""
        self.sharded = sharded
        """Whether each process of a rank in several pipelines has others (ZeRO 1)."""


def owned(pipe: Pipe) -> Owned:
    """The weights of this process. Replicas in other pipelines have the same, and count them too, unless they are sharded."""
    try:
        shards = [shard.weight for shard in pipe.shards()]
    except InvalidInput:
        weights = list(dict.fromkeys(weight for module in pipe.stages.values() for weight in module.parameters()))
    else:
        return Owned(shards, shards, sharded=True)
    elsewhere = _in_replicas(pipe)
    if isinstance(pipe.hooks, TiedSums):
        elsewhere.update(pipe.hooks.counted_elsewhere)
    return Owned(weights, [weight for weight in weights if weight not in elsewhere], sharded=False)


def _in_replicas(pipe: Pipe) -> set[nn.Parameter]:
    """Weights that the rank with the first stage of a set of replicas counts; a weight of several sets belongs to the first."""
    problem = pipe.plan.problem
    seen: set[nn.Parameter] = set()
    elsewhere: set[nn.Parameter] = set()
    for members in replicas_of(problem):
        own = {weight for stage in members if stage in pipe.stages for weight in pipe.stages[stage].parameters()} - seen
        seen |= own
        first = members[0]
        elsewhere |= own - set(pipe.stages[first].parameters()) if first in pipe.stages else own
    return elsewhere


def over_ranks(pipe: Pipe, value: float, doing: str, *, sharded: bool, largest: bool = False) -> float:
    """The sum, or the largest, of a number that every rank of the pipeline gives; all ranks of all pipelines call it together.

    Args:
        pipe: of this rank.
        value: this rank's.
        doing: for messages: `sums the norms of gradients`.
        sharded: whether those of the other pipelines are added as well.
        largest: in place of the sum.

    Raises:
        TransferFailed: another rank has ended, or does not answer.
    """
    total = torch.tensor(value, dtype=torch.float64)
    kind: Any = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    groups = pipe.groups
    what = f"rank {groups.rank} {doing} with the others"
    try:
        finish(groups.all.allreduce([total], kind), groups.timeout_s)
    except ConnectionLost as error:
        raise TransferFailed(f"{what}: the connection is lost; one of them has ended or failed") from error
    except NoAnswer as error:
        raise TransferFailed(f"{what}: no answer in {groups.timeout_s:g} s; all ranks call it together") from error
    return (pipe.hooks.total(total, largest=largest) if sharded else total).item()
