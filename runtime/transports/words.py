"""What the two ends of a wire tell each other beside the transfers: short words, in order, heard by a thread at once."""

from __future__ import annotations

import enum
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.runtime.common.failure import ConnectionLost
from schedc.runtime.transports.gloo import FOREVER_S, finish, hang_up

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch.distributed as dist

__all__ = ["Says", "Word", "Words"]

UNDER_WAY = 64
PATIENCE_S = 5.0
"""How long closing waits for the thread; it does not take long once its group is closed."""


class Says(enum.IntEnum):
    """What a word says."""

    READY = 0
    """This end has connected the first channel."""
    TAKEN = 1
    """The transfer of this tag and number has come and been handed over."""
    CHANGED = 2
    """This end uses the other channel from now on, for all that has not been taken."""
    SENT = 3
    """The transfer of this tag and number begins on the first channel: from now on it is the channel that is late."""


class Word(NamedTuple):
    """One word."""

    says: Says
    tag: int = 0
    before: int = 0
    """How many transfers with this tag went before."""


class Words:
    """One end of the line."""

    def __init__(self, group: dist.ProcessGroup, name: str) -> None:
        """Take a group of this rank and its peer that nothing else uses; `name` is the wire's."""
        self._group = group
        self._peer = 1 - group.rank()
        self._name = name
        self._thread: threading.Thread | None = None
        self._under_way: deque[dist.Work] = deque()
        """Words must be held until they are heard, and gloo does not tell when, but to who waits."""

    def listen(self, hear: Callable[[Word], None], lost: Callable[[Exception], None]) -> None:
        """From now on call `hear` for each word, and `lost` once the line is closed or `hear` has raised, in a thread."""
        self._thread = threading.Thread(target=self._listen, args=(hear, lost), name=f"schedc {self._name} words", daemon=True)
        self._thread.start()

    def say(self, word: Word) -> None:
        """Send a word, and do not wait. Not for two threads at once.

        Raises:
            ConnectionLost: the peer is gone.
        """
        try:
            self._under_way.append(self._group.send([torch.tensor(word)], self._peer, 0))
            if len(self._under_way) > UNDER_WAY:
                finish(self._under_way.popleft(), FOREVER_S)  # it was heard long ago
        except RuntimeError as error:
            raise ConnectionLost(str(error)) from error

    def close(self) -> None:
        """Close the line on both ends."""
        hang_up(self._group)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE_S)

    def _listen(self, hear: Callable[[Word], None], lost: Callable[[Exception], None]) -> None:
        heard = torch.empty(len(Word._fields), dtype=torch.int64)
        while True:
            try:
                finish(self._group.recv([heard], self._peer, 0), FOREVER_S)
            except RuntimeError as error:
                lost(error)
                return
            says, tag, before = heard.tolist()
            try:
                hear(Word(Says(says), tag, before))
            except Exception as error:  # for who waits, in whatever thread
                lost(error)
                return
