"""The losses of a step's microbatches, brought from the ranks that have a last stage to all ranks.

They are sent when the last one is known, long before the other ranks have ended their backwards, so that nobody waits for them.
With them go their part of the step's loss, what it is divided by and scaled with, and a *word*: a number that their rank sends to
all others with this step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from schedc.runtime.common.failure import NonFiniteLoss
from schedc.runtime.common.hooks import check_same_way
from schedc.runtime.transports.words import LOSSES, PeerWords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch.distributed as dist

BESIDES = 4
"""How many numbers go with a rank's losses: the two of its way, its part of the step's loss, the word."""


class Losses:
    """The losses of one step."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        rank: int,
        expected: Mapping[int, Sequence[int]],
        timeout_s: float,
        word: int | Callable[[], int] = 0,
        shares: Sequence[float] | None = None,
        way: Sequence[float] = (0.0, 0.0),
    ) -> None:
        """Post the receives.

        Args:
            group: of all ranks.
            rank: this one.
            expected: of each rank that computes losses, the microbatches, ascending.
            timeout_s: how long to wait.
            word: what this rank sends to the others, if it computes losses; or what gives it when they are sent.
            shares: each microbatch's in the loss of the step, if it computes losses; None: that is their mean.
            way: `Shares.way`, if it computes losses.

        Raises:
            TransferFailed: a connection is lost.
        """
        self._words = PeerWords(group, LOSSES)
        self._peers = [peer for peer in range(group.size()) if peer != rank]
        self._rank = rank
        self._expected = expected
        self._timeout_s = timeout_s
        self._own: dict[int, torch.Tensor] = {}
        self._word = word
        self._shares = shares
        self._way = way
        self._parts = {
            root: torch.zeros(len(expected[root]) + BESIDES, dtype=torch.float64, device="cpu") for root in sorted(expected)
        }
        self._copy: tuple[torch.Tensor, torch.Event] | None = None
        for root, part in self._parts.items():
            if root != rank:
                self._words.receive(part, root, f"rank {rank} waits for the loss from rank {root}")

    def add(self, microbatch: int, loss: torch.Tensor) -> None:
        """Take the loss of one microbatch; after the last of this rank's, bring them to all ranks."""
        self._own[microbatch] = loss.detach()
        if len(self._own) < len(self._expected[self._rank]):
            return
        found = torch.stack([self._own[number] for number in self._expected[self._rank]])
        self._own.clear()
        if found.device.type == "cpu":
            self._send(found)
        else:  # sent by `gather`: here the thread would wait until the device has computed them
            from schedc.runtime.transports.streams import copy_to_host

            self._copy = copy_to_host(found)

    def gather(self) -> torch.Tensor:
        """The losses of all microbatches in their order, float64, the same on all ranks.

        Raises:
            TransferFailed: some of them do not come.
        """
        if self._copy is not None:
            copy, event = self._copy
            event.synchronize()
            self._copy = None
            self._send(copy)
        self._words.hear(self._timeout_s)
        self._words.flush(self._timeout_s)
        losses = torch.zeros(sum(map(len, self._expected.values())), dtype=torch.float64, device="cpu")
        for root, part in self._parts.items():
            losses[list(self._expected[root])] = part[:-BESIDES]
        return losses

    def mean(self) -> torch.Tensor:
        """The loss of the step, a float64 scalar; known once `gather` has returned."""
        return torch.stack([part[-2] for part in self._parts.values()]).sum()

    def way(self) -> Sequence[float]:
        """What the ranks that compute losses divide and scale them by; known once `gather` has returned.

        Raises:
            InvalidInput: these are not the same on all of them.
        """
        ways = [part[-BESIDES:-2].tolist() for part in self._parts.values()]
        check_same_way(ways, "ranks that compute losses")
        return ways[0]

    def word(self, root: int) -> int:
        """What the rank `root`, which computes losses, has sent to all ranks; known once `gather` has returned."""
        return int(self._parts[root][-1])

    def _send(self, found: torch.Tensor) -> None:
        own = self._parts[self._rank]
        losses = own[:-BESIDES]
        losses.copy_(found)
        own[-BESIDES], own[-BESIDES + 1] = self._way
        if self._shares is None:
            own[-2] = losses.sum() / sum(map(len, self._expected.values()))
        else:
            own[-2] = sum(self._shares[number] * loss for number, loss in zip(self._expected[self._rank], losses, strict=True))
        own[-1] = self._word() if callable(self._word) else self._word
        for peer in self._peers:
            self._words.send(own, peer, f"rank {self._rank} sends the loss to rank {peer}")


def non_finite(losses: torch.Tensor, total: torch.Tensor, ending: Mapping[int, Sequence[int]], step: int) -> NonFiniteLoss:
    """What to raise for losses of which some are infinite or NaN, so that their mean is, too; it names the first.

    Args:
        losses: of all microbatches of this pipeline.
        total: their mean, or that of all pipelines.
        ending: of each rank that computes losses, the microbatches.
        step: the number of the step.
    """
    remedy = "zero the gradients, which hold this step's, before going on, or give load check_loss=False"
    finite = torch.isfinite(losses)
    if bool(finite.all()):
        return NonFiniteLoss(
            f"step {step}: the loss of another pipeline makes the mean over all pipelines {total.item()}; {remedy}"
        )
    wrong = [microbatch for microbatch, good in enumerate(finite.tolist()) if not good]
    (root,) = (rank for rank, microbatches in ending.items() if wrong[0] in microbatches)
    more = f" (and of {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return NonFiniteLoss(
        f"step {step}: the loss of microbatch {wrong[0]}{more}, computed on rank {root}, is {losses[wrong[0]].item()}; {remedy}"
    )
