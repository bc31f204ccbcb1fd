"""Whether a step or an evaluation begins: said by the ranks that have inputs, heard by all before they run anything of it.

A batch that does not fit is refused on all ranks, and the pipe stays open, where nothing has run: where all ranks with inputs, of
all pipelines, have refused it. A rank whose inputs fit begins at once. Those without inputs wait for these ranks' words when the
receives of their first op are posted: the words are there before what it works on, which has to be computed first. They go straight
from rank to rank, as those of `schedc.runtime.execution.agreement`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from schedc.errors import InvalidInput
from schedc.runtime.common.failure import BatchRefused, ConnectionLost, NoAnswer, TransferFailed, connection_lost, waiting_failed
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import torch.distributed as dist

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks

__all__ = ["REFUSED", "Beginning"]

TAG = 2
"""On the group of all ranks, where the losses have 0 and the agreement 1."""
REFUSED = "a refused batch"
"""What a rank with inputs that it refuses says to other pipelines that it is called for."""


class Beginning:
    """One rank's side of it."""

    def __init__(self, groups: Groups, starting: Collection[int], patience_s: float) -> None:
        """Take the pipeline's ranks, those of them that have inputs, and how long to wait for one."""
        self._groups = groups
        self._starting = frozenset(starting)
        self._patience_s = patience_s
        self._words: dict[int, torch.Tensor] = {}
        self._under_way: list[tuple[dist.Work, str, int]] = []
        self.starts = groups.rank in self._starting
        """Whether this rank has inputs."""

    def check(self, own: InvalidInput | None, hooks: ReplicaHooks, post: Callable[[], None] | None) -> BatchRefused | None:
        """What all ranks of all pipelines are to raise, as nothing has run; None: the call begins. All of them call it together.

        Args:
            own: why this rank refuses its part of the batch, as `hooks.begin_call` has told other pipelines; None: it fits.
            hooks: which know other pipelines.
            post: posts receives that are to be posted before this rank waits; None: there are none.

        Raises:
            InvalidInput: a rank refuses its part, and something may have run: the pipe is to be closed.
            TransferFailed: another rank has ended, or does not answer.
        """
        if self.starts and own is not None:
            self._check_all_pipelines(own, hooks)
        self._say(refused=own is not None)
        if self.starts and own is None:
            return None
        if post is not None:
            post()
        self._finish()
        refusing = {peer for peer, word in self._words.items() if bool(word)} | ({self._groups.rank} if self.starts else set())
        if refusing != self._starting:
            if own is not None:
                raise own
            if refusing:
                raise InvalidInput(f"rank {min(refusing)} refuses its inputs, and others do not; its own message says why")
            return None
        if not self.starts:
            hooks.all_called()
        lines = self._groups.exchange(str(own) if self.starts else None)
        return BatchRefused(next(filter(None, lines)))

    def _check_all_pipelines(self, own: InvalidInput, hooks: ReplicaHooks) -> None:
        """Raise this rank's refusal where other pipelines may run."""
        try:
            alike = hooks.all_called()
        except InvalidInput as error:
            raise own from error
        if not alike:
            raise own

    def _say(self, *, refused: bool) -> None:
        """Say whether this rank refuses its inputs, if it has any; and be ready for the words of the others."""
        self._finish()  # those of the call before, for which this rank has not waited
        group, rank = self._groups.all, self._groups.rank
        self._words = {peer: torch.zeros(1, dtype=torch.uint8, device="cpu") for peer in sorted(self._starting - {rank})}
        for peer, word in self._words.items():
            self._start(group.recv, word, peer, f"rank {rank} waits until rank {peer} begins")
        if self.starts:
            own = torch.tensor([refused], dtype=torch.uint8, device="cpu")
            for peer in range(self._groups.size):
                if peer != rank:
                    self._start(group.send, own, peer, f"rank {rank} says to rank {peer} that it begins")

    def _start(
        self, transfer: Callable[[list[torch.Tensor], int, int], dist.Work], tensor: torch.Tensor, peer: int, doing: str
    ) -> None:
        try:
            self._under_way.append((transfer([tensor], peer, TAG), doing, peer))
        except RuntimeError as error:
            raise TransferFailed(f"{doing}: {connection_lost(peer)}") from error

    def _finish(self) -> None:
        while self._under_way:
            work, doing, peer = self._under_way.pop(0)
            try:
                finish(work, self._patience_s)
            except (ConnectionLost, NoAnswer) as error:
                raise waiting_failed(doing, error, self._patience_s, peer) from error
