"""Pipelines that move to another plan with the same step, as one process sees them.

Stages may have collectives of their own with the same stages of other pipelines: with tensor parallelism each pipeline holds a
slice of every layer, with expert parallelism some of the experts. Two such pipelines may not run different plans at once, whose
orders differ. So their handshake is one: all their processes offer. Those that look in each pipeline send each other what they see,
at the beginning of every step, and only what all of them see is said with the step's losses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from schedc.runtime.common.failure import with_others
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.same_way import check_same_way
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.distributed as dist
    from torch._C._distributed_c10d import Store


class SwapGroup(Groups):
    """Connections to this process's peers: the processes of the same rank in the other pipelines, in the order of the pipelines."""

    def __init__(self, timeout_s: float, group: dist.ProcessGroup) -> None:
        """Connect; all members of the group do this together.

        Args:
            timeout_s: how long to wait for them.
            group: this rank of each pipeline, in the order of the pipelines.

        Raises:
            InvalidInput: this process is not in the group.
            TransferFailed: another one does not come.
        """
        super().__init__(timeout_s, group, "swap_group")
        self.way: Sequence[float] = 0.0, 0.0
        """What this rank's losses of the next step are divided by and scaled with; those of the peers are the same."""

    def everybody(self, pipeline: Groups) -> tuple[Store, int, int]:
        """A store that all ranks of all pipelines see, which of them this is, and how many they are; all peers call it together.

        Raises:
            TransferFailed: a peer is lost.
        """
        first = self.exchange(pipeline.key)[0]  # the same for all ranks of the first pipeline, and so for all
        store = PrefixStore(f"{first}/swap_group", _get_default_store())
        return store, self.rank * pipeline.size + pipeline.rank, self.size * pipeline.size

    def all_see(self, seen: bool) -> bool:
        """Whether all peers see what this one sees; all call it together.

        Raises:
            InvalidInput: they weigh their losses in different ways.
            TransferFailed: a peer is lost, or too late.
        """
        own = torch.tensor([[float(seen), *self.way]], dtype=torch.float64, device="cpu")
        found = torch.zeros(self.size, own.numel(), dtype=torch.float64, device="cpu")
        doing = f"pipeline {self.rank} asks the others of its swap_group about the step"
        patience_s = 2 * self.timeout_s  # a peer may have to find out first that a channel has failed
        late = f"no answer in {patience_s:g} s; one is stuck or slower than the timeout_s given to load"
        with with_others(doing, "one of them has ended, and its own message says why", late):
            finish(self.all._allgather_base(found, own), patience_s)
        if (found[:, 1:] != own[:, 1:]).any():
            check_same_way(found[:, 1:].tolist(), "pipelines of a swap_group")
        return bool(found[:, 0].all())
