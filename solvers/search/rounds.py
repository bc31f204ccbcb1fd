"""The loops of the local searches: climbs beside each other in threads, or one after another, in rounds, until limits end them."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from schedc.ir import Schedule
from schedc.solvers.common.interruption import wait_for
from schedc.solvers.kernel.climb import stop_flag
from schedc.solvers.kernel.tables import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from schedc.solvers.common.base import Climbing

Entry = TypeVar("Entry", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class Found:
    """The best schedule of a local search."""

    schedule: Schedule
    end_ns: int
    """Its objective by the kernel's clock, which serves shared trunks in the order of starts."""
    cut_short: bool
    """Whether the clock ended it."""
    ended_by: BaseException | None = None
    """The interruption that ended it, to be raised once the schedule is kept."""


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Climbs beside each other. A climber's `climb` takes a start, which becomes its best, and gives its value."""

    climbing: Climbing
    evaluations: int
    """Of each climb in each round."""
    heat: float
    """How much worse a climb may go on from at the beginning; it falls with the rounds."""
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
                    threads.submit(climber.climb, start, self.evaluations, first_seed + at, heat, stop)
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


def climb_in_turn(
    pool: list[Entry],
    climbing: Climbing,
    climbed: Callable[[Entry, int], Entry],
    *,
    again: int,
    begun: float,
    best_ns: int = NEVER,
    on_better: Callable[[Entry], None],
) -> bool:
    """Climb one after another, in rounds; returns whether the clock ended it.

    Args:
        pool: the starts, each with its value in front; changed.
        climbing: how many rounds, and when to end.
        climbed: an entry, climbed in the round of this number.
        again: this many of the best of a round start the next one, twice each.
        begun: when the time began to run, by `time.perf_counter`.
        best_ns: what is known.
        on_better: is called with each entry that is better than that and than all before it.
    """
    for number in range(climbing.rounds):
        for at, start in enumerate(pool):
            pool[at] = entry = climbed(start, number)
            if entry[0] < best_ns:
                best_ns = entry[0]
                on_better(entry)
            if best_ns <= climbing.good_enough_ns:
                return False
            if climbing.time_s is not None and time.perf_counter() - begun > climbing.time_s:
                return True
        pool[:] = sorted(pool, key=lambda each: each[0])[:again] * 2
    return False
