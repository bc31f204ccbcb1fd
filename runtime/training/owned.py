"""Which weights a process counts where all ranks add something up, so that each weight counts once; and the adding up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from schedc.runtime.common.failure import with_others
from schedc.runtime.common.hooks import shards_of
from schedc.runtime.common.program import replicas_of
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from schedc.runtime.session.pipe import Pipe


class Owned:
    """The weights whose gradients a process has."""

    def __init__(
        self, weights: list[nn.Parameter], counted: list[nn.Parameter], shards: Mapping[nn.Parameter, nn.Parameter] | None = None
    ) -> None:
        self.weights = weights
        """All of them: what its optimizer works on."""
        self.counted = counted
        """Those that no other rank of the pipeline counts."""
        self.sharded = shards is not None
        """Whether each process of a rank in several pipelines has others (ZeRO 1)."""
        self._shards = shards

    def of(self, whole: Iterable[nn.Parameter]) -> set[nn.Parameter]:
        """Those of some of the stages' weights, or their shards."""
        given = set(whole)
        return given if self._shards is None else {shard for shard, weight in self._shards.items() if weight in given}


def owned(pipe: Pipe) -> Owned:
    """The weights of this process. Replicas in other pipelines have the same, and count them too, unless they are sharded."""
    sharded = shards_of(pipe.hooks)
    if sharded is not None:
        shards = {one.weight: one.whole for one in sharded}
        return Owned([*shards], [*shards], shards)
    weights = list(dict.fromkeys(weight for module in pipe.modules.values() for weight in module.parameters()))
    elsewhere = _in_replicas(pipe)
    elsewhere.update(weight for tie in pipe.ties for weight in tie.counted_elsewhere)
    return Owned(weights, [weight for weight in weights if weight not in elsewhere])


def _in_replicas(pipe: Pipe) -> set[nn.Parameter]:
    """Weights that the rank with the first stage of a set of replicas counts; a weight of several sets belongs to the first."""
    problem = pipe.plan.problem
    seen: set[nn.Parameter] = set()
    elsewhere: set[nn.Parameter] = set()
    for members in replicas_of(problem):
        own = {weight for stage in members if stage in pipe.modules for weight in pipe.modules[stage].parameters()} - seen
        seen |= own
        first = members[0]
        elsewhere |= own - set(pipe.modules[first].parameters()) if first in pipe.modules else own
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
    total = torch.tensor(value, dtype=torch.float64, device="cpu")
    kind: Any = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    groups = pipe.groups
    late = f"no answer in {groups.timeout_s:g} s; all ranks call it together"
    with with_others(f"rank {groups.rank} {doing} with the others", "one of them has ended or failed", late):
        finish(groups.all.allreduce([total], kind), groups.timeout_s)
    return (pipe.hooks.total(total, largest=largest) if sharded else total).item()
