"""The pipelines of a data-parallel job as one process sees them: its *replicas*, the processes of the same rank in each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, is_own
from schedc.runtime.common.groups import Groups
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

__all__ = ["Pipelines", "await_replicas", "start_with_replicas"]

T = TypeVar("T")

LOST = "the connection is lost; a replica has ended or failed, and its own message says why"


def start_with_replicas(start: Callable[[], T], doing: str) -> T:
    """Start something with the other replicas.

    Raises:
        TransferFailed: one of them is lost.
    """
    try:
        return start()
    except RuntimeError as error:
        if is_own(error):
            raise
        raise TransferFailed(f"{doing}: {LOST}") from error


def await_replicas(work: dist.Work, doing: str, timeout_s: float | None) -> None:
    """Wait for what was started with them.

    Args:
        work: what was started.
        doing: for messages.
        timeout_s: how long; None: let only what the device computes next wait, under the limit of the job's own group.

    Raises:
        TransferFailed: one of them is lost, or too late.
    """
    try:
        if timeout_s is None:
            start_with_replicas(work.wait, doing)
        else:
            finish(work, timeout_s)
    except ConnectionLost as error:
        raise TransferFailed(f"{doing}: {LOST}") from error
    except NoAnswer as error:
        late = f"no answer in {timeout_s:g} s; a replica is stuck or slower than the timeout_s given to load"
        raise TransferFailed(f"{doing}: {late}") from error


class Pipelines(Groups):
    """Connections to the replicas, apart from those that the job has made. Its ranks are the pipelines, by number."""

    def __init__(self, timeout_s: float, group: dist.ProcessGroup) -> None:
        """Connect; all members of the group do this together.

        Args:
            timeout_s: how long to wait for them.
            group: the replicas of this process, in the order of their pipelines.

        Raises:
            InvalidInput: this process is not in the group.
            TransferFailed: another one does not come.
        """
        super().__init__(timeout_s, group, "data_parallel_group")
        self._given = group
        self._shared: torch.Tensor | None = None
        self._work: dist.Work | None = None

    def over(self, modules: Iterable[nn.Module]) -> tuple[dist.ProcessGroup, float | None]:
        """What sums the gradients of these modules, and how long to wait for it on this thread.

        Over gloo on the CPU; elsewhere the group given, which is for their device, and waits there.
        """
        elsewhere = any(weight.device.type != "cpu" for module in modules for weight in module.parameters())
        return (self._given, None) if elsewhere else (self.all, self.timeout_s)

    def share(self, loss: torch.Tensor, *, counts: bool) -> None:
        """Send a step's loss to the other pipelines, and whether the step counts for this one.

        Raises:
            TransferFailed: a replica is lost.
        """
        self._shared = shared = torch.zeros(self.size, 2, dtype=torch.float64)
        own = torch.stack([loss, torch.tensor(float(counts), dtype=torch.float64)]).reshape(1, 2)
        doing = f"pipeline {self.rank} sends its loss to the others"
        self._work = start_with_replicas(lambda: self.all._allgather_base(shared, own), doing)

    def mean(self) -> tuple[torch.Tensor, bool]:
        """The mean of the losses that all have shared, and whether the step counts for all; the same everywhere.

        Raises:
            TransferFailed: a replica is lost, or too late.
        """
        assert self._work is not None and self._shared is not None
        patience_s = 2 * self.timeout_s  # another pipeline may have to find out first that a channel has failed
        await_replicas(self._work, f"pipeline {self.rank} waits for the losses of the others", patience_s)
        losses, count = self._shared.unbind(1)
        return losses.mean(), bool(count.all())

    def total(self, value: torch.Tensor, *, largest: bool) -> torch.Tensor:
        """The sum, or the largest, of what all pipelines give, on the CPU; all do this together.

        Raises:
            TransferFailed: a replica is lost, or too late.
        """
        total, doing = value.clone(), f"pipeline {self.rank} waits for a number from the others"
        kind: Any = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        work = start_with_replicas(lambda: self.all.allreduce([total], kind), doing)
        await_replicas(work, doing, 2 * self.timeout_s)
        return total
