"""The pipelines of a data-parallel job as one process sees them: its *replicas*, the processes of the same rank in each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from schedc.errors import InvalidInput
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.hooks import check_same_way
from schedc.runtime.replicas.buckets import Partners

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

CALLS = (
    "step",
    "step with weights",
    "evaluation",
    "evaluation with weights",
    "gather",
    "loss",
    "sum",
    "largest number",
)
"""What pipelines do with each other, besides sums and gathers of tensors."""
WIDTH = 5
"""How many numbers each message has: if they are for different calls, they still meet. On another size gloo ends the process."""
LOST = "a replica has ended or failed, and its own message says why"


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
        self._partners = Partners(self.all, LOST, 2 * timeout_s)
        """With time for another pipeline, which may have to find out first that a channel has failed."""
        self._shared: tuple[torch.Tensor, dist.Work] | None = None
        self._begun: tuple[torch.Tensor, dist.Work] | None = None
        """What all pipelines have been called for, until it has been looked at."""

    def over(self, modules: Iterable[nn.Module]) -> Partners:
        """With whom the gradients of these modules are summed.

        Over gloo on the CPU; elsewhere the group given, which is for their device, and waits there.
        """
        elsewhere = any(weight.device.type != "cpu" for module in modules for weight in module.parameters())
        return Partners(self._given, LOST) if elsewhere else Partners(self.all, LOST, self.timeout_s)

    def begin(self, call: str, *, fits: bool) -> None:
        """Say to the other pipelines what this one is called for, one of `CALLS`, and whether its batch fits.

        Raises:
            TransferFailed: a replica is lost.
        """
        self._begun = self._say(call, (float(fits),))

    def check(self) -> bool:
        """Before anything else with the other pipelines: all are called for the same, or gloo would end the process.

        Returns:
            Whether all have said that their batch fits, where it was not known yet.

        Raises:
            InvalidInput: they are called for something else.
            TransferFailed: a replica is lost, or too late.
        """
        if self._begun is None:
            return True
        begun, self._begun = self._begun, None
        return bool(self._hear(begun, f"pipeline {self.rank} waits for what the others are called for")[:, 0].all())

    def share(self, loss: torch.Tensor, way: Sequence[float], *, counts: bool) -> None:
        """Send a step's loss to the other pipelines, its way (`Shares.way`), and whether the step counts for this one.

        Raises:
            InvalidInput: they are called for something else.
            TransferFailed: a replica is lost.
        """
        self.check()
        self._shared = self._say("loss", (loss.item(), float(counts), *way))

    def mean(self) -> tuple[torch.Tensor, bool]:
        """The mean of the losses that all have shared, and whether the step counts for all; the same everywhere.

        Raises:
            InvalidInput: the pipelines weigh their losses in different ways.
            TransferFailed: a replica is lost, or too late.
        """
        assert self._shared is not None
        losses, count, *_ = heard = self._hear(self._shared, f"pipeline {self.rank} waits for the losses of the others").unbind(1)
        if bool(count.all()):
            check_same_way(torch.stack(heard[2:], 1).tolist(), "pipelines")
        return losses.mean(), bool(count.all())

    def total(self, value: torch.Tensor, *, largest: bool) -> torch.Tensor:
        """The sum, or the largest, of what all pipelines give, on the CPU; all do this together.

        Raises:
            InvalidInput: they are called for something else.
            TransferFailed: a replica is lost, or too late.
        """
        self.check()
        said = self._say("largest number" if largest else "sum", (value.item(),))
        given = self._hear(said, f"pipeline {self.rank} waits for a number from the others")[:, 0]
        return given.max() if largest else given.sum()

    def _say(self, call: str, numbers: Sequence[float]) -> tuple[torch.Tensor, dist.Work]:
        """Start to send the others what this pipeline does, and numbers; what comes of all, and how to wait for it."""
        heard = torch.zeros(self.size, WIDTH, dtype=torch.float64, device="cpu")
        own = [float(CALLS.index(call)), *numbers]
        said = torch.tensor([[*own, *(0.0,) * (WIDTH - len(own))]], dtype=torch.float64, device="cpu")
        doing = f"pipeline {self.rank} tells the others of its {call}"
        return heard, self._partners.start(lambda: self.all._allgather_base(heard, said), doing)

    def _hear(self, said: tuple[torch.Tensor, dist.Work], doing: str) -> torch.Tensor:
        """The numbers of all pipelines, which do the same."""
        heard, work = said
        self._partners.wait(work, doing)
        calls = [CALLS[int(number)] for number in heard[:, 0].tolist()]
        other = next((at for at, call in enumerate(calls) if call != calls[0]), None)
        if other is not None:
            raise InvalidInput(
                f"pipelines 0 and {other} are called for {calls[0]} and {calls[other]}; call all of them for the same"
            )
        return heard[:, 1:]
