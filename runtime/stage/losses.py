"""The losses of a step's microbatches, brought from the ranks that have a last stage to all ranks.

They are sent when the last one is known, long before the other ranks have ended their backwards, so that nobody waits for them.
With them go their part of the step's loss, what it is divided by and scaled with, and a *word*: a number that their rank sends to
all others with this step.

Backwards start from each microbatch's share of the mean (`Seeds`); `border` is for shares that half precision would round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import InvalidInput
from schedc.runtime.common.failure import NonFiniteLoss
from schedc.runtime.common.hooks import check_same_way
from schedc.runtime.transports.gloo import LOSSES, PeerWords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch.distributed as dist

BESIDES = 4
"""How many numbers go with a rank's losses: the two of its way, its part of the step's loss, the word."""


@dataclass(eq=False)
class Losses:
    """The losses of one step, whose receives are posted when it is made.

    Raises:
        TransferFailed: a connection is lost.
    """

    group: dist.ProcessGroup
    """Of all ranks."""
    expected: Mapping[int, Sequence[int]]
    """Of each rank that computes losses, the microbatches, ascending; one with several losses is there for each, for their sum."""
    timeout_s: float
    """How long to wait."""
    word: int | Callable[[], int] = 0
    """What this rank sends to the others, if it computes losses; or what gives it when they are sent."""
    shares: Sequence[float] | None = None
    """Each microbatch's in the loss of the step, if this rank computes losses; None: that is their mean."""
    own_way: Sequence[float] = (0.0, 0.0)
    """`Shares.way`, if this rank computes losses."""

    def __post_init__(self) -> None:
        """Post the receives."""
        self._rank = self.group.rank()
        self._words = PeerWords(self.group, LOSSES)
        self._own: list[tuple[int, torch.Tensor]] = []
        self._microbatches = len({microbatch for microbatches in self.expected.values() for microbatch in microbatches})
        self._copy: tuple[torch.Tensor, torch.Event] | None = None
        self._parts = {
            root: torch.zeros(len(microbatches) + BESIDES, dtype=torch.float64, device="cpu")
            for root, microbatches in sorted(self.expected.items())
        }
        for root, part in self._parts.items():
            if root != self._rank:
                self._words.receive(part, root, "rank {rank} waits for the loss from rank {peer}")

    def add(self, microbatch: int, loss: torch.Tensor) -> None:
        """Take the loss of one microbatch; after the last of this rank's, bring them to all ranks."""
        self._own.append((microbatch, loss.detach()))
        if len(self._own) < len(self.expected[self._rank]):
            return
        found = torch.stack([own for _, own in sorted(self._own, key=itemgetter(0))])
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
        self._words.finish(self.timeout_s)
        losses = torch.zeros(self._microbatches, dtype=torch.float64, device="cpu")
        for root, part in self._parts.items():
            losses.index_add_(0, torch.tensor(self.expected[root], device="cpu"), part[:-BESIDES])
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

    def word_of(self, root: int) -> int:
        """What the rank `root`, which computes losses, has sent to all ranks; known once `gather` has returned."""
        return int(self._parts[root][-1])

    def _send(self, found: torch.Tensor) -> None:
        own = self._parts[self._rank]
        losses = own[:-BESIDES]
        losses.copy_(found)
        own[-BESIDES], own[-BESIDES + 1] = self.own_way
        if self.shares is None:
            own[-2] = losses.sum() / self._microbatches
        else:
            own[-2] = sum(self.shares[number] * loss for number, loss in zip(self.expected[self._rank], losses, strict=True))
        own[-1] = self.word() if callable(self.word) else self.word
        for peer in {*range(self.group.size())} - {self._rank}:
            self._words.send(own, peer, "rank {rank} sends the loss to rank {peer}")


def non_finite(
    losses: torch.Tensor, total: torch.Tensor, ending: Mapping[int, Sequence[int]], step: str, remedy: str
) -> NonFiniteLoss:
    """What to raise for losses of which some are infinite or NaN, so that their mean is, too; it names the first.

    `total` is their mean, or that of all pipelines; `ending` has the microbatches of each rank that computes losses; `step` is as
    `step 3`.
    """
    finite = torch.isfinite(losses)
    if bool(finite.all()):
        return NonFiniteLoss(f"{step}: the loss of another pipeline makes the mean over all pipelines {total.item()}; {remedy}")
    wrong = [microbatch for microbatch, good in enumerate(finite.tolist()) if not good]
    root = " or ".join(str(rank) for rank, microbatches in ending.items() if wrong[0] in microbatches)
    more = f" (and of {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return NonFiniteLoss(
        f"{step}: the loss of microbatch {wrong[0]}{more}, computed on rank {root}, is {losses[wrong[0]].item()}; {remedy}"
    )


class Seeds:
    """The share of a microbatch, or of all of them."""

    def __init__(self, share: float, shown: str) -> None:
        """Take a loss's share of the step's, and what a message calls it."""
        mantissa, exponent = math.frexp(share)
        self._share, self._shown = share, shown
        self._power = 2.0 ** (exponent - (mantissa == 0.5))
        self._rest = share / self._power
        self._made: dict[tuple[torch.dtype, torch.device, float], torch.Tensor] = {}

    def loss(self, loss_fn: Callable[[Any, Any], torch.Tensor], output: Any, targets: Any) -> tuple[torch.Tensor, float]:
        """A microbatch's loss, and the gradient from which its backward starts.

        Raises:
            InvalidInput: the loss is no scalar.
            Unsupported: the share would be rounded, and the loss has weights of its own.
        """
        if self._rest != 1:
            from schedc.runtime.stage.border import Border

            border = Border()
            loss = scalar(loss_fn(border.around(output), targets))
            return loss, self._power if border.share(loss, self._shown, self._rest) else self._share
        return scalar(loss_fn(output, targets)), self._share

    def seed(self, loss: torch.Tensor, value: float) -> torch.Tensor:
        """This number as the gradient of a loss; the same tensor for all microbatches."""
        key = loss.dtype, loss.device, value
        if key not in self._made:
            self._made[key] = torch.full_like(loss, value, requires_grad=False)
        return self._made[key]


def scalar(loss: torch.Tensor) -> torch.Tensor:
    """The loss, if it is one.

    Raises:
        InvalidInput: the loss is no scalar.
    """
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        found = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InvalidInput(f"loss_fn must give a scalar tensor, the mean over its microbatch; found {found}")
    return loss
