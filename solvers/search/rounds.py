"""The loop of the local searches: climbs beside each other in threads, in rounds, until limits end them."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from schedc.ir import Schedule
from schedc.solvers.common.interruption import wait_for
from schedc.solvers.kernel.climb import stop_flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from schedc.solvers.common.base import Climbing


@dataclass(frozen=True, slots=True)
class Found:
    """The best schedule of a local search."""

    schedule: Schedule
    end_ns: float
    """Its objective by the kernel's clock, with shared trunks in the order of starts; of samples, their mean or percentile."""
    cut_short: bool
    """Whether the clock ended it."""
    ended_by: BaseException | None = None
    """The interruption that ended it, to be raised once the schedule is kept; None of a search over samples, which raises none."""
    paid: Mapping[str, int] = field(default_factory=dict)
    """By name of a move: how often a rule that it had a part in was better than all before it in its climb."""
    starts_ns: tuple[float, ...] = ()
    """As `end_ns`, of the schedules that a search over samples began with, in their order."""


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Climbs beside each other. A climber's `climb` takes a start, which becomes its best, and gives its value."""

    climbing: Climbing
    evaluations: int
    """Of each climb in each round."""
    heat: float
    """How much worse a climb may go on from at the beginning; it falls with the rounds."""
    more: tuple[Any, ...] = ()
    """What else a climb is called with."""
    cools_first: bool = False
    """Whether it falls before the first round, so that the last is cold."""
    wait: Callable[[Sequence[Future[Any]], Callable[[], None]], BaseException | None] = wait_for
    """Waits for the climbs of a round; gives what ended them early."""
    cut_short: bool = False
    """Whether the clock ended it between two rounds."""
    ended_by: BaseException | None = None

    def run(self, climbers: list[Any], pool: list[Any]) -> Iterator[list[Any]]:
        """The values that the climbs of each round reach, from the starts in the pool at its beginning."""
        begun, rounds = time.perf_counter(), self.climbing.rounds
        with ThreadPoolExecutor(2) as threads, stop_flag() as stop:
            for number in range(rounds):
                heat = self.heat * (1 - (number + self.cools_first) / rounds)
                first_seed = self.climbing.seed * 7919 + number * len(pool)
                jobs = [
                    threads.submit(climber.climb, start, self.evaluations, first_seed + at, heat, stop, *self.more)
                    for at, (climber, start) in enumerate(zip(climbers, pool, strict=True))
                ]
                self.ended_by = self.wait(jobs, partial(stop.fill, True))
                values = [job.result() for job in jobs]
                yield values
                if self.ended_by is not None or min(values) <= self.climbing.good_enough_ns:
                    return
                time_s = self.climbing.time_s
                if time_s is not None and time.perf_counter() - begun > time_s and number + 1 < rounds:
                    self.cut_short = True
                    return
