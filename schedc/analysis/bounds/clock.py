"""The clock of bounds that take long: what is not computed when the time is up is left out.

A bound is the largest of what several machines say, or several frames: of fewer of them it is weaker, and as true.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Until: TypeAlias = "Callable[[], bool]"
"""Whether the time is up."""


class TimeUp(Exception):
    """The time is up before a machine's bound is known."""


class Clock:
    """The clock of bounds that have some seconds from now on; it remembers whether they were looked at after that."""

    def __init__(self, seconds: float) -> None:
        """It starts now."""
        self._end_s = time.perf_counter() + seconds
        self.has_cut = False
        """Whether a bound was left out, so that another run may know more."""

    @property
    def left_s(self) -> float:
        """How long it still runs; at least 0."""
        return max(0.0, self._end_s - time.perf_counter())

    def __call__(self) -> bool:
        """Whether the time is up."""
        self.has_cut = self.has_cut or time.perf_counter() >= self._end_s
        return self.has_cut


def never() -> bool:
    """The clock of bounds that have all the time they need."""
    return False


def check(until: Until) -> None:
    """Go on if there is time.

    Raises:
        TimeUp: there is none.
    """
    if until():
        raise TimeUp
